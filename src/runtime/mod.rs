//! The only home of threads, clocks and blocking.

#[cfg(feature = "bench")]
pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod permits;
