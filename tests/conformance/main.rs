//! One suite, two targets: the embedded broker, or the real server that `THREADMQ_PULSAR_URL` names.

mod consumer;
mod lines;
mod message;
mod partitions;
mod producer;
mod sending;
mod sessions;
mod target;
