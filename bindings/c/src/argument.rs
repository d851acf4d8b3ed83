//! Checks and conversions of arguments from C callers.

use crate::status::Failure;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the object behind a handle that must not be NULL.
///
/// # Safety
/// `handle` is NULL or valid, for all of `'a`.
#[inline]
pub(crate) unsafe fn object<'a, T>(handle: *const T, name: &'static str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or(Failure::Null(name))
}

/// Returns bytes to read; NULL with size 0 is an empty slice.
///
/// # Safety
/// `start` is NULL or valid for reading `size` bytes for `'a`, and no other code writes them meanwhile.
#[inline]
pub(crate) unsafe fn bytes<'a>(start: *const c_void, size: usize, name: &'static str) -> Result<&'a [u8], Failure> {
    if size == 0 {
        return Ok(&[]);
    }
    if start.is_null() {
        return Err(Failure::Null(name));
    }
    check_size(size, name)?;
    // SAFETY: not NULL, so valid by the caller's promise; not larger than a slice may be.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), size) })
}

/// Returns bytes to write; NULL with size 0 is an empty slice.
///
/// # Safety
/// `start` is NULL or valid for writing `size` bytes for `'a`, and no other code uses them meanwhile.
#[inline]
pub(crate) unsafe fn bytes_mut<'a>(
    start: *mut c_void,
    size: usize,
    name: &'static str,
) -> Result<&'a mut [u8], Failure> {
    if size == 0 {
        return Ok(&mut []);
    }
    if start.is_null() {
        return Err(Failure::Null(name));
    }
    check_size(size, name)?;
    // SAFETY: not NULL, so valid by the caller's promise; not larger than a slice may be.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), size) })
}

#[inline]
fn check_size(size: usize, name: &'static str) -> Result<(), Failure> {
    if size > isize::MAX as usize {
        return Err(Failure::Argument(format!(
            "{name}: {size} bytes are more than fit into memory"
        )));
    }
    Ok(())
}

/// Returns a text that must not be NULL.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero byte and is valid for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(text, name) }?.ok_or(Failure::Null(name))
}

/// Returns a text, or `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero byte and is valid for `'a`.
pub(crate) unsafe fn optional_text<'a>(text: *const c_char, name: &'static str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so valid by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|_| Failure::Argument(format!("{name} is not UTF-8")))
}

/// Returns a path (any bytes) that must not be NULL.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, name: &'static str) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: not NULL, so valid by the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Writes a result to an out-parameter, unless the out-parameter is NULL.
///
/// # Safety
/// `place` is NULL or valid for writing a `T`.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not NULL, so valid by the caller's promise; the old content has no destructor.
        unsafe { place.write(value) };
    }
}

/// Gives a new object to the caller, who frees it with its `_free` function.
///
/// # Safety
/// `place` is NULL or valid for writing a pointer.
pub(crate) unsafe fn give<T>(place: *mut *mut T, object: T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { put(place, Box::into_raw(Box::new(object))) };
    Ok(())
}

/// Rejects an out-parameter that is NULL, before any work is done.
pub(crate) fn require_place<T>(place: *mut T, name: &'static str) -> Result<(), Failure> {
    if place.is_null() {
        Err(Failure::Null(name))
    } else {
        Ok(())
    }
}

/// Reads a struct that starts with its own size. The caller may have compiled it with this version or an older version
/// of the header: fields that the older version does not have are read as zero.
///
/// # Safety
/// `given` is NULL or points to a `usize` (the struct's size in bytes), and is valid for reading so many bytes.
/// `T` is `repr(C)`, begins with a `usize`, and all-zero bytes are a valid value of it.
pub(crate) unsafe fn sized<T: Copy>(given: *const T, name: &'static str) -> Result<Option<T>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so there is at least a size by the caller's promise.
    let size = unsafe { given.cast::<usize>().read() };
    check_struct_size::<T>(size, name)?;
    let mut known = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `size` bytes can be read by the caller's promise, and written because `size` is at most that of a T;
    // zeros and bytes of a T written by C make a valid T.
    Ok(Some(unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), known.as_mut_ptr().cast::<u8>(), size);
        known.assume_init()
    }))
}

/// Fills in a struct that starts with its own size, up to the end of the struct in the caller's version.
///
/// # Safety
/// As for [`sized`], and valid for writing.
pub(crate) unsafe fn fill_sized<T: Copy>(place: *mut T, value: &T, name: &'static str) -> Result<(), Failure> {
    // SAFETY: not NULL (the caller has checked), so there is at least a size.
    let size = unsafe { place.cast::<usize>().read() };
    check_struct_size::<T>(size, name)?;
    let head = size_of::<usize>();
    // SAFETY: `size` bytes can be written by the caller's promise; the size itself is not written.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>().add(head),
            place.cast::<u8>().add(head),
            size - head,
        );
    }
    Ok(())
}

/// Rejects a struct of a later version, which may request something that this version does not have.
pub(crate) fn check_struct_size<T>(size: usize, name: &'static str) -> Result<(), Failure> {
    if size < size_of::<usize>() || size > size_of::<T>() {
        return Err(Failure::Argument(format!(
            "{name}->struct_size is {size}; set it to sizeof *{name}, which is {} in this version",
            size_of::<T>()
        )));
    }
    Ok(())
}
