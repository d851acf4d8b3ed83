//! Registered memory: arguments and results that are not copied.

pub(crate) mod staging;

use crate::Error;
use crate::session::region::Region;
use bytemuck::Pod;
use hotlease_wire::frame::Span;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `len` elements of plain data in memory that workers read and write in place: nothing is copied, at any size
/// (`Buffer<T>` of the rFaaS paper). Zeroed at first; behaves as a slice.
///
/// [`crate::Invoker::buffer`] makes a buffer and registers it with all workers of that invoker. With a worker of
/// another invoker, or with a worker that replaces another, the buffer is registered by the first call that uses the
/// buffer there. The number and bytes of buffers that are registered with one worker are limited
/// ([`crate::LeaseOptions::registered_buffers`] and [`crate::LeaseOptions::registered_bytes`]). At a limit, buffers
/// that were not used lately are closed; the next call that uses a closed buffer registers it again. The memory is
/// freed, in the client and in the workers, when the buffer is dropped and no invocation uses it any more.
///
/// While an invocation that was *submitted* with a part of the buffer is in flight, the worker uses that part: do not
/// read or write the part before the invocation has resolved. (Otherwise results are wrong.)
/// [`crate::Function::invoke_buffer`] borrows its buffers until the call is over.
///
/// `Send + Sync`: different parts may be used by different invocations and threads at once.
pub struct Buffer<T: Pod> {
    memory: hotlease_fabric::buffer::SharedBuffer<T>,
    region: Arc<Region>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(elements: usize) -> Result<Self, Error> {
        let memory = hotlease_fabric::buffer::SharedBuffer::new(elements)?;
        let region = Arc::new(Region::new(memory.memory().clone()));
        Ok(Self { memory, region })
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.memory.size_bytes()
    }

    /// A part to be read by a function.
    ///
    /// # Panics
    /// If the range reaches past the end of the buffer, as with a slice.
    pub fn slice(&self, elements: impl RangeBounds<usize>) -> BufferSlice<'_> {
        let (offset, length) = self.bytes_of(elements);
        BufferSlice {
            region: &self.region,
            offset,
            length,
        }
    }

    /// A part to be written by a function.
    ///
    /// # Panics
    /// If the range reaches past the end of the buffer, as with a slice.
    pub fn slice_mut(&mut self, elements: impl RangeBounds<usize>) -> BufferSliceMut<'_> {
        self.slice_shared(elements)
    }

    /// A part to be written by a function. Several threads or invocations may use the buffer at once, and each writes
    /// its own part. As for submitted invocations, no check is made that the parts are disjoint: if they overlap, or if
    /// a part is read while it is written, numbers are wrong.
    ///
    /// # Panics
    /// If the range reaches past the end of the buffer, as with a slice.
    pub fn slice_shared(&self, elements: impl RangeBounds<usize>) -> BufferSliceMut<'_> {
        BufferSliceMut(self.slice(elements))
    }

    fn bytes_of(&self, elements: impl RangeBounds<usize>) -> (u64, u64) {
        let len = self.memory.elements();
        let start = match elements.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match elements.end_bound() {
            Bound::Included(end) => end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => len,
        };
        assert!(
            start <= end && end <= len,
            "range {start}..{end} is out of a buffer of {len} elements"
        );
        let size = size_of::<T>();
        ((start * size) as u64, ((end - start) * size) as u64)
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer<{}>[{}]", std::any::type_name::<T>(), self.memory.elements())
    }
}

/// A part of a [`Buffer`] that a function reads in place.
#[derive(Clone, Copy)]
pub struct BufferSlice<'a> {
    region: &'a Arc<Region>,
    offset: u64,
    length: u64,
}

impl BufferSlice<'_> {
    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.length
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        self.region
    }

    pub(crate) fn span(&self) -> Span {
        Span {
            region: self.region.id,
            offset: self.offset,
            length: self.length,
        }
    }
}

/// A part of a [`Buffer`] that a function writes in place; its size is the output capacity.
pub struct BufferSliceMut<'a>(BufferSlice<'a>);

impl BufferSliceMut<'_> {
    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.length
    }

    pub(crate) fn as_slice(&self) -> BufferSlice<'_> {
        self.0
    }
}

/// An input: bytes that are copied, or parts of buffers that are not.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// Copied into the worker's ring (or staged, if larger than an entry).
    Bytes(&'a [u8]),
    /// Read in place.
    Buffer(BufferSlice<'a>),
    /// Up to [`crate::PARTS_MAX`] parts of buffers, which the worker gathers into one input: over a fabric by RMA, on
    /// the same node by copying.
    Parts(&'a [BufferSlice<'a>]),
}

/// Destination of an output: bytes that are copied, or parts of buffers that are not.
pub enum Output<'a> {
    /// Copied from the reply ring (or staged, if larger than an entry).
    Bytes(&'a mut [u8]),
    /// Written in place.
    Buffer(BufferSliceMut<'a>),
    /// Up to [`crate::PARTS_MAX`] parts of buffers, over which the worker scatters the output: it fills one part after
    /// the other. The parts must be disjoint.
    Parts(&'a [BufferSliceMut<'a>]),
}

impl<'a> From<&'a [u8]> for Input<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<BufferSlice<'a>> for Input<'a> {
    fn from(slice: BufferSlice<'a>) -> Self {
        Self::Buffer(slice)
    }
}

impl<'a> From<&'a [BufferSlice<'a>]> for Input<'a> {
    fn from(parts: &'a [BufferSlice<'a>]) -> Self {
        Self::Parts(parts)
    }
}

impl<'a> From<&'a [BufferSliceMut<'a>]> for Output<'a> {
    fn from(parts: &'a [BufferSliceMut<'a>]) -> Self {
        Self::Parts(parts)
    }
}

impl<'a, T: Pod> From<&'a Buffer<T>> for Input<'a> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        Self::Buffer(buffer.slice(..))
    }
}

impl<'a> From<&'a mut [u8]> for Output<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<BufferSliceMut<'a>> for Output<'a> {
    fn from(slice: BufferSliceMut<'a>) -> Self {
        Self::Buffer(slice)
    }
}

impl<'a, T: Pod> From<&'a mut Buffer<T>> for Output<'a> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        Self::Buffer(buffer.slice_mut(..))
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        // Relaxed: the reference `region` is dropped right after this store, and its drop has release ordering, which
        // covers the store; see `Region::is_idle`.
        self.region.owned.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_elements_and_sent_in_bytes() {
        let mut buffer = Buffer::<f64>::new(10).unwrap();
        let span = buffer.slice(2..5).span();
        assert_eq!((span.offset, span.length), (16, 24));
        assert_eq!(buffer.slice_mut(..).size_bytes(), 80);
        assert_eq!(buffer.slice(3..=3).size_bytes(), 8);
        assert_eq!(buffer.slice(10..).size_bytes(), 0);
        let (low, high) = (buffer.slice_shared(..4), buffer.slice_shared(4..));
        let spans = [low, high].map(|part| (part.as_slice().span().offset, part.size_bytes()));
        assert_eq!(spans, [(0, 32), (32, 48)], "parts to write, of a buffer that is shared");
    }

    #[test]
    #[should_panic(expected = "range 5..11 is out of a buffer of 10 elements")]
    fn a_part_past_the_end_panics_like_a_slice() {
        let _ = Buffer::<u8>::new(10).unwrap().slice(5..11);
    }

    #[test]
    fn regions_have_numbers_of_their_own() {
        let (a, b) = (Buffer::<u8>::new(1).unwrap(), Buffer::<u8>::new(1).unwrap());
        assert_ne!(a.region().id, b.region().id);
    }
}
