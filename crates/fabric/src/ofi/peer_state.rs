//! State of a peer, and of the peer's rings that this end writes.

use super::error::OfiError;
use super::ffi::fi_addr_t;
use crate::memory::Memory;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// A peer, as the port sees it.
pub(super) struct PeerState {
    pub(super) address: fi_addr_t,
    /// Key of the link, in probes.
    pub(super) key: u64,
    /// Number of the last probe that was answered.
    pub(super) answered: AtomicU32,
    broken: AtomicBool,
    why: OnceLock<OfiError>,
}

impl PeerState {
    pub(super) fn new(address: fi_addr_t, key: u64) -> Self {
        Self {
            address,
            key,
            answered: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            why: OnceLock::new(),
        }
    }

    /// Breaks the link for good; the first reason is kept.
    pub(super) fn break_off(&self, why: OfiError) {
        let _ = self.why.set(why);
        // Pairs with the acquire loads in `broken` and `is_broken`.
        self.broken.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn broken(&self) -> Option<OfiError> {
        if !self.broken.load(Ordering::Acquire) {
            return None;
        }
        self.why.get().cloned()
    }

    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

/// State that a ring shares with the port's completions.
pub(super) struct RingState {
    pub(super) link: Arc<PeerState>,
    /// Number of operations under way from each staging entry; the entry may be written again when it is 0.
    pub(super) in_flight: Box<[AtomicU32]>,
    /// Whether the peer has sent a goodbye.
    pub(super) closed: AtomicBool,
    /// Keeps the staging memory while an operation uses it, even after the ring is dropped.
    pub(super) _staging: Arc<Memory>,
}

impl RingState {
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.link.is_broken() || self.closed.load(Ordering::Acquire)
    }

    pub(super) fn broken(&self) -> Option<OfiError> {
        let closed = self.closed.load(Ordering::Acquire).then_some(OfiError::PeerClosed);
        closed.or_else(|| self.link.broken())
    }
}
