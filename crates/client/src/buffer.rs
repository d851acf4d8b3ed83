//! Registered memory: arguments and results that are not copied.

pub(crate) mod staging;

use crate::Error;
use crate::control::Control;
use crate::session::connection::Connection;
use bytemuck::Pod;
use hotlease_fabric::fence;
use hotlease_fabric::memory::Memory;
use hotlease_wire::frame::Span;
use hotlease_wire::ids::RegionId;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// `len` elements of plain data in memory that workers read and write in place: nothing is copied, at any size
/// (`Buffer<T>` of the rFaaS paper). Zeroed at first; behaves as a slice.
///
/// Made by [`crate::Invoker::buffer`], which registers it with all workers of that invoker. Used with another
/// invoker, or after a worker was replaced, it is registered by the first call that uses it. The number and bytes
/// of buffers that a worker knows at a time are limited ([`crate::LeaseOptions::registered_buffers`] and
/// [`crate::LeaseOptions::registered_bytes`]): beyond that, buffers not used lately are closed, and registered
/// again by the next call that uses them. The memory is freed, here and in the workers, when the buffer is dropped
/// and no invocation uses it any more.
///
/// While an invocation that was *submitted* with a part of the buffer is in flight, the worker uses that part: do
/// not read or write it before the invocation has resolved. (Breaking this gives wrong numbers.)
/// [`crate::Function::invoke_buffer`] borrows its buffers until the call is over.
///
/// `Send + Sync`: different parts may be used by different invocations and threads at once.
pub struct Buffer<T: Pod> {
    memory: hotlease_fabric::buffer::Buffer<T>,
    region: Arc<Region>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(elements: usize) -> Result<Self, Error> {
        let memory = hotlease_fabric::buffer::Buffer::new(elements)?;
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
    /// Like slicing, if the range reaches past the buffer.
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
    /// Like slicing, if the range reaches past the buffer.
    pub fn slice_mut(&mut self, elements: impl RangeBounds<usize>) -> BufferSliceMut<'_> {
        self.slice_shared(elements)
    }

    /// A part to be written by a function, of a buffer that several threads or invocations use at once: each writes
    /// its own part. Nothing checks that the parts are disjoint, as nothing does for submitted invocations; if they
    /// overlap, or if a part is read while it is written, numbers are wrong.
    ///
    /// # Panics
    /// Like slicing, if the range reaches past the buffer.
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
    /// Up to [`crate::PARTS_MAX`] parts of buffers, which the function sees one after the other: the worker gathers
    /// them, over a fabric by RMA, on the same node by copying.
    Parts(&'a [BufferSlice<'a>]),
}

/// Destination of an output: bytes that are copied, or parts of buffers that are not.
pub enum Output<'a> {
    /// Copied from the reply ring (or staged, if larger than an entry).
    Bytes(&'a mut [u8]),
    /// Written in place.
    Buffer(BufferSliceMut<'a>),
    /// Up to [`crate::PARTS_MAX`] parts of buffers, which the output fills in turn: the worker scatters it. The
    /// parts must be disjoint.
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
        // The drop of this reference, which follows, releases the store; see `Region::is_idle`.
        self.region.owned.store(false, Ordering::Relaxed);
    }
}

/// Memory and the connections that know it. It has one number for all connections, unique in the process.
///
/// A buffer holds one reference, and each invocation in flight that uses it holds another, made before
/// [`Region::register`]. A task that makes a worker forget an unused region ([`Region::remove_connection`]) and the thread of
/// an invocation write and read two words each: the word `last`, and the count of references.
///
/// ```text
///   invocation                             leave
///   count the reference                    last = 0
///   light fence                            heavy fence
///   last says registered?                  is the buffer's the only reference?
/// ```
///
/// By the fences at least one of them sees the other: a request never names a region that the worker was told to
/// forget.
pub(crate) struct Region {
    memory: Arc<Memory>,
    id: RegionId,
    /// Twice the number of the connection it was last used on, 0: none; plus [`MARK`]. Saves the lock of `known_to`
    /// on the hot path. Only the mark is changed without the lock.
    last: AtomicU64,
    /// Whether the buffer still exists.
    owned: AtomicBool,
    known_to: Mutex<Vec<ConnectionEntry>>,
}

/// Set by a use since the last search for memory not used lately.
const MARK: u64 = 1;

struct ConnectionEntry {
    id: u64,
    connection: Weak<Connection>,
    /// The [`MARK`] of this connection, while it is not the one used last.
    marked: bool,
}

impl Region {
    fn new(memory: Arc<Memory>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self {
            memory,
            id: RegionId(NEXT.fetch_add(1, Ordering::Relaxed)),
            last: AtomicU64::new(0),
            owned: AtomicBool::new(true),
            known_to: Mutex::new(Vec::new()),
        }
    }

    /// Makes sure that the connection's worker knows this memory; after the first time this costs one load. The
    /// worker knows it as long as a reference is held that was made before the call.
    #[inline]
    pub(crate) fn register(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<(), Error> {
        fence::light();
        // Relaxed: this thread, or the one that wrote the word, has waited for the worker's answer, and the request
        // that names the region is published after that.
        if self.last.load(Ordering::Relaxed) == connection.id() << 1 | MARK {
            return Ok(());
        }
        self.register_slow(connection)
    }

    #[cold]
    fn register_slow(self: &Arc<Self>, connection: &Arc<Connection>) -> Result<(), Error> {
        let here = connection.id() << 1;
        let marked = self
            .last
            .compare_exchange(here, here | MARK, Ordering::Relaxed, Ordering::Relaxed);
        if marked.is_ok() || marked == Err(here | MARK) {
            return Ok(());
        }
        let mut known_to = self.known_to();
        // The mark moves to the list when another connection becomes the last.
        let last = self.last.load(Ordering::Relaxed);
        if let Some(known) = known_to.iter_mut().find(|known| known.id == last >> 1) {
            known.marked |= last & MARK != 0;
        }
        match known_to.iter_mut().find(|known| known.id == connection.id()) {
            Some(known) => known.marked = true,
            None => {
                known_to.retain(|known| known.connection.strong_count() > 0);
                let (asked, memory, id) = (connection.clone(), self.memory.clone(), self.id);
                // Weak, because a strong reference would mean that an invocation uses the region.
                let region = Arc::downgrade(self);
                Control::get()?.run(async move { asked.register(id, region, &memory).await })?;
                known_to.push(ConnectionEntry {
                    id: connection.id(),
                    connection: Arc::downgrade(connection),
                    marked: false,
                });
            }
        }
        self.last.store(here, Ordering::Relaxed);
        Ok(())
    }

    fn known_to(&self) -> MutexGuard<'_, Vec<ConnectionEntry>> {
        self.known_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks as [`Region::known_to`] does, for the control thread, which must not wait for a thread that waits for
    /// it.
    fn try_known_to(&self) -> Option<MutexGuard<'_, Vec<ConnectionEntry>>> {
        match self.known_to.try_lock() {
            Ok(known_to) => Some(known_to),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            // A thread is registering it somewhere, to use it next.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether it was used again on this connection since the last call; clears the mark.
    pub(crate) fn take_mark(&self, connection: u64) -> bool {
        let Some(mut known_to) = self.try_known_to() else {
            return true;
        };
        let here = connection << 1;
        let last = self
            .last
            .compare_exchange(here | MARK, here, Ordering::Relaxed, Ordering::Relaxed);
        let known = known_to.iter_mut().find(|known| known.id == connection);
        let elsewhere = known.is_some_and(|known| std::mem::take(&mut known.marked));
        last.is_ok() || elsewhere
    }

    /// Removes the connection unless the region is in use: from now on the connection's worker does not know it,
    /// and must be told so. On the control thread; the caller holds the only reference besides those of the buffer
    /// and of invocations.
    pub(crate) fn remove_connection(self: &Arc<Self>, connection: u64) -> bool {
        let Some(mut known_to) = self.try_known_to() else {
            return false;
        };
        if !self.is_idle() {
            return false;
        }
        let last = self.last.load(Ordering::Relaxed);
        if last >> 1 == connection {
            self.last.store(0, Ordering::Relaxed);
        }
        // Threads that find the 0 wait for the lock, and then use the list.
        if !fence::heavy() || !self.is_idle() {
            self.last.store(last, Ordering::Relaxed);
            return false;
        }
        known_to.retain(|known| known.id != connection);
        true
    }

    /// Whether only the buffer and the caller hold references.
    fn is_idle(self: &Arc<Self>) -> bool {
        if Arc::strong_count(self) != 2 {
            return false;
        }
        // If the buffer's reference is gone, the two are the caller's and an invocation's: then this sees the word
        // that was written before it went. It also orders what follows after the end of every invocation.
        atomic::fence(Ordering::Acquire);
        self.owned.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> RegionId {
        self.id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let known_to = std::mem::take(self.known_to.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Ok(control) = Control::get() else { return };
        for connection in known_to.into_iter().filter_map(|known| known.connection.upgrade()) {
            let id = self.id;
            control.spawn(async move { connection.deregister(id).await });
        }
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
