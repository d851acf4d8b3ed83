//! View: memory of an object in one piece, as input of a native function.

use hotlease_worker::MemoryPlace;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The memory of an object, which stays in place until the view is dropped.
pub struct InputView(Box<ffi::Py_buffer>);

// SAFETY: a pointer and its owner; released under the GIL. Holders of the object may change the bytes at any time, as
// for every reader that releases the GIL while it reads.
unsafe impl Send for InputView {}
// SAFETY: as above.
unsafe impl Sync for InputView {}

impl InputView {
    /// Whether the object exposes its memory.
    pub fn is_of(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: an object, under the GIL.
        unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
    }

    /// Makes a view of an object.
    ///
    /// # Errors
    /// `TypeError` with advice, if the object has no memory in one piece, or its memory holds references to objects.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let kind = || object.get_type().qualname().map(|name| name.to_string());
        if !Self::is_of(object) {
            return Err(PyTypeError::new_err(format!(
                "a native function takes one object whose memory it can read: a numpy array, bytes, a memoryview, ...; not {} \
                 (numpy.asarray makes an array of many things)",
                kind()?
            )));
        }
        let flags = ffi::PyBUF_ANY_CONTIGUOUS | ffi::PyBUF_FORMAT;
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: filled if the call succeeds.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            let cause = PyErr::fetch(py);
            let text = format!(
                "a native function takes memory that lies in one piece, which this {} is not ({}): pass \
                 numpy.ascontiguousarray(array), or a view of another dtype",
                kind()?,
                cause.value(py)
            );
            let error = PyTypeError::new_err(text);
            error.set_cause(py, Some(cause));
            return Err(error);
        }
        // SAFETY: filled, as just checked.
        let view = Self(unsafe { view.assume_init() });
        if view.find_objects(object)? {
            return Err(PyTypeError::new_err(
                "a native function cannot read an array of objects, whose memory has references to them and not their values: \
                 pass array.astype(float), for instance",
            ));
        }
        Ok(view)
    }

    /// Address and length.
    pub fn place(&self) -> MemoryPlace {
        MemoryPlace {
            start: NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling()),
            bytes: self.0.len as u64,
        }
    }

    /// Copies the bytes. They may change meanwhile, so no decision may depend on them.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len() as u64, self.place().bytes);
        // SAFETY: while the view lives it has this many bytes, and `into` is exclusive, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.place().start.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    fn find_objects(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.0.format.is_null() {
            return Ok(false);
        }
        // SAFETY: a C string that lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        if !format.to_bytes().contains(&b'O') {
            return Ok(false);
        }
        // The `O` may also be in the name of a field.
        match object.getattr("dtype") {
            Ok(dtype) => dtype.getattr("hasobject")?.is_truthy(),
            Err(_) => Ok(true),
        }
    }
}

impl Drop for InputView {
    fn drop(&mut self) {
        // SAFETY: filled, and released once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}
