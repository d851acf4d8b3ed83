//! `hotlease_pipeline`: many small calls in flight on one slot.

use crate::argument::{bytes, bytes_mut, give, object, require_place};
use crate::function::{FunctionHandle, finish};
use crate::status::{Failure, exported};
use hotlease_client::Pipeline;
use std::ffi::{c_int, c_void};

/// `hotlease_pipeline`.
pub struct PipelineHandle {
    pipeline: Pipeline,
}

/// Returns the object behind a handle that only one thread uses.
///
/// # Safety
/// `handle` is NULL or valid, and no other code uses it for `'a`.
unsafe fn exclusive<'a>(handle: *mut PipelineHandle) -> Result<&'a mut Pipeline, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { handle.as_mut() } {
        Some(handle) => Ok(&mut handle.pipeline),
        None => Err(Failure::Null("pipeline")),
    }
}

exported!(hotlease_pipeline_open(function: *const FunctionHandle, pipeline: *mut *mut PipelineHandle) {
    require_place(pipeline, "pipeline")?;
    let function = &object(function, "function")?.function;
    give(pipeline, PipelineHandle { pipeline: function.pipeline()? })
});

exported!(get hotlease_pipeline_size(pipeline: PipelineHandle) -> usize { 0, pipeline.pipeline.len() });

exported!(get hotlease_pipeline_is_full(pipeline: PipelineHandle) -> c_int { 0, pipeline.pipeline.is_full().into() });

exported!(hotlease_pipeline_push(pipeline: *mut PipelineHandle, input: *const c_void, input_size: usize) {
    let (pipeline, input) = (exclusive(pipeline)?, bytes(input, input_size, "in")?);
    Ok(pipeline.push(input)?)
});

exported!(hotlease_pipeline_pop(
    pipeline: *mut PipelineHandle,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
) {
    let (pipeline, out) = (exclusive(pipeline)?, bytes_mut(out, out_capacity, "out")?);
    let popped = pipeline.pop(out).transpose();
    let result = popped.ok_or_else(|| Failure::Argument("the pipeline is empty: push before you pop".into()))?;
    finish(result, out, out_size)
});

exported!(free hotlease_pipeline_free(PipelineHandle));
