//! `hotlease_code`: a function library.

use crate::argument::{self, bytes, put, require_place};
use crate::status::{ErrorHandle, Status, catch_panic, free, run_guarded};
use hotlease_client::Code;
use std::ffi::{CString, c_char, c_void};

/// `hotlease_code`.
pub struct CodeHandle {
    pub(crate) code: Code,
    names: Vec<CString>,
}

impl CodeHandle {
    fn give(code: Code, place: *mut *mut Self) {
        let names = code.functions().iter();
        // A symbol's name contains no zero byte: it ended there in the library.
        let names = names.map(|function| CString::new(function.name.as_str()).unwrap_or_default());
        let handle = Self {
            names: names.collect(),
            code,
        };
        // SAFETY: callers have checked that the place is not NULL; it is valid as the header demands.
        unsafe { put(place, Box::into_raw(Box::new(handle))) };
    }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_open(
    path: *const c_char,
    code: *mut *mut CodeHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(code, "code")?;
        // SAFETY: NULL or a string, as the header demands.
        let path = unsafe { argument::path(path, "path") }?;
        CodeHandle::give(Code::open(path)?, code);
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_from_bytes(
    start: *const c_void,
    size: usize,
    code: *mut *mut CodeHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(code, "code")?;
        // SAFETY: NULL or valid, as the header demands.
        let library = unsafe { bytes(start, size, "bytes") }?;
        CodeHandle::give(Code::from_bytes("bytes in memory", library.to_vec())?, code);
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_function_count(code: *const CodeHandle) -> usize {
    // SAFETY: NULL or valid, as the header demands.
    catch_panic(0, || unsafe { code.as_ref() }.map_or(0, |code| code.names.len()))
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_function_name(code: *const CodeHandle, index: usize) -> *const c_char {
    // SAFETY: NULL or valid, as the header demands.
    let name = unsafe { code.as_ref() }.and_then(|code| code.names.get(index));
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_free(code: *mut CodeHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(code) };
}
