//! THREAD `tmq-supervisor`: heartbeats, keep-alive, reconnection and backoff, operation deadlines, periodic duties.
//!
//! It blocks on its inbox until the next of them is due and then says so to the loop that asked (see
//! [`deadlines`](super::deadlines)). Apart from the sweeper so that a flood of send deadlines never delays a
//! heartbeat.

use std::io;

use super::deadlines::DeadlineThread;

pub(crate) fn start() -> io::Result<DeadlineThread> {
    DeadlineThread::start("supervisor")
}
