//! The only home of threads, clocks and blocking.

pub(crate) mod budget;
pub(crate) mod permits;
