//! Functions that this worker was sent, by key, in bounded memory.

use hotlease_wire::task::FunctionKey;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Limit of the functions that are kept.
const FUNCTIONS_MAX: usize = 512;
/// Limit of the bytes of the pickles of all kept functions together.
const BYTES_MAX: usize = 256 << 20;

/// Whether a definition that a loaded function uses has been replaced since the function was loaded.
static ARE_STALE: AtomicBool = AtomicBool::new(false);

/// Makes this worker ask for each function once more, because a definition that loaded functions use has been replaced.
#[pyfunction]
pub fn _forget_functions() {
    ARE_STALE.store(true, Ordering::Relaxed);
}

struct KnownFunction {
    function: Py<PyAny>,
    bytes: usize,
    used: u64,
}

/// Functions of this worker; see the module.
#[derive(Default)]
pub struct Functions {
    known: HashMap<FunctionKey, KnownFunction>,
    bytes: usize,
    uses: u64,
}

impl Functions {
    /// Takes all functions if a definition that they use was replaced. The caller drops them, because dropping may run
    /// code.
    #[must_use]
    #[inline]
    pub fn take_stale(&mut self) -> Vec<Py<PyAny>> {
        if !ARE_STALE.load(Ordering::Relaxed) {
            return Vec::new();
        }
        ARE_STALE.store(false, Ordering::Relaxed);
        self.bytes = 0;
        self.known.drain().map(|(_, known)| known.function).collect()
    }

    /// The function of this key.
    pub fn get<'py>(&mut self, py: Python<'py>, key: &FunctionKey) -> Option<Bound<'py, PyAny>> {
        let known = self.known.get_mut(key)?;
        self.uses += 1;
        known.used = self.uses;
        Some(known.function.bind(py).clone())
    }

    /// Adds a function whose pickle has `bytes` bytes. Returns the functions that were removed for it. The caller drops
    /// them, because dropping may run code.
    #[must_use]
    pub fn insert(&mut self, key: FunctionKey, function: Py<PyAny>, bytes: usize) -> Vec<Py<PyAny>> {
        self.uses += 1;
        let used = self.uses;
        let mut forgotten = Vec::new();
        self.bytes += bytes;
        if let Some(twin) = self.known.insert(key, KnownFunction { function, bytes, used }) {
            self.bytes -= twin.bytes;
            forgotten.push(twin.function);
        }
        while self.known.len() > 1 && (self.known.len() > FUNCTIONS_MAX || self.bytes > BYTES_MAX) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
            let Some(known) = oldest.map(|(key, _)| *key).and_then(|key| self.known.remove(&key)) else {
                break;
            };
            self.bytes -= known.bytes;
            forgotten.push(known.function);
        }
        forgotten
    }
}
