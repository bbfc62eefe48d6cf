//! Generates the protocol types from `proto/` with a parser written in Rust: no `protoc` needed.

use std::env::var_os;

use protobuf_codegen::{Codegen, Customize};

const ROCKETMQ: [&str; 2] = ["proto/apache/rocketmq/v2/definition.proto", "proto/apache/rocketmq/v2/service.proto"];

fn main() {
    println!("cargo:rerun-if-changed=proto/pulsar.proto");
    for file in ROCKETMQ {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-changed=proto/build.rs");
    if var_os("CARGO_FEATURE_PULSAR").is_some() {
        Codegen::new()
            .pure()
            .include("proto")
            .input("proto/pulsar.proto")
            .cargo_out_dir("pulsar_proto")
            .run_from_script();
    }
    if var_os("CARGO_FEATURE_ROCKETMQ").is_some() {
        // Bodies as `bytes::Bytes`, which requests share with the message that they carry.
        Codegen::new()
            .pure()
            .include("proto")
            .inputs(ROCKETMQ)
            .customize(Customize::default().tokio_bytes(true))
            .cargo_out_dir("rocketmq_proto")
            .run_from_script();
    }
}
