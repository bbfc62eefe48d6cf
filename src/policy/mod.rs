//! Decisions that both systems share; pure: no clock, thread, socket, channel or lock.

pub(crate) mod backoff;
pub(crate) mod deadline;
pub(crate) mod now;
pub(crate) mod rng;
