//! `hotlease_buffer`: memory that client and workers share.

use crate::argument::{give, object, require_place};
use crate::invoker::InvokerHandle;
use crate::status::{Failure, exported};
use hotlease_client::{Buffer, BufferSlice, BufferSliceMut};
use std::ffi::c_void;

/// `hotlease_buffer`.
pub struct BufferHandle {
    buffer: Buffer<u8>,
    /// Address through which C writes, taken before any other code used the buffer.
    start: *mut u8,
}

/// `hotlease_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    buffer: *const BufferHandle,
    offset: usize,
    size: usize,
}

impl Range {
    /// Returns the buffer and the end of the range, which is inside the buffer.
    ///
    /// # Safety
    /// The buffer is NULL or valid for `'a`.
    unsafe fn checked<'a>(self, name: &'static str) -> Result<(&'a BufferHandle, usize), Failure> {
        if self.buffer.is_null() {
            return Err(Failure::Argument(format!("{name}.buffer is NULL")));
        }
        // SAFETY: the caller's promise.
        let handle = unsafe { object(self.buffer, name) }?;
        match self.offset.checked_add(self.size) {
            Some(end) if end <= handle.buffer.size_bytes() => Ok((handle, end)),
            _ => Err(Failure::Argument(format!(
                "{name}: {} bytes from {} on reach past the end of a buffer of {}",
                self.size,
                self.offset,
                handle.buffer.size_bytes()
            ))),
        }
    }
}

impl BufferHandle {
    /// Returns the part of a buffer that a function reads.
    ///
    /// # Safety
    /// The range's buffer is NULL or valid for `'a`.
    pub(crate) unsafe fn input<'a>(range: Range, name: &'static str) -> Result<BufferSlice<'a>, Failure> {
        // SAFETY: the caller's promise.
        let (handle, end) = unsafe { range.checked(name) }?;
        Ok(handle.buffer.slice(range.offset..end))
    }

    /// Returns the part of a buffer that a function writes. The C caller must not use overlapping parts meanwhile
    /// (convention 5).
    ///
    /// # Safety
    /// As for [`BufferHandle::input`].
    pub(crate) unsafe fn output<'a>(range: Range, name: &'static str) -> Result<BufferSliceMut<'a>, Failure> {
        // SAFETY: the caller's promise.
        let (handle, end) = unsafe { range.checked(name) }?;
        Ok(handle.buffer.slice_shared(range.offset..end))
    }
}

exported!(hotlease_buffer_create(invoker: *const InvokerHandle, size_bytes: usize, buffer: *mut *mut BufferHandle) {
    require_place(buffer, "buffer")?;
    let invoker = object(invoker, "invoker")?;
    let mut created = invoker.invoker.buffer::<u8>(size_bytes)?;
    let handle = BufferHandle {
        start: created.as_mut_ptr(),
        buffer: created,
    };
    give(buffer, handle)
});

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_buffer_data(buffer: *mut BufferHandle) -> *mut c_void {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { buffer.as_ref() }.map_or(std::ptr::null_mut(), |buffer| buffer.start.cast())
}

exported!(get hotlease_buffer_size(buffer: BufferHandle) -> usize { 0, buffer.buffer.size_bytes() });
exported!(free hotlease_buffer_free(BufferHandle));
