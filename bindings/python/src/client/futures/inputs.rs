//! Futures among the arguments of a call: they are found while the arguments are encoded, so that the search costs
//! nothing.
//!
//! Among plain arguments, a future is found because it is not a plain value. In lists, dicts and objects, the pickler
//! finds it and calls [`reduce`]. The future is pickled as its number and a function, which the worker calls with the
//! number and which returns the future's result. A foreign future (`concurrent.futures.Future`, or a future of another
//! executor) cannot be pickled; `hotlease._pickles` reports it here.

use crate::client::core::ExecutorCore;
use crate::client::core::dataflow::PlannedInput;
use crate::client::futures::decode::{self, Decoded};
use crate::client::futures::future::{Task, finish_others};
use crate::client::tasks::outcome::TaskOutcome;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::state::{InputState, TaskCell};
use crate::client::tasks::target::Target;
use crate::pickled::{PickledBody, PickledObject};
use crate::plain::{self, Replacement};
use hotlease_flow::TaskId;
use hotlease_wire::task::{RESULTS_MAX, reply, request};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Future that a call needs.
pub enum FutureInput {
    /// A task of the same executor.
    Task(Arc<TaskCell>, Option<Arc<Target>>),
    /// A foreign future.
    Foreign(Py<PyAny>),
}

/// The futures among the arguments of one call to an executor.
pub struct Gather<'a> {
    core: &'a Arc<ExecutorCore>,
    pub inputs: Vec<FutureInput>,
}

/// State of a gather while arguments are pickled.
struct PickleGather {
    core: Arc<ExecutorCore>,
    inputs: Vec<FutureInput>,
}

thread_local! {
    static GATHERING: RefCell<Option<PickleGather>> = const { RefCell::new(None) };
}

fn push(inputs: &mut Vec<FutureInput>, input: FutureInput) -> PyResult<usize> {
    if inputs.len() >= RESULTS_MAX {
        let text = format!("a task has more than {RESULTS_MAX} futures among its arguments");
        return Err(PyValueError::new_err(text));
    }
    inputs.push(input);
    Ok(inputs.len() - 1)
}

impl<'a> Gather<'a> {
    /// Starts a gather for a call to this executor.
    #[inline]
    pub fn new(core: &'a Arc<ExecutorCore>) -> Self {
        Self {
            core,
            inputs: Vec::new(),
        }
    }

    /// Returns the replacement for a value that is a future; `None` for other values.
    pub fn look<'py>(&mut self, value: &Bound<'py, PyAny>) -> PyResult<Option<Replacement<'py>>> {
        look(self.core, &mut self.inputs, value)
    }

    /// Adds a foreign future; returns its number.
    pub fn wait_for(&mut self, future: &Bound<'_, PyAny>) -> PyResult<usize> {
        push(&mut self.inputs, FutureInput::Foreign(future.clone().unbind()))
    }

    /// Calls `pickle`, and collects the futures that are registered during the call.
    pub fn during<T>(&mut self, pickle: impl FnOnce() -> T) -> T {
        let gathering = PickleGather {
            core: self.core.clone(),
            inputs: std::mem::take(&mut self.inputs),
        };
        let before = GATHERING.replace(Some(gathering));
        let pickled = pickle();
        if let Some(gathered) = GATHERING.replace(before) {
            self.inputs = gathered.inputs;
        }
        pickled
    }
}

fn look<'py>(
    core: &Arc<ExecutorCore>,
    inputs: &mut Vec<FutureInput>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Option<Replacement<'py>>> {
    let Ok(task) = value.cast::<Task>() else {
        return Ok(None);
    };
    let (py, task) = (value.py(), task.get());
    let input = if Arc::ptr_eq(&task.core, core) {
        match task.cell.as_input() {
            InputState::Decoded => match task.decoded(py)? {
                Decoded::Value(value) => return Ok(Some(Replacement::Value(value.bind(py).clone()))),
                Decoded::Raised(exception) => {
                    let ended = TaskCell::with_outcome(TaskOutcome::Raised(exception.clone_ref(py)));
                    FutureInput::Task(Arc::new(ended), task.target.clone())
                }
            },
            _ => FutureInput::Task(task.cell.clone(), task.target.clone()),
        }
    } else {
        FutureInput::Foreign(value.clone().unbind())
    };
    let number = push(inputs, input)?;
    // The cast is exact: the number is less than `RESULTS_MAX`.
    Ok(Some(Replacement::Result(number as u16)))
}

fn gathering<T>(with: impl FnOnce(&mut PickleGather) -> PyResult<T>) -> PyResult<T> {
    // The gather is taken out, not borrowed, because Python code may run in `with`.
    let Some(mut gather) = GATHERING.take() else {
        return Err(PyTypeError::new_err(
            "a future cannot be pickled: pass it as an argument of submit, whose task then gets its result",
        ));
    };
    let done = with(&mut gather);
    GATHERING.set(Some(gather));
    done
}

/// Pickles a future as a function and its arguments, which the worker calls.
pub fn reduce<'py>(future: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
    let py = future.py();
    let instead = gathering(|gather| look(&gather.core, &mut gather.inputs, future))?;
    Ok(match instead {
        Some(Replacement::Value(value)) => (decode::called(py, intern!(py, "value"))?, PyTuple::new(py, [value])?),
        Some(Replacement::Result(number)) => (decode::called(py, intern!(py, "result"))?, PyTuple::new(py, [number])?),
        None => return Err(PyTypeError::new_err("not a future")),
    })
}

/// Forgets the futures found so far, because the arguments are pickled once more from the beginning. Returns `False` if
/// the pickled object is not the arguments of a task; such an object must not contain futures.
#[pyfunction]
fn _gather_anew() -> bool {
    GATHERING.with_borrow_mut(|gathering| gathering.as_mut().map(|gather| gather.inputs.clear()).is_some())
}

/// Adds a foreign future that is among the arguments; returns its number.
#[pyfunction]
fn _gather(future: Py<PyAny>) -> PyResult<usize> {
    gathering(|gather| push(&mut gather.inputs, FutureInput::Foreign(future)))
}

/// Hashes the content of a function, unless the hash is known.
pub fn hash_function(target: &Target, function: &Bound<'_, PyAny>) -> PyResult<()> {
    if target.content.get().is_none() {
        let content = decode::called(function.py(), intern!(function.py(), "content"))?.call1((function,))?;
        // Another thread may have set the hash at the same time, to an equal value.
        let _ = target.content.set(content.extract::<[u8; 32]>()?);
    }
    Ok(())
}

/// Hashes the values of a request's arguments, so that equal arguments have equal hashes, also if their pickles
/// differ. Returns `None` if they are plain, or if the hash of their pickle is
/// needed instead.
pub fn meaning<'py>(
    core: &Arc<ExecutorCore>,
    payload: &TaskPayload,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Box<[u8; 32]>>> {
    if payload.bytes()[0] != request::PICKLED {
        return Ok(None);
    }
    let py = args.py();
    // Futures have the same numbers as in the request.
    let hash = || decode::called(py, intern!(py, "content_of_arguments"))?.call1((args, kwargs));
    let hash: Option<[u8; 32]> = Gather::new(core).during(hash)?.extract()?;
    Ok(hash.map(Box::new))
}

/// Foreign futures: the identifier in the graph and the Python object of each.
pub type Awaited = Vec<(TaskId, Py<PyAny>)>;

/// Returns the sources for the graph, and the foreign futures that need a callback.
pub fn sources(core: &ExecutorCore, inputs: Vec<FutureInput>) -> PyResult<(Vec<PlannedInput>, Awaited)> {
    let (mut sources, mut foreign) = (Vec::with_capacity(inputs.len()), Vec::new());
    for input in inputs {
        match input {
            FutureInput::Task(cell, target) => sources.push(PlannedInput::Task(cell, target)),
            FutureInput::Foreign(future) => {
                let node = core
                    .promise()
                    .ok_or_else(|| PyValueError::new_err("too many futures are waited for"))?;
                foreign.push((node, future));
                sources.push(PlannedInput::Foreign(node));
            }
        }
    }
    Ok((sources, foreign))
}

/// Callback of a foreign future: tells the graph when the future is done.
#[pyclass(frozen, module = "hotlease._core")]
struct ForeignCallback {
    core: Weak<ExecutorCore>,
    node: TaskId,
}

/// Adds the callback to a foreign future.
pub fn await_foreign(py: Python<'_>, core: &Arc<ExecutorCore>, node: TaskId, future: &Py<PyAny>) -> PyResult<()> {
    let core = Arc::downgrade(core);
    let arrival = Bound::new(py, ForeignCallback { core, node })?;
    future
        .bind(py)
        .call_method1(intern!(py, "add_done_callback"), (arrival,))?;
    Ok(())
}

#[pymethods]
impl ForeignCallback {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        let Some(core) = self.core.upgrade() else {
            return Ok(());
        };
        if core.is_foreign() {
            return Ok(());
        }
        let outcome = if future.call_method0(intern!(py, "cancelled"))?.is_truthy()? {
            None
        } else {
            Some(Arc::new(match arrived(future) {
                Ok(outcome) => outcome,
                Err(error) => TaskOutcome::Raised(error.into_value(py).into_any()),
            }))
        };
        py.detach(|| core.end_foreign(self.node, outcome));
        finish_others(py, &core);
        Ok(())
    }
}

fn arrived(future: &Bound<'_, PyAny>) -> PyResult<TaskOutcome> {
    let py = future.py();
    let exception = future.call_method0(intern!(py, "exception"))?;
    if !exception.is_none() {
        return Ok(TaskOutcome::Raised(exception.unbind()));
    }
    let value = future.call_method0(intern!(py, "result"))?;
    let mut bytes = vec![0; reply::HEAD_BYTES];
    if plain::encode(&value, &mut bytes, usize::MAX / 2) {
        return Ok(TaskOutcome::Reply(bytes.into()));
    }
    let dumped = decode::called(py, intern!(py, "dump_arguments"))?.call1((value, py.None(), true))?;
    let object = PickledObject::read(&dumped)?;
    let reply = PickledBody::reply(object.pickle(), &object.lengths)
        .ok_or_else(|| PyValueError::new_err("the result of a future is larger than any memory"))?;
    let mut bytes = vec![0; reply.layout.end];
    object.fill(&reply, &mut bytes)?;
    Ok(TaskOutcome::Reply(bytes.into()))
}

/// Adds the functions that `hotlease._pickles` calls.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_gather, module)?)?;
    module.add_function(wrap_pyfunction!(_gather_anew, module)?)
}
