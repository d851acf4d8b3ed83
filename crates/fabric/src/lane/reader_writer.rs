//! Ends of a lane: the writer, which makes the lane's memory, and the reader, which opens it.

use super::progress::{LaneControl, LaneError, LaneRoom, ReaderProgress};
use super::{LINES, PIECE_ALIGN};
use crate::memory::{AddressMapping, MemoryError, PAGE_BYTES, check_sealed, sealed_memfd};
use crate::ring::Line;
use hotlease_wire::frame::{LineWords, Seq};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Size of a message's head, bytes.
pub const HEAD_BYTES: usize = 32;
/// Longest body that is sent in the line of its head, bytes.
pub const INLINE_BYTES: usize = 24;
/// Least capacity of a lane for longer bodies; capacities are powers of two.
pub const LANE_BYTES_MIN: usize = 8 * 1024;
/// Greatest capacity of a lane for longer bodies.
pub const LANE_BYTES_MAX: usize = 1 << 20;

/// Longest piece of a body, bytes: the reader copies one piece while the writer copies the next.
const PIECE_BYTES: usize = 8 * 1024;
/// Free bytes that a longer body needs before its first piece is written; a shorter body needs room for all its bytes.
const FIRST_BYTES: usize = 4 * 1024;
/// Offset of the lines in the memory.
const LINES_AT: usize = 512;
/// Offset of the bytes of longer bodies in the memory.
const BYTES_AT: usize = (LINES_AT + LINES as usize * size_of::<Line>()).next_multiple_of(PAGE_BYTES);
const HEAD_WORDS: usize = HEAD_BYTES / 8;

const _: () = assert!(size_of::<LaneControl>() <= LINES_AT && FIRST_BYTES <= LANE_BYTES_MIN / 2);

/// Memory of a lane: control words, lines, and bytes of longer bodies.
struct LaneMemory {
    start: NonNull<u8>,
    /// Number of bytes for longer bodies, a power of two.
    capacity: usize,
    /// Keeps the memory mapped.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: an address in memory that `_owner` keeps mapped. Control words and lines are atomics; bytes belong to one
// side at a time by the protocol (see [`super`]). If a hostile writer breaks the protocol, the reader copies arbitrary
// bytes.
unsafe impl Send for LaneMemory {}

impl LaneMemory {
    fn bytes(capacity: usize) -> usize {
        BYTES_AT + capacity
    }

    fn of(mapping: AddressMapping, capacity: usize) -> Self {
        Self {
            start: mapping.start(),
            capacity,
            _owner: Arc::new(mapping),
        }
    }

    #[inline]
    fn control(&self) -> &LaneControl {
        // SAFETY: at the beginning of the memory, which is aligned to pages, larger than `LaneControl`, and mapped as
        // long as self lives; all fields are atomics.
        unsafe { self.start.cast::<LaneControl>().as_ref() }
    }

    #[inline]
    fn line(&self, number: u64) -> &Line {
        let at = LINES_AT + (number % LINES) as usize * size_of::<Line>();
        // SAFETY: inside the memory, aligned to a line, and only accessed as atomics.
        unsafe { self.start.add(at).cast::<Line>().as_ref() }
    }

    /// The two contiguous runs that make up `bytes` bytes from a position on: the run up to the end of the memory, and
    /// the rest from its beginning. Together the runs are at most as long as the capacity.
    fn runs(&self, position: u64, bytes: usize) -> [(NonNull<u8>, usize); 2] {
        let bytes = bytes.min(self.capacity);
        let at = position as usize & (self.capacity - 1);
        let first = bytes.min(self.capacity - at);
        // SAFETY: both are inside the memory, because `at` is less than the capacity.
        let (from, base) = unsafe { (self.start.add(BYTES_AT + at), self.start.add(BYTES_AT)) };
        [(from, first), (base, bytes - first)]
    }
}

fn system(step: &'static str, size: usize) -> impl FnOnce(nix::errno::Errno) -> MemoryError {
    move |source| MemoryError::System {
        step,
        size_bytes: size as u64,
        source,
    }
}

fn check(capacity: usize) -> Result<usize, MemoryError> {
    let is_good = capacity.is_power_of_two() && (LANE_BYTES_MIN..=LANE_BYTES_MAX).contains(&capacity);
    let size_bytes = capacity as u64;
    if is_good {
        Ok(LaneMemory::bytes(capacity))
    } else {
        Err(MemoryError::BadSize { size_bytes })
    }
}

fn rounded(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(PIECE_ALIGN)
}

/// Writing end of a lane, which made the lane's memory.
pub struct LaneWriter {
    space: LaneMemory,
    room: LaneRoom,
    /// Descriptor of the memory, until the reader has opened it.
    memory: Option<OwnedFd>,
}

impl LaneWriter {
    /// Creates a lane with `capacity` bytes for longer bodies. The reader opens it with the same `key`. The memory is
    /// freed when both ends are gone, even if their processes were killed.
    pub fn create(capacity: usize, key: u64) -> Result<Self, MemoryError> {
        let size = check(capacity)?;
        let memory = sealed_memfd("hotlease-lane", size as u64)?;
        let mapping = AddressMapping::reserve(size).map_err(system("reserve", size))?;
        let placed = mapping.map_at(0, memory.as_fd(), 0, size);
        placed.map_err(system("map", size))?;
        let space = LaneMemory::of(mapping, capacity);
        space.control().key.store(key, Ordering::Release);
        Ok(Self::on(space, Some(memory)))
    }

    fn on(space: LaneMemory, memory: Option<OwnedFd>) -> Self {
        Self {
            room: LaneRoom::new(space.capacity as u64),
            space,
            memory,
        }
    }

    /// Number of the memory's descriptor, for [`LaneReader::open`] in another process, until
    /// [`close_descriptor`](Self::close_descriptor).
    pub fn descriptor(&self) -> Option<u32> {
        self.memory.as_ref().map(|memory| memory.as_raw_fd() as u32)
    }

    /// Closes the descriptor, once the reader has opened the lane.
    pub fn close_descriptor(&mut self) {
        self.memory = None;
    }

    /// Writes a head and the beginning of its body; returns the number of bytes of the body that were written, or
    /// `None` if there was no room and nothing was written. Bodies of up to [`INLINE_BYTES`] are written whole; the
    /// caller writes the rest of a longer body by [`continue_body`](Self::continue_body) before any other head.
    #[inline]
    pub fn begin(&mut self, head: &[u8; HEAD_BYTES], body: &[u8]) -> Result<Option<usize>, LaneError> {
        let mut words = [0; 8];
        for (word, bytes) in words[1..].iter_mut().zip(head.chunks_exact(8)) {
            *word = word_of(bytes);
        }
        if body.len() <= INLINE_BYTES {
            if !self.room.check_room(self.space.control(), 0)? {
                return Ok(None);
            }
            for (word, bytes) in words[1 + HEAD_WORDS..].iter_mut().zip(body.chunks(8)) {
                *word = word_of(bytes);
            }
            self.publish(&mut words);
            return Ok(Some(body.len()));
        }
        let first = rounded(body.len().min(FIRST_BYTES));
        if !self.room.check_room(self.space.control(), first)? {
            return Ok(None);
        }
        let piece = self.fill(body);
        words[1 + HEAD_WORDS] = piece as u64;
        self.publish(&mut words);
        Ok(Some(piece))
    }

    /// Writes more of the body that was begun; returns the number of bytes that were written, 0 if there is no room.
    pub fn continue_body(&mut self, body: &[u8]) -> Result<usize, LaneError> {
        let mut gone = 0;
        while gone < body.len() && self.room.check_room(self.space.control(), PIECE_ALIGN)? {
            let piece = self.fill(&body[gone..]);
            gone += piece;
            self.publish(&mut [0, piece as u64, 0, 0, 0, 0, 0, 0]);
        }
        Ok(gone)
    }

    /// Announces that the writer waits for room; returns whether there is room after all. If there is none, the reader
    /// will wake the writer ([`LaneReader::release`]).
    pub fn announce_stall(&mut self) -> Result<bool, LaneError> {
        self.room.stall(self.space.control(), rounded(FIRST_BYTES))
    }

    /// Copies the next piece of a body into the memory, as far as there is room; returns the piece's length.
    fn fill(&mut self, body: &[u8]) -> usize {
        // The room is a multiple of the alignment.
        let piece = body.len().min(PIECE_BYTES).min(self.room.bytes() as usize);
        let mut from = &body[..piece];
        for (place, length) in self.space.runs(self.room.written.bytes, piece) {
            let (now, later) = from.split_at(length);
            // SAFETY: inside the memory by `runs`, and there is room, so the reader does not read it now; a lane's
            // memory belongs to no caller, so source and destination do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), length) };
            from = later;
        }
        self.room.written.bytes += rounded(piece);
        piece
    }

    #[inline]
    fn publish(&mut self, words: &mut LineWords) {
        let number = self.room.written.lines;
        words[0] = Seq::new(1, number).word();
        self.space.line(number).publish(words);
        self.room.written.lines = number + 1;
    }
}

#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// A private copy of a line.
pub struct LaneLine(LineWords);

impl LaneLine {
    /// The head, if this line is the first of a message.
    #[inline]
    pub fn head(&self) -> [u8; HEAD_BYTES] {
        bytes_of(&self.0[1..=HEAD_WORDS])
    }

    /// A body of up to [`INLINE_BYTES`], padded to that length.
    #[inline]
    pub fn inline(&self) -> [u8; INLINE_BYTES] {
        bytes_of(&self.0[1 + HEAD_WORDS..])
    }

    /// Length of the first piece of a longer body, if this line is the first of a message.
    pub fn first_piece(&self) -> u64 {
        self.0[1 + HEAD_WORDS]
    }

    /// Length of the next piece, if this line continues a body.
    pub fn next_piece(&self) -> u64 {
        self.0[1]
    }
}

#[inline]
fn bytes_of<const N: usize>(words: &[u64]) -> [u8; N] {
    let mut bytes = [0; N];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reading end of a lane.
pub struct LaneReader {
    space: LaneMemory,
    progress: ReaderProgress,
}

impl LaneReader {
    /// Opens the memory of a writer in another process, or in this process, and checks seals, size and key.
    pub fn open(process: u32, descriptor: u32, capacity: usize, key: u64) -> Result<Self, MemoryError> {
        let size = check(capacity)?;
        let memory = super::bell::open(process, descriptor).map_err(system("open", size))?;
        check_sealed(memory.as_fd(), size as u64)?;
        let mapping = AddressMapping::reserve(size).map_err(system("reserve", size))?;
        let placed = mapping.map_at(0, memory.as_fd(), 0, size);
        placed.map_err(system("map", size))?;
        let space = LaneMemory::of(mapping, capacity);
        if space.control().key.load(Ordering::Acquire) != key {
            return Err(MemoryError::OtherObject);
        }
        Ok(Self::on(space))
    }

    fn on(space: LaneMemory) -> Self {
        Self {
            progress: ReaderProgress::new(space.capacity as u64),
            space,
        }
    }

    /// Whether a line has arrived.
    #[inline]
    pub fn has_line(&self) -> bool {
        let number = self.progress.taken.lines;
        self.space.line(number).poll(Seq::new(1, number)).is_some()
    }

    /// Takes the next line, if there is one. Its bytes must be read or skipped before the next line is taken.
    #[inline]
    pub fn next_line(&mut self) -> Option<LaneLine> {
        let number = self.progress.taken.lines;
        let words = self.space.line(number).poll(Seq::new(1, number))?;
        self.progress.taken.lines = number + 1;
        // Start of a longer body: prefetched while the caller looks at the head.
        let at = self.progress.taken.bytes as usize & (self.space.capacity - 1);
        // SAFETY: inside the memory; the line there is only prefetched, not read.
        unsafe { self.space.start.add(BYTES_AT + at).cast::<Line>().as_ref() }.prefetch_read();
        Some(LaneLine(words))
    }

    /// Copies a piece of `into.len()` bytes, and advances to the bytes after the piece. Bytes of `into` beyond the
    /// lane's capacity do not change.
    pub fn take(&mut self, into: &mut [u8]) {
        let length = into.len();
        let mut into = into;
        for (place, length) in self.space.runs(self.progress.taken.bytes, length) {
            let (now, later) = into.split_at_mut(length);
            // SAFETY: inside the memory by `runs`. The writer has published the piece, and overwrites it only after it
            // is released.
            unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), now.as_mut_ptr(), length) };
            into = later;
        }
        self.skip(length);
    }

    /// Skips a piece.
    pub fn skip(&mut self, bytes: usize) {
        // A wrong length harms only the writer that sent it: it moves the position in that writer's own lane.
        self.progress.taken.bytes = self.progress.taken.bytes.wrapping_add(rounded(bytes));
    }

    /// Lets the writer reuse the bytes that were read. Returns whether the writer waits for room and must be woken.
    #[inline]
    pub fn release(&mut self) -> bool {
        self.progress.report(self.space.control())
    }

    /// Length limit of a piece.
    pub fn capacity(&self) -> usize {
        self.space.capacity
    }
}

#[cfg(test)]
mod tests;
