//! Native tasks: a function of a library, called on the bytes of its request and without the GIL. Its output is written
//! in place into the reply, if it fits.

use crate::native::{self, Call, View};
use crate::slot::output::{Kept, Output};
use crate::slot::task::{Failed, Input};
use crate::slot::{forked, running};
use hotlease_wire::limits::CODE_BYTES_MAX;
use hotlease_wire::task::native::{AS_INPUT, Arguments};
use hotlease_wire::task::{ALIGNMENT, Request, key_of};
use hotlease_worker::{Library, Place};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the task and writes its reply. `results`: results of other tasks that came with it. `took` is set to the
/// running time if the request asks for it.
pub fn run(
    py: Python<'_>,
    input: &Input,
    task: &Request,
    results: &[Py<PyAny>],
    (output, kept): (&mut Output<'_>, &mut Kept),
    took: &mut Option<Duration>,
) -> Result<(), Failed> {
    let mut bytes = vec![0; task.arguments.pickle_bytes];
    input.copy(task.arguments.pickle, &mut bytes);
    let arguments = Arguments::decode(&bytes)
        .map_err(|_| Failed::Refused("the arguments of a native function are damaged".into()))?;
    let library = library(py, input, task)?;
    let unknown = || format!("its library has no function `{}` here", arguments.name);
    let function = library
        .function(arguments.name)
        .ok_or_else(|| Failed::Refused(unknown().into()))?;
    let view;
    let place = match (task.arguments.buffers.as_slice(), results) {
        (&[(start, bytes)], []) if !task.writable => Place {
            start: input.at(start),
            bytes: bytes as u64,
        },
        ([], [value]) if !task.writable => {
            view = View::of(value.bind(py))?;
            view.place()
        }
        _ => {
            return Err(Failed::Refused(
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
    let too_large = || Failed::Refused("no memory holds a result of that size".into());
    let layout = native::reply_layout(recipe.len(), room).ok_or_else(too_large)?;
    let (start, capacity) = layout.buffers[0];
    let fits = layout.end <= output.place.len();
    let (mut elsewhere, offset) = match fits {
        true => (Vec::new(), 0),
        false => aligned(capacity).ok_or_else(too_large)?,
    };
    let into = match fits {
        true => &mut output.place[start..layout.end],
        false => &mut elsewhere[offset..offset + capacity],
    };
    let call = Call {
        function,
        context: running::context().cast(),
        input: place,
        output: Place {
            start: NonNull::from(&mut *into).cast(),
            bytes: capacity as u64,
        },
    };
    let begun = Instant::now();
    let outcome = py.detach(move || {
        // SAFETY: the input stays as long as the task and its results, the output is this function's alone; the context
        // is the slot's, which waits for this call.
        let outcome = unsafe { call.make() };
        forked::end_native_child();
        outcome
    });
    *took = task.timed.then(|| begun.elapsed());
    let produced = native::produced(py, arguments.name, outcome, into, room)?;
    if fits {
        output.end_in_place(recipe, start, produced);
    } else {
        // The memory held more than that.
        output.write_pickle(kept, recipe, &[&elsewhere[offset..offset + produced]]);
    }
    Ok(())
}

fn library(py: Python<'_>, input: &Input, task: &Request) -> Result<Arc<Library>, Failed> {
    if let Some(known) = native::find(&task.key) {
        return Ok(known);
    }
    let (start, length) = task.blob.ok_or(Failed::Unknown)?;
    if length as u64 > CODE_BYTES_MAX {
        return Err(Failed::Refused(
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
    loaded.map_err(|why| Failed::Refused(format!("the library cannot be loaded: {why}").into()))
}

/// Room and recipe for as many items as a value has.
fn recipe_for<'py>(
    py: Python<'py>,
    value: &Py<PyAny>,
    dtype: &[u8],
) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    let results = py.import("hotlease._native_results")?;
    results.call_method1("as_input", (value, dtype))?.extract()
}

/// Zeroed buffer and the offset of its first aligned byte.
fn aligned(bytes: usize) -> Option<(Vec<u8>, usize)> {
    let whole = bytes.checked_add(ALIGNMENT)?;
    // Only checks whether that much memory is available: pages that the kernel zeroes are not touched before use.
    Vec::<u8>::new().try_reserve_exact(whole).ok()?;
    let memory = vec![0; whole];
    let offset = memory.as_ptr().align_offset(ALIGNMENT);
    Some((memory, offset))
}
