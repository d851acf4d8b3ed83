//! `hotlease_function`: functions and their calls.

use crate::argument::{bytes, bytes_mut, give, object, put, require_place, sized, text};
use crate::buffer::{BufferHandle, Range};
use crate::invocation::{Callback, InvocationHandle, RawCallback, deliver_to};
use crate::invoker::InvokerHandle;
use crate::status::{Failure, exported};
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
                .map_err(|_| Failure::Argument("options->output_bytes: more than fits into memory".to_owned()))?;
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

exported!(hotlease_function_find(
    invoker: *const InvokerHandle,
    name: *const c_char,
    options: *const FunctionOptions,
    function: *mut *mut FunctionHandle,
) {
    require_place(function, "function")?;
    let invoker = &object(invoker, "invoker")?.invoker;
    let name = text(name, "name")?;
    let mut output_bytes = invoker.options().reply_bytes as usize;
    let mut found = invoker.function(name)?;
    if let Some(options) = sized(options, "options")? {
        found = options.apply(found, &mut output_bytes)?;
    }
    let handle = FunctionHandle {
        function: found,
        output_bytes,
    };
    give(function, handle)
});

exported!(hotlease_function_on_slot(function: *const FunctionHandle, slot: u32, on_slot: *mut *mut FunctionHandle) {
    require_place(on_slot, "on_slot")?;
    let function = object(function, "function")?;
    let slot = usize::try_from(slot).unwrap_or(usize::MAX);
    let handle = FunctionHandle {
        function: function.function.clone().on_slot(slot)?,
        output_bytes: function.output_bytes,
    };
    give(on_slot, handle)
});

exported!(get hotlease_function_output_bytes(function: FunctionHandle) -> usize { 0, function.output_bytes });
exported!(free hotlease_function_free(FunctionHandle));

/// Writes the length of a result to `out_size`. If the function itself failed, copies its message to the output, and
/// writes the message's length.
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

/// Copies the message of a function that failed itself, up to the end of `out`; returns the copied length. Returns
/// `None` for any other error.
#[cold]
pub(crate) fn own_message(error: &Error, out: &mut [u8]) -> Option<usize> {
    let Error::Function { output, .. } = error else {
        return None;
    };
    let length = output.len().min(out.len());
    out[..length].copy_from_slice(&output[..length]);
    Some(length)
}

exported!(hotlease_invoke(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
) {
    let function = &object(function, "function")?.function;
    let (input, out) = (bytes(input, input_size, "in")?, bytes_mut(out, out_capacity, "out")?);
    let result = function.invoke(input, out);
    finish(result, out, out_size)
});

exported!(hotlease_submit(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    invocation: *mut *mut InvocationHandle,
) {
    require_place(invocation, "invocation")?;
    let function = &object(function, "function")?.function;
    let input = bytes(input, input_size, "in")?;
    give(invocation, InvocationHandle::of_bytes(function.submit(input)?))
});

exported!(hotlease_try_submit(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    invocation: *mut *mut InvocationHandle,
) {
    require_place(invocation, "invocation")?;
    let function = &object(function, "function")?.function;
    let input = bytes(input, input_size, "in")?;
    give(invocation, InvocationHandle::of_bytes(function.try_submit(input)?))
});

exported!(hotlease_submit_then(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    callback: RawCallback,
    user: *mut c_void,
) {
    let function = &object(function, "function")?.function;
    let input = bytes(input, input_size, "in")?;
    let callback = Callback::new(callback, user)?;
    Ok(function.submit_then(input, move |result| deliver_to(callback, result))?)
});

exported!(hotlease_invoke_buffers(function: *const FunctionHandle, input: Range, output: Range, out_size: *mut usize) {
    let function = &object(function, "function")?.function;
    let (input, output) = (BufferHandle::input(input, "in")?, BufferHandle::output(output, "out")?);
    let result = function.invoke_buffer(input, output);
    finish(result, &mut [], out_size)
});

exported!(hotlease_submit_buffers(
    function: *const FunctionHandle,
    input: Range,
    output: Range,
    invocation: *mut *mut InvocationHandle,
) {
    require_place(invocation, "invocation")?;
    let function = &object(function, "function")?.function;
    let (input, output) = (BufferHandle::input(input, "in")?, BufferHandle::output(output, "out")?);
    give(invocation, InvocationHandle::of_buffer(function.submit_buffer(input, output)?))
});
