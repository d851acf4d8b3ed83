//! A function library: bytes with a hash and a list of functions.

use crate::Error;
use hotlease_fabric::memory::sealed_copy;
use hotlease_wire::code::{CodeError, ExportedFunction, Exports, exports};
use hotlease_wire::ids::CodeHash;
use hotlease_wire::limits::CODE_BYTES_MAX;
use hotlease_wire::python;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A shared library with functions, read and checked but not loaded: only workers run its code.
///
/// Cheap to clone; `Send + Sync`. One `Code` may serve any number of leases.
#[derive(Clone)]
pub struct Code(Arc<Inner>);

struct Inner {
    name: String,
    bytes: Vec<u8>,
    hash: CodeHash,
    functions: Vec<ExportedFunction>,
    state: Option<String>,
    /// Memfd of the bytes, made when they are first sent to an agent, and kept: no process can change it.
    sealed: Mutex<Option<Arc<OwnedFd>>>,
}

impl Code {
    /// Reads a library from a file.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, [`Error::Code`] if it is not a shared library for this processor or
    /// exports no function.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        // The absolute path says in which folder the file was looked for.
        let unread = |source| Error::File {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            source: Arc::new(source),
        };
        let size = std::fs::metadata(path).map_err(unread)?.len();
        let name = path.display().to_string();
        // Reported before the file is read.
        if size > CODE_BYTES_MAX {
            let source = CodeError::TooLarge { size };
            return Err(Error::Code { name, source });
        }
        let bytes = std::fs::read(path).map_err(unread)?;
        Self::from_bytes(name, bytes)
    }

    /// Makes a library of bytes in memory. `name` is only for messages.
    ///
    /// # Errors
    /// [`Error::Code`] if it is not a shared library for this processor or exports no function.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, Error> {
        let name = name.into();
        let Exports { functions, state } = match exports(&bytes) {
            Ok(exports) => exports,
            Err(source) => return Err(Error::Code { name, source }),
        };
        Ok(Self(Arc::new(Inner {
            name,
            hash: CodeHash::of(&bytes),
            functions,
            state,
            bytes,
            sealed: Mutex::new(None),
        })))
    }

    /// The library that Python workers have from the beginning: one function, `hotlease.call`, that runs a task.
    /// For leases with [`crate::LeaseOptions::python`]; the Python package defines the bytes of tasks.
    pub fn python() -> Self {
        Self(Arc::new(Inner {
            name: "the library of Python workers".into(),
            hash: python::library(),
            functions: python::functions(),
            state: None,
            bytes: Vec::new(),
            sealed: Mutex::new(None),
        }))
    }

    /// No library, for leases of memory alone: their workers load nothing.
    pub(crate) fn none() -> Self {
        Self(Arc::new(Inner {
            name: "no library".into(),
            hash: CodeHash::of(&[]),
            functions: Vec::new(),
            state: None,
            bytes: Vec::new(),
            sealed: Mutex::new(None),
        }))
    }

    /// Whether this is the library that Python workers have from the beginning.
    pub(crate) fn is_python(&self) -> bool {
        self.0.hash == python::library()
    }

    /// A library of these functions whose bytes no worker will load.
    #[cfg(test)]
    pub(crate) fn pretend(names: &[&str]) -> Self {
        let function = |name: &&str| ExportedFunction {
            name: (*name).to_owned(),
            interface: hotlease_wire::code::Interface::Plain,
            idempotent: false,
        };
        Self(Arc::new(Inner {
            name: "pretend.so".into(),
            hash: CodeHash::of(b"pretend"),
            functions: names.iter().map(function).collect(),
            state: None,
            bytes: b"pretend".to_vec(),
            sealed: Mutex::new(None),
        }))
    }

    /// The library's name in messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The library's address: the BLAKE3 hash of its bytes.
    pub fn hash(&self) -> CodeHash {
        self.0.hash
    }

    /// The library's functions, sorted by name.
    pub fn functions(&self) -> &[ExportedFunction] {
        &self.0.functions
    }

    /// The library's name for the format of its saved state; `None` if the library cannot save its state.
    pub fn state_format(&self) -> Option<&str> {
        self.0.state.as_deref()
    }

    /// The function of this name.
    ///
    /// # Errors
    /// [`Error::NoSuchFunction`] with the most similar names.
    pub fn function(&self, name: &str) -> Result<&ExportedFunction, Error> {
        self.index_of(name).map(|index| &self.0.functions[index])
    }

    /// The library's bytes; empty for [`Code::python`].
    pub fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    /// Position of a function in [`Code::functions`].
    ///
    /// # Errors
    /// [`Error::NoSuchFunction`] with the most similar names.
    pub(crate) fn index_of(&self, name: &str) -> Result<usize, Error> {
        let functions = &self.0.functions;
        functions
            .binary_search_by(|function| function.name.as_str().cmp(name))
            .map_err(|_| Error::NoSuchFunction {
                name: name.to_owned(),
                code: self.0.name.clone(),
                similar: similar(name, functions),
            })
    }

    /// The bytes in a memfd that no process can change.
    pub(crate) fn sealed(&self) -> Result<Arc<OwnedFd>, Error> {
        let mut sealed = self.0.sealed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = &*sealed {
            return Ok(fd.clone());
        }
        let fd = Arc::new(sealed_copy("hotlease-code", &self.0.bytes)?);
        *sealed = Some(fd.clone());
        Ok(fd)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Code")
            .field("name", &self.0.name)
            .field("hash", &self.0.hash)
            .field("functions", &self.0.functions.len())
            .finish()
    }
}

/// Returns at most five names, the most similar first, that a caller who wrote `name` may have meant: they differ in at
/// most a third of their letters. If one of the names is `name` as C++ compilers mangle it, returns only that name.
fn similar(name: &str, functions: &[ExportedFunction]) -> Vec<String> {
    const SHOWN: usize = 5;
    // As in the Itanium ABI: the length of each part of a name, and the part.
    let part = format!("{}{name}", name.len());
    let names = || functions.iter().map(|function| function.name.as_str());
    if !name.is_empty()
        && let Some(mangled) = names().find(|theirs| theirs.starts_with("_Z") && theirs.contains(&part))
    {
        return vec![mangled.to_owned()];
    }
    let ours = name.to_lowercase();
    let mut close: Vec<(usize, &str)> = names()
        .map(|theirs| (strsim::osa_distance(&ours, &theirs.to_lowercase()), theirs))
        .filter(|(distance, theirs)| *distance <= ours.chars().count().max(theirs.chars().count()) / 3)
        .collect();
    close.sort_unstable();
    close.truncate(SHOWN);
    close.into_iter().map(|(_, theirs)| theirs.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::code::Interface;

    fn named(names: &[&str]) -> Vec<ExportedFunction> {
        let function = |name: &&str| ExportedFunction {
            name: (*name).to_owned(),
            interface: Interface::Plain,
            idempotent: false,
        };
        names.iter().map(function).collect()
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbours_first() {
        let functions = named(&[
            "blur",
            "gaussian_blur",
            "resize",
            "rotate",
            "sharpen",
            "thumbnail",
            "zoom",
        ]);
        assert_eq!(similar("thumbnial", &functions)[0], "thumbnail");
        assert_eq!(similar("Resize", &functions)[0], "resize");
        assert!(similar("qqqq", &functions).is_empty());
        assert!(similar("qqqq", &named(&["a", "b"])).is_empty(), "not alike at all");
        assert!(
            similar("sum", &named(&["max"])).is_empty(),
            "one letter in three is the same"
        );
    }

    #[test]
    fn a_mangled_name_is_reported_as_mangled() {
        let functions = named(&["_Z3addPKvjPv", "dad"]);
        assert_eq!(similar("add", &functions), ["_Z3addPKvjPv"]);
        let error = Error::NoSuchFunction {
            name: "add".into(),
            code: "libadd.so".into(),
            similar: similar("add", &functions),
        };
        assert!(error.to_string().contains("extern \"C\""), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_by_name() {
        let error = Code::from_bytes("hello.txt", b"hello".to_vec()).unwrap_err();
        assert!(matches!(&error, Error::Code { name, source: CodeError::NotElf } if name == "hello.txt"));
        assert!(matches!(Code::open("/nonexistent/lib.so"), Err(Error::File { .. })));
    }
}
