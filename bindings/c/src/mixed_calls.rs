//! Calls with bytes on one side and a buffer on the other.

use crate::argument::{bytes, bytes_mut, object, put, require_place};
use crate::buffer::{BufferHandle, Range};
use crate::function::{FunctionHandle, finish};
use crate::invocation::InvocationHandle;
use crate::status::{ErrorHandle, Status, run_guarded};
use std::ffi::c_void;

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_invoke_from_buffer(
    function: *const FunctionHandle,
    input: Range,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, out) = unsafe { (BufferHandle::input(input, "in")?, bytes_mut(out, out_capacity, "out")?) };
        let result = function.function.invoke_buffer(input, &mut *out);
        // SAFETY: NULL or valid, as the header demands.
        unsafe { finish(result, out, out_size) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_invoke_to_buffer(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    output: Range,
    out_size: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, output) = unsafe { (bytes(input, input_size, "in")?, BufferHandle::output(output, "out")?) };
        let result = function.function.invoke_buffer(input, output);
        // SAFETY: NULL or valid, as the header demands.
        unsafe { finish(result, &mut [], out_size) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_submit_from_buffer(
    function: *const FunctionHandle,
    input: Range,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(invocation, "invocation")?;
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let input = unsafe { BufferHandle::input(input, "in") }?;
        let started = function.function.submit_from_buffer(input)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(invocation, InvocationHandle::of_bytes(started)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_submit_to_buffer(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    output: Range,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(invocation, "invocation")?;
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, output) = unsafe { (bytes(input, input_size, "in")?, BufferHandle::output(output, "out")?) };
        let started = function.function.submit_buffer(input, output)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(invocation, InvocationHandle::of_buffer(started)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}
