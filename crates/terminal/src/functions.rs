//! Libraries of functions that come with hotlease: benchmarks and `hotlease doctor --peer` invoke them.

use anyhow::{Context, bail};
use hotlease_client::Code;
use std::env;
use std::path::{Path, PathBuf};

/// Library of the functions that benchmarks and checks invoke.
///
/// # Errors
/// If the library is not there, or cannot be read.
pub fn functions() -> anyhow::Result<Code> {
    library("hotlease-bench-functions")
}

/// Library of the functions that benchmarks and checks invoke, and of the peers of the fabric baselines.
///
/// # Errors
/// If the library is not there, or cannot be read.
pub fn fabric_functions() -> anyhow::Result<Code> {
    library("hotlease-bench-fabric-functions")
}

/// Opens the library that a package builds. The library is next to this program, or where `make install` puts it.
fn library(package: &str) -> anyhow::Result<Code> {
    let exe = env::current_exe().context("cannot find this program")?;
    let exe = exe.canonicalize().unwrap_or(exe);
    let beside = exe.parent().unwrap_or(Path::new("."));
    // Programs are installed in `bin` and `libexec/hotlease`, libraries in `lib/hotlease`.
    let prefix = match beside.ends_with("libexec/hotlease") {
        true => beside.join("../.."),
        false => beside.join(".."),
    };
    let name = format!("lib{}.so", package.replace('-', "_"));
    let places: [PathBuf; 2] = [beside.join(&name), prefix.join("lib/hotlease").join(&name)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(Code::open(place)?),
        None => bail!(
            "the benchmarks' functions are missing ({} and {}); build them with `cargo build --release -p {package}`",
            places[0].display(),
            places[1].display()
        ),
    }
}
