//! Registered memory as Python sees it: results that are not copied, and a pool for what they and large arguments use.

use hotlease_client::{Buffer, Error, Invoker};
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
/// Buffers in use beyond which there are no more for what can do without: each is a descriptor, of which a process has a
/// thousand where nobody has changed that.
const IN_USE_MAX: usize = 128;

/// Buffers to be used again: making one costs a system call for each page that is touched first.
#[derive(Default)]
pub struct Pool {
    kept: Mutex<Vec<Buffer<u8>>>,
    in_use: AtomicUsize,
}

impl Pool {
    /// Whether what can do without is to do without.
    pub fn is_full(&self) -> bool {
        self.in_use.load(Ordering::Relaxed) >= IN_USE_MAX
    }

    /// Of at least so many bytes. It waits for nobody, but may register the memory with workers.
    pub fn take(self: &Arc<Self>, invoker: &Invoker, bytes: usize) -> Result<Memory, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = kept.iter().enumerate();
        // Not one that is far too large: somebody else may want that.
        let fitting = fitting
            .filter(|(_, buffer)| (bytes..=bytes.saturating_mul(8).max(SMALLEST)).contains(&buffer.len()));
        let best = fitting.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at);
        let buffer = best.map(|at| kept.swap_remove(at));
        drop(kept);
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => invoker.buffer(bytes.checked_next_power_of_two().unwrap_or(bytes).max(SMALLEST))?,
        };
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Ok(Memory {
            buffer: ManuallyDrop::new(buffer),
            used: bytes,
            is_lent: AtomicBool::new(false),
            pool: Arc::downgrade(self),
        })
    }

    fn put(&self, buffer: Buffer<u8>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = kept.iter().map(|buffer| buffer.len()).sum();
        if kept.len() < POOL_BUFFERS && bytes + buffer.len() <= POOL_BYTES {
            kept.push(buffer);
        }
    }
}

/// A buffer of a pool, to which it goes back; unless a worker may be using it still. The client library keeps the memory of
/// such a one for as long as that may be.
pub struct Memory {
    pub(super) buffer: ManuallyDrop<Buffer<u8>>,
    /// Bytes in use, from the first.
    used: usize,
    /// A worker may be using it.
    is_lent: AtomicBool,
    pool: Weak<Pool>,
}

impl Memory {
    /// The bytes in use.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// The bytes in use.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.used]
    }

    /// From now on a worker may use it.
    pub fn lend(&self) {
        self.is_lent.store(true, Ordering::Relaxed);
    }

    /// No worker uses it any more, or none has begun to.
    pub fn is_back(&self) {
        self.is_lent.store(false, Ordering::Relaxed);
    }

    /// Uses only the first ones.
    pub fn truncate(&mut self, bytes: usize) {
        self.used = self.used.min(bytes);
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
pub struct Piece {
    memory: Arc<Memory>,
    start: usize,
    bytes: usize,
}

impl Piece {
    /// Of bytes in use; `None` beyond them.
    pub fn new(memory: Arc<Memory>, start: usize, bytes: usize) -> Option<Self> {
        memory.bytes().get(start..)?.get(..bytes)?;
        Some(Self { memory, start, bytes })
    }
}

#[pymethods]
impl Piece {
    /// Writable: the result is the caller's alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let start = this.memory.bytes()[this.start..].as_ptr();
        // SAFETY: the view is the interpreter's, and holds a reference to `slf`, which keeps the memory; `start` and
        // `bytes` were checked when this was made. Nothing here looks at the bytes any more, so that they are the holders'.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                start.cast_mut().cast(),
                this.bytes as ffi::Py_ssize_t,
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
