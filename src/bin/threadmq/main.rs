//! The `threadmq` command line tool.

fn main() {}
