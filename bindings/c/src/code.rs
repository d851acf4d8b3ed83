//! `hotlease_code`: a function library.

use crate::argument::{self, bytes, give, require_place};
use crate::status::exported;
use hotlease_client::Code;
use std::ffi::{CString, c_char, c_void};

/// `hotlease_code`.
pub struct CodeHandle {
    pub(crate) code: Code,
    names: Vec<CString>,
}

impl CodeHandle {
    fn of(code: Code) -> Self {
        let names = code.functions().iter();
        // A symbol's name contains no zero byte, because a zero byte ends it in the library.
        let names = names.map(|function| CString::new(function.name.as_str()).unwrap_or_default());
        Self {
            names: names.collect(),
            code,
        }
    }
}

exported!(hotlease_code_open(path: *const c_char, code: *mut *mut CodeHandle) {
    require_place(code, "code")?;
    let path = argument::path(path, "path")?;
    give(code, CodeHandle::of(Code::open(path)?))
});

exported!(hotlease_code_from_bytes(start: *const c_void, size: usize, code: *mut *mut CodeHandle) {
    require_place(code, "code")?;
    let library = bytes(start, size, "bytes")?;
    give(code, CodeHandle::of(Code::from_bytes("bytes in memory", library.to_vec())?))
});

exported!(get hotlease_code_function_count(code: CodeHandle) -> usize { 0, code.names.len() });

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_code_function_name(code: *const CodeHandle, index: usize) -> *const c_char {
    // SAFETY: NULL or valid, as the header demands.
    let name = unsafe { code.as_ref() }.and_then(|code| code.names.get(index));
    name.map_or(std::ptr::null(), |name| name.as_ptr())
}

exported!(free hotlease_code_free(CodeHandle));
