//! Blocking clients for Apache Pulsar and Apache RocketMQ 5: plain OS threads, no async runtime.
//!
//! `send` returns a `Result`; `send_with` calls a closure. Two guarantees are the point of it:
//!
//! - **Every send is answered exactly once, in time**, also while the link is down and being made anew.
//! - **A half-open link is found by evidence and replaced**, and ordinary failures never evict a healthy one.
//!
//! The [manual] says what that means, and what is not promised.
//!
//! ```
//! # #[cfg(feature = "testkit")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use threadmq::pulsar::{Client, InitialPosition};
//!
//! # let broker = threadmq::testkit::pulsar::Broker::start()?;
//! # let url = broker.service_url();
//! let client = Client::builder(url).build()?; // "pulsar://localhost:6650"
//! let producer = client.producer("orders").create()?;
//! let consumer = client.consumer("orders", "billing").initial_position(InitialPosition::Earliest).subscribe()?;
//!
//! let receipt = producer.send("one order")?;
//! println!("stored as {}", receipt.message_id());
//! producer.send_with("another", |result| println!("{result:?}"))?;
//!
//! let message = consumer.receive_timeout(Duration::from_secs(10))?.ok_or("nothing came")?;
//! assert_eq!(&message.payload()[..], b"one order");
//! consumer.ack(&message)?;
//! client.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "testkit"))]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! `pulsar` and the codecs `lz4`, `zlib`, `zstd`, `snappy` are on by default. `testkit` adds embedded servers and a
//! faulty network for tests; `cli` the `threadmq` command line tool. RocketMQ is not there yet.

// Without a system nothing drives the shared parts; the benchmarks and loom models build them alone.
#![cfg_attr(not(feature = "pulsar"), allow(dead_code))]

#[macro_use]
mod mutant;

#[cfg(any(feature = "pulsar", feature = "rocketmq"))]
mod closing;
pub mod error;
#[cfg(feature = "pulsar")]
pub mod manual;
mod pending;
mod policy;
mod runtime;
mod threads;

#[cfg(feature = "pulsar")]
pub mod pulsar;

#[cfg(feature = "rocketmq")]
pub mod rocketmq;

#[cfg(feature = "testkit")]
pub mod testkit;

pub use error::{Delivery, Error, ErrorKind, Recovery, SendError};
pub use pending::Pending;
pub use threads::{Threads, ThreadsBuilder};

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod __bench {
    #[cfg(feature = "testkit")]
    pub use crate::pulsar::engine::bench::EngineSteps;
    #[cfg(feature = "testkit")]
    pub use crate::pulsar::wire::bench::{Batches, read_batch, read_receipts, receipt};
    pub use crate::runtime::bench::{Sends, Taken};
}
