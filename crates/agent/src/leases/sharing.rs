//! Shared cores: the terms of sharing, and the cores' claim files. Workers claim a core themselves (`fabric::claim`).

use hotlease_fabric::claim::ClaimFile;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Terms of sharing that are fixed for one run of an agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharingTerms {
    /// Places for warm slots on one shared core; 0 if no core is shared.
    pub places_per_core: u32,
    /// Longest duration of an invocation on a shared core.
    pub call_limit: Duration,
}

/// Claim files by core: at most one for each offered core. A file that was made is never removed.
#[derive(Debug, Default)]
pub(crate) struct CoreClaims(Mutex<BTreeMap<u32, Arc<ClaimFile>>>);

impl CoreClaims {
    /// Claim file of a core.
    pub fn of(&self, core: u32) -> io::Result<Arc<ClaimFile>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&core) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(ClaimFile::create()?);
        files.insert(core, Arc::clone(&file));
        Ok(file)
    }
}
