//! Apache RocketMQ 5: producers and simple consumers over gRPC.
//!
//! ```no_run
//! use std::time::Duration;
//! use threadmq::rocketmq::{Client, FilterExpression, Message};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("localhost:8081").build()?;
//! let producer = client.producer().topic("orders").start()?;
//! producer.send(Message::new("orders", "a first order"))?;
//!
//! let consumer = client.simple_consumer("billing").subscribe("orders", FilterExpression::all()).start()?;
//! for message in consumer.receive(16, Duration::from_secs(30))? {
//!     consumer.ack(&message)?;
//! }
//! client.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - **Every accepted send is answered exactly once**, its result fixed at most 100 ms after the send timeout, which
//!   counts from the call and covers all attempts: while no proxy answers too. [`Error::delivery`](crate::Error::delivery)
//!   says whether the server may hold the message: `NotSent` (no call was started), `Refused`, or `Unknown`.
//! - **A dead transport is found by its heartbeats and replaced**: two of them in a row past their deadline of 3 s, or
//!   one that ends UNAVAILABLE while the channel reads READY; or because the server asks for it. A call that fails
//!   brings the next heartbeat forward and does nothing else, so that a slow or throttling server never costs a
//!   connection. A half-open link is replaced within 10 s under sends and 17 s when idle.
//! - **Order**: messages of one message group are sent one after another. Those that were reported as stored are first
//!   stored in their order. Messages without a group have no order. Callbacks of a group run in order.
//! - **Nothing goes out unsigned or to a stranger**: with credentials every call is signed, also while they rotate (see
//!   [`CredentialsProvider`]); with TLS (`https://`, or [`ClientBuilder::tls`]) certificates are verified unless
//!   [`TlsOptions`] say otherwise.
//!
//! # What is not
//!
//! - A message may be stored twice: an attempt whose answer was lost is followed by another. One that was reported
//!   `Unknown` may appear later, once or twice.
//! - Received messages that are not acknowledged within their invisible duration come again.
//! - gRPC has threads of its own (`tmq-grpc-0` and some that it does not name); they stay for the life of the process.

mod calls;
mod channel;
mod client;
mod credentials;
mod driver;
pub(crate) mod engine;
mod filter;
mod handle;
mod identity;
mod lane;
pub(crate) mod message;
mod probe;
mod producer;
mod received;
mod rpc;
mod simple_consumer;
mod stats;
mod tls;
mod topic;
mod unary;
pub(crate) mod wire;

pub use client::{Client, ClientBuilder};
pub use credentials::{Credentials, CredentialsProvider};
pub use filter::FilterExpression;
pub use message::{Body, Message, MessageType, SendReceipt};
pub use producer::{Producer, ProducerBuilder};
pub use received::MessageView;
pub use simple_consumer::{SimpleConsumer, SimpleConsumerBuilder};
pub use stats::Stats;
pub use tls::TlsOptions;
pub use topic::TopicQueue;
