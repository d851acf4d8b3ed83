//! Encoding of native calls to requests: no pickle, and no copy except that of the input into memory that its worker
//! shares, unless it is there already.

use crate::client::calls::encode::{before, shared};
use crate::client::core::ExecutorCore;
use crate::client::futures::inputs::Gather;
use crate::client::tasks::expected::Expected;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::target::{Blob, Target, TaskPlan};
use crate::native::{InputView, Native, NativeResult};
use crate::plain::Replacement;
use hotlease_client::Interface;
use hotlease_wire::task::native::{AS_INPUT, NativeArguments};
use hotlease_wire::task::{TaskLayout, TaskRequest, request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::{Arc, OnceLock};

/// Inputs of at least this size are copied without the GIL.
const COPIED_ALONE: usize = 1 << 20;

/// Target of a native function.
pub fn target(function: &Native, plan: TaskPlan, idempotent: bool) -> Target {
    Target {
        key: function.key(),
        blob: Blob::Library(function.code.clone()),
        idempotent: plan.idempotent.unwrap_or(idempotent),
        name: function.name.clone(),
        plan,
        // The name of the function is in its requests.
        content: OnceLock::from(function.code.hash().0),
        expected: Expected::default(),
    }
}

/// The input of a call.
enum Input<'py> {
    /// The memory of this object.
    Value(Bound<'py, PyAny>),
    /// The result of another task, the first and only one.
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
    let whole = || {
        let head = TaskRequest::head(request::NATIVE, false, &target.key, 0, arguments.len(), &lengths, &[])?;
        let layout = TaskLayout::new(head.len(), arguments.len(), lengths.iter().copied())?;
        Some((head, layout))
    };
    let (head, layout) = whole().ok_or_else(|| PyValueError::new_err("the input is larger than any memory"))?;
    let fill = |bytes: &mut [u8]| {
        let mut end = layout.pickle + arguments.len();
        bytes[..head.len()].copy_from_slice(&head);
        bytes[layout.pickle..end].copy_from_slice(&arguments);
        for (view, &(start, length)) in view.iter().zip(&layout.buffers) {
            // Earlier content of the memory may not reach the worker.
            bytes[end..start].fill(0);
            end = start + length;
            view.copy_to(&mut bytes[start..end]);
        }
    };
    let limit = core.invoker.options().request_bytes as usize;
    let place = view.as_ref().map(InputView::place).filter(|_| layout.end > limit);
    // An array of `Executor.empty` is in shared memory already.
    let given = place.and_then(|place| core.pool.given(place.start.as_ptr(), place.bytes as usize));
    if let Some(request) = given.and_then(|given| before(&given, &head, &arguments, &layout)) {
        return Ok(TaskPayload::Shared(request.into()));
    }
    let memory = match layout.end <= limit {
        true => None,
        false => shared(py, &core.invoker, &core.pool, layout.end)?,
    };
    let Some(mut memory) = memory else {
        let mut bytes = vec![0; layout.end];
        fill(&mut bytes);
        return Ok(TaskPayload::Own(bytes.into_boxed_slice()));
    };
    let room = &mut memory.room()[..layout.end];
    match layout.end < COPIED_ALONE {
        true => fill(room),
        false => py.detach(|| fill(room)),
    }
    Ok(TaskPayload::Shared(memory.into_extent(layout.end).into()))
}

/// Reads an argument: a value, or the future of one.
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
