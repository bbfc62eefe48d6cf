//! A Pulsar broker inside the test's own process.
//!
//! [`Broker`] listens on a port of 127.0.0.1 (or another address) and speaks Pulsar's binary protocol, as far as producers and basic
//! consumers go: look-up, partitions, producers (Shared and Exclusive, deduplication), batches, receipts,
//! subscriptions (Exclusive and Shared), acknowledgements, redelivery, delayed
//! delivery, seek. It keeps everything in memory, answers
//! at once, and does as a real broker does; until the test tells it to misbehave. It records what clients do, up to
//! [`log_limit`](BrokerBuilder::log_limit) events.
//!
//! ```
//! use std::time::Duration;
//! use threadmq::pulsar::Client;
//! use threadmq::testkit::pulsar::{Broker, EventKind, Request, ServerError};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let broker = Broker::start()?;
//! broker.create_partitioned_topic("orders", 3);
//! broker.fail_next(Request::Producer, ServerError::SERVICE_NOT_READY, 1);
//!
//! // The program under test.
//! let client = Client::builder(broker.service_url()).build()?;
//! let producer = client.producer("orders").create()?;
//! producer.send("a first order").map_err(threadmq::Error::from)?;
//!
//! let stored = broker.messages("orders");
//! assert_eq!(stored.len(), 1);
//! assert_eq!(stored[0].payload, "a first order");
//!
//! // It comes back after its connection was lost.
//! let is_producer = |kind: &EventKind| matches!(kind, EventKind::Producer { .. });
//! let before = broker.count(is_producer);
//! broker.reset_connections();
//! let back = broker.wait_for(Duration::from_secs(10), |log| {
//!     log.iter().filter(|event| is_producer(&event.kind)).count() >= before + 3
//! });
//! assert!(back);
//! # client.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Topics
//! A topic exists as soon as somebody uses it. `orders` is short for `persistent://public/default/orders`, and
//! `sales/eu/orders` for `persistent://sales/eu/orders`. Topics are kept apart by name alone: non-persistent ones
//! are stored like all others.
//!
//! # Threads
//! One thread owns the state, one accepts, and each connection has one that reads and one that writes. All of them
//! end when the [`Broker`] is dropped. Every method returns when what it says has happened; a fault is in force when
//! the call returns.
//!
//! # What it does not do
//! TLS, checking of credentials, Failover and Key_Shared subscriptions, acknowledgement of a part of a batch,
//! transactions, schemas, compaction, WaitForExclusive producers.

mod broker;
mod builder;
mod connection;
mod consume;
mod entry;
mod faults;
mod input;
mod listener;
mod log;
mod options;
mod pace;
mod publish;
mod receipts;
mod requests;
mod script;
mod server_error;
mod sessions;
mod state;
mod subscription;
#[cfg(test)]
mod tests;
mod timers;
mod topic;

pub use broker::Broker;
pub use builder::BrokerBuilder;
pub use entry::{Corruption, StoredMessage};
pub use log::{Event, EventKind};
pub use script::Request;
pub use server_error::ServerError;
