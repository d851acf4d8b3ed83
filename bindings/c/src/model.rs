//! `hotlease_model`: the cost of calls, and how many tasks to send.

use crate::argument::{bytes, check_struct_size, fill_sized, object, put, require_place};
use crate::function::FunctionHandle;
use crate::status::{ErrorHandle, Status, free, run_guarded};
use hotlease_client::CallCost;
use std::ffi::c_void;
use std::time::Duration;

/// `hotlease_model`.
pub struct ModelHandle {
    learned: CallCost,
}

/// `hotlease_plan`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Plan {
    struct_size: usize,
    local: u64,
    remote: u64,
    predicted_ns: u64,
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_model_learn(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    model: *mut *mut ModelHandle,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(model, "model")?;
        // SAFETY: NULL or valid, as the header demands.
        let (function, input) = unsafe { (object(function, "function")?, bytes(input, input_size, "in")?) };
        let handle = ModelHandle {
            learned: function.function.learn(input)?,
        };
        // SAFETY: checked not to be NULL; valid as the header demands.
        unsafe { put(model, Box::into_raw(Box::new(handle))) };
        Ok(())
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_model_plan(
    model: *const ModelHandle,
    tasks: u64,
    local_ns: u64,
    plan: *mut Plan,
    error: *mut *mut ErrorHandle,
) -> Status {
    let body = || {
        require_place(plan, "plan")?;
        // SAFETY: NULL or valid, as the header demands.
        let model = unsafe { object(model, "model") }?;
        // SAFETY: not NULL, so there is at least its size, as the header demands.
        check_struct_size::<Plan>(unsafe { plan.cast::<usize>().read() }, "plan")?;
        let tasks = usize::try_from(tasks).unwrap_or(usize::MAX);
        let made = model.learned.plan(tasks, Duration::from_nanos(local_ns));
        let made = Plan {
            struct_size: size_of::<Plan>(),
            local: made.local as u64,
            remote: made.remote as u64,
            predicted_ns: u64::try_from(made.predicted.as_nanos()).unwrap_or(u64::MAX),
        };
        // SAFETY: not NULL, and valid for the size that it states, as the header demands.
        unsafe { fill_sized(plan, &made, "plan") }
    };
    // SAFETY: NULL or valid, as the header demands.
    unsafe { run_guarded(error, body) }
}

/// See `hotlease.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotlease_model_free(model: *mut ModelHandle) {
    // SAFETY: NULL, or given out above and not freed yet, as the header demands.
    unsafe { free(model) };
}
