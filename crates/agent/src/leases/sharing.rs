//! Shared cores: the terms of sharing, and the cores' claim files. Workers claim a core themselves (`fabric::claim`).

use hotlease_fabric::claim::ClaimFile;
use hotlease_lease::agent::CoreUse;
use hotlease_wire::Rejection;
use hotlease_wire::control::PollingPolicy;
use hotlease_wire::grpc::{AcquireRequest, Polling as PollingAsked, Sharing as SharingAsked};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Terms of sharing that are fixed for one run of an agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharingTerms {
    /// Places for warm slots on one shared core; 0: no core is shared.
    pub places_per_core: u32,
    /// Longest duration of an invocation on a shared core.
    pub call_limit: Duration,
}

/// Sharing of cores and polling of slots that a request asks for.
pub(crate) fn sharing_asked(request: &AcquireRequest) -> Result<(CoreUse, PollingPolicy), Rejection> {
    let bad = |what: &str| Rejection::BadRequest { what: what.into() };
    let polling = match PollingAsked::try_from(request.polling) {
        Ok(PollingAsked::Adaptive) => PollingPolicy::Adaptive,
        Ok(PollingAsked::Hot) => PollingPolicy::Hot,
        Ok(PollingAsked::Warm) => PollingPolicy::Warm,
        Err(_) => return Err(bad("unknown way of polling")),
    };
    match (SharingAsked::try_from(request.sharing), polling) {
        (Err(_), _) => Err(bad("unknown way of sharing")),
        (Ok(SharingAsked::Exclusive), polling) => Ok((CoreUse::Exclusive, polling)),
        (Ok(SharingAsked::Shared), PollingPolicy::Hot) => {
            Err(bad("slots of shared cores cannot poll: a hot slot owns its core"))
        }
        (Ok(SharingAsked::Shared), PollingPolicy::Adaptive | PollingPolicy::Warm) => {
            Ok((CoreUse::Shared, PollingPolicy::Warm))
        }
    }
}

/// Claim files by core: at most one for each core offered, kept once made.
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
