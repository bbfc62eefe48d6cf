//! Client for Apache RocketMQ 5.

pub(crate) mod wire;
