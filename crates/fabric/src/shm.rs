//! Transport `shm`: rings in sealed shared memory between two processes of one node.
//!
//! ```text
//! ring     | depth lines, padded to a page | entry 0 | entry 1 | ... |
//! entry    | unused | entry_bytes, 64-byte aligned, up to the end of the entry's last page |
//! ```
//!
//! The owner of the memory maps a ring as it is. The writing worker maps each entry's pages apart with an
//! inaccessible guard page behind them ([`ShmRing::attach_guarded`]): a function that writes past its
//! output capacity hits the guard page instead of another invocation's reply.

use crate::doorbell::Doorbell;
use crate::memory::{Mapping, Memory, MemoryError, PAGE_BYTES, check_sealed};
use crate::ring::{FarRing, Line};
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::LineWords;
use hotlease_wire::limits::{ENTRY_BYTES_MAX, RING_BYTES_MAX, RING_DEPTH_MAX};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Where things stand in a ring of a given shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    depth: u32,
    entry_bytes: usize,
    lines_bytes: usize,
    stride: usize,
}

impl Layout {
    /// Of this shape; `None` if the shape is over the limits or not a power of two deep.
    pub fn of(shape: RingShape) -> Option<Self> {
        let RingShape { depth, entry_bytes } = shape;
        if !depth.is_power_of_two()
            || depth > RING_DEPTH_MAX
            || entry_bytes == 0
            || entry_bytes > ENTRY_BYTES_MAX
        {
            return None;
        }
        let layout = Self {
            depth,
            entry_bytes: entry_bytes as usize,
            lines_bytes: (depth as usize * size_of::<Line>()).next_multiple_of(PAGE_BYTES),
            stride: (entry_bytes as usize).next_multiple_of(PAGE_BYTES),
        };
        (layout.ring_bytes() as u64 <= RING_BYTES_MAX).then_some(layout)
    }

    /// Bytes of the whole ring.
    pub fn ring_bytes(&self) -> usize {
        self.lines_bytes + self.depth as usize * self.stride
    }

    /// Entries.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Payload bytes of an entry.
    pub fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }

    /// From the start of an entry's pages to its payload, which ends with them.
    fn payload_offset(&self) -> usize {
        self.stride - self.entry_bytes.next_multiple_of(64)
    }
}

/// A ring in memory that this process made: what it polls.
pub struct NearRing {
    memory: Memory,
    layout: Layout,
}

impl NearRing {
    /// A new, empty one.
    pub fn create(name: &str, shape: RingShape) -> Result<Self, MemoryError> {
        let layout = Layout::of(shape).ok_or(MemoryError::BadSize {
            size_bytes: u64::from(shape.entry_bytes),
        })?;
        Ok(Self {
            memory: Memory::create(name, layout.ring_bytes() as u64)?,
            layout,
        })
    }

    /// To pass to the peer that writes it.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Its shape.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The line of an entry; the index is reduced to the ring's depth.
    #[inline]
    pub fn line(&self, index: u32) -> &Line {
        let entry = index & (self.layout.depth - 1);
        // SAFETY: entry < depth, so the line lies inside the mapping, which lives as long as self; lines
        // are only ever accessed as atomics.
        unsafe { self.memory.start().cast::<Line>().add(entry as usize).as_ref() }
    }

    /// The payload of an entry: `entry_bytes` bytes that the peer may go on writing if it is hostile.
    #[inline]
    pub fn payload(&self, index: u32) -> NonNull<u8> {
        let entry = (index & (self.layout.depth - 1)) as usize;
        let offset = self.layout.lines_bytes + entry * self.layout.stride + self.layout.payload_offset();
        // SAFETY: inside the mapping by the layout.
        unsafe { self.memory.start().add(offset) }
    }
}

/// A ring in memory that the peer made and polls, with the peer's doorbell.
pub struct ShmRing {
    mapping: Mapping,
    layout: Layout,
    /// Distance of entries in this mapping: the stride, and the guard page if there is one.
    pitch: usize,
    doorbell: Doorbell,
}

impl ShmRing {
    /// As a client maps a request ring.
    pub fn attach(fd: OwnedFd, shape: RingShape, doorbell: Doorbell) -> Result<Self, MemoryError> {
        Self::map(fd, shape, doorbell, 0)
    }

    /// As a worker maps a reply ring: with a guard page behind each entry.
    pub fn attach_guarded(fd: OwnedFd, shape: RingShape, doorbell: Doorbell) -> Result<Self, MemoryError> {
        Self::map(fd, shape, doorbell, PAGE_BYTES)
    }

    fn map(fd: OwnedFd, shape: RingShape, doorbell: Doorbell, guard: usize) -> Result<Self, MemoryError> {
        let layout = Layout::of(shape).ok_or(MemoryError::BadSize {
            size_bytes: u64::from(shape.entry_bytes),
        })?;
        let size_bytes = layout.ring_bytes() as u64;
        check_sealed(fd.as_fd(), size_bytes)?;
        let system = |source| MemoryError::System {
            step: "map",
            size_bytes,
            source,
        };
        let pitch = layout.stride + guard;
        let mapping = Mapping::reserve(layout.lines_bytes + layout.depth as usize * pitch).map_err(system)?;
        if guard == 0 {
            mapping
                .place(0, fd.as_fd(), 0, layout.ring_bytes())
                .map_err(system)?;
        } else {
            mapping
                .place(0, fd.as_fd(), 0, layout.lines_bytes)
                .map_err(system)?;
            for entry in 0..layout.depth as usize {
                let (at, offset) = (
                    layout.lines_bytes + entry * pitch,
                    layout.lines_bytes + entry * layout.stride,
                );
                mapping
                    .place(at, fd.as_fd(), offset, layout.stride)
                    .map_err(system)?;
            }
        }
        Ok(Self {
            mapping,
            layout,
            pitch,
            doorbell,
        })
    }

    /// Its shape.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    fn line(&self, entry: u32) -> &Line {
        let entry = entry & (self.layout.depth - 1);
        // SAFETY: inside the mapping, see NearRing::line.
        unsafe { self.mapping.start().cast::<Line>().add(entry as usize).as_ref() }
    }
}

impl FarRing for ShmRing {
    #[inline]
    fn payload(&self, entry: u32) -> NonNull<u8> {
        let entry = (entry & (self.layout.depth - 1)) as usize;
        // SAFETY: inside the mapping by the layout and pitch.
        unsafe {
            self.mapping
                .start()
                .add(self.layout.lines_bytes + entry * self.pitch + self.layout.payload_offset())
        }
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
            assert!(Layout::of(shape(bad.0, bad.1)).is_none(), "{bad:?}");
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
                for entry in 0..8 {
                    let value = (entry + entry_bytes) as u8;
                    // SAFETY: first and last byte of the entry's payload.
                    unsafe {
                        far.payload(entry).write(value);
                        far.payload(entry).add(entry_bytes as usize - 1).write(value);
                        assert_eq!(near.payload(entry).read(), value);
                        assert_eq!(
                            near.payload(entry + 8).add(entry_bytes as usize - 1).read(),
                            value
                        );
                    }
                }
            }
        }
    }
}
