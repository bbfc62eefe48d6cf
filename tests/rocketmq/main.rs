//! RocketMQ: what users of the client see, against the embedded proxy or, with THREADMQ_ROCKETMQ_ENDPOINT, a real
//! server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../apart/mod.rs"]
mod apart;
mod half_open;
mod hostile;
mod real_security;
mod receiving;
mod receiving_more;
mod recovery;
mod security;
mod sending;
mod target;
