//! Encoding of native calls to requests, without a pickle. Only the input is copied, to memory that the worker shares,
//! unless it is in such memory already.

use crate::client::calls::encode::put;
use crate::client::core::ExecutorCore;
use crate::client::futures::inputs::Gather;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::target::{Blob, Estimates, Rerun, Target, TaskPlan};
use crate::native::{InputView, Native, NativeResult};
use crate::pickled::PickledBody;
use crate::plain::Replacement;
use hotlease_client::Interface;
use hotlease_wire::task::native::{AS_INPUT, NativeArguments};
use hotlease_wire::task::request;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::{Arc, OnceLock};

/// Inputs of at least this size are copied without the GIL.
const COPIED_ALONE: usize = 1 << 20;

/// Makes the target of a native function.
pub fn target(function: &Native, plan: TaskPlan, rerun: Rerun) -> Target {
    Target {
        key: function.key(),
        blob: Blob::Library(function.code.clone()),
        rerun: plan.rerun.unwrap_or(rerun),
        name: function.name.clone(),
        plan,
        // The name of the function is in its requests.
        content: OnceLock::from(function.code.hash().0),
        estimates: Estimates::default(),
    }
}

/// The input of a call.
enum Input<'py> {
    /// The memory of this object.
    Value(Bound<'py, PyAny>),
    /// The result of another task, which is the only result that the request needs.
    Result,
}

/// Encodes the request for a call, without its library.
pub fn request<'py>(
    (function, target): (&Bound<'py, PyAny>, &Target),
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    core: &Arc<ExecutorCore>,
    gather: &mut Gather<'_>,
) -> PyResult<TaskPayload> {
    let py = function.py();
    let native = function.cast::<Native>()?.get();
    let input = match args.len() {
        _ if kwargs.is_some_and(|kwargs| !kwargs.is_empty()) => None,
        0 => Some(Input::Value(PyBytes::new(py, &[]).into_any())),
        1 => Some(look(args.get_item(0)?, gather)?),
        _ => None,
    };
    let input = input.ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{} takes one argument, by its position: the bytes that it reads. Put several arrays into one, or into a structured one",
            native.name
        ))
    })?;
    let view = match &input {
        Input::Value(value) => Some(InputView::of(value)?),
        Input::Result => None,
    };
    let asked: (u64, Bound<'_, PyBytes>);
    let (room, recipe) = match (&native.output, &input) {
        (NativeResult::Fixed(room, recipe), _) => (*room, &**recipe),
        (NativeResult::AsInput(dtype), Input::Result) => (AS_INPUT, &**dtype),
        (NativeResult::AsInput(_) | NativeResult::Asked, Input::Value(value)) => {
            asked = function.call_method1(intern!(py, "_output_of"), (value,))?.extract()?;
            (asked.0, asked.1.as_bytes())
        }
        (NativeResult::Asked, Input::Result) => {
            return Err(PyTypeError::new_err(
                "output= of this function is a callable, which needs the input, and the input is a future: declare its size",
            ));
        }
    };
    let name = &native.name;
    let arguments = NativeArguments { room, name, recipe }.encode();
    let lengths: Vec<usize> = view.iter().map(|view| view.place().bytes as usize).collect();
    let is_plain = native.interface == Interface::Plain;
    if let Some(bytes) = lengths.first().filter(|bytes| is_plain && **bytes > u32::MAX as usize) {
        return Err(PyValueError::new_err(format!(
            "the input of `{name}` has {bytes} bytes, and its interface, the plain one, takes less than 4 GiB; HOTLEASE_FUNCTION \
             declares one that takes more"
        )));
    }
    let request = PickledBody::request((request::NATIVE, false), &target.key, &arguments, &lengths)
        .ok_or_else(|| PyValueError::new_err("the input is larger than any memory"))?;
    let is_large = request.layout.end > core.invoker.options().request_bytes as usize;
    let place = view.as_ref().map(InputView::place).filter(|_| is_large);
    // An array of `Executor.empty` is in shared memory already.
    let given = place.and_then(|place| core.pool.find_given(place.start.as_ptr(), place.bytes as usize));
    put(py, &request, given, (&core.invoker, &core.pool), |into| {
        let is_copied_alone = into.len() >= COPIED_ALONE;
        let mut fill = || {
            request.fill(into, |_, into| {
                view.iter().for_each(|view| view.copy_to(into));
                Ok(())
            })
        };
        if is_copied_alone { py.detach(fill) } else { fill() }
    })
}

/// Reads an argument, which is a value or a future.
fn look<'py>(value: Bound<'py, PyAny>, gather: &mut Gather<'_>) -> PyResult<Input<'py>> {
    match gather.look(&value)? {
        Some(Replacement::Result(_)) => return Ok(Input::Result),
        Some(Replacement::Value(value)) => return Ok(Input::Value(value)),
        None => {}
    }
    // A future of another executor, or of concurrent.futures.
    if !InputView::is_of(&value) && value.hasattr(intern!(value.py(), "add_done_callback"))? {
        gather.wait_for(&value)?;
        return Ok(Input::Result);
    }
    Ok(Input::Value(value))
}
