//! Memory of a lane: control words, lines, and bytes of longer bodies.

use super::progress::LaneControl;
use super::{LINES, PIECE_ALIGN};
use crate::memory::{AddressMapping, MemoryError, PAGE_BYTES};
use crate::ring::Line;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Least capacity of a lane for longer bodies; capacities are powers of two.
pub const LANE_BYTES_MIN: usize = 8 * 1024;
/// Greatest capacity of a lane for longer bodies.
pub const LANE_BYTES_MAX: usize = 1 << 20;

/// Offset of the lines in the memory.
const LINES_AT: usize = 512;
/// Offset of the bytes of longer bodies in the memory.
pub(super) const BYTES_AT: usize = (LINES_AT + LINES as usize * size_of::<Line>()).next_multiple_of(PAGE_BYTES);

const _: () = assert!(size_of::<LaneControl>() <= LINES_AT);

/// Memory of a lane.
pub(super) struct LaneMemory {
    pub(super) start: NonNull<u8>,
    /// Number of bytes for longer bodies, a power of two.
    pub(super) capacity: usize,
    /// Keeps the memory mapped.
    pub(super) _owner: Arc<dyn Send + Sync>,
}

// SAFETY: an address in memory that `_owner` keeps mapped. Control words and lines are atomics; bytes belong to one
// side at a time by the protocol (see [`super`]). If a hostile writer breaks the protocol, the reader copies arbitrary
// bytes.
unsafe impl Send for LaneMemory {}

impl LaneMemory {
    /// Size of the memory of a lane of this capacity.
    pub(super) fn size(capacity: usize) -> Result<usize, MemoryError> {
        if capacity.is_power_of_two() && (LANE_BYTES_MIN..=LANE_BYTES_MAX).contains(&capacity) {
            Ok(BYTES_AT + capacity)
        } else {
            Err(MemoryError::BadSize {
                size_bytes: capacity as u64,
            })
        }
    }

    /// Maps the memory of a lane of this capacity, which is at the beginning of a file of this size.
    pub(super) fn map(memory: BorrowedFd<'_>, size: usize, capacity: usize) -> Result<Self, MemoryError> {
        let mapping = AddressMapping::reserve(size).map_err(system("reserve", size))?;
        mapping.map_at(0, memory, 0, size).map_err(system("map", size))?;
        Ok(Self {
            start: mapping.start(),
            capacity,
            _owner: Arc::new(mapping),
        })
    }

    #[inline]
    pub(super) fn control(&self) -> &LaneControl {
        // SAFETY: at the beginning of the memory, which is aligned to pages, larger than `LaneControl`, and mapped as
        // long as self lives; all fields are atomics.
        unsafe { self.start.cast::<LaneControl>().as_ref() }
    }

    #[inline]
    pub(super) fn line(&self, number: u64) -> &Line {
        let at = LINES_AT + (number % LINES) as usize * size_of::<Line>();
        // SAFETY: inside the memory, aligned to a line, and only accessed as atomics.
        unsafe { self.start.add(at).cast::<Line>().as_ref() }
    }

    /// The line at which the bytes from a position on begin, for a prefetch.
    #[inline]
    pub(super) fn line_of_bytes(&self, position: u64) -> &Line {
        let at = position as usize & (self.capacity - 1);
        // SAFETY: inside the memory, because `at` is less than the capacity; a multiple of the alignment of pieces.
        unsafe { self.start.add(BYTES_AT + at).cast::<Line>().as_ref() }
    }

    /// The two contiguous runs that make up `bytes` bytes from a position on: the run up to the end of the memory, and
    /// the rest from its beginning. Together the runs are at most as long as the capacity.
    pub(super) fn runs(&self, position: u64, bytes: usize) -> [(NonNull<u8>, usize); 2] {
        let bytes = bytes.min(self.capacity);
        let at = position as usize & (self.capacity - 1);
        let first = bytes.min(self.capacity - at);
        // SAFETY: both are inside the memory, because `at` is less than the capacity.
        let (from, base) = unsafe { (self.start.add(BYTES_AT + at), self.start.add(BYTES_AT)) };
        [(from, first), (base, bytes - first)]
    }
}

/// Error of a system call for memory of this size.
pub(super) fn system(step: &'static str, size: usize) -> impl FnOnce(nix::errno::Errno) -> MemoryError {
    move |source| MemoryError::System {
        step,
        size_bytes: size as u64,
        source,
    }
}

/// Number of bytes that a piece takes in the memory.
pub(super) fn rounded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(PIECE_ALIGN)
}
