//! Blocking clients for Apache Pulsar and Apache RocketMQ 5: plain OS threads, no async runtime.

pub mod error;
mod policy;
mod runtime;

#[cfg(feature = "pulsar")]
pub mod pulsar;

pub use error::{Delivery, Error, ErrorKind, Recovery, SendError};
