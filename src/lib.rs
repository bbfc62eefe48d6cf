//! Blocking clients for Apache Pulsar and Apache RocketMQ 5: plain OS threads, no async runtime.

pub mod error;
mod pending;
mod policy;
mod runtime;
mod threads;

#[cfg(feature = "pulsar")]
pub mod pulsar;

pub use error::{Delivery, Error, ErrorKind, Recovery, SendError};
pub use pending::Pending;
pub use threads::{Threads, ThreadsBuilder};
