//! Blocking clients for Apache Pulsar and Apache RocketMQ 5: plain OS threads, no async runtime.

pub mod error;
mod policy;
mod runtime;

#[cfg(feature = "pulsar")]
pub mod pulsar;

pub use error::{Delivery, Error, ErrorKind, Recovery, SendError};

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod __bench {
    pub use crate::runtime::bench::{Sends, Taken};
}
