//! `hotlease_model`: the cost of calls, and how many tasks to send.

use crate::argument::{bytes, check_struct_size, fill_sized, give, object, require_place};
use crate::function::FunctionHandle;
use crate::status::exported;
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

exported!(hotlease_model_learn(
    function: *const FunctionHandle,
    input: *const c_void,
    input_size: usize,
    model: *mut *mut ModelHandle,
) {
    require_place(model, "model")?;
    let (function, input) = (object(function, "function")?, bytes(input, input_size, "in")?);
    let handle = ModelHandle {
        learned: function.function.learn(input)?,
    };
    give(model, handle)
});

exported!(hotlease_model_plan(model: *const ModelHandle, tasks: u64, local_ns: u64, plan: *mut Plan) {
    require_place(plan, "plan")?;
    let model = object(model, "model")?;
    // Not NULL, so there is at least a size, as the header demands.
    check_struct_size::<Plan>(plan.cast::<usize>().read(), "plan")?;
    let tasks = usize::try_from(tasks).unwrap_or(usize::MAX);
    let made = model.learned.plan(tasks, Duration::from_nanos(local_ns));
    let made = Plan {
        struct_size: size_of::<Plan>(),
        local: made.local as u64,
        remote: made.remote as u64,
        predicted_ns: u64::try_from(made.predicted.as_nanos()).unwrap_or(u64::MAX),
    };
    // Not NULL, and valid for the size that it states, as the header demands.
    fill_sized(plan, &made, "plan")
});

exported!(free hotlease_model_free(ModelHandle));
