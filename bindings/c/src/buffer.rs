//! `hotlease_buffer`: memory that client and workers share.

use crate::argument::{object, put, wanted};
use crate::invoker::InvokerHandle;
use crate::status::{ErrorHandle, Failure, Status, free, guarded};
use hotlease_client::{Buffer, BufferSlice, BufferSliceMut};
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// `hotlease_buffer`.
pub struct BufferHandle {
    /// In a cell, because parts to be written are made from a handle that several threads share.
    buffer: UnsafeCell<Buffer<u8>>,
    start: *mut u8,
    size: usize,
}

// SAFETY: nothing in it changes after it was made. The memory that it stands for is used by C and by
// workers, whose business it is to keep apart what they write (convention 5 of the header).
unsafe impl Sync for BufferHandle {}
// SAFETY: as above; `start` points into memory that belongs to no thread.
unsafe impl Send for BufferHandle {}

/// `hotlease_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Range {
    buffer: *const BufferHandle,
    offset: usize,
    size: usize,
}

impl Range {
    /// Its buffer and its end, which is in the buffer.
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
            Some(end) if end <= handle.size => Ok((handle, end)),
            _ => Err(Failure::Argument(format!(
                "{name}: {} bytes from {} on reach past the end of a buffer of {}",
                self.size, self.offset, handle.size
            ))),
        }
    }
}

impl BufferHandle {
    /// A part to be read by a function.
    ///
    /// # Safety
    /// The range's buffer is NULL or valid for `'a`.
    pub(crate) unsafe fn input<'a>(range: Range, name: &'static str) -> Result<BufferSlice<'a>, Failure> {
        // SAFETY: the caller's promise.
        let (handle, end) = unsafe { range.checked(name) }?;
        // SAFETY: nobody ever writes through a reference to the `Buffer` (see `output`).
        Ok(unsafe { &*handle.buffer.get() }.slice(range.offset..end))
    }

    /// A part to be written by a function.
    ///
    /// # Safety
    /// As for [`BufferHandle::input`].
    pub(crate) unsafe fn output<'a>(range: Range, name: &'static str) -> Result<BufferSliceMut<'a>, Failure> {
        // SAFETY: the caller's promise.
        let (handle, end) = unsafe { range.checked(name) }?;
        // SAFETY: `slice_mut` wants an exclusive reference because it lends the memory to the worker, which
        // the C caller answers for (convention 5). Of the `Buffer` itself it only reads where the memory
        // is; nothing is ever written through this reference, so that threads which do the same at the same
        // time, or hold slices from earlier, do not disturb each other.
        Ok(unsafe { &mut *handle.buffer.get() }.slice_mut(range.offset..end))
    }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_buffer_create(
    invoker: *const InvokerHandle,
    size_bytes: usize,
    buffer: *mut *mut BufferHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        wanted(buffer, "buffer")?;
        // SAFETY: NULL or valid, as the header demands.
        let invoker = unsafe { object(invoker, "invoker") }?;
        let mut created = invoker.invoker.buffer::<u8>(size_bytes)?;
        let handle = BufferHandle {
            start: created.as_mut_ptr(),
            size: created.size_bytes(),
            buffer: UnsafeCell::new(created),
        };
        // SAFETY: checked to be wanted; valid as the header demands.
        unsafe { put(buffer, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_buffer_data(buffer: *mut BufferHandle) -> *mut c_void {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { buffer.as_ref() }.map_or(std::ptr::null_mut(), |buffer| buffer.start.cast())
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_buffer_size(buffer: *const BufferHandle) -> usize {
    // SAFETY: NULL or valid, as the header demands.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.size)
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_buffer_free(buffer: *mut BufferHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(buffer) };
}
