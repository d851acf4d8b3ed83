//! Memory of an object that lies in one piece: what a native function may be given.

use hotlease_worker::Place;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// The memory of an object, which keeps it where it is.
pub struct View(Box<ffi::Py_buffer>);

// SAFETY: a pointer and what it belongs to; given back under the GIL. The bytes may be changed by who has the object, at any time,
// as for everybody else who lets the GIL go while he reads them.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Whether an object has memory that others may see.
    pub fn is_of(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: an object, under the GIL.
        unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
    }

    /// Of this object.
    ///
    /// # Errors
    /// `TypeError` with what to do, if it has no memory in one piece, or one of references to objects.
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
        // SAFETY: filled if it succeeds.
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
        // SAFETY: as just seen.
        let view = Self(unsafe { view.assume_init() });
        if view.has_objects(object)? {
            return Err(PyTypeError::new_err(
                "a native function cannot read an array of objects, whose memory has references to them and not their values: \
                 pass array.astype(float), for instance",
            ));
        }
        Ok(view)
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place {
            start: NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling()),
            bytes: self.0.len as u64,
        }
    }

    /// Its bytes; they may change meanwhile, so that nothing may be concluded from them.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len() as u64, self.place().bytes);
        // SAFETY: as long as the view lives, it has so many bytes, which nobody else has as `into`.
        unsafe { std::ptr::copy_nonoverlapping(self.place().start.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    fn has_objects(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.0.format.is_null() {
            return Ok(false);
        }
        // SAFETY: a C string that lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        if !format.to_bytes().contains(&b'O') {
            return Ok(false);
        }
        // It may also be in the name of a field.
        match object.getattr("dtype") {
            Ok(dtype) => dtype.getattr("hasobject")?.is_truthy(),
            Err(_) => Ok(true),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: filled, and given back once.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&mut *self.0) });
    }
}
