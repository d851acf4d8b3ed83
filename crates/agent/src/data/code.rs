//! Function libraries of this node: addressed by hash, each kept once, in bounded memory.
//!
//! A library's bytes come from a client's memory. The agent copies them first and checks hash and ELF on the copy.
//! Workers get the copy, in a memfd that no process can write to.

use hotlease_fabric::memory::{read_sealed, sealed_copy};
use hotlease_wire::Rejection;
use hotlease_wire::code::{ExportedFunction, exports};
use hotlease_wire::ids::CodeHash;
use hotlease_wire::limits::CODE_BYTES_MAX;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Largest number of bytes of all cached libraries together. Libraries that a living lease has loaded stay in memory
/// beyond this limit.
const CACHE_BYTES_MAX: u64 = 256 << 20;
/// Libraries up to this size are checked on the session's own thread. Hashing larger libraries there would delay other
/// sessions.
const INLINE_BYTES_MAX: u64 = 128 << 10;
/// Largest number of large libraries that are checked at a time. It bounds the memory for copies.
const CHECKED_AT_ONCE_MAX: usize = 2;

/// A checked library.
pub(crate) struct CheckedLibrary {
    /// Hash by which it is addressed.
    pub hash: CodeHash,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Names of its functions, by index.
    pub functions: Vec<String>,
    /// Name of its format for saved state, if it can save state.
    pub state: Option<String>,
    memory: OwnedFd,
}

impl CheckedLibrary {
    /// Its bytes, sealed.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Describes a library that is part of the workers' program, so that workers need not load it.
    pub fn of_program(hash: CodeHash, functions: Vec<ExportedFunction>) -> std::io::Result<Self> {
        Ok(Self {
            hash,
            size_bytes: 0,
            functions: functions.into_iter().map(|function| function.name).collect(),
            state: None,
            memory: sealed_copy("hotlease-code", b"").map_err(std::io::Error::other)?,
        })
    }

    /// The library that Python workers need not load.
    pub fn of_python() -> std::io::Result<Self> {
        Self::of_program(hotlease_wire::python::library(), hotlease_wire::python::functions())
    }

    /// Whether the library is part of the workers' program, so that workers need not load it.
    pub fn is_of_program(&self) -> bool {
        self.size_bytes == 0
    }

    /// Copies and checks the bytes that a client sent.
    fn check(memory: BorrowedFd<'_>, hash: CodeHash, size_bytes: u64) -> Result<Self, Rejection> {
        let bytes = read_sealed(memory, size_bytes).map_err(|error| Rejection::BadRequest {
            what: format!("the function library's memory: {error}"),
        })?;
        if CodeHash::of(&bytes) != hash {
            return Err(Rejection::CodeMismatch);
        }
        let exports = exports(&bytes).map_err(|error| Rejection::CodeRejected { why: error.to_string() })?;
        let memory = sealed_copy("hotlease-code", &bytes).map_err(|error| Rejection::Unavailable {
            what: format!("memory for the function library: {error}"),
        })?;
        Ok(Self {
            hash,
            size_bytes,
            functions: exports.functions.into_iter().map(|function| function.name).collect(),
            state: exports.state,
            memory,
        })
    }
}

#[derive(Default)]
struct CodeEntries {
    codes: HashMap<CodeHash, (Arc<CheckedLibrary>, u64)>,
    bytes: u64,
    uses: u64,
}

/// Cache of the node's libraries; drops the least recently used library first.
pub(crate) struct CodeCache {
    entries: Mutex<CodeEntries>,
    checks: Semaphore,
    bytes_max: u64,
}

impl CodeCache {
    pub fn new() -> Self {
        Self {
            entries: Mutex::default(),
            checks: Semaphore::new(CHECKED_AT_ONCE_MAX),
            bytes_max: CACHE_BYTES_MAX,
        }
    }

    fn entries(&self) -> MutexGuard<'_, CodeEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the library, if it is cached.
    pub fn get(&self, hash: CodeHash) -> Option<Arc<CheckedLibrary>> {
        let mut entries = self.entries();
        entries.uses += 1;
        let now = entries.uses;
        let (code, used) = entries.codes.get_mut(&hash)?;
        *used = now;
        Some(Arc::clone(code))
    }

    /// All cached libraries, by hash.
    pub fn list(&self) -> Vec<Arc<CheckedLibrary>> {
        let entries = self.entries();
        let mut codes: Vec<_> = entries.codes.values().map(|(code, _)| Arc::clone(code)).collect();
        codes.sort_by_key(|code| code.hash);
        codes
    }

    /// Drops all libraries; the memory of each is freed when no lease uses it any more.
    pub fn clear(&self) {
        *self.entries() = CodeEntries::default();
    }

    /// Admits a library that a client sent, if size and hash are as the client says.
    pub async fn admit(
        &self,
        memory: OwnedFd,
        hash: CodeHash,
        size_bytes: u64,
    ) -> Result<Arc<CheckedLibrary>, Rejection> {
        if size_bytes == 0 {
            return Err(Rejection::BadRequest {
                what: "a function library of no bytes".into(),
            });
        }
        if size_bytes > CODE_BYTES_MAX {
            return Err(Rejection::TooMany {
                what: "bytes in a function library".into(),
                limit: CODE_BYTES_MAX,
            });
        }
        if let Some(code) = self.get(hash) {
            return Ok(code);
        }
        let code = if size_bytes <= INLINE_BYTES_MAX {
            CheckedLibrary::check(memory.as_fd(), hash, size_bytes)?
        } else {
            let _turn = self.checks.acquire().await;
            let checked =
                tokio::task::spawn_blocking(move || CheckedLibrary::check(memory.as_fd(), hash, size_bytes)).await;
            checked.map_err(|error| Rejection::Unavailable {
                what: format!("checking the function library: {error}"),
            })??
        };
        let code = Arc::new(code);
        self.insert(Arc::clone(&code));
        Ok(code)
    }

    fn insert(&self, code: Arc<CheckedLibrary>) {
        if code.size_bytes > self.bytes_max {
            return;
        }
        let mut entries = self.entries();
        entries.uses += 1;
        let now = entries.uses;
        entries.bytes += code.size_bytes;
        if let Some((twin, _)) = entries.codes.insert(code.hash, (code, now)) {
            entries.bytes -= twin.size_bytes;
        }
        while entries.bytes > self.bytes_max {
            let oldest = entries.codes.iter().min_by_key(|(_, (_, used))| *used);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else {
                return;
            };
            if let Some((code, _)) = entries.codes.remove(&hash) {
                entries.bytes -= code.size_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(number: u8, size_bytes: u64) -> Arc<CheckedLibrary> {
        Arc::new(CheckedLibrary {
            hash: CodeHash([number; 32]),
            size_bytes,
            functions: vec![],
            state: None,
            memory: sealed_copy("test", b"code").expect("memory"),
        })
    }

    #[test]
    fn the_least_recently_used_goes_first_and_the_bound_holds() {
        let cache = CodeCache {
            bytes_max: 100,
            ..CodeCache::new()
        };
        let is_here = |number| cache.entries().codes.contains_key(&CodeHash([number; 32]));
        cache.insert(code(1, 40));
        cache.insert(code(2, 40));
        cache.insert(code(2, 40));
        assert_eq!(cache.entries().bytes, 80, "one library counts once");
        assert!(cache.get(CodeHash([1; 32])).is_some());
        cache.insert(code(3, 40));
        assert!(is_here(1) && !is_here(2) && is_here(3), "2 was not used for longest");
        cache.insert(code(4, 101));
        assert!(!is_here(4) && is_here(1), "what never fits displaces nothing");
        assert_eq!(cache.list().len(), 2);
    }

    #[tokio::test]
    async fn bytes_are_taken_only_if_they_are_what_they_are_said_to_be() {
        let cache = CodeCache::new();
        let text = b"#!/bin/sh\n";
        let sealed = || sealed_copy("test", text).expect("memory");
        let hash = CodeHash::of(text);
        let length = text.len() as u64;
        let refusal = |result: Result<Arc<CheckedLibrary>, Rejection>| result.err().expect("refused");
        let mismatch = cache.admit(sealed(), CodeHash([0; 32]), length).await;
        assert_eq!(refusal(mismatch), Rejection::CodeMismatch);
        assert!(matches!(
            refusal(cache.admit(sealed(), hash, length).await),
            Rejection::CodeRejected { .. }
        ));
        for size in [0, length + 1] {
            let refused = refusal(cache.admit(sealed(), hash, size).await);
            assert!(
                matches!(refused, Rejection::BadRequest { .. }),
                "{size} bytes: {refused}"
            );
        }
        let huge = refusal(cache.admit(sealed(), hash, CODE_BYTES_MAX + 1).await);
        assert!(matches!(huge, Rejection::TooMany { .. }), "{huge}");
        let file = tempfile::tempfile().expect("a file");
        let unsealed = refusal(cache.admit(file.into(), hash, length).await);
        assert!(matches!(unsealed, Rejection::BadRequest { .. }), "{unsealed}");
        assert!(cache.list().is_empty());
    }
}
