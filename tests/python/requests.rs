//! Requests and replies made by hand, and a platform with Python workers.

use hotlease_client::{Code, Error, Function, Invoker, LeaseOptions, Python};
use hotlease_tests::platform::{Platform, target_directory};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Kinds of replies.
pub const PLAIN: u8 = 0;
pub const PICKLED: u8 = 1;
pub const EXCEPTION: u8 = 2;
pub const EXCEPTION_TEXT: u8 = 3;
pub const UNKNOWN_FUNCTION: u8 = 4;
pub const KEPT: u8 = 5;
pub const REFUSED: u8 = 6;

/// An empty tuple.
pub const NOTHING: &[u8] = &[0x0b, 0];
/// Pickle of protocol 5 of `((buffer,), None)`.
pub const ONE_BUFFER: &[u8] = b"\x80\x05\x97\x85N\x86.";

/// A platform, and the package that its workers import: the sources of this checkout with the built extension module.
pub struct Scene {
    pub platform: Platform,
    _package: TempDir,
    pub python: Python,
}

impl Scene {
    pub fn new() -> Self {
        let package = package();
        let python = python(package.path());
        Self {
            platform: Platform::start(),
            _package: package,
            python,
        }
    }

    pub fn allocate(&self, python: Python) -> Result<Invoker, Error> {
        let options = LeaseOptions {
            python: Some(python),
            ..self.platform.lease_options()
        };
        Invoker::allocate(&Code::python(), options)
    }

    /// A lease of one worker, and its function.
    pub fn function(&self) -> (Invoker, Function) {
        let invoker = self.allocate(self.python.clone());
        let invoker = invoker.unwrap_or_else(|error| panic!("no lease: {error}"));
        let function = invoker.function("hotlease.call").expect("the one function");
        (invoker, function)
    }
}

/// The interpreter that the extension module was built for, found in the same way as cargo found it.
fn interpreter() -> PathBuf {
    let named = std::env::var_os("PYO3_PYTHON").unwrap_or_else(|| "python3".into());
    let told = Command::new(named)
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let told = told.expect("a Python interpreter").stdout;
    PathBuf::from(String::from_utf8(told).expect("a path").trim())
}

/// Makes a folder with the package that workers import, and the tests' modules.
pub fn package() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("hotlease");
    std::fs::create_dir(&module).expect("a folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/python/python/hotlease");
    // In a sandbox in which this folder is visible, the files beside the folder are not visible.
    let sources = sources.canonicalize().expect("the package's sources");
    for source in std::fs::read_dir(sources).expect("the package's sources").flatten() {
        std::os::unix::fs::symlink(source.path(), module.join(source.file_name())).expect("a link");
    }
    let built = target_directory().join("lib_core.so");
    assert!(
        built.exists(),
        "{} is not there; run `make build` first",
        built.display()
    );
    std::os::unix::fs::symlink(built, module.join("_core.so")).expect("a link");
    for module in ["tasks.py", "stateful.py"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(module);
        std::os::unix::fs::symlink(source, folder.path().join(module)).expect("a link");
    }
    folder
}

/// Options of Python workers that find this package.
pub fn python(package: &Path) -> Python {
    let interpreter = interpreter();
    let script = "import sys, hotlease; print('.'.join(map(str, sys.version_info[:3])), hotlease.__version__)";
    let told = Command::new(&interpreter)
        .args(["-c", script])
        .env("PYTHONPATH", package)
        .output()
        .expect("the interpreter runs");
    let errors = String::from_utf8_lossy(&told.stderr);
    assert!(
        told.status.success(),
        "{} cannot import the extension module; was it built for another Python? {errors}",
        interpreter.display()
    );
    let told = String::from_utf8(told.stdout).expect("text");
    let (version, hotlease) = told.trim().split_once(' ').expect("two versions");
    Python {
        interpreter,
        environment: [("PYTHONPATH".to_owned(), package.display().to_string())].into(),
        path: vec!["/nowhere".into()],
        version: version.to_owned(),
        hotlease: hotlease.to_owned(),
        ..Python::default()
    }
}

/// A pickle that names a function of a module.
pub fn by_reference(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n.").into_bytes()
}

/// A request with plain arguments. `with`: whether the request contains the function.
pub fn plain(blob: &[u8], with: bool, arguments: &[u8]) -> Vec<u8> {
    let sent = if with { blob } else { &[] };
    let mut request = vec![0, 0, 0, 0];
    request.extend((sent.len() as u32).to_le_bytes());
    request.extend(key(blob));
    request.extend(sent);
    request.extend(arguments);
    request
}

/// A request with the arguments `((buffer,), None)`.
pub fn with_buffer(blob: &[u8], writable: bool, buffer: &[u8]) -> Vec<u8> {
    let mut request = vec![1, writable.into(), 1, 0];
    request.extend((blob.len() as u32).to_le_bytes());
    request.extend(key(blob));
    request.extend((ONE_BUFFER.len() as u64).to_le_bytes());
    request.extend((buffer.len() as u64).to_le_bytes());
    request.extend(blob);
    request.extend(ONE_BUFFER);
    request.resize(request.len().next_multiple_of(64), 0);
    request.extend(buffer);
    request
}

/// A request for a result that was kept.
pub fn take(ticket: &[u8]) -> Vec<u8> {
    let mut request = vec![2];
    request.resize(24, 0);
    request.extend(ticket);
    request
}

/// Key of a function: the first bytes of its BLAKE3 hash, as for libraries of functions.
pub fn key(blob: &[u8]) -> [u8; 16] {
    let hash = hotlease_wire::ids::CodeHash::of(blob);
    hash.0[..16].try_into().expect("16 bytes")
}

/// Invokes a function of `tasks.py` with plain arguments; returns the kind of the reply, and its body.
pub fn ask(function: &Function, name: &str, arguments: &[u8]) -> Result<(u8, Vec<u8>), Error> {
    let request = plain(&by_reference("tasks", name), true, arguments);
    let reply = function.call(&request)?;
    Ok((reply[0], reply[8..].to_vec()))
}

/// A plain int of one byte, a plain text, and a tuple of plain values.
pub fn int(number: i8) -> Vec<u8> {
    vec![0x04, number as u8]
}

pub fn text(text: &str) -> Vec<u8> {
    [&[0x09, text.len() as u8], text.as_bytes()].concat()
}

pub fn tuple(values: &[Vec<u8>]) -> Vec<u8> {
    [&[0x0b, values.len() as u8], values.concat().as_slice()].concat()
}
