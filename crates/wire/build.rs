//! Compiles `proto/hotlease.proto` when the `grpc` feature is on. protox parses it in Rust, so no
//! `protoc` needs to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/hotlease.proto");
    if std::env::var_os("CARGO_FEATURE_GRPC").is_none() {
        return Ok(());
    }
    let descriptors = protox::compile(["proto/hotlease.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
