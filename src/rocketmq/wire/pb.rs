//! The types generated from `proto/apache/rocketmq/v2`.
#![allow(missing_docs, clippy::all, clippy::restriction, unused, rustdoc::all)] // generated code is not ours to lint

include!(concat!(env!("OUT_DIR"), "/rocketmq_proto/mod.rs"));
pub use definition::*;
pub use service::*;
