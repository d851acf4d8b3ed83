//! Strips the library: its bytes are sent to workers, and a cold start is measured with it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-all");
    println!("cargo:rerun-if-changed=build.rs");
}
