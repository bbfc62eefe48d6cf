//! One suite, two targets: the embedded broker, or the real server that `THREADMQ_PULSAR_URL` names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test fails by panicking

mod consumer;
mod lines;
mod message;
mod partitions;
mod producer;
mod sending;
mod sessions;
mod target;
