//! Libraries of a lease: what its workers load, and the usage of their functions.

use super::attribution::Attribution;
use crate::data::code::CheckedLibrary;
use hotlease_wire::Rejection;
use hotlease_wire::limits::CODES_PER_LEASE_MAX;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Largest number of bytes of all libraries of one lease together.
const CODE_BYTES_PER_LEASE_MAX: u64 = 1 << 30;

/// A library that the lease has loaded.
pub(crate) struct LoadedCode {
    /// Kept as long as the lease lives, even if the cache drops it.
    pub code: Arc<CheckedLibrary>,
    /// Index of its first function.
    pub base: u16,
}

/// Libraries of a lease, and the usage of their functions.
pub(crate) struct Libraries {
    /// Libraries in the order of their loading. Locked while workers load, because a worker loads each library once.
    pub codes: tokio::sync::Mutex<Vec<LoadedCode>>,
    /// Time that its first library took to load.
    pub loading: OnceLock<Duration>,
    attribution: Mutex<Attribution>,
}

impl Libraries {
    /// Libraries of a new lease. `built_in`: a library that is part of its workers' program.
    pub fn new(built_in: Option<CheckedLibrary>) -> Self {
        let mut attribution = Attribution::default();
        let mut codes = Vec::new();
        if let Some(code) = built_in.map(Arc::new) {
            attribution.add_library(0, Arc::clone(&code));
            codes.push(LoadedCode { code, base: 0 });
        }
        Self {
            codes: tokio::sync::Mutex::new(codes),
            loading: OnceLock::new(),
            attribution: Mutex::new(attribution),
        }
    }

    /// Usage of its functions. While this lock is held, the holder takes no other lock and awaits nothing.
    pub fn attribution(&self) -> MutexGuard<'_, Attribution> {
        self.attribution.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Index of the first function of a further library; checks the limits of a lease.
pub(super) fn next_base(codes: &[LoadedCode], code: &CheckedLibrary) -> Result<u16, Rejection> {
    let too_many = |what: &str, limit| {
        Err(Rejection::TooMany {
            what: what.into(),
            limit,
        })
    };
    if codes.len() >= CODES_PER_LEASE_MAX {
        return too_many("function libraries in one lease", CODES_PER_LEASE_MAX as u64);
    }
    let bytes: u64 = codes.iter().map(|loaded| loaded.code.size_bytes).sum();
    if bytes.saturating_add(code.size_bytes) > CODE_BYTES_PER_LEASE_MAX {
        return too_many("bytes of function libraries in one lease", CODE_BYTES_PER_LEASE_MAX);
    }
    let base: usize = codes.iter().map(|loaded| loaded.code.functions.len()).sum();
    match u16::try_from(base + code.functions.len()) {
        Ok(end) => Ok(end - code.functions.len() as u16),
        Err(_) => too_many("functions in one lease", u16::MAX.into()),
    }
}
