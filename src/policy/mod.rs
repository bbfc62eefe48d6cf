//! Decisions that both systems share. Pure: no clock, thread, socket, channel or lock.

pub(crate) mod admission;
pub(crate) mod budget;
pub(crate) mod progress;
