//! Execution of a task in a worker, from its request to its reply.
//!
//! A task that does nothing costs about a microsecond here: the GIL, a table look-up, a tuple, the call. Pickled values
//! go through `hotlease._slot`, whose functions are passed to [`prepare`].

use crate::plain;
use crate::slot::failure::{TaskFailure, harmless};
use crate::slot::fetch::{damaged, left_at, pull};
use crate::slot::functions::Functions;
use crate::slot::input::LentViews;
use crate::slot::output::{KeptResults, ReplyDestination};
use crate::slot::request::{COPIED_BELOW, RequestBytes};
use crate::slot::{forks, invocation, native, output_streams, results, shelf};
use hotlease_wire::task::{TaskLayout, TaskReply, TaskRequest, key_of, reply, request};
use hotlease_worker::{FloatState, exit_after_reply};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Longest encoding of a result as a plain value, bytes: above it, a pickle costs no more.
const PLAIN_BYTES_MAX: usize = 64 << 10;
/// Exit status of a process whose function kept memory of its request.
const KEPT_MEMORY_STATUS: i32 = 71;
/// Error number for an internal error.
const INTERNAL_ERROR: i32 = 1;

struct SlotState {
    /// Function of `hotlease._slot` that unpickles.
    load: Py<PyAny>,
    /// Function of `hotlease._slot` that pickles; returns the pickle and its large buffers.
    dump: Py<PyAny>,
    /// Function of `hotlease._slot` that describes an exception.
    describe: Py<PyAny>,
    functions: Functions,
    /// Results that did not fit into their replies, until the client fetches them.
    kept: KeptResults,
    scratch: Vec<u8>,
    /// Running time of the current task's function, if asked for.
    took: Option<Duration>,
    /// Number of functions that have run.
    ran: u64,
    /// Number of functions after which the process ends; 0: no limit.
    tasks_max: u64,
}

thread_local! {
    /// State of the slot's thread.
    static STATE: RefCell<Option<SlotState>> = const { RefCell::new(None) };
}

/// Sets the state. Must be called once, on the thread that the slot will run on. `tasks_max`: number of functions after
/// which the process ends; 0: no limit.
pub fn prepare(load: Py<PyAny>, dump: Py<PyAny>, describe: Py<PyAny>, tasks_max: u64) {
    let state = SlotState {
        load,
        dump,
        describe,
        functions: Functions::default(),
        kept: KeptResults::default(),
        scratch: Vec::with_capacity(4096),
        took: None,
        ran: 0,
        tasks_max,
    };
    STATE.set(Some(state));
}

/// Function of the worker: runs the task that the input encodes.
///
/// # Safety
/// As in the context interface: `input` has `size` bytes, and `output` has room for `capacity`, until the call returns.
/// Only a process that could have sent other input may change the input meanwhile.
pub unsafe extern "C" fn call(
    context: *mut c_void,
    input: *const c_void,
    size: u64,
    output: *mut c_void,
    capacity: u64,
    produced: *mut u64,
) -> i32 {
    invocation::begin(context.cast());
    let start = NonNull::new(input.cast_mut().cast()).unwrap_or(NonNull::dangling());
    // SAFETY: by the contract of this function.
    let input = unsafe { RequestBytes::new(start, size as usize) };
    // SAFETY: by the contract of this function; the client does not read the output before there is a reply.
    let place = unsafe { std::slice::from_raw_parts_mut(output.cast::<u8>(), capacity as usize) };
    let mut output = ReplyDestination {
        place,
        produced: 0,
        stays: false,
    };
    let ran = catch_unwind(AssertUnwindSafe(|| {
        STATE.with_borrow_mut(|state| match state {
            Some(state) => {
                Python::attach(|py| state.run(py, &input, &mut output));
                state.end_if_spent();
                true
            }
            None => false,
        })
    }));
    invocation::end();
    // SAFETY: writable by the contract of this function.
    unsafe { *produced = output.produced as u64 };
    if matches!(ran, Ok(true)) { 0 } else { INTERNAL_ERROR }
}

/// Positional and named arguments.
type Arguments<'py> = (Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>);

impl SlotState {
    fn run(&mut self, py: Python<'_>, input: &RequestBytes, output: &mut ReplyDestination<'_>) {
        let task = match TaskRequest::decode(input.size(), |from, into| input.copy(from, into)) {
            Ok(task) => task,
            Err(error) => return output.refuse(&format!("the request is damaged: {error}")),
        };
        if task.kind == request::TAKE {
            let mut ticket = [0; 8];
            if task.arguments.pickle_bytes != ticket.len() {
                return output.refuse("a ticket has 8 bytes");
            }
            input.copy(task.arguments.pickle, &mut ticket);
            return self.kept.take(u64::from_le_bytes(ticket), output);
        }
        if task.kind == request::RELEASE {
            return shelf::release(input, &task, output);
        }
        output.stays = task.stays;
        invocation::set_guarded(task.guarded);
        let mut lent = LentViews::default();
        self.took = None;
        let ended = match task.kind {
            request::NATIVE => self.native(py, input, &task, &mut lent, output),
            _ => match self.result(py, input, &task, &mut lent) {
                Ok(value) => {
                    self.reply(py, &value, (input, task.yielded), output);
                    Ok(())
                }
                Err(failed) => Err(failed),
            },
        };
        match ended {
            Ok(()) => {}
            Err(TaskFailure::Raised(error)) => self.reply_error(py, error, output),
            Err(TaskFailure::Unknown) => {
                let mut head = [0; reply::HEAD_BYTES];
                head[0] = reply::UNKNOWN_FUNCTION;
                return output.write(&mut self.kept, &head, &[]);
            }
            Err(TaskFailure::Unfetched(why)) => output.write_unfetched(&why),
            Err(TaskFailure::Refused(why)) => output.refuse(&why),
        }
        if !lent.close(py) {
            let what = "the function kept a large argument (or a part of one, like a view of an array) beyond its \
                        end; it must copy what it keeps. This worker is replaced";
            eprintln!("hotlease: {what}");
            self.reply_error(py, PyRuntimeError::new_err(what), output);
            exit_after_reply(KEPT_MEMORY_STATUS);
        }
        if let Some(took) = self.took {
            output.put_time(&mut self.kept, took);
        }
        if output_streams::is_any() {
            output.append(&mut self.kept, &output_streams::take());
            output_streams::mark_end();
        }
    }

    /// Ends the process after the reply, if it has run `tasks_max` functions and keeps no result that a client may
    /// fetch.
    #[inline]
    fn end_if_spent(&self) {
        let is_spent = self.tasks_max > 0 && self.ran >= self.tasks_max;
        if is_spent && self.kept.is_empty() && shelf::is_empty() {
            exit_after_reply(0);
        }
    }

    /// Runs a native task, and writes its reply if it has a result.
    fn native(
        &mut self,
        py: Python<'_>,
        input: &RequestBytes,
        task: &TaskRequest,
        lent: &mut LentViews,
        output: &mut ReplyDestination<'_>,
    ) -> Result<(), TaskFailure> {
        let results = self.results(py, input, task, lent)?;
        self.ran += 1;
        let (kept, took) = (&mut self.kept, &mut self.took);
        native::run(py, input, task, &results, (output, kept), took)
    }

    /// Runs the function of the task. Arguments are dropped when the function returns, except arguments that the result
    /// holds.
    #[inline]
    fn result<'py>(
        &mut self,
        py: Python<'py>,
        input: &RequestBytes,
        task: &TaskRequest,
        lent: &mut LentViews,
    ) -> Result<Bound<'py, PyAny>, TaskFailure> {
        // Unpickling may import modules that change the floating-point state. The state is restored, so that the first
        // run of a function computes like later runs.
        let unpickles = task.kind != request::PLAIN || task.blob.is_some() || !task.results.is_empty();
        let floats = unpickles.then(FloatState::current);
        let function = self.function(py, input, task)?;
        let (arguments, named) = self.arguments(py, input, task, lent)?;
        if let Some(floats) = floats {
            floats.restore();
        }
        self.ran += 1;
        let begun = task.timed.then(Instant::now);
        let result = function.call(&arguments, named.as_ref());
        self.took = begun.map(|begun| begun.elapsed());
        forks::end_child(py, &result);
        if output_streams::is_any() {
            output_streams::name(&function, &arguments);
        }
        Ok(result?)
    }

    fn function<'py>(
        &mut self,
        py: Python<'py>,
        input: &RequestBytes,
        task: &TaskRequest,
    ) -> Result<Bound<'py, PyAny>, TaskFailure> {
        drop(self.functions.take_stale());
        if let Some(known) = self.functions.get(py, &task.key) {
            return Ok(known);
        }
        let (start, length) = task.blob.ok_or(TaskFailure::Unknown)?;
        // A copy, so that the bytes that are hashed are the bytes that are unpickled.
        let blob = input.bytes(py, start, length)?;
        if key_of(blob.as_bytes()) != task.key {
            return Err(TaskFailure::Refused(
                "the function's bytes are not those of its key".into(),
            ));
        }
        let function = self.load.bind(py).call1((blob,));
        let function =
            function.map_err(|error| harmless(py, error, "the function does not unpickle in the worker", false))?;
        // Stale functions are dropped before this function is added, because this function has the new definitions.
        drop(self.functions.take_stale());
        if !function.is_callable() {
            let kind = function.get_type().qualname()?;
            return Err(PyTypeError::new_err(format!("a task needs a callable, not {kind}")).into());
        }
        drop(self.functions.insert(task.key, function.clone().unbind(), length));
        Ok(function)
    }

    #[inline]
    fn arguments<'py>(
        &mut self,
        py: Python<'py>,
        input: &RequestBytes,
        task: &TaskRequest,
        lent: &mut LentViews,
    ) -> Result<Arguments<'py>, TaskFailure> {
        let layout = &task.arguments;
        let others = match task.results.is_empty() {
            true => Vec::new(),
            false => self.results(py, input, task, lent)?,
        };
        if task.kind == request::PLAIN {
            self.scratch.resize(layout.pickle_bytes, 0);
            input.copy(layout.pickle, &mut self.scratch);
            return plain_arguments(py, &self.scratch, &others);
        }
        let mut load = || self.unpickle(py, input, layout, task.writable, lent);
        let both = match others.is_empty() {
            true => load(),
            false => results::during(others, load),
        }?;
        let Ok((arguments, named)) = both.extract::<(Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>)>() else {
            return Err(TaskFailure::Refused(
                "the arguments are not a pair of a tuple and a dict".into(),
            ));
        };
        Ok((arguments, named))
    }

    /// Unpickles arguments, or the result of another task.
    fn unpickle<'py>(
        &self,
        py: Python<'py>,
        input: &RequestBytes,
        layout: &TaskLayout,
        writable: bool,
        lent: &mut LentViews,
    ) -> PyResult<Bound<'py, PyAny>> {
        let loaded = self.load(py, input, layout, writable, lent);
        loaded.map_err(|error| {
            harmless(
                py,
                error,
                "the function did not run: an argument does not unpickle",
                false,
            )
        })
    }

    /// Unpickles an object, without a copy of its large buffers.
    fn load<'py>(
        &self,
        py: Python<'py>,
        input: &RequestBytes,
        layout: &TaskLayout,
        writable: bool,
        lent: &mut LentViews,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = (input.at(layout.pickle), layout.pickle_bytes);
        let pickle = match layout.pickle_bytes < COPIED_BELOW {
            true => input.bytes(py, layout.pickle, layout.pickle_bytes)?.into_any(),
            // SAFETY: a part of the decoded request; it exists until the reply.
            false => unsafe { lent.view(py, place, true) }?,
        };
        let load = self.load.bind(py);
        if layout.buffers.is_empty() {
            return load.call1((pickle,));
        }
        let buffers = PyList::empty(py);
        for (start, length) in &layout.buffers {
            let place = (input.at(*start), *length);
            // SAFETY: a part of the decoded request, until the reply; the client says by `writable` whether other code
            // uses it.
            buffers.append(unsafe { lent.buffer(py, place, writable) }?)?;
        }
        let named = PyDict::new(py);
        named.set_item("buffers", buffers)?;
        load.call((pickle,), Some(&named))
    }

    /// Decodes the results of other tasks that arrived with the request; fetches results that were left with other
    /// workers.
    fn results(
        &mut self,
        py: Python<'_>,
        input: &RequestBytes,
        task: &TaskRequest,
        lent: &mut LentViews,
    ) -> Result<Vec<Py<PyAny>>, TaskFailure> {
        let mut values = Vec::with_capacity(task.results.len());
        for &(start, length) in &task.results {
            let value = match left_at(input, start, length)? {
                None => self.value(py, input, (start, length), lent),
                Some(left) => {
                    let pulled = py.detach(|| pull(&left)).map_err(TaskFailure::Unfetched)?;
                    let (start, size) = lent.hold(pulled);
                    // SAFETY: `lent` holds these bytes until the task has ended.
                    let pulled = unsafe { RequestBytes::new(start, size) };
                    self.value(py, &pulled, (0, size), lent)
                }
            };
            values.push(value?);
        }
        Ok(values)
    }

    /// Decodes the result in a reply that is in `input`, at an offset and with a length.
    fn value(
        &mut self,
        py: Python<'_>,
        input: &RequestBytes,
        (start, length): (usize, usize),
        lent: &mut LentViews,
    ) -> Result<Py<PyAny>, TaskFailure> {
        let at = |from: usize, into: &mut [u8]| input.copy(start + from, into);
        let mut body = match TaskReply::decode_at(length, at).map_err(damaged)? {
            reply if matches!(reply.kind, reply::PLAIN | reply::PICKLED) => reply,
            _ => {
                return Err(TaskFailure::Refused(
                    "the request has no result where another task's should be".into(),
                ));
            }
        };
        let layout = &mut body.body;
        layout.pickle += start;
        let value = if body.kind == reply::PLAIN {
            self.scratch.resize(layout.pickle_bytes, 0);
            input.copy(layout.pickle, &mut self.scratch);
            plain::ValueReader::new(&self.scratch).value(py)?
        } else {
            layout.buffers.iter_mut().for_each(|(buffer, _)| *buffer += start);
            self.unpickle(py, input, layout, true, lent)?
        };
        Ok(value.unbind())
    }

    /// Writes the reply. `source`: the request, and whether the result may stay in its memory.
    fn reply(
        &mut self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        source: (&RequestBytes, bool),
        output: &mut ReplyDestination<'_>,
    ) {
        self.scratch.clear();
        self.scratch.extend([0; reply::HEAD_BYTES]);
        if plain::encode(value, &mut self.scratch, PLAIN_BYTES_MAX) {
            return output.write(&mut self.kept, &self.scratch, &[]);
        }
        if let Err(error) = self.reply_pickle(py, value, source, output) {
            let error = harmless(py, error, "the function ran, but its result does not pickle", true);
            self.reply_error(py, error, output);
        }
    }

    fn reply_pickle(
        &mut self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        (input, yielded): (&RequestBytes, bool),
        output: &mut ReplyDestination<'_>,
    ) -> PyResult<()> {
        let dumped = self.dump.bind(py).call1((value,))?;
        let (pickle, buffers): (Bound<'_, PyBytes>, Bound<'_, PyList>) = dumped.extract()?;
        let mut views = Vec::with_capacity(buffers.len());
        for buffer in buffers.iter() {
            views.push(PyBuffer::<u8>::get(&buffer.call_method0("raw")?)?);
        }
        let bytes = views.iter().map(|view| {
            let start = NonNull::new(view.buf_ptr().cast::<u8>()).unwrap_or(NonNull::dangling());
            // SAFETY: contiguous (`raw` returns nothing else), held by the view, and under the GIL.
            unsafe { std::slice::from_raw_parts(start.as_ptr().cast_const(), view.len_bytes()) }
        });
        let bytes: Vec<&[u8]> = bytes.collect();
        if let ([buffer], true) = (&bytes[..], yielded)
            && let Some(at) = input.place_of(buffer)
            && output.write_in_request(pickle.as_bytes(), at, buffer.len(), output_streams::bytes())
        {
            return Ok(());
        }
        match output.write_pickle(&mut self.kept, pickle.as_bytes(), &bytes) {
            true => Ok(()),
            false => Err(PyOverflowError::new_err(
                "the result has more than 4096 buffers, or no memory holds it",
            )),
        }
    }

    #[cold]
    fn reply_error(&mut self, py: Python<'_>, error: PyErr, output: &mut ReplyDestination<'_>) {
        type Described<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);
        // `into_value` keeps the traceback, which `value` would lose.
        let error = error.into_value(py).into_bound(py);
        let described = self.describe.bind(py).call1((&error,));
        let (traceback, pickle, text) = match described.and_then(|described| described.extract::<Described<'_>>()) {
            Ok(described) => described,
            // Even the description fails.
            Err(_) => {
                let name = error.get_type().qualname();
                let name = name.map_or_else(|_| "exception".into(), |name| name.to_string());
                (PyBytes::new(py, b""), None, PyBytes::new(py, name.as_bytes()))
            }
        };
        let (kind, last) = match &pickle {
            Some(pickle) => (reply::EXCEPTION, pickle),
            None => (reply::EXCEPTION_TEXT, &text),
        };
        let mut head = [0; reply::HEAD_BYTES];
        head[0] = kind;
        // The cast is exact, because `describe` limits the length.
        head[4..].copy_from_slice(&(traceback.as_bytes().len() as u32).to_le_bytes());
        output.write(&mut self.kept, &head, &[traceback.as_bytes(), last.as_bytes()]);
    }
}

/// Decodes plain arguments: a tuple, then pairs of names and values. `results`: results of other tasks to which the
/// arguments refer.
fn plain_arguments<'py>(py: Python<'py>, bytes: &[u8], results: &[Py<PyAny>]) -> Result<Arguments<'py>, TaskFailure> {
    let mut reader = plain::ValueReader::with_results(bytes, results);
    let arguments = reader.value(py)?.cast_into::<PyTuple>();
    let arguments = arguments.map_err(|_| TaskFailure::Refused("the plain arguments are no tuple".into()))?;
    if reader.is_at_end() {
        return Ok((arguments, None));
    }
    let named = PyDict::new(py);
    while !reader.is_at_end() {
        let name = reader.value(py)?.cast_into::<PyString>();
        let name = name.map_err(|_| TaskFailure::Refused("a plain argument's name is no string".into()))?;
        named.set_item(name, reader.value(py)?)?;
    }
    Ok((arguments, Some(named)))
}
