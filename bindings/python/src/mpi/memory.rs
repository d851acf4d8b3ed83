//! `MPI.memory`: memory as an object, with its address; and the bytes of a buffer argument.

use super::buffer_spec::BufferPart;
use super::pinned_buffer::{BufferAccess, PinnedBuffer};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyByteArray, PyMemoryView, PySlice, PyTuple};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

const WHAT: &str = "the buffer";

/// Memory in one piece, seen as bytes.
#[pyclass(frozen, name = "memory", module = "hotlease.MPI")]
pub struct MemoryObject {
    /// A view in bytes; `None`: the memory was released.
    view: Mutex<Option<Py<PyMemoryView>>>,
}

impl MemoryObject {
    fn of(view: Bound<'_, PyMemoryView>) -> Self {
        Self {
            view: Mutex::new(Some(view.unbind())),
        }
    }

    fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let view = self.view.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let view = view.as_ref().map(|view| view.bind(py).clone());
        view.ok_or_else(|| PyValueError::new_err("this memory was released"))
    }
}

fn read_only<'py>(view: &Bound<'py, PyMemoryView>) -> PyResult<Bound<'py, PyMemoryView>> {
    Ok(view.call_method0("toreadonly")?.cast_into()?)
}

#[pymethods]
impl MemoryObject {
    #[new]
    fn new(buf: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::frombuffer(buf, false).or_else(|_| Self::frombuffer(buf, true))
    }

    /// New memory of `nbytes` bytes, which are zero.
    #[staticmethod]
    #[pyo3(signature = (nbytes, clear=true))]
    fn allocate(py: Python<'_>, nbytes: usize, clear: bool) -> PyResult<Self> {
        let _ = clear;
        let bytes = PyByteArray::new_with(py, nbytes, |_| Ok(()))?;
        Ok(Self::of(PyMemoryView::from(bytes.as_any())?))
    }

    /// Memory of an object with a buffer.
    #[staticmethod]
    #[pyo3(signature = (buf, readonly=false))]
    fn frombuffer(buf: &Bound<'_, PyAny>, readonly: bool) -> PyResult<Self> {
        // This call fails with advice if the object has no buffer, or its memory is not in one piece.
        let access = if readonly {
            BufferAccess::Read
        } else {
            BufferAccess::Write
        };
        let bytes = PinnedBuffer::of(buf, access, WHAT)?.bytes();
        let view = PyMemoryView::from(buf)?;
        let view: Bound<'_, PyMemoryView> = match bytes {
            0 => PyMemoryView::from(PyByteArray::new(buf.py(), &[]).as_any())?,
            _ => view.call_method1("cast", ("B",))?.cast_into()?,
        };
        Ok(Self::of(if readonly { read_only(&view)? } else { view }))
    }

    /// Memory at an address of this process. The caller must ensure that the memory exists as long as it is used.
    #[staticmethod]
    #[pyo3(signature = (address, nbytes, readonly=false))]
    fn fromaddress(py: Python<'_>, address: usize, nbytes: isize, readonly: bool) -> PyResult<Self> {
        if nbytes < 0 || address == 0 && nbytes > 0 {
            return Err(PyValueError::new_err(format!("{nbytes} bytes at address {address}")));
        }
        if nbytes == 0 {
            return Self::allocate(py, 0, true);
        }
        let access = if readonly { ffi::PyBUF_READ } else { ffi::PyBUF_WRITE };
        // SAFETY: the caller's promise, as with ctypes.
        let view = unsafe {
            let view = ffi::PyMemoryView_FromMemory(std::ptr::with_exposed_provenance_mut(address), nbytes, access);
            Bound::from_owned_ptr_or_err(py, view)?
        };
        Ok(Self::of(view.cast_into()?))
    }

    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        let pinned = PinnedBuffer::of(self.view(py)?.as_any(), BufferAccess::Read, WHAT)?;
        Ok(pinned.start().expose_provenance())
    }

    /// Object whose memory this is.
    #[getter]
    fn obj<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.view(py)?.getattr("obj")
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.view(py)?.len()
    }

    #[getter]
    fn readonly(&self, py: Python<'_>) -> PyResult<bool> {
        self.view(py)?.getattr("readonly")?.extract()
    }

    #[getter]
    const fn format(&self) -> &'static str {
        "B"
    }

    #[getter]
    const fn itemsize(&self) -> usize {
        1
    }

    /// View of the memory as elements of a format, in an array of some shape.
    #[pyo3(signature = (format, *shape))]
    fn cast<'py>(&self, py: Python<'py>, format: &str, shape: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.view(py)?;
        match shape.get_item(0) {
            Err(_) => view.call_method1("cast", (format,)),
            Ok(shape) => view.call_method1("cast", (format, shape)),
        }
    }

    /// Copy of the bytes.
    #[pyo3(signature = (order=None))]
    fn tobytes<'py>(&self, py: Python<'py>, order: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let _ = order;
        self.view(py)?.call_method0("tobytes")
    }

    /// Returns an object of the same memory that cannot be written.
    fn toreadonly(&self, py: Python<'_>) -> PyResult<Self> {
        read_only(&self.view(py)?).map(Self::of)
    }

    /// Releases the memory: this object cannot be used any more.
    fn release(&self, py: Python<'_>) {
        *self.view.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.nbytes(py)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let item = self.view(py)?.get_item(key)?;
        if !key.is_instance_of::<PySlice>() {
            return Ok(item);
        }
        Ok(Bound::new(py, Self::of(item.cast_into()?))?.into_any())
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.view(py)?.set_item(key, value)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let inner = slf.get().view(slf.py())?;
        // SAFETY: a view to fill. `inner` fills it, and the view keeps the object that owns the memory alive.
        match unsafe { ffi::PyObject_GetBuffer(inner.as_ptr(), view, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Bytes of a buffer argument of a call, for code in Python: its memory, or a copy of elements that have gaps.
#[pyclass(frozen, module = "hotlease._core")]
pub struct BufferBytes {
    part: Mutex<BufferPart>,
    is_written: bool,
}

impl BufferBytes {
    /// Writes the elements of a copy to the places where they belong, if the copy is for writing. Takes a lock that is
    /// never held by a thread that waits for the interpreter.
    pub fn put_back(&self) {
        if self.is_written {
            self.part.lock().unwrap_or_else(PoisonError::into_inner).unpack();
        }
    }
}

#[pymethods]
impl BufferBytes {
    #[new]
    fn new(spec: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        let access = if is_written {
            BufferAccess::Write
        } else {
            BufferAccess::Read
        };
        let part = Mutex::new(BufferPart::of(spec, access, WHAT)?);
        Ok(Self { part, is_written })
    }

    /// Writes the elements of a copy to the places where they belong, if the copy is for writing.
    fn unpack(&self, py: Python<'_>) {
        let part = self.part.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if self.is_written {
            part.unpack();
        }
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let mut part = slf
            .get()
            .part
            .lock_py_attached(slf.py())
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = part.bytes();
        let start = part.start(bytes).cast();
        let is_read_only = c_int::from(!slf.get().is_written);
        // SAFETY: a view to fill; the memory is pinned, or a copy, until the end of this object, which the view keeps
        // alive.
        match unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes as ffi::Py_ssize_t, is_read_only, flags)
        } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
