//! Bytes of a request, which the decoders of a task read.

use hotlease_wire::task::ALIGNMENT;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ptr::NonNull;

/// Buffers below this size are copied: such a copy costs no more than a view, and the function may keep the copy.
pub const COPIED_BELOW: usize = 32 << 10;

/// Bytes of a request; their owner may change them at any time.
pub struct RequestBytes {
    start: NonNull<u8>,
    size: usize,
}

impl RequestBytes {
    /// Bytes of a request, or of a reply that is read like one.
    ///
    /// # Safety
    /// `size` bytes from `start` on must be readable while the value is used.
    #[inline]
    pub unsafe fn new(start: NonNull<u8>, size: usize) -> Self {
        Self { start, size }
    }

    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    #[inline]
    pub fn copy(&self, from: usize, into: &mut [u8]) {
        let inside = from.checked_add(into.len()).is_some_and(|end| end <= self.size);
        assert!(inside, "a decoder looks beyond the request");
        // SAFETY: inside the request, as just checked.
        unsafe { std::ptr::copy_nonoverlapping(self.at(from).as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    #[inline]
    pub fn at(&self, from: usize) -> NonNull<u8> {
        debug_assert!(from <= self.size);
        // SAFETY: an offset of a decoded request, which lies inside.
        unsafe { self.start.add(from) }
    }

    /// Returns the offset of a buffer that may stay in the request: it is inside the request, large, and aligned as
    /// requests and replies require.
    #[inline]
    pub fn place_of(&self, part: &[u8]) -> Option<usize> {
        let at = (part.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        let is_inside = at.checked_add(part.len())? <= self.size;
        (is_inside && part.len() >= COPIED_BELOW && at.is_multiple_of(ALIGNMENT)).then_some(at)
    }

    #[inline]
    pub fn bytes<'py>(&self, py: Python<'py>, from: usize, length: usize) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, length, |bytes| {
            self.copy(from, bytes);
            Ok(())
        })
    }
}
