//! `hotlease_function`: functions and their calls.

use crate::argument::{bytes, bytes_mut, object, put, require_place, sized, text};
use crate::buffer::{BufferHandle, Range};
use crate::invocation::{Callback, InvocationHandle, RawCallback, deliver_to};
use crate::invoker::InvokerHandle;
use crate::status::{ErrorHandle, Failure, Status, catch_panic, free, run_guarded};
use hotlease_client::{Error, Function};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// `hotlease_function`.
pub struct FunctionHandle {
    pub(crate) function: Function,
    output_bytes: usize,
}

/// `hotlease_function_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FunctionOptions {
    struct_size: usize,
    timeout_us: u64,
    output_bytes: u64,
    idempotent: i32,
    reserved: u32,
}

impl FunctionOptions {
    /// Applies the options to a function and to its output size.
    fn apply(self, mut function: Function, output_bytes: &mut usize) -> Result<Function, Failure> {
        if self.timeout_us != 0 {
            function = function.timeout(Some(Duration::from_micros(self.timeout_us)));
        }
        if self.output_bytes != 0 {
            *output_bytes = usize::try_from(self.output_bytes)
                .map_err(|_| Failure::Argument("options->output_bytes: more than there can be".to_owned()))?;
            function = function.output_bytes(*output_bytes);
        }
        function = match self.idempotent {
            0 => function,
            1 => function.idempotent(true),
            -1 => function.idempotent(false),
            other => {
                return Err(Failure::Argument(format!("options->idempotent cannot be {other}")));
            }
        };
        match self.reserved {
            0 => Ok(function),
            other => Err(Failure::Argument(format!("options->reserved cannot be {other}"))),
        }
    }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_function_find(
    invoker: *const InvokerHandle,
    name: *const c_char,
    options: *const FunctionOptions,
    function: *mut *mut FunctionHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(function, "function")?;
        // SAFETY: NULL or valid, as the header demands.
        let invoker = &unsafe { object(invoker, "invoker") }?.invoker;
        // SAFETY: NULL or a string, as the header demands.
        let name = unsafe { text(name, "name") }?;
        let mut output_bytes = invoker.options().reply_bytes as usize;
        let mut found = invoker.function(name)?;
        // SAFETY: NULL or a hotlease_function_options with its size set, as the header demands.
        if let Some(options) = unsafe { sized(options, "options") }? {
            found = options.apply(found, &mut output_bytes)?;
        }
        let handle = FunctionHandle {
            function: found,
            output_bytes,
        };
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(function, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_function_on_slot(
    function: *const FunctionHandle,
    slot: u32,
    on_slot: *mut *mut FunctionHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(on_slot, "on_slot")?;
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        let handle = FunctionHandle {
            function: function.function.clone().on_slot(slot)?,
            output_bytes: function.output_bytes,
        };
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(on_slot, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_function_output_bytes(function: *const FunctionHandle) -> usize {
    catch_panic(0, || {
        // SAFETY: NULL or valid, as the header demands.
        unsafe { function.as_ref() }.map_or(0, |function| function.output_bytes)
    })
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_function_free(function: *mut FunctionHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(function) };
}

/// Reports the length of a result. If the function failed itself, copies its message to the output and reports the
/// message's length.
///
/// # Safety
/// `out_size` is NULL or valid for writing.
#[inline]
pub(crate) unsafe fn finish(result: Result<usize, Error>, out: &mut [u8], out_size: *mut usize) -> Result<(), Failure> {
    match result {
        Ok(length) => {
            // SAFETY: the caller's promise.
            unsafe { put(out_size, length) };
            Ok(())
        }
        Err(error) => {
            if let Some(length) = own_message(&error, out) {
                // SAFETY: the caller's promise.
                unsafe { put(out_size, length) };
            }
            Err(error.into())
        }
    }
}

/// Copies the message of a function that failed itself, up to the end of `out`.
#[cold]
pub(crate) fn own_message(error: &Error, out: &mut [u8]) -> Option<usize> {
    let Error::Function { output, .. } = error else {
        return None;
    };
    let length = output.len().min(out.len());
    out[..length].copy_from_slice(&output[..length]);
    Some(length)
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_invoke(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, out) = unsafe { (bytes(input, input_size, "in")?, bytes_mut(out, out_capacity, "out")?) };
        let result = function.function.invoke(input, out);
        // SAFETY: NULL or valid, as the header demands.
        unsafe { finish(result, out, out_size) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// Submits a call, with or without waiting for a free queue.
///
/// # Safety
/// As the header demands.
unsafe fn submit(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
    wait: bool,
) -> Status {
    let body = || {
        require_place(invocation, "invocation")?;
        // SAFETY: the caller's promise.
        let (function, input) = unsafe { (object(function, "function")?, bytes(input, input_size, "in")?) };
        let started = if wait {
            function.function.submit(input)?
        } else {
            function.function.try_submit(input)?
        };
        // SAFETY: checked not to be NULL; valid by the caller's promise.
        unsafe { put(invocation, InvocationHandle::of_bytes(started)) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_submit(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    // SAFETY: as the header demands.
    unsafe { submit(function, input, input_size, invocation, error, true) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_try_submit(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    // SAFETY: as the header demands.
    unsafe { submit(function, input, input_size, invocation, error, false) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_submit_then(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    callback: RawCallback,
    user: *mut c_void,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: as the header demands.
        let (function, input) = unsafe { (object(function, "function")?, bytes(input, input_size, "in")?) };
        let callback = Callback::new(callback, user)?;
        function
            .function
            .submit_then(input, move |result| deliver_to(callback, result))?;
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_invoke_buffers(
    function: *const FunctionHandle,
    input: Range,
    output: Range,
    out_size: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, output) = unsafe { (BufferHandle::input(input, "in")?, BufferHandle::output(output, "out")?) };
        let result = function.function.invoke_buffer(input, output);
        // SAFETY: NULL or valid, as the header demands.
        unsafe { finish(result, &mut [], out_size) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_submit_buffers(
    function: *const FunctionHandle,
    input: Range,
    output: Range,
    invocation: *mut *mut InvocationHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(invocation, "invocation")?;
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        // SAFETY: as the header demands.
        let (input, output) = unsafe { (BufferHandle::input(input, "in")?, BufferHandle::output(output, "out")?) };
        let started = function.function.submit_buffer(input, output)?;
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(invocation, InvocationHandle::of_buffer(started)) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}
