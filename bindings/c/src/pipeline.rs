//! `hotlease_pipeline`: many small calls in flight on one slot.

use crate::argument::{bytes, bytes_mut, object, put, require_place};
use crate::function::{FunctionHandle, finish};
use crate::status::{ErrorHandle, Failure, Status, catch_panic, free, run_guarded};
use hotlease_client::Pipeline;
use std::ffi::{c_int, c_void};

/// `hotlease_pipeline`.
pub struct PipelineHandle {
    pipeline: Pipeline,
}

/// Returns the object behind a handle that only its thread uses.
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

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_open(
    function: *const FunctionHandle,
    pipeline: *mut *mut PipelineHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(pipeline, "pipeline")?;
        // SAFETY: NULL or valid, as the header demands.
        let function = unsafe { object(function, "function") }?;
        let handle = PipelineHandle {
            pipeline: function.function.pipeline()?,
        };
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(pipeline, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_size(pipeline: *const PipelineHandle) -> usize {
    catch_panic(0, || {
        // SAFETY: NULL or valid, as the header demands.
        unsafe { pipeline.as_ref() }.map_or(0, |handle| handle.pipeline.len())
    })
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_is_full(pipeline: *const PipelineHandle) -> c_int {
    catch_panic(0, || {
        // SAFETY: NULL or valid, as the header demands.
        unsafe { pipeline.as_ref() }
            .is_some_and(|handle| handle.pipeline.is_full())
            .into()
    })
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_push(
    pipeline: *mut PipelineHandle,
    input: *const c_void,
    input_size: usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid and used by this thread only, as the header demands.
        let (pipeline, input) = unsafe { (exclusive(pipeline)?, bytes(input, input_size, "in")?) };
        Ok(pipeline.push(input)?)
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_pop(
    pipeline: *mut PipelineHandle,
    out: *mut c_void,
    out_capacity: usize,
    out_size: *mut usize,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        // SAFETY: NULL or valid and used by this thread only, as the header demands.
        let (pipeline, out) = unsafe { (exclusive(pipeline)?, bytes_mut(out, out_capacity, "out")?) };
        let result = match pipeline.pop(out) {
            Ok(Some(length)) => Ok(length),
            Ok(None) => {
                return Err(Failure::Argument("the pipeline is empty: push before you pop".into()));
            }
            Err(error) => Err(error),
        };
        // SAFETY: NULL or valid, as the header demands.
        unsafe { finish(result, out, out_size) }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_pipeline_free(pipeline: *mut PipelineHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(pipeline) };
}
