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

mod client;
mod driver;
pub(crate) mod engine;
mod filter;
mod identity;
mod lane;
pub(crate) mod message;
mod producer;
mod rpc;
mod simple_consumer;
mod stats;
pub(crate) mod wire;

pub use client::{Client, ClientBuilder};
pub use filter::FilterExpression;
pub use message::{Body, Message, MessageType, MessageView, SendReceipt};
pub use producer::{Producer, ProducerBuilder};
pub use simple_consumer::{SimpleConsumer, SimpleConsumerBuilder};
pub use stats::Stats;
