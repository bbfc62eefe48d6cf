//! Client for Apache Pulsar.

pub(crate) mod wire;
