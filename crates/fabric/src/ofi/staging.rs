//! Staging memory of a ring: for each entry of the peer's ring, a message ready to be sent.
//!
//! ```text
//! entry    | unused | prefix 24 | line 32 to 64 | payload, up to the end of the entry's last page |
//! ```
//!
//! Prefix, line and payload are adjacent, so that a frame is one contiguous message and is sent without a copy. A
//! worker's functions write their output here, so each entry is mapped a second time, with an inaccessible guard page
//! behind it. The fabric reads through the plain mapping, which is registered.

use super::error::OfiError;
use crate::memory::{AddressMapping, Memory, PAGE_BYTES};
use crate::shm::RingLayout;
use hotlease_wire::fabric::Prefix;
use hotlease_wire::frame::LineWords;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest number of bytes of a message before its payload.
pub(super) const HEADER_BYTES: usize = Prefix::BYTES + size_of::<LineWords>();

pub(super) struct Staging {
    memory: Arc<Memory>,
    layout: RingLayout,
    stride: usize,
    guarded: Option<GuardedStaging>,
}

/// The second mapping, with guard pages; an entry is mapped when it is first used.
struct GuardedStaging {
    space: AddressMapping,
    mapped: Box<[AtomicU64]>,
}

impl Staging {
    pub(super) fn new(layout: RingLayout, guard: bool) -> Result<Self, OfiError> {
        let stride = (HEADER_BYTES + padded(&layout)).next_multiple_of(PAGE_BYTES);
        let entries = layout.depth() as usize + 1;
        let memory = Arc::new(Memory::create("hotlease-staging", (entries * stride) as u64)?);
        let guarded = guard.then(|| {
            let space = AddressMapping::reserve(entries * (stride + PAGE_BYTES));
            let space = space.map_err(|error| OfiError::Memory(format!("guard pages: {error}")))?;
            let mapped = (0..=entries / 64).map(|_| AtomicU64::new(0)).collect();
            Ok::<_, OfiError>(GuardedStaging { space, mapped })
        });
        Ok(Self {
            memory,
            layout,
            stride,
            guarded: guarded.transpose()?,
        })
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(super) fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Offset in the memory of an entry's payload, by the entry's index (the express entry is the last).
    #[inline]
    pub(super) fn payload_at(&self, index: usize) -> usize {
        (index + 1) * self.stride - padded(&self.layout)
    }

    /// Start of a message with this many bytes (at most [`HEADER_BYTES`]) before the payload of an entry, in the
    /// registered mapping.
    #[inline]
    pub(super) fn message(&self, index: usize, header_bytes: usize) -> NonNull<u8> {
        debug_assert!(header_bytes <= HEADER_BYTES);
        // SAFETY: inside the memory, by the layout.
        unsafe { self.memory.start().add(self.payload_at(index) - header_bytes) }
    }

    /// Memory in which the payload of an entry is built.
    #[inline]
    pub(super) fn payload(&self, index: usize) -> NonNull<u8> {
        if let Some(guarded) = &self.guarded
            && let Some(start) = self.guarded_entry(guarded, index)
        {
            // SAFETY: inside the entry's mapping, by the layout.
            return unsafe { start.add(self.stride - padded(&self.layout)) };
        }
        // SAFETY: inside the memory, by the layout.
        unsafe { self.memory.start().add(self.payload_at(index)) }
    }

    /// Start of an entry in the second mapping. Returns `None` if the kernel allows no further mapping; the entry is
    /// then used without a guard page.
    #[inline]
    fn guarded_entry(&self, guarded: &GuardedStaging, index: usize) -> Option<NonNull<u8>> {
        let at = index * (self.stride + PAGE_BYTES);
        let (word, bit) = (&guarded.mapped[index / 64], 1 << (index % 64));
        // Relaxed: an entry is used by one thread at a time, and is passed to another thread with acquire and release.
        if word.load(Ordering::Relaxed) & bit == 0 {
            let placed = guarded
                .space
                .map_at(at, self.memory.fd(), index * self.stride, self.stride);
            placed.ok()?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        // SAFETY: inside the reservation.
        Some(unsafe { guarded.space.start().add(at) })
    }
}

fn padded(layout: &RingLayout) -> usize {
    layout.entry_bytes().next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::connection::RingShape;

    #[test]
    fn both_mappings_show_the_same_payload_and_entries_stand_apart() {
        for entry_bytes in [1, 33, 4000, 4096, 8128, 70_000] {
            let layout = RingLayout::of(RingShape { depth: 4, entry_bytes }).unwrap();
            let staging = Staging::new(layout, true).unwrap();
            for index in 0..5 {
                let payload = staging.payload(index);
                assert_eq!(payload.as_ptr() as usize % 64, 0, "payloads are aligned");
                // SAFETY: first and last byte of the payload, in both mappings.
                unsafe {
                    payload.write(index as u8 + 1);
                    payload.add(entry_bytes as usize - 1).write(index as u8 + 1);
                    let plain = staging.message(index, 0);
                    assert_eq!(plain.read(), index as u8 + 1);
                    assert_eq!(plain.add(entry_bytes as usize - 1).read(), index as u8 + 1);
                }
            }
            for index in 0..5 {
                // SAFETY: as above.
                assert_eq!(unsafe { staging.payload(index).read() }, index as u8 + 1);
            }
        }
    }
}
