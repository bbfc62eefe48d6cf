//! Decisions that both systems share. Pure: no clock, thread, socket, channel or lock.

pub(crate) mod admission;
pub(crate) mod backoff;
pub(crate) mod budget;
pub(crate) mod deadline;
pub(crate) mod host;
pub(crate) mod keepalive;
pub(crate) mod limits;
pub(crate) mod now;
pub(crate) mod progress;
#[cfg(feature = "rocketmq")]
pub(crate) mod recovery;
#[cfg(feature = "rocketmq")]
pub(crate) mod renewal;
pub(crate) mod rng;
pub(crate) mod text;
