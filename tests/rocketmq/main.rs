//! RocketMQ: what users of the client see, against the embedded proxy or, with THREADMQ_ROCKETMQ_ENDPOINT, a real
//! server.

mod receiving;
mod recovery;
mod sending;
mod target;
