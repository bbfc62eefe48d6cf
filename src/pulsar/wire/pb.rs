//! The types generated from `proto/pulsar.proto`.
#![allow(missing_docs, clippy::all, clippy::restriction, unused, rustdoc::all)] // generated code is not ours to lint

include!(concat!(env!("OUT_DIR"), "/pulsar_proto/mod.rs"));
pub use pulsar::*;
