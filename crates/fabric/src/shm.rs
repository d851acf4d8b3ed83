//! Transport `shm`: rings in sealed shared memory between two processes of one node.
//!
//! ```text
//! ring     | depth lines, padded to a page | entry 0 | entry 1 | ... | express entry |
//! entry    | unused | entry_bytes, 64-byte aligned, up to the end of the entry's last page |
//! express  | unused | its line | entry_bytes, as above |
//! ```
//!
//! Lines of the ring are adjacent, so that a pipelined channel touches few pages. The express entry's line is right
//! before its payload, so that processors fetch both at once.
//!
//! The owner of the memory maps a ring in one piece. A worker that writes a ring maps the pages of each entry
//! separately, with an inaccessible guard page behind them ([`ShmRing::attach_guarded`]): a function that writes past
//! its output capacity hits the guard page instead of another invocation's reply.

use crate::doorbell::Doorbell;
use crate::memory::{AddressMapping, Memory, MemoryError, PAGE_BYTES, check_sealed};
use crate::ring::{FarRing, Line, prefetch_read, prefetch_write};
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{EXPRESS_ENTRY, LineWords, RequestClaim, Seq};
use hotlease_wire::limits::{ENTRY_BYTES_MAX, RING_BYTES_MAX, RING_DEPTH_MAX};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Layout of a ring of a given shape. `pitch` is the distance from one entry to the next: the stride, or more if there
/// are guard pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingLayout {
    depth: u32,
    entry_bytes: usize,
    lines_bytes: usize,
    stride: usize,
    express_stride: usize,
}

impl RingLayout {
    /// Layout of this shape. Returns `None` if the shape is over the limits, or if its depth is no power of two.
    pub fn of(shape: RingShape) -> Option<Self> {
        let RingShape { depth, entry_bytes } = shape;
        if !depth.is_power_of_two() || depth > RING_DEPTH_MAX || entry_bytes == 0 || entry_bytes > ENTRY_BYTES_MAX {
            return None;
        }
        let payload = (entry_bytes as usize).next_multiple_of(size_of::<Line>());
        let layout = Self {
            depth,
            entry_bytes: entry_bytes as usize,
            lines_bytes: (depth as usize * size_of::<Line>()).next_multiple_of(PAGE_BYTES),
            stride: payload.next_multiple_of(PAGE_BYTES),
            express_stride: (size_of::<Line>() + payload).next_multiple_of(PAGE_BYTES),
        };
        (layout.ring_bytes() as u64 <= RING_BYTES_MAX).then_some(layout)
    }

    /// Bytes of the whole ring.
    pub fn ring_bytes(&self) -> usize {
        self.express_start(self.stride) + self.express_stride
    }

    /// Offset of the express entry, if entries are `pitch` apart.
    fn express_start(&self, pitch: usize) -> usize {
        self.lines_bytes + self.depth as usize * pitch
    }

    /// Position of an entry in the ring; the express entry comes last.
    #[inline]
    fn number(&self, entry: u32) -> u32 {
        if entry == EXPRESS_ENTRY {
            return self.depth;
        }
        entry & (self.depth - 1)
    }

    /// Offset of an entry's line. Entry numbers are taken modulo the ring's depth.
    #[inline]
    fn line_at(&self, entry: u32, pitch: usize) -> usize {
        if entry == EXPRESS_ENTRY {
            return self.payload_at(entry, pitch) - size_of::<Line>();
        }
        (entry & (self.depth - 1)) as usize * size_of::<Line>()
    }

    /// Offset of an entry's payload in the ring's memory.
    #[inline]
    pub(crate) fn near_payload_at(&self, entry: u32) -> usize {
        self.payload_at(entry, self.stride)
    }

    /// Offset of an entry's payload. The payload ends where the entry's last page ends.
    #[inline]
    fn payload_at(&self, entry: u32, pitch: usize) -> usize {
        let end = if entry == EXPRESS_ENTRY {
            self.express_start(pitch) + self.express_stride
        } else {
            self.lines_bytes + (entry & (self.depth - 1)) as usize * pitch + self.stride
        };
        end - self.entry_bytes.next_multiple_of(size_of::<Line>())
    }

    /// Number of entries, without the express entry.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Payload bytes of an entry.
    pub fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }
}

/// A ring in memory that this process made and polls. A clone refers to the same ring: a fabric's port has a clone, to
/// put frames into the ring.
#[derive(Clone)]
pub struct NearRing {
    memory: Arc<Memory>,
    layout: RingLayout,
    /// Start of the memory. A copy is kept here, so that polling follows one pointer less.
    start: NonNull<u8>,
}

// SAFETY: an address in shared memory that `memory` keeps mapped; lines are atomics, and payloads belong to one side at
// a time by the channel's protocol.
unsafe impl Send for NearRing {}
// SAFETY: as above.
unsafe impl Sync for NearRing {}

impl NearRing {
    /// Creates an empty ring.
    pub fn create(name: &str, shape: RingShape) -> Result<Self, MemoryError> {
        let layout = RingLayout::of(shape).ok_or(MemoryError::BadSize {
            size_bytes: u64::from(shape.entry_bytes),
        })?;
        let memory = Arc::new(Memory::create(name, layout.ring_bytes() as u64)?);
        Ok(Self {
            start: memory.start(),
            memory,
            layout,
        })
    }

    /// Descriptor to pass to the peer that writes the ring.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The memory, to register it with a fabric.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Layout of the ring.
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// The line of an entry.
    #[inline]
    pub fn line(&self, entry: u32) -> &Line {
        let at = self.layout.line_at(entry, self.layout.stride);
        // SAFETY: by the layout, the line is aligned and inside the mapping; the mapping lives as long as self; lines
        // are only ever accessed as atomics.
        unsafe { self.start.add(at).cast::<Line>().as_ref() }
    }

    /// The payload of an entry: `entry_bytes` bytes, which a hostile peer may write at any time.
    #[inline]
    pub fn payload(&self, entry: u32) -> NonNull<u8> {
        // SAFETY: inside the mapping by the layout.
        unsafe { self.start.add(self.layout.payload_at(entry, self.layout.stride)) }
    }

    /// A hint that the first `bytes` bytes of an entry's payload will be read soon. The peer has just written the
    /// bytes, so each line is a cache miss; if all are requested together, these misses overlap.
    #[inline]
    pub fn prefetch_payload(&self, entry: u32, bytes: usize) {
        lines(self.payload(entry), bytes).for_each(prefetch_read);
    }
}

/// The first cache lines of a payload of this many bytes.
#[inline]
fn lines(start: NonNull<u8>, bytes: usize) -> impl Iterator<Item = NonNull<u8>> {
    let number = bytes.div_ceil(LINE_BYTES).min(PREFETCH_LINES);
    // The address does not overflow, because payloads are inside mappings. A line behind a mapping would just not be
    // fetched.
    (0..number).map(move |line| NonNull::new(start.as_ptr().wrapping_add(line * LINE_BYTES)).unwrap_or(start))
}

/// Largest number of lines that are fetched ahead, enough for payloads of 2 KiB.
const PREFETCH_LINES: usize = 32;
const LINE_BYTES: usize = size_of::<Line>();

/// A ring in memory that the peer made and polls, with the peer's doorbell.
pub struct ShmRing {
    /// The plain mapping of the ring.
    ring: AddressMapping,
    layout: RingLayout,
    /// Second mapping of the ring's payloads, with guard pages; `None` if the ring was attached without guard pages.
    guarded: Option<GuardedMapping>,
    doorbell: Doorbell,
}

/// Address space in which every entry of a ring has a guard page behind it. An entry is mapped there when it is first
/// used: most channels use few entries, and a mapping costs 4 us.
struct GuardedMapping {
    space: AddressMapping,
    memory: OwnedFd,
    /// One bit for each entry, the express entry last.
    mapped: Box<[AtomicU64]>,
}

impl GuardedMapping {
    fn new(layout: &RingLayout, memory: OwnedFd) -> Result<Self, nix::errno::Errno> {
        let express = layout.express_start(layout.stride + PAGE_BYTES);
        Ok(Self {
            space: AddressMapping::reserve(express + layout.express_stride + PAGE_BYTES)?,
            memory,
            mapped: (0..=layout.depth / 64).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Payload of an entry. Returns `None` if the kernel allows no further mapping; the entry is then used without a
    /// guard page.
    #[inline]
    fn payload(&self, layout: &RingLayout, entry: u32) -> Option<NonNull<u8>> {
        let number = layout.number(entry);
        let (word, bit) = (&self.mapped[number as usize / 64], 1 << (number % 64));
        // Relaxed: an entry is used by one thread at a time, and is passed to another thread with acquire and release.
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.map(layout, number)?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        let at = layout.payload_at(entry, layout.stride + PAGE_BYTES);
        // SAFETY: inside the reservation by the layout.
        Some(unsafe { self.space.start().add(at) })
    }

    #[cold]
    fn map(&self, layout: &RingLayout, number: u32) -> Option<()> {
        let start = |pitch| layout.lines_bytes + number as usize * pitch;
        let bytes = if number == layout.depth {
            layout.express_stride
        } else {
            layout.stride
        };
        let (at, offset) = (start(layout.stride + PAGE_BYTES), start(layout.stride));
        self.space.map_at(at, self.memory.as_fd(), offset, bytes).ok()
    }
}

impl ShmRing {
    /// Attaches a ring without guard pages, as a client does with a request ring.
    pub fn attach(fd: OwnedFd, shape: RingShape, doorbell: Doorbell) -> Result<Self, MemoryError> {
        Self::map(fd, shape, doorbell, false)
    }

    /// Attaches a ring with a guard page behind each entry, as a worker does with a reply ring.
    pub fn attach_guarded(fd: OwnedFd, shape: RingShape, doorbell: Doorbell) -> Result<Self, MemoryError> {
        Self::map(fd, shape, doorbell, true)
    }

    fn map(fd: OwnedFd, shape: RingShape, doorbell: Doorbell, guard: bool) -> Result<Self, MemoryError> {
        let layout = RingLayout::of(shape).ok_or(MemoryError::BadSize {
            size_bytes: u64::from(shape.entry_bytes),
        })?;
        let size_bytes = layout.ring_bytes() as u64;
        check_sealed(fd.as_fd(), size_bytes)?;
        let system = |source| MemoryError::System {
            step: "map",
            size_bytes,
            source,
        };
        let ring = AddressMapping::reserve(layout.ring_bytes()).map_err(system)?;
        let placed = ring.map_at(0, fd.as_fd(), 0, layout.ring_bytes());
        placed.map_err(system)?;
        let guarded = guard.then(|| GuardedMapping::new(&layout, fd)).transpose();
        Ok(Self {
            ring,
            layout,
            guarded: guarded.map_err(system)?,
            doorbell,
        })
    }

    /// Layout of the ring.
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    #[inline]
    fn line(&self, entry: u32) -> &Line {
        let at = self.layout.line_at(entry, self.layout.stride);
        // SAFETY: inside the mapping, see NearRing::line.
        unsafe { self.ring.start().add(at).cast::<Line>().as_ref() }
    }
}

impl FarRing for ShmRing {
    #[inline]
    fn payload(&self, entry: u32) -> NonNull<u8> {
        if let Some(guarded) = &self.guarded
            && let Some(payload) = guarded.payload(&self.layout, entry)
        {
            return payload;
        }
        // SAFETY: inside the mapping by the layout.
        unsafe { self.ring.start().add(self.layout.payload_at(entry, self.layout.stride)) }
    }

    fn published(&self, entry: u32) -> Option<(LineWords, NonNull<u8>)> {
        Some((self.line(entry).read(), self.payload(entry)))
    }

    fn withdraw(&self, entry: u32, seq: Seq) -> bool {
        self.line(entry).claim(seq, RequestClaim::Withdrawn)
    }

    #[inline]
    fn payload_bytes(&self) -> usize {
        self.layout.entry_bytes
    }

    #[inline]
    fn publish(&self, entry: u32, _payload_bytes: usize, words: &LineWords) {
        self.line(entry).publish(words);
    }

    #[inline]
    fn prefetch(&self, entry: u32) {
        self.line(entry).prefetch_write();
    }

    #[inline]
    fn prefetch_payload(&self, entry: u32, bytes: usize) {
        // `payload` returns the mapping to which the function will write, and maps the entry there if necessary: a hint
        // for a page that is not mapped has no effect.
        lines(self.payload(entry), bytes).for_each(prefetch_write);
    }

    #[inline]
    fn ring(&self) {
        self.doorbell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(depth: u32, entry_bytes: u32) -> RingShape {
        RingShape { depth, entry_bytes }
    }

    #[test]
    fn shapes_over_the_limits_are_refused() {
        for bad in [
            (0, 64),
            (3, 64),
            (8192, 64),
            (64, 0),
            (64, u32::MAX),
            (4096, 1 << 20),
            (u32::MAX, 1),
        ] {
            assert!(RingLayout::of(shape(bad.0, bad.1)).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn both_ends_agree_on_every_byte() {
        for entry_bytes in [1, 33, 64, 100, 4096, 4097, 70_000] {
            let shape = shape(8, entry_bytes);
            let near = NearRing::create("test", shape).unwrap();
            let far = |guarded| {
                let fd = near.fd().try_clone_to_owned().unwrap();
                let bell = Doorbell::create().unwrap();
                let attach = if guarded {
                    ShmRing::attach_guarded
                } else {
                    ShmRing::attach
                };
                attach(fd, shape, bell).unwrap()
            };
            for far in [far(false), far(true)] {
                for entry in (0..8).chain([EXPRESS_ENTRY]) {
                    let value = entry.wrapping_add(entry_bytes) as u8;
                    // SAFETY: first and last byte of the entry's payload.
                    unsafe {
                        far.payload(entry).write(value);
                        far.payload(entry).add(entry_bytes as usize - 1).write(value);
                        assert_eq!(near.payload(entry).read(), value);
                        assert_eq!(near.payload(entry).add(entry_bytes as usize - 1).read(), value);
                    }
                }
            }
        }
    }

    #[test]
    fn express_line_stands_right_before_its_payload_and_apart_from_everything_else() {
        for entry_bytes in [1, 64, 100, 4032, 4096, 8128] {
            let layout = RingLayout::of(shape(8, entry_bytes)).unwrap();
            let line = layout.line_at(EXPRESS_ENTRY, layout.stride);
            let payload = layout.payload_at(EXPRESS_ENTRY, layout.stride);
            assert_eq!(line + 64, payload);
            assert!(line >= layout.payload_at(7, layout.stride) + entry_bytes as usize);
            assert!(payload + entry_bytes as usize <= layout.ring_bytes());
        }
    }
}
