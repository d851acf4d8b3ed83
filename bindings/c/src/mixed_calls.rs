//! Calls with bytes as input and a buffer as output, or the other way round.

use crate::argument::{bytes, bytes_mut, give, object, require_place};
use crate::buffer::{BufferHandle, Range};
use crate::function::{FunctionHandle, finish};
use crate::invocation::InvocationHandle;
use crate::status::exported;
use std::ffi::c_void;

exported!(hotlease_invoke_from_buffer(
    function: *const FunctionHandle,
    input: Range,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
) {
    let function = &object(function, "function")?.function;
    let (input, out) = (BufferHandle::input(input, "in")?, bytes_mut(out, out_capacity, "out")?);
    let result = function.invoke_buffer(input, &mut *out);
    finish(result, out, out_size)
});

exported!(hotlease_invoke_to_buffer(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    output: Range,
    out_size: *mut usize,
) {
    let function = &object(function, "function")?.function;
    let (input, output) = (bytes(input, input_size, "in")?, BufferHandle::output(output, "out")?);
    let result = function.invoke_buffer(input, output);
    finish(result, &mut [], out_size)
});

exported!(hotlease_submit_from_buffer(
    function: *const FunctionHandle,
    input: Range,
    invocation: *mut *mut InvocationHandle,
) {
    require_place(invocation, "invocation")?;
    let function = &object(function, "function")?.function;
    let input = BufferHandle::input(input, "in")?;
    give(invocation, InvocationHandle::of_bytes(function.submit_from_buffer(input)?))
});

exported!(hotlease_submit_to_buffer(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    output: Range,
    invocation: *mut *mut InvocationHandle,
) {
    require_place(invocation, "invocation")?;
    let function = &object(function, "function")?.function;
    let (input, output) = (bytes(input, input_size, "in")?, BufferHandle::output(output, "out")?);
    give(invocation, InvocationHandle::of_buffer(function.submit_buffer(input, output)?))
});
