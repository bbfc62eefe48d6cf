//! Client for Apache Pulsar.

pub mod message_id;
pub mod routing;
pub mod topic;

pub(crate) mod engine;
pub(crate) mod quoted;
pub(crate) mod service_url;
pub(crate) mod wire;
