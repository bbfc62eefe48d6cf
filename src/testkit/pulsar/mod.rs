//! A Pulsar broker inside the test's own process.
//!
//! [`Broker`] listens on a port of 127.0.0.1 and speaks Pulsar's binary protocol, as far as producers and basic
//! consumers go: look-up, partitions, producers (Shared and Exclusive, deduplication), batches, receipts,
//! subscriptions (Exclusive and Shared), acknowledgements, redelivery, seek. It keeps everything in memory, answers
//! at once, and does as a real broker does; until the test tells it to misbehave. It records all that clients send.
//!
//! ```
//! use std::time::Duration;
//! use threadmq::testkit::pulsar::{Broker, EventKind, Request, ServerError};
//!
//! let broker = Broker::start()?;
//! broker.create_partitioned_topic("orders", 3);
//! broker.fail_next(Request::Producer, ServerError::SERVICE_NOT_READY, 2);
//! broker.drop_receipts("payments", 1);
//!
//! // Here the program under test connects to `broker.service_url()` and sends …
//! # std::net::TcpStream::connect(broker.address())?;
//!
//! let connected = broker.wait_for(Duration::from_secs(10), |log| {
//!     log.iter().any(|event| matches!(event.kind, EventKind::Accepted { .. }))
//! });
//! assert!(connected);
//! assert!(broker.messages("orders").is_empty());
//! # Ok::<(), std::io::Error>(())
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
//! transactions, schemas, compaction, delayed delivery, WaitForExclusive producers.

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
