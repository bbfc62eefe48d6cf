//! What the client decides, free of clocks, threads and sockets.

pub(crate) mod retry;
