//! Operations of a port that are under way. The context that the provider returns identifies the operation.

use super::error::OfiError;
use super::peer_state::{PeerState, RingState};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Memory that providers may use while an operation is under way (`fi_context2`).
#[repr(C, align(64))]
struct OperationContext([*mut c_void; 8]);

/// An operation, which determines the action on its completion.
pub(super) enum Operation {
    /// A receive buffer; on completion it holds a message.
    Receive { buffer: u32 },
    /// A control message; on completion its buffer is free again.
    Control { buffer: u32, link: Arc<PeerState> },
    /// A part of a frame; on completion it has left its staging entry.
    Frame { ring: Arc<RingState>, entry: usize },
    /// A piece of a transfer.
    Chunk { transfer: Arc<Transfer> },
}

/// One RMA read or write of any length.
#[derive(Default)]
pub(super) struct Transfer {
    pub(super) outstanding: AtomicU32,
    pub(super) error: OnceLock<OfiError>,
}

impl Transfer {
    pub(super) fn finish(&self, error: Option<OfiError>) {
        if let Some(error) = error {
            let _ = self.error.set(error);
        }
        // Pairs with the acquire loads in `Port::transfer`, which waits for the count to become 0.
        self.outstanding.fetch_sub(1, Ordering::Release);
    }
}

/// Table of a fixed number of operations.
pub(super) struct Operations<T = Operation> {
    contexts: Box<[OperationContext]>,
    places: Vec<Option<OperationEntry<T>>>,
    free: Vec<u32>,
}

struct OperationEntry<T> {
    operation: T,
    /// Number of the registration that the operation uses.
    region: Option<u32>,
}

// SAFETY: the contexts hold pointers of the provider, which has no thread affinity (FI_THREAD_DOMAIN).
unsafe impl<T: Send> Send for Operations<T> {}

impl<T> Operations<T> {
    pub(super) fn new(count: usize) -> Self {
        Self {
            contexts: (0..count)
                .map(|_| OperationContext([std::ptr::null_mut(); 8]))
                .collect(),
            places: (0..count).map(|_| None).collect(),
            free: (0..count as u32).rev().collect(),
        }
    }

    /// Reserves a place for an operation. Returns the place's number and the context for posting, or `None` if all
    /// places are taken.
    #[inline]
    pub(super) fn begin(&mut self, operation: T, region: Option<u32>) -> Option<(u32, *mut c_void)> {
        let number = self.free.pop()?;
        self.places[number as usize] = Some(OperationEntry { operation, region });
        Some((number, self.context(number)))
    }

    #[inline]
    pub(super) fn context(&mut self, number: u32) -> *mut c_void {
        (&raw mut self.contexts[number as usize]).cast()
    }

    /// Place of a completion's operation; `None` if the context is not that of a place in use.
    #[inline]
    pub(super) fn find(&self, context: *mut c_void) -> Option<u32> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let number = offset / size_of::<OperationContext>();
        let taken = self.places.get(number)?.is_some() && offset.is_multiple_of(size_of::<OperationContext>());
        taken.then_some(number as u32)
    }

    /// The operation in a place that [`Operations::find`] found.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        Some(&self.places.get(number as usize)?.as_ref()?.operation)
    }

    /// Frees a place: its operation completed, or was not posted after all.
    #[inline]
    pub(super) fn end(&mut self, number: u32) -> Option<(T, Option<u32>)> {
        let place = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some((place.operation, place.region))
    }

    /// Number of operations under way.
    pub(super) fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
