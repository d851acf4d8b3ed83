//! Memory of the request as Python sees it, for as long as the task runs.
//!
//! A large buffer is not copied: Python gets a view of the memory that the request lies in. That memory is used for other
//! requests afterwards, so a view that is still held when the task is over must not be let go unnoticed.

use super::pulling::Pulled;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Buffers below this are copied: at this size a copy costs as much as a view, and one may keep it.
pub const COPIED_BELOW: usize = 32 << 10;

/// A part of a request that is handed out as views.
#[pyclass(frozen, module = "hotlease._core")]
struct Region {
    start: NonNull<u8>,
    bytes: usize,
    readonly: bool,
    views: AtomicUsize,
    /// The task is over.
    closed: AtomicBool,
}

// SAFETY: a pointer to memory that is used under the GIL, as long as the task runs; after that it is not followed.
unsafe impl Send for Region {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Region {}

#[pymethods]
impl Region {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let region = slf.get();
        if region.closed.load(Ordering::Relaxed) {
            return Err(PyBufferError::new_err(
                "the task that this memory belonged to is over",
            ));
        }
        let bytes = region.bytes as ffi::Py_ssize_t;
        // SAFETY: the interpreter's view to be filled; the memory is there while the task runs.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                region.start.as_ptr().cast(),
                bytes,
                c_int::from(region.readonly),
                flags,
            )
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        region.views.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What was handed out for one task.
#[derive(Default)]
pub struct Lent {
    regions: Vec<Py<Region>>,
    /// Memory of results that other workers had, of which some of these are.
    pulled: Vec<Pulled>,
}

impl Lent {
    /// A view of memory.
    ///
    /// # Safety
    /// The memory stays until [`Lent::is_back`] was asked, and nobody else writes to it unless it is `readonly`.
    pub unsafe fn view<'py>(
        &mut self,
        py: Python<'py>,
        (start, bytes): (NonNull<u8>, usize),
        readonly: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let region = Region {
            start,
            bytes,
            readonly,
            views: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        };
        let region = Bound::new(py, region)?;
        self.regions.push(region.clone().unbind());
        Ok(PyMemoryView::from(region.as_any())?.into_any())
    }

    /// A buffer of the request: a view of it, or a copy if it is small.
    ///
    /// # Safety
    /// As [`Lent::view`].
    pub unsafe fn buffer<'py>(
        &mut self,
        py: Python<'py>,
        (start, bytes): (NonNull<u8>, usize),
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if bytes >= COPIED_BELOW {
            // SAFETY: by the caller's word.
            return unsafe { self.view(py, (start, bytes), !writable) };
        }
        // SAFETY: by the caller's word it is there.
        let copied = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        Ok(match writable {
            true => PyByteArray::new(py, copied).into_any(),
            false => PyBytes::new(py, copied).into_any(),
        })
    }

    /// Keeps a result of another worker's until the task is over; where it is, and its bytes.
    pub fn hold(&mut self, mut pulled: Pulled) -> (NonNull<u8>, usize) {
        let place = pulled.place();
        // Its memory stays where it is.
        self.pulled.push(pulled);
        place
    }

    /// Whether nothing of it is held any more. Nothing can be had from now on.
    pub fn is_back(&mut self, py: Python<'_>) -> bool {
        let is_back = self.are_back(py);
        if !is_back {
            // Somebody still has views of it. The process ends soon.
            std::mem::forget(std::mem::take(&mut self.pulled));
        }
        is_back
    }

    fn are_back(&self, py: Python<'_>) -> bool {
        if self.regions.is_empty() {
            return true;
        }
        self.regions
            .iter()
            .for_each(|region| region.get().closed.store(true, Ordering::Relaxed));
        let none = || {
            self.regions
                .iter()
                .all(|region| region.get().views.load(Ordering::Relaxed) == 0)
        };
        if none() {
            return true;
        }
        // Cycles, of a traceback and an exception say, keep what nobody can reach.
        let collected = py.import("gc").and_then(|gc| gc.call_method0("collect"));
        collected.is_ok() && none()
    }
}
