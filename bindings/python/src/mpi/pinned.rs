//! The memory of an object, which stays where it is as long as this lives.

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// What is done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is sent.
    Read,
    /// It is received into.
    Write,
}

/// See the module.
pub struct Pinned(Box<ffi::Py_buffer>);

// SAFETY: a pointer and what it belongs to; given back under the GIL. The bytes may be changed by who has the object, at any time,
// as for everybody else who lets the GIL go while he reads them.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// That of an object. `what` it is for is in errors: "the send buffer".
    pub fn of(object: &Bound<'_, PyAny>, access: Access, what: &str) -> PyResult<Self> {
        let flags = ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_FORMAT;
        let asked = match access {
            Access::Read => flags,
            Access::Write => flags | ffi::PyBUF_WRITABLE,
        };
        Self::get(object, asked).map_err(|cause| refusal(object, access, what, &cause).unwrap_or(cause))
    }

    fn get(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: an object, under the GIL; filled if it succeeds.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: as just seen. It stays in its box: it may point into itself.
        Ok(Self(unsafe { view.assume_init() }))
    }

    pub fn start(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    pub fn bytes(&self) -> usize {
        self.0.len as usize
    }

    /// Of an element, as `struct` and PEP 3118 write it.
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

impl Drop for Pinned {
    fn drop(&mut self) {
        // Without an interpreter there is nobody to give it back to.
        // SAFETY: filled, and given back once, under the GIL.
        Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}

/// Why an object's memory cannot be had, and what to do.
fn refusal(object: &Bound<'_, PyAny>, access: Access, what: &str, cause: &PyErr) -> Option<PyErr> {
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
    } else if access == Access::Write && Pinned::get(object, ffi::PyBUF_ANY_CONTIGUOUS).is_ok() {
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
