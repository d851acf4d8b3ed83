//! Compiles the files of `proto` when the `grpc` feature is on. protox parses them in Rust, so no `protoc` needs to be
//! installed; without the feature not even protox is built.

#[cfg(feature = "grpc")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message;
    let descriptors = protox::compile(["proto/hotlease.proto"], ["proto"])?;
    // The list of routes, for code that must handle every route.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("hotlease.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}

#[cfg(not(feature = "grpc"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
