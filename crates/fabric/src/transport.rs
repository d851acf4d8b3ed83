//! The transport of a channel, chosen when the channel is opened.
//!
//! A branch that is always taken in the same direction costs less than the indirect calls of a trait object, and the
//! `shm` path can be inlined.

use crate::ofi::{OfiError, OfiRing, Port};
use crate::ring::FarRing;
use crate::shm::ShmRing;
use hotlease_wire::frame::{LineWords, Seq};
use std::ptr::NonNull;
use std::sync::Arc;

/// The peer's ring over one of the transports.
pub enum TransportRing {
    /// Shared memory of a node.
    Shm(ShmRing),
    /// A fabric, through libfabric.
    Ofi(Box<OfiRing>),
}

impl TransportRing {
    /// Port through which the ring sends, if the ring is on a fabric.
    #[inline]
    pub fn port(&self) -> Option<&Arc<Port>> {
        match self {
            Self::Shm(_) => None,
            Self::Ofi(ring) => Some(ring.port()),
        }
    }

    /// Reason why the ring is broken, if it is broken. A ring in shared memory never breaks.
    pub fn break_reason(&self) -> Option<OfiError> {
        match self {
            Self::Shm(_) => None,
            Self::Ofi(ring) => ring.break_reason(),
        }
    }
}

impl FarRing for TransportRing {
    #[inline]
    fn payload(&self, entry: u32) -> NonNull<u8> {
        match self {
            Self::Shm(ring) => ring.payload(entry),
            Self::Ofi(ring) => ring.payload(entry),
        }
    }

    #[inline]
    fn payload_bytes(&self) -> usize {
        match self {
            Self::Shm(ring) => ring.payload_bytes(),
            Self::Ofi(ring) => ring.payload_bytes(),
        }
    }

    #[inline]
    fn publish(&self, entry: u32, payload_bytes: usize, words: &LineWords) {
        match self {
            Self::Shm(ring) => ring.publish(entry, payload_bytes, words),
            Self::Ofi(ring) => ring.publish(entry, payload_bytes, words),
        }
    }

    #[inline]
    fn ring(&self) {
        match self {
            Self::Shm(ring) => ring.ring(),
            Self::Ofi(ring) => ring.ring(),
        }
    }

    fn published(&self, entry: u32) -> Option<(LineWords, NonNull<u8>)> {
        match self {
            Self::Shm(ring) => ring.published(entry),
            Self::Ofi(ring) => ring.published(entry),
        }
    }

    fn withdraw(&self, entry: u32, seq: Seq) -> bool {
        match self {
            Self::Shm(ring) => ring.withdraw(entry, seq),
            Self::Ofi(ring) => ring.withdraw(entry, seq),
        }
    }

    #[inline]
    fn prefetch(&self, entry: u32) {
        match self {
            Self::Shm(ring) => ring.prefetch(entry),
            Self::Ofi(_) => {}
        }
    }

    #[inline]
    fn prefetch_payload(&self, entry: u32, bytes: usize) {
        match self {
            Self::Shm(ring) => ring.prefetch_payload(entry, bytes),
            Self::Ofi(_) => {}
        }
    }

    #[inline]
    fn progress(&self) -> bool {
        match self {
            Self::Shm(_) => false,
            Self::Ofi(ring) => ring.progress(),
        }
    }
}
