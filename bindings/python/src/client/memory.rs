//! Registered memory as Python sees it: results that are not copied, and a pool for what they and large arguments use.

use hotlease_client::{Buffer, BufferSlice, BufferSliceMut, Error, Invoker};
use hotlease_wire::task::ALIGNMENT;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes that a pool keeps at most.
const POOL_BYTES: usize = 256 << 20;
/// Buffers that a pool keeps at most.
const POOL_BUFFERS: usize = 64;
/// The smallest buffer.
const SMALLEST: usize = 64 << 10;
/// The largest whose size is a power of two.
const COARSE_MAX: usize = 16 << 20;
/// A buffer has at most so many times the bytes that are wanted.
const WASTED_MAX: usize = 8;
/// Buffers in use beyond which there are no more for what can do without: each is a descriptor, of which a process has a
/// thousand where nobody has changed that.
const IN_USE_MAX: usize = 128;
/// Results from this size on may have all of these.
const LARGE: usize = 1 << 20;

/// Bytes at the beginning of each buffer that stay free: the front of a request goes there when what follows it is in the
/// buffer already, so that this is not copied. A page, so that what follows is aligned as anybody may want it.
pub const HEADROOM: usize = 4096;

/// Buffers to be used again: making one costs a system call for each page that is touched first.
#[derive(Default)]
pub struct Pool {
    kept: Mutex<Vec<Buffer<u8>>>,
    in_use: AtomicUsize,
    /// What the program has for arrays of its own.
    given: Mutex<Vec<Weak<Memory>>>,
}

impl Pool {
    /// Whether what can do without is to do without.
    pub fn is_full(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) >= IN_USE_MAX
    }

    /// Whether results of so many bytes are to do without: those below [`LARGE`] leave half of all to larger ones.
    pub fn is_full_for(&self, bytes: usize) -> bool {
        let most = if bytes < LARGE { IN_USE_MAX / 2 } else { IN_USE_MAX };
        self.in_use.load(Ordering::Relaxed) >= most
    }

    /// With room for at least so many bytes. It waits for nobody, but may register the memory with workers.
    pub fn take(self: &Arc<Self>, invoker: &Invoker, bytes: usize) -> Result<Memory, Error> {
        let bytes = bytes.saturating_add(HEADROOM);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Of equal ones the last that came back: it is the likeliest to be in a cache.
        let fitting = kept.iter().enumerate().rev();
        // Not one that is far too large: somebody else may want that.
        let fitting = fitting.filter(|(_, buffer)| {
            (bytes..=bytes.saturating_mul(WASTED_MAX).max(SMALLEST)).contains(&buffer.len())
        });
        let best = fitting.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at);
        let buffer = best.map(|at| kept.remove(at));
        drop(kept);
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => invoker.buffer(size_of_buffer(bytes))?,
        };
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(Memory {
            buffer: ManuallyDrop::new(buffer),
            is_lent: AtomicBool::new(false),
            is_given: false,
            pool: Arc::downgrade(self),
        })
    }

    /// For an array of the program's own, of so many bytes.
    pub fn give(self: &Arc<Self>, invoker: &Invoker, bytes: usize) -> Result<Piece, Error> {
        let mut memory = self.take(invoker, bytes)?;
        memory.is_given = true;
        let extent = memory.holds(bytes);
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|memory| memory.strong_count() > 0);
        given.push(Arc::downgrade(&extent.memory));
        Ok(Piece(extent))
    }

    /// What was given to the program, where it begins at an address and no task has it.
    pub fn given(&self, address: *const u8, bytes: usize) -> Option<Extent> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = given.iter().filter_map(Weak::upgrade);
        let mut memory = memory.filter(|memory| std::ptr::eq(&memory.buffer[HEADROOM], address));
        let memory = memory.next()?;
        // The other reference is the program's. Who has a task with it has one more, until that has ended.
        let is_free = Arc::strong_count(&memory) == 2 && !memory.is_lent.load(Ordering::Relaxed);
        is_free.then_some(Extent {
            memory,
            start: HEADROOM,
            bytes,
        })
    }

    fn put(&self, buffer: Buffer<u8>) {
        if buffer.len() > POOL_BYTES {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(buffer);
        // The oldest go: what was used last will be wanted next.
        let mut bytes: usize = kept.iter().map(|buffer| buffer.len()).sum();
        let mut over = kept.len().saturating_sub(POOL_BUFFERS);
        bytes -= kept[..over].iter().map(|buffer| buffer.len()).sum::<usize>();
        while bytes > POOL_BYTES {
            bytes -= kept[over].len();
            over += 1;
        }
        let gone: Vec<_> = kept.drain(..over).collect();
        // Giving memory back takes time.
        drop(kept);
        drop(gone);
    }
}

/// Bytes of a buffer that has at least so many: a power of two, so that it fits others; where it is large, a sixteenth of one
/// more or less.
fn size_of_buffer(bytes: usize) -> usize {
    match bytes.checked_next_power_of_two() {
        Some(power) if power <= COARSE_MAX => power.max(SMALLEST),
        Some(power) => bytes.next_multiple_of(power / 16),
        None => bytes,
    }
}

/// A buffer of a pool, to which it goes back; unless a worker may be using it still. The client library keeps the memory of
/// such a one for as long as that may be.
pub struct Memory {
    buffer: ManuallyDrop<Buffer<u8>>,
    /// A worker may be using it.
    is_lent: AtomicBool,
    /// The program has it for an array of its own.
    is_given: bool,
    pool: Weak<Pool>,
}

impl Memory {
    /// All that can be used, of memory that nobody else has.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer[HEADROOM..]
    }

    /// The same as a place for a result; before it is lent nobody else has it, afterwards the worker has.
    pub fn place(&self) -> BufferSliceMut<'_> {
        self.buffer.slice_shared(HEADROOM..)
    }

    /// The first bytes of the room are a request or a reply.
    pub fn holds(self, bytes: usize) -> Extent {
        let bytes = bytes.min(self.buffer.len() - HEADROOM);
        Extent {
            memory: Arc::new(self),
            start: HEADROOM,
            bytes,
        }
    }

    /// Whether it is so much larger than what is to stay in it that it is of more use to others.
    pub fn is_far_too_large_for(&self, bytes: usize) -> bool {
        self.buffer.len() > bytes.saturating_mul(WASTED_MAX)
    }

    /// Whether it is the program's, of which a task makes no result.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// From now on a worker may use it.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Relaxed);
    }

    /// No worker uses it any more, or none has begun to.
    pub fn is_back(&self) {
        self.is_lent.store(false, Ordering::Relaxed);
    }
}

/// A request or a reply in memory.
#[derive(Clone)]
pub struct Extent {
    memory: Arc<Memory>,
    start: usize,
    bytes: usize,
}

impl Extent {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.buffer[self.start..][..self.bytes]
    }

    /// The same as an input.
    pub fn slice(&self) -> BufferSlice<'_> {
        self.memory.buffer.slice(self.start..self.start + self.bytes)
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether so many bytes can be put before the one at `from`, with which all that follows keeps its alignment.
    pub fn has_room_before(&self, from: usize, bytes: usize) -> bool {
        let at = self.start + from;
        from <= self.bytes && at.is_multiple_of(ALIGNMENT) && bytes.is_multiple_of(ALIGNMENT) && bytes <= at
    }

    /// Only its first bytes.
    pub fn truncated(self, bytes: usize) -> Self {
        Self {
            bytes: self.bytes.min(bytes),
            ..self
        }
    }

    /// Puts bytes before the one at `from`, over what is there: they and the rest are another request. For whom nobody else
    /// looks at what is before `from`, no worker either. `None` where [`Extent::has_room_before`] says no.
    pub fn put_before(&self, from: usize, front: &[u8]) -> Option<Self> {
        if !self.has_room_before(from, front.len()) {
            return None;
        }
        let start = self.start + from - front.len();
        let to = self.memory.buffer[start..].as_ptr().cast_mut();
        // SAFETY: inside the buffer, as just seen; shared memory, to which workers write as well, and of which nobody looks at
        // this part by the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(front.as_ptr(), to, front.len()) };
        Some(Self {
            memory: self.memory.clone(),
            start,
            bytes: front.len() + self.bytes - from,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken here only, and not looked at again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        if let Some(pool) = self.pool.upgrade() {
            pool.in_use.fetch_sub(1, Ordering::Relaxed);
            if !*self.is_lent.get_mut() {
                pool.put(buffer);
            }
        }
    }
}

/// A part of a result, which objects made from it keep alive.
#[pyclass(frozen, module = "hotlease._core")]
pub struct Piece(Extent);

impl Piece {
    /// So many bytes of a reply from one on; `None` beyond them.
    pub fn new(of: &Extent, start: usize, bytes: usize) -> Option<Self> {
        of.bytes().get(start..)?.get(..bytes)?;
        let (memory, start) = (of.memory.clone(), of.start + start);
        Some(Self(Extent { memory, start, bytes }))
    }
}

#[pymethods]
impl Piece {
    /// Writable: the result is the caller's alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let bytes = slf.get().0.bytes();
        // SAFETY: the view is the interpreter's, and holds a reference to `slf`, which keeps the memory. Nothing here
        // looks at the bytes any more, so that they are the holders'.
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
