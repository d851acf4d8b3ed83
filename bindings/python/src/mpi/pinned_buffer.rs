//! Pinned memory of an object, which stays in place until it is dropped.

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Use of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferAccess {
    /// The memory is sent.
    Read,
    /// The memory is received into.
    Write,
}

/// Buffer of an object; see the module.
pub struct PinnedBuffer(Box<ffi::Py_buffer>);

// SAFETY: a pointer and its owner; released under the GIL. Holders of the object may change the bytes at any time, as
// for every reader that releases the GIL while it reads.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Pins the memory of an object. `what` names its use in errors: "the send buffer".
    pub fn of(object: &Bound<'_, PyAny>, access: BufferAccess, what: &str) -> PyResult<Self> {
        let flags = ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_FORMAT;
        let asked = match access {
            BufferAccess::Read => flags,
            BufferAccess::Write => flags | ffi::PyBUF_WRITABLE,
        };
        Self::get(object, asked).map_err(|cause| refusal(object, access, what, &cause).unwrap_or(cause))
    }

    fn get(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: an object, under the GIL; the view is filled if the call succeeds.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled, as just checked. The view stays in its box, because it may point into itself.
        Ok(Self(unsafe { view.assume_init() }))
    }

    pub fn start(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    pub fn bytes(&self) -> usize {
        self.0.len as usize
    }

    /// Format of an element, as in `struct` and PEP 3118.
    pub fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: a C string that lives as long as the view.
        unsafe { CStr::from_ptr(self.0.format) }.to_bytes()
    }

    pub fn element_bytes(&self) -> usize {
        self.0.itemsize as usize
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // Without an interpreter, there is no object left to which the buffer could be released.
        // SAFETY: filled, and released once, under the GIL.
        Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Error for an object whose memory cannot be pinned, with advice.
fn refusal(object: &Bound<'_, PyAny>, access: BufferAccess, what: &str, cause: &PyErr) -> Option<PyErr> {
    let py = object.py();
    let kind = object.get_type().qualname().ok()?;
    // SAFETY: an object, under the GIL.
    let error = if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        let advice = if object.hasattr("__cuda_array_interface__").ok()? {
            "its memory is a GPU's: copy it to the host first (cupy.asnumpy, tensor.cpu().numpy())"
        } else {
            "upper-case calls take a numpy array, bytearray, memoryview, ..., or a list such as [array, MPI.DOUBLE]; \
             lower-case calls (send, bcast, ...) take any object"
        };
        PyTypeError::new_err(format!("{what} is of type {kind}: {advice}"))
    } else if access == BufferAccess::Write && PinnedBuffer::get(object, ffi::PyBUF_ANY_CONTIGUOUS).is_ok() {
        PyBufferError::new_err(format!(
            "{what} is read-only: this {kind} cannot be written; pass a writable one, such as array.copy() or a bytearray"
        ))
    } else {
        PyBufferError::new_err(format!(
            "{what} does not lie in one piece of memory ({}): pass numpy.ascontiguousarray(array), and copy back what is \
             received",
            cause.value(py)
        ))
    };
    error.set_cause(py, Some(cause.clone_ref(py)));
    Some(error)
}
