//! Client for Apache Pulsar.

mod client;
mod consumer;
pub(crate) mod engine;
mod event_loop;
mod lane;
mod link;
mod message;
pub(crate) mod message_id;
mod producer;
mod producer_builder;
mod receive_queue;
pub(crate) mod routing;
pub(crate) mod service_url;
mod stats;
pub(crate) mod topic;
mod unpack;
pub(crate) mod wire;

pub use client::{Client, ClientBuilder};
pub use consumer::{Consumer, ConsumerBuilder, InitialPosition, SubscriptionType};
pub use engine::event::SendReceipt;
pub use message::{IntoPayload, Message, ProducerMessage};
pub use message_id::MessageId;
pub use producer::{AccessMode, Producer};
pub use producer_builder::ProducerBuilder;
pub use routing::{HashingScheme, RoutingMode};
pub use stats::Stats;
pub use topic::{TopicDomain, TopicName};
pub use wire::compress::Compression;

/// A send that failed, with the message if it was not accepted.
pub type SendError = crate::SendError<ProducerMessage>;
