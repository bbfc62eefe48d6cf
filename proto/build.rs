//! Generates the protocol types from `proto/*.proto` with a parser written in Rust: no `protoc` needed.

fn main() {
    println!("cargo:rerun-if-changed=proto/pulsar.proto");
    println!("cargo:rerun-if-changed=proto/build.rs");
    if std::env::var_os("CARGO_FEATURE_PULSAR").is_some() {
        protobuf_codegen::Codegen::new()
            .pure()
            .include("proto")
            .input("proto/pulsar.proto")
            .cargo_out_dir("pulsar_proto")
            .run_from_script();
    }
}
