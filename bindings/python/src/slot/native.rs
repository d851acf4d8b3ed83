//! Native tasks: a function of a library, called on the bytes of its request and without the GIL. Its output is written
//! in place into the reply, if it fits.

use crate::native::{self, InputView, NativeCall};
use crate::slot::aligned::AlignedMemory;
use crate::slot::failure::TaskFailure;
use crate::slot::output::{KeptResults, ReplyDestination};
use crate::slot::request::RequestBytes;
use crate::slot::{forks, invocation};
use hotlease_wire::limits::CODE_BYTES_MAX;
use hotlease_wire::task::native::{AS_INPUT, NativeArguments};
use hotlease_wire::task::{TaskRequest, key_of};
use hotlease_worker::{Library, MemoryPlace};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the task and writes its reply. `results`: results of other tasks that arrived with the request. `took` is set
/// to the running time if the request asks for it.
pub fn run(
    py: Python<'_>,
    input: &RequestBytes,
    task: &TaskRequest,
    results: &[Py<PyAny>],
    (output, kept): (&mut ReplyDestination<'_>, &mut KeptResults),
    took: &mut Option<Duration>,
) -> Result<(), TaskFailure> {
    let mut bytes = vec![0; task.arguments.pickle_bytes];
    input.copy(task.arguments.pickle, &mut bytes);
    let arguments = NativeArguments::decode(&bytes)
        .map_err(|_| TaskFailure::Refused("the arguments of a native function are damaged".into()))?;
    let library = library(py, input, task)?;
    let unknown = || format!("its library has no function `{}` here", arguments.name);
    let function = library
        .function(arguments.name)
        .ok_or_else(|| TaskFailure::Refused(unknown().into()))?;
    let view;
    let place = match (task.arguments.buffers.as_slice(), results) {
        (&[(start, bytes)], []) if !task.writable => MemoryPlace {
            start: input.at(start),
            bytes: bytes as u64,
        },
        ([], [value]) if !task.writable => {
            view = InputView::of(value.bind(py))?;
            view.place()
        }
        _ => {
            return Err(TaskFailure::Refused(
                "a native function has one input, which it only reads: a buffer, or the result of another task".into(),
            ));
        }
    };
    let made;
    let (room, recipe) = match (arguments.room, results) {
        (AS_INPUT, [value]) => {
            let (room, recipe) = recipe_for(py, value, arguments.recipe)?;
            made = recipe;
            (room, made.as_bytes())
        }
        (room, _) => (usize::try_from(room).unwrap_or(usize::MAX), arguments.recipe),
    };
    let too_large = || TaskFailure::Refused("no memory holds a result of that size".into());
    let layout = native::reply_layout(recipe.len(), room).ok_or_else(too_large)?;
    let (start, capacity) = layout.buffers[0];
    let fits = layout.end <= output.place.len();
    let mut elsewhere = match fits {
        true => None,
        false => Some(AlignedMemory::new(capacity).ok_or_else(too_large)?),
    };
    let into = match &mut elsewhere {
        None => &mut output.place[start..layout.end],
        Some(memory) => memory.bytes_mut(),
    };
    let call = NativeCall {
        function,
        context: invocation::context().cast(),
        input: place,
        output: MemoryPlace {
            start: NonNull::from(&mut *into).cast(),
            bytes: capacity as u64,
        },
    };
    let begun = Instant::now();
    let outcome = py.detach(move || {
        // SAFETY: the input exists as long as the task and its results, and only this function uses the output. The
        // context belongs to the slot, which waits for this call.
        let outcome = unsafe { call.make() };
        forks::end_native_child();
        outcome
    });
    *took = task.timed.then(|| begun.elapsed());
    let produced = native::produced(py, arguments.name, outcome, into, room)?;
    match &mut elsewhere {
        None => output.end_in_place(recipe, start, produced),
        // The return value is ignored: memory for a larger result was available.
        Some(memory) => {
            output.write_pickle(kept, recipe, &[&memory.bytes_mut()[..produced]]);
        }
    }
    Ok(())
}

fn library(py: Python<'_>, input: &RequestBytes, task: &TaskRequest) -> Result<Arc<Library>, TaskFailure> {
    if let Some(known) = native::find(&task.key) {
        return Ok(known);
    }
    let (start, length) = task.blob.ok_or(TaskFailure::Unknown)?;
    if length as u64 > CODE_BYTES_MAX {
        return Err(TaskFailure::Refused(
            format!("the library has {length} bytes, and {CODE_BYTES_MAX} are the most").into(),
        ));
    }
    // A copy, so that the bytes that are hashed are the bytes that are loaded.
    let mut bytes = vec![0; length];
    input.copy(start, &mut bytes);
    let loaded = py.detach(|| match key_of(&bytes) == task.key {
        true => native::load(task.key, &bytes),
        false => Err("its bytes are not those of its key".into()),
    });
    loaded.map_err(|why| TaskFailure::Refused(format!("the library cannot be loaded: {why}").into()))
}

/// Room and recipe for as many items as a value has.
fn recipe_for<'py>(py: Python<'py>, value: &Py<PyAny>, dtype: &[u8]) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    let results = py.import("hotlease._native_results")?;
    results.call_method1("as_input", (value, dtype))?.extract()
}
