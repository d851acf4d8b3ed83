//! Function libraries compiled from `fixtures/`.

use hotlease_wire::ids::CodeHash;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The library made from `fixtures/NAME.c`, compiled unless the same source was compiled before.
///
/// # Panics
/// If it cannot be compiled; the message contains the compiler's output.
pub fn library(name: &str) -> PathBuf {
    compile(name, &[])
}

/// The library made from `fixtures/NAME.c` with further arguments to the compiler.
///
/// # Panics
/// As [`library`].
pub fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    static COMPILING: Mutex<()> = Mutex::new(());
    let _turn = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = package.join("fixtures").join(name).with_extension("c");
    let include = package
        .parent()
        .expect("the package is in the repository")
        .join("include");
    let mut key = fs::read(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    key.extend(fs::read(include.join("hotlease/function.h")).expect("the functions' header"));
    key.extend(arguments.join(" ").bytes());
    let directory = crate::platform::target_directory().join("test-libraries");
    let hash = CodeHash::of(&key).to_string();
    let library = directory.join(format!("{name}-{}.so", &hash[..16]));
    if library.exists() {
        return library;
    }
    fs::create_dir_all(&directory).expect("a directory for libraries");
    let unfinished = directory.join(format!("{name}-{}.unfinished", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-O1",
            "-g0",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(["-Wno-unused-parameter", "-I"])
        .args([&include, &source])
        .args(arguments)
        .arg("-o")
        .arg(&unfinished)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {}: {words}", source.display());
    fs::rename(&unfinished, &library).expect("the library in its place");
    library
}
