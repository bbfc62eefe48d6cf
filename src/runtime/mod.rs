//! The only home of threads, clocks and blocking.

#[cfg(feature = "bench")]
pub(crate) mod bench;
#[cfg(feature = "rocketmq")]
pub(crate) mod blocking;
pub(crate) mod budget;
pub(crate) mod callback;
pub(crate) mod clock;
pub(crate) mod deadlines;
pub(crate) mod inbox;
pub(crate) mod lookup;
#[cfg(feature = "rocketmq")]
pub(crate) mod nap;
pub(crate) mod permits;
pub(crate) mod supervisor;
pub(crate) mod sweeper;
pub(crate) mod sync;
pub(crate) mod thread;
