//! Servers for tests of programs that use threadmq: everything runs inside the test's own process.

pub mod pulsar;
