//! THREAD `tmq-sweeper`: deadlines of sends and requests, a key for each lane or link, not for each message.
//!
//! It blocks on its inbox until the next key is due and then says so to the loop that asked (see
//! [`deadlines`](super::deadlines)). It never fails an operation: the loop decides with its own clock.

use std::io;

use super::deadlines::DeadlineThread;

pub(crate) fn start() -> io::Result<DeadlineThread> {
    DeadlineThread::start("sweeper")
}
