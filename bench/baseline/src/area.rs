//! Memory that client and peer share.

use std::sync::atomic::AtomicU64;

/// Bytes of payload that fit into one line beside the sequence word.
pub const LINE_PAYLOAD_BYTES: usize = 56;

const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// Sequence word that tells the peer to return.
pub(crate) const STOP: u64 = u64::MAX;

/// Returns the bytes of memory that a round trip with this payload needs. The halves are page-aligned, so that the two
/// directions share no line and no prefetched neighbour.
pub fn memory_bytes(payload_bytes: usize) -> usize {
    2 * (LINE_BYTES + payload_bytes).next_multiple_of(PAGE_BYTES)
}

/// One cache line, which begins with the sequence word.
#[repr(C, align(64))]
pub(crate) struct Line {
    pub(crate) seq: AtomicU64,
    pub(crate) words: [AtomicU64; 7],
}

/// Memory of one direction: a line, and the payload behind it.
#[derive(Clone, Copy)]
pub(crate) struct Direction {
    line: *mut Line,
}

impl Direction {
    /// # Safety
    /// `start` is 64-byte aligned and valid for reads and writes of a line as long as this is used.
    unsafe fn new(start: *mut u8) -> Self {
        Self { line: start.cast() }
    }

    pub(crate) fn line(&self) -> &Line {
        // SAFETY: promised in `new`; a line consists of atomics, for which any bytes are valid.
        unsafe { &*self.line }
    }

    /// Returns the first byte after the line.
    pub(crate) fn payload(&self) -> *mut u8 {
        self.line.wrapping_add(1).cast()
    }
}

/// Both directions, and the payload that fits into each.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    pub(crate) request: Direction,
    pub(crate) reply: Direction,
    pub(crate) payload_bytes: usize,
}

impl Area {
    /// Returns `None` if the memory is too small or not aligned to a line.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes of `bytes` bytes as long as the area is used, and all its other users
    /// follow the protocol.
    pub(crate) unsafe fn new(memory: *mut u8, bytes: usize) -> Option<Self> {
        let half = bytes / 2;
        if half < PAGE_BYTES || !half.is_multiple_of(LINE_BYTES) || !(memory as usize).is_multiple_of(LINE_BYTES) {
            return None;
        }
        // SAFETY: both lines are inside the memory and aligned, as just checked.
        unsafe {
            Some(Self {
                request: Direction::new(memory),
                reply: Direction::new(memory.add(half)),
                payload_bytes: half - LINE_BYTES,
            })
        }
    }
}
