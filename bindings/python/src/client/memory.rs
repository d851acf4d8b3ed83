//! Registered memory for Python: results that are not copied, and a pool of buffers for them and for large arguments.

use crate::locks::locked;
use hotlease_client::{Buffer, BufferSlice, BufferSliceMut, Error, Invoker};
use hotlease_wire::task::ALIGNMENT;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Limit of the bytes that a pool keeps.
const POOL_BYTES: usize = 256 << 20;
/// Bytes of the smallest buffer.
const SMALLEST: usize = 64 << 10;
/// Bytes of the largest buffer whose size is a power of two.
const COARSE_MAX: usize = 16 << 20;
/// A buffer has at most this many times the bytes that are needed, or [`SMALLEST`] bytes if that is more.
const WASTED_MAX: usize = 8;
/// Limit of the buffers in use by callers that can do without a buffer. Each buffer holds a descriptor, and a process
/// may have about a thousand descriptors by default.
const IN_USE_MAX: usize = 128;
/// The limit of the buffers in use is at most the limit of the process's descriptors divided by this number.
const DESCRIPTORS_EACH: usize = 4;
/// Results of at least this size may use the whole limit.
const LARGE: usize = 1 << 20;

/// Bytes that stay free at the beginning of each buffer. If most of a request is in the buffer already, the front of
/// the request is put there, so that the rest is not copied. The size is one page, so that the rest keeps any alignment
/// that a caller may need.
pub const HEADROOM: usize = 4096;

/// Pool of buffers for reuse: a new buffer costs a page fault when each page is first touched.
pub struct BufferPool {
    kept: Mutex<Vec<Buffer<u8>>>,
    /// Limit of the buffers in use by callers that can do without a buffer. At most half this number of buffers is kept
    /// for reuse.
    in_use_max: usize,
    in_use: AtomicUsize,
    /// Memory that the program has for its own arrays.
    given: Mutex<Vec<Weak<PoolBuffer>>>,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            in_use_max: IN_USE_MAX.min(descriptors() / DESCRIPTORS_EACH).max(1),
            in_use: AtomicUsize::new(0),
            given: Mutex::default(),
        }
    }
}

/// Number of descriptors that this process may have.
fn descriptors() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the structure.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}

impl BufferPool {
    /// Whether callers that can do without a buffer get none.
    pub fn is_full(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) >= self.in_use_max
    }

    /// Whether a result of this size has to do without a buffer: results below [`LARGE`] leave half of the limit to
    /// larger results.
    pub fn is_full_for(&self, bytes: usize) -> bool {
        let all = self.in_use_max;
        let most = if bytes < LARGE { all.div_ceil(2) } else { all };
        self.in_use.load(Ordering::Relaxed) >= most
    }

    /// Takes a buffer with room for `bytes`. Never waits for a buffer, but may register new memory with workers.
    pub fn take(self: &Arc<Self>, invoker: &Invoker, bytes: usize) -> Result<PoolBuffer, Error> {
        let bytes = bytes.saturating_add(HEADROOM);
        let mut kept = locked(&self.kept);
        // Among buffers of equal size, the last returned buffer is taken: it is the likeliest to be in a cache.
        let fitting = kept.iter().enumerate().rev();
        // A buffer that is far too large is left for a caller that needs a large buffer.
        let fitting = fitting
            .filter(|(_, buffer)| (bytes..=bytes.saturating_mul(WASTED_MAX).max(SMALLEST)).contains(&buffer.len()));
        let best = fitting.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at);
        let buffer = best.map(|at| kept.remove(at));
        drop(kept);
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => match invoker.buffer(size_of_buffer(bytes)) {
                // The buffers that are kept for reuse hold descriptors, too.
                Err(error) if error.lacks_descriptors() && self.forget_kept() => {
                    invoker.buffer(size_of_buffer(bytes))?
                }
                made => made?,
            },
        };
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(PoolBuffer {
            buffer: ManuallyDrop::new(buffer),
            is_lent: AtomicBool::new(false),
            is_given: false,
            pool: Arc::downgrade(self),
        })
    }

    /// Takes memory for an array of the program.
    pub fn give(self: &Arc<Self>, invoker: &Invoker, bytes: usize) -> Result<ResultView, Error> {
        let mut memory = self.take(invoker, bytes)?;
        memory.is_given = true;
        let extent = memory.into_extent(bytes);
        let mut given = locked(&self.given);
        given.retain(|memory| memory.strong_count() > 0);
        given.push(Arc::downgrade(&extent.memory));
        Ok(ResultView(extent))
    }

    /// Returns the program's memory that starts at an address, if no task uses that memory.
    pub fn find_given(&self, address: *const u8, bytes: usize) -> Option<Extent> {
        let given = locked(&self.given);
        let memory = given.iter().filter_map(Weak::upgrade);
        let mut memory = memory.filter(|memory| std::ptr::eq(&memory.buffer[HEADROOM], address));
        let memory = memory.next()?;
        // One reference is held here, the other by the program. A task that uses the memory holds a third until the
        // task has ended.
        let is_free = Arc::strong_count(&memory) == 2 && !memory.is_lent.load(Ordering::Relaxed);
        is_free.then_some(Extent {
            memory,
            start: HEADROOM,
            bytes,
        })
    }

    /// Frees the buffers that are kept for reuse; returns whether there were any.
    fn forget_kept(&self) -> bool {
        let kept = std::mem::take(&mut *locked(&self.kept));
        !kept.is_empty()
    }

    fn put(&self, buffer: Buffer<u8>) {
        if buffer.len() > POOL_BYTES {
            return;
        }
        let mut kept = locked(&self.kept);
        kept.push(buffer);
        // The oldest buffers are dropped: the buffer used last is the likeliest to be needed next.
        let mut bytes: usize = kept.iter().map(|buffer| buffer.len()).sum();
        let mut over = kept.len().saturating_sub(self.in_use_max.div_ceil(2));
        bytes -= kept[..over].iter().map(|buffer| buffer.len()).sum::<usize>();
        while bytes > POOL_BYTES {
            bytes -= kept[over].len();
            over += 1;
        }
        let gone: Vec<_> = kept.drain(..over).collect();
        // The buffers are freed outside the lock, because freeing takes time.
        drop(kept);
        drop(gone);
    }
}

/// Size of a buffer for at least `bytes`: the next power of two, so that the buffer fits other uses. The size of a
/// large buffer is a multiple of a sixteenth of that power.
fn size_of_buffer(bytes: usize) -> usize {
    match bytes.checked_next_power_of_two() {
        Some(power) if power <= COARSE_MAX => power.max(SMALLEST),
        Some(power) => bytes.next_multiple_of(power / 16),
        None => bytes,
    }
}

/// A buffer of a pool. When dropped, it returns to the pool, unless a worker may still use it. The client library keeps
/// memory as long as a worker may use it.
pub struct PoolBuffer {
    buffer: ManuallyDrop<Buffer<u8>>,
    /// Whether a worker may be using the buffer.
    is_lent: AtomicBool,
    /// Whether the program has the buffer for its own array.
    is_given: bool,
    pool: Weak<BufferPool>,
}

impl PoolBuffer {
    /// Usable bytes of the buffer; it has no other holder.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM..]
    }

    /// Usable bytes as a place for a result. Until the buffer is lent, it has no other user; afterwards the worker
    /// writes to it.
    pub fn place(&self) -> BufferSliceMut<'_> {
        self.buffer.slice_shared(HEADROOM..)
    }

    /// Makes an extent of the first `bytes` of the room, which contain a request or a reply.
    pub fn into_extent(self, bytes: usize) -> Extent {
        let bytes = bytes.min(self.buffer.len() - HEADROOM);
        Extent {
            memory: Arc::new(self),
            start: HEADROOM,
            bytes,
        }
    }

    /// Whether the buffer is so much larger than its content that other uses need it more.
    pub fn is_far_too_large_for(&self, bytes: usize) -> bool {
        self.buffer.len() > bytes.saturating_mul(WASTED_MAX)
    }

    /// Whether the buffer is an array of the program; a task must not put its result there.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// Marks that a worker may use the buffer from now on.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Relaxed);
    }

    /// Marks that no worker uses the buffer any more, or that no worker has started to use it.
    pub fn set_returned(&self) {
        self.is_lent.store(false, Ordering::Relaxed);
    }
}

/// A request or a reply in memory.
#[derive(Clone)]
pub struct Extent {
    memory: Arc<PoolBuffer>,
    start: usize,
    bytes: usize,
}

impl Extent {
    /// Bytes of the extent.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.buffer[self.start..][..self.bytes]
    }

    /// The extent as an input.
    pub fn slice(&self) -> BufferSlice<'_> {
        self.memory.buffer.slice(self.start..self.start + self.bytes)
    }

    /// The memory behind the extent.
    pub fn memory(&self) -> &PoolBuffer {
        &self.memory
    }

    /// Whether `bytes` bytes can be put before the byte at `from`, so that the bytes from there on keep their
    /// alignment.
    pub fn has_room_before(&self, from: usize, bytes: usize) -> bool {
        let at = self.start + from;
        from <= self.bytes && at.is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT) && bytes <= at
    }

    /// Keeps only the first bytes.
    pub fn truncated(self, bytes: usize) -> Self {
        Self {
            bytes: self.bytes.min(bytes),
            ..self
        }
    }

    /// Overwrites the bytes before the byte at `from` with `front`: `front` and the bytes from `from` on form another
    /// request or reply. The caller guarantees that no other thread or worker reads the bytes before `from`. Returns
    /// `None` if [`Extent::has_room_before`] returns `false`.
    pub fn put_before(&self, from: usize, front: &[u8]) -> Option<Self> {
        if !self.has_room_before(from, front.len()) {
            return None;
        }
        let start = self.start + from - front.len();
        let to = self.memory.buffer[start..].as_ptr().cast_mut();
        // SAFETY: the range is inside the buffer, as just checked. The buffer is shared memory, to which workers write
        // as well; the caller guarantees that nothing reads this part.
        unsafe { std::ptr::copy_nonoverlapping(front.as_ptr(), to, front.len()) };
        Some(Self {
            memory: self.memory.clone(),
            start,
            bytes: front.len() + self.bytes - from,
        })
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is taken only here, and is not used again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        if let Some(pool) = self.pool.upgrade() {
            pool.in_use.fetch_sub(1, Ordering::Relaxed);
            if !*self.is_lent.get_mut() {
                pool.put(buffer);
            }
        }
    }
}

/// A part of a result; objects that are made from it keep the memory alive.
#[pyclass(frozen, module = "hotlease._core")]
pub struct ResultView(Extent);

impl ResultView {
    /// Makes a view of the `bytes` bytes of a reply from `start` on. Returns `None` if they extend beyond the reply.
    pub fn new(of: &Extent, start: usize, bytes: usize) -> Option<Self> {
        of.bytes().get(start..)?.get(..bytes)?;
        let (memory, start) = (of.memory.clone(), of.start + start);
        Some(Self(Extent { memory, start, bytes }))
    }
}

#[pymethods]
impl ResultView {
    /// Fills a view, which is writable because only the caller has the result.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = slf.get().0.bytes();
        // SAFETY: the view is the interpreter's, and holds a reference to `slf`, which keeps the memory. The library
        // does not read the bytes any more; they belong to the holders of the view.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if failed != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}
