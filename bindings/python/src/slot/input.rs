//! Memory of the request as Python objects, for as long as the task runs.
//!
//! A large buffer is not copied: Python gets a view of the request's memory. That memory is used for other requests
//! afterwards, so a view that is still held when the task has ended must be detected.

use super::aligned::AlignedMemory;
use super::request::COPIED_BELOW;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A part of a request that is handed out as views.
#[pyclass(frozen, module = "hotlease._core")]
struct Region {
    start: NonNull<u8>,
    bytes: usize,
    readonly: bool,
    views: AtomicUsize,
    /// Whether the task has ended.
    closed: AtomicBool,
}

// SAFETY: a pointer to memory that is used under the GIL while the task runs; afterwards the pointer is not
// dereferenced.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; the fields that change are atomic.
unsafe impl Sync for Region {}

#[pymethods]
impl Region {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let region = slf.get();
        if region.closed.load(Ordering::Relaxed) {
            return Err(PyBufferError::new_err("the task that this memory belonged to is over"));
        }
        let bytes = region.bytes as ffi::Py_ssize_t;
        // SAFETY: the view is the interpreter's, to be filled; the memory exists while the task runs.
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

/// Memory that was handed out for one task.
#[derive(Default)]
pub struct LentViews {
    regions: Vec<Py<Region>>,
    /// Results of other workers; some of the regions are in their memory.
    pulled: Vec<AlignedMemory>,
}

impl LentViews {
    /// Hands out a view of memory.
    ///
    /// # Safety
    /// The memory must exist until [`LentViews::close`] was called. No other code may write to it, unless the view is
    /// `readonly`.
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

    /// Hands out a buffer of the request: as a view, or as a copy if it is small.
    ///
    /// # Safety
    /// As for [`LentViews::view`].
    pub unsafe fn buffer<'py>(
        &mut self,
        py: Python<'py>,
        (start, bytes): (NonNull<u8>, usize),
        writable: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if bytes >= COPIED_BELOW {
            // SAFETY: by the contract of this function.
            return unsafe { self.view(py, (start, bytes), !writable) };
        }
        // SAFETY: the memory exists by the contract of this function.
        let copied = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
        Ok(match writable {
            true => PyByteArray::new(py, copied).into_any(),
            false => PyBytes::new(py, copied).into_any(),
        })
    }

    /// Keeps a result of another worker until the task has ended; returns its address and length.
    pub fn hold(&mut self, mut pulled: AlignedMemory) -> (NonNull<u8>, usize) {
        let place = pulled.place();
        // A move of `pulled` does not move its memory.
        self.pulled.push(pulled);
        place
    }

    /// Closes the regions: no view can be made afterwards. Returns `true` if no view is held any more.
    pub fn close(&mut self, py: Python<'_>) -> bool {
        let is_back = self.close_regions(py);
        if !is_back {
            // A view of this memory may still be held, so the memory is not freed. The process ends soon.
            std::mem::forget(std::mem::take(&mut self.pulled));
        }
        is_back
    }

    fn close_regions(&self, py: Python<'_>) -> bool {
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
        // Reference cycles, for example of a traceback and an exception, may keep unreachable views.
        let collected = py.import("gc").and_then(|gc| gc.call_method0("collect"));
        collected.is_ok() && none()
    }
}
