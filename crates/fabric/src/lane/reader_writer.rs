//! Ends of a lane: the writer, which makes the lane's memory, and the reader, which opens it.

use super::exposed::{self, BodyPlace};
use super::memory::{LANE_BYTES_MIN, LaneMemory, rounded, system};
use super::progress::{LaneError, LaneRoom, ReaderProgress};
use super::{PIECE_ALIGN, peer_memory};
use crate::memory::{MemoryError, check_sealed, sealed_memfd};
use hotlease_wire::frame::{LineWords, Seq};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a message's head, bytes.
pub const HEAD_BYTES: usize = 32;
/// Longest body that is sent in the line of its head, bytes.
pub const INLINE_BYTES: usize = 24;

/// Longest piece of a body, bytes: the reader copies one piece while the writer copies the next.
const PIECE_BYTES: usize = 8 * 1024;
/// Free bytes that a longer body needs before its first piece is written; a shorter body needs room for all its bytes.
const FIRST_BYTES: usize = 4 * 1024;
const HEAD_WORDS: usize = HEAD_BYTES / 8;
/// Word of a line that has the length of the first piece, or the state of an exposed body.
const PIECE_WORD: usize = 1 + HEAD_WORDS;

const _: () = assert!(FIRST_BYTES <= LANE_BYTES_MIN / 2);

/// Writing end of a lane, which made the lane's memory.
pub struct LaneWriter {
    space: LaneMemory,
    room: LaneRoom,
    /// Descriptor of the memory, until the reader has opened it.
    memory: Option<OwnedFd>,
    /// Word with the lane's key, in memory of this process.
    key: Box<AtomicU64>,
    /// Addresses of the body that was found to be readable last.
    readable: Range<u64>,
}

/// Where an exposed body is in the memory of the writer's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodySource {
    /// Address of its first byte.
    pub address: u64,
    /// Address of a word that has the lane's key for as long as the body is valid.
    pub validity: u64,
}

/// Body that was exposed to the reader ([`LaneWriter::expose`]).
#[derive(Debug)]
pub struct ExposedBody {
    line: u64,
    /// Place in the lane that is reserved for the body.
    position: u64,
    length: usize,
}

/// The memory of an exposed body is gone, or was taken back before the reader had copied all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other process has taken back the memory of a message before all of it was read")]
pub struct SourceLost;

impl LaneWriter {
    /// Creates a lane with `capacity` bytes for longer bodies. The reader opens it with the same `key`. The memory is
    /// freed when both ends are gone, even if their processes were killed.
    pub fn create(capacity: usize, key: u64) -> Result<Self, MemoryError> {
        let size = LaneMemory::size(capacity)?;
        let memory = sealed_memfd("hotlease-lane", size as u64)?;
        let space = LaneMemory::map(memory.as_fd(), size, capacity)?;
        let writer = Self::on(space, Some(memory));
        writer.set_key(key);
        Ok(writer)
    }

    fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
        let control = self.space.control();
        let address = std::ptr::from_ref(&*self.key).addr() as u64;
        control.key_address.store(address, Ordering::Relaxed);
        // Pairs with the acquire in `LaneReader::open`.
        control.key.store(key, Ordering::Release);
    }

    fn on(space: LaneMemory, memory: Option<OwnedFd>) -> Self {
        Self {
            room: LaneRoom::new(space.capacity as u64),
            space,
            memory,
            key: Box::default(),
            readable: 0..0,
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
            for (word, bytes) in words[PIECE_WORD..].iter_mut().zip(body.chunks(8)) {
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
        words[PIECE_WORD] = piece as u64;
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

    /// Whether a body of this length may be exposed: the reader can copy it from this process's memory, the lane is long
    /// enough for it, and it is not so short that its line has it.
    pub fn may_expose(&self, length: usize) -> bool {
        // The key 0 would be that of bytes that were never exposed.
        let is_readable = self.space.control().is_readable.load(Ordering::Relaxed) != 0 && self.key() != 0;
        is_readable && (INLINE_BYTES + 1..=self.space.capacity).contains(&length)
    }

    /// Key that the word [`BodySource::validity`] must have.
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Address of a word that has the key for as long as this writer lives.
    pub fn key_address(&self) -> u64 {
        std::ptr::from_ref(&*self.key).addr() as u64
    }

    /// Whether the kernel lets other processes copy a body of this length from its place: not from memory of some devices,
    /// such as the memory that a GPU's driver maps. Looks at both ends of the body, unless it is where the last one was.
    pub fn is_readable(&mut self, source: BodySource, length: usize) -> bool {
        let end = source.address.saturating_add(length as u64);
        if self.readable.start <= source.address && end <= self.readable.end {
            return true;
        }
        let is_readable =
            peer_memory::read(std::process::id(), source.address, &mut [0], end.saturating_sub(8)).is_ok();
        if is_readable {
            self.readable = source.address..end;
        }
        is_readable
    }

    /// Writes a head, and exposes its body of `length` bytes, which stays where it is. Returns `None` if there was no
    /// room for the body, which may have to be copied later, and nothing was written. The memory must not change until
    /// [`is_copied`](Self::is_copied), or until [`withdraw`](Self::withdraw) has returned `true`. If it does change, its
    /// word of validity must change before: the reader then loses the body.
    pub fn expose(
        &mut self,
        head: &[u8; HEAD_BYTES],
        source: BodySource,
        length: usize,
    ) -> Result<Option<ExposedBody>, LaneError> {
        debug_assert!(self.may_expose(length));
        if !self.room.check_room(self.space.control(), rounded(length))? {
            return Ok(None);
        }
        let mut words = [0; 8];
        for (word, bytes) in words[1..].iter_mut().zip(head.chunks_exact(8)) {
            *word = word_of(bytes);
        }
        words[PIECE_WORD..].copy_from_slice(&[exposed::EXPOSED, source.address, source.validity]);
        let exposed = ExposedBody {
            line: self.room.written.lines,
            position: self.room.written.bytes,
            length,
        };
        self.room.written.bytes += rounded(length);
        self.publish(&mut words);
        Ok(Some(exposed))
    }

    /// Whether the reader has copied an exposed body.
    pub fn is_copied(&self, exposed: &ExposedBody) -> bool {
        // The line may have been used again after the reader had taken it.
        self.room.is_taken(exposed.line) || exposed::is_done(self.space.line(exposed.line).word(PIECE_WORD))
    }

    /// Copies an exposed body into the lane, unless the reader has begun to copy it; returns whether it did.
    pub fn withdraw(&self, exposed: &ExposedBody, body: &[u8]) -> bool {
        debug_assert_eq!(body.len(), exposed.length);
        let word = self.space.line(exposed.line).word(PIECE_WORD);
        if self.room.is_taken(exposed.line) || !exposed::is_open(word) {
            return false;
        }
        self.copy_in(exposed.position, &body[..exposed.length]);
        exposed::withdraw(word)
    }

    /// Copies bytes into the lane's memory from a position on; there is room.
    fn copy_in(&self, position: u64, body: &[u8]) {
        let mut from = body;
        for (place, length) in self.space.runs(position, body.len()) {
            let (now, later) = from.split_at(length);
            // SAFETY: inside the memory by `runs`, and there is room, so the reader does not read it now; a lane's
            // memory belongs to no caller, so source and destination do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), length) };
            from = later;
        }
    }

    /// Copies the next piece of a body into the memory, as far as there is room; returns the piece's length.
    fn fill(&mut self, body: &[u8]) -> usize {
        // The room is a multiple of the alignment.
        let piece = body.len().min(PIECE_BYTES).min(self.room.bytes() as usize);
        self.copy_in(self.room.written.bytes, &body[..piece]);
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

impl Drop for LaneWriter {
    fn drop(&mut self) {
        // The owner of the memory of exposed bodies drops it after this. Pairs with the acquire in
        // `LaneReader::read_source`: a reader that copies bytes of other memory sees this afterwards.
        self.space.control().is_closed.store(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
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
        bytes_of(&self.0[PIECE_WORD..])
    }

    /// Length of the first piece of a longer body, if this line is the first of a message.
    pub fn first_piece(&self) -> u64 {
        self.0[PIECE_WORD]
    }

    /// Place of the body in the writer's memory, if this line is the first of a message and exposes its body.
    #[inline]
    pub fn source(&self) -> Option<BodySource> {
        exposed::is_exposed(self.0[PIECE_WORD]).then(|| BodySource {
            address: self.0[PIECE_WORD + 1],
            validity: self.0[PIECE_WORD + 2],
        })
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
    /// The writer's process, and the key of its lane.
    writer: (u32, u64),
}

impl LaneReader {
    /// Opens the memory of a writer in another process, or in this process, and checks seals, size and key.
    pub fn open(process: u32, descriptor: u32, capacity: usize, key: u64) -> Result<Self, MemoryError> {
        let size = LaneMemory::size(capacity)?;
        let memory = super::bell::open(process, descriptor).map_err(system("open", size))?;
        check_sealed(memory.as_fd(), size as u64)?;
        let space = LaneMemory::map(memory.as_fd(), size, capacity)?;
        // Pairs with the release in `LaneWriter::set_key`.
        if space.control().key.load(Ordering::Acquire) != key {
            return Err(MemoryError::OtherObject);
        }
        let reader = Self::on(space, (process, key));
        reader.try_source();
        Ok(reader)
    }

    fn on(space: LaneMemory, writer: (u32, u64)) -> Self {
        Self {
            progress: ReaderProgress::new(space.capacity as u64),
            space,
            writer,
        }
    }

    /// Tells the writer whether this process can read its memory. The kernel forbids it in some sandboxes, and where only
    /// parents may inspect processes (`kernel.yama.ptrace_scope`).
    fn try_source(&self) {
        let control = self.space.control();
        let (process, key) = self.writer;
        let word = peer_memory::read(process, 0, &mut [], control.key_address.load(Ordering::Relaxed));
        control.is_readable.store(u32::from(word == Ok(key)), Ordering::Relaxed);
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
        self.space.line_of_bytes(self.progress.taken.bytes).prefetch_read();
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

    /// Claims the body that the line taken last exposes; returns where to copy it from. It must be copied or skipped by
    /// [`read_source`](Self::read_source) or [`take`](Self::take), and [`finish`](Self::finish), before the next line is
    /// taken.
    pub fn claim(&self) -> Result<BodyPlace, LaneError> {
        exposed::claim(self.space.line(self.progress.taken.lines - 1).word(PIECE_WORD))
    }

    /// Copies a claimed body from the writer's memory.
    pub fn read_source(&self, source: BodySource, into: &mut [u8]) -> Result<(), SourceLost> {
        let (process, key) = self.writer;
        let word = peer_memory::read(process, source.address, into, source.validity);
        // The word was read after the bytes, and the owner of the memory changes it before it changes the bytes. So all
        // bytes are those of the body if the word still has the key. The lane's flag, which pairs with
        // `LaneWriter::drop`, shows that the word itself was still there.
        match word == Ok(key) && self.space.control().is_closed.load(Ordering::Acquire) == 0 {
            true => Ok(()),
            false => Err(SourceLost),
        }
    }

    /// Reports that a claimed body of this length was copied from the writer's memory, or is not wanted. The caller then
    /// rings the writer's bell.
    pub fn finish(&mut self, length: usize) {
        exposed::finish(self.space.line(self.progress.taken.lines - 1).word(PIECE_WORD));
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
