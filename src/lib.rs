//! Blocking clients for Apache Pulsar and Apache RocketMQ 5: plain OS threads, no async runtime.

pub mod error;

#[cfg(feature = "pulsar")]
pub mod pulsar;

#[cfg(feature = "testkit")]
pub mod testkit;

pub use error::{Delivery, Error, ErrorKind, Recovery, SendError};
