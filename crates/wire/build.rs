//! Compiles `proto/hotlease.proto` when the `grpc` feature is on. protox parses it in Rust, so no
//! `protoc` needs to be installed; without the feature not even that is built.

#[cfg(feature = "grpc")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/hotlease.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto/hotlease.proto");
    Ok(())
}

#[cfg(not(feature = "grpc"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
