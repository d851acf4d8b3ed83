//! Calls on several parts of buffers.

use crate::argument::object;
use crate::buffer::{BufferHandle, Range};
use crate::function::{FunctionHandle, finish};
use crate::status::{Failure, exported};
use hotlease_client::{BufferSlice, BufferSliceMut, Error, PARTS_MAX};

exported!(hotlease_invoke_parts(
    function: *const FunctionHandle,
    input: *const Range,
    in_count: usize,
    output: *const Range,
    out_count: usize,
    out_size: *mut usize,
) {
    let function = object(function, "function")?;
    let (input, output) = (ranges(input, in_count, "in")?, ranges(output, out_count, "out")?);
    let input: Vec<BufferSlice<'_>> = each(input, |range| {
        // The range's buffer is NULL or valid, as the header demands.
        BufferHandle::input(range, "in")
    })?;
    let output: Vec<BufferSliceMut<'_>> = each(output, |range| {
        BufferHandle::output(range, "out")
    })?;
    let result = function.function.invoke_buffer(&input[..], &output[..]);
    finish(result, &mut [], out_size)
});

/// Returns the ranges of an array. Does not read an array with more than `PARTS_MAX` ranges.
///
/// # Safety
/// `first` is NULL, or the first of `count` ranges that are valid for `'a`.
unsafe fn ranges<'a>(first: *const Range, count: usize, name: &'static str) -> Result<&'a [Range], Failure> {
    if count > PARTS_MAX {
        return Err(Error::TooManyParts {
            parts: count,
            limit: PARTS_MAX,
        }
        .into());
    }
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Failure::Null(name));
    }
    // SAFETY: not NULL, so valid by the caller's promise; not larger than a slice may be.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Converts each range; an error names the range.
fn each<T>(ranges: &[Range], part: impl Fn(Range) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
    let parts = ranges.iter().enumerate().map(|(number, range)| {
        part(*range).map_err(|failure| match failure {
            Failure::Argument(what) => Failure::Argument(format!("part {number} of them: {what}")),
            other => other,
        })
    });
    parts.collect()
}
