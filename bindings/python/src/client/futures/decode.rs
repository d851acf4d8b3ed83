//! Decoding of outcomes to Python objects. Decoding does not fail: if an outcome cannot be decoded, the error becomes
//! the task's exception.

use crate::client::core::ExecutorCore;
use crate::client::memory::{Extent, ResultView};
use crate::client::tasks::outcome::{Failed, FailureChain, TaskOutcome};
use crate::client::tasks::target::Target;
use crate::plain::ValueReader;
use hotlease_client::{Cause, Error, RunCertainty};
use hotlease_wire::task::{FormatError, TaskReply, reply};
use pyo3::call::PyCallArgs;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::sync::Arc;

/// Result of a task as Python objects.
pub enum Decoded {
    /// The task returned this value.
    Value(Py<PyAny>),
    /// The task raised this exception, or there is no result for this reason.
    Raised(Py<PyAny>),
}

/// Way in which the result of a task is read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Classes that a result from a sandbox may contain; `None` if the result is read without a check.
    guard: Option<&'a Py<PyAny>>,
    /// Name of the task's function.
    function: &'a str,
}

impl<'a> Reading<'a> {
    /// Returns how to read the result of a task of this executor.
    pub fn of(core: &'a ExecutorCore, target: Option<&'a Target>) -> Self {
        Self {
            guard: core.guard(),
            function: target.map_or("the function", |target| &target.name),
        }
    }
}

static CALLED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns an attribute of `hotlease._called`.
pub fn called<'py>(py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    imported(py)?.bind(py).getattr(name)
}

/// Whether `hotlease._called` is imported already; its import takes milliseconds.
pub fn is_imported(py: Python<'_>) -> bool {
    CALLED.get(py).is_some()
}

/// Imports `hotlease._called` once and returns the module.
pub fn imported(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    CALLED.get_or_try_init(py, || {
        let module = py.import("hotlease._called")?;
        Ok(module.into_any().unbind())
    })
}

/// Makes an exception of the class `name`.
pub fn raise<'py>(py: Python<'py>, name: &Bound<'py, PyString>, arguments: impl PyCallArgs<'py>) -> PyErr {
    match called(py, name).and_then(|class| class.call1(arguments)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Decodes an outcome, without a copy if no other task needs the outcome.
pub fn outcome(py: Python<'_>, outcome: TaskOutcome, reading: Reading<'_>) -> Decoded {
    let decoded = match outcome {
        TaskOutcome::Large(extent) => of_memory(py, &extent, reading),
        TaskOutcome::Shared(shared) => {
            return match Arc::try_unwrap(shared) {
                Ok(own) => self::outcome(py, own, reading),
                Err(shared) => self::shared(py, &shared, reading),
            };
        }
        other => return shared(py, &other, reading),
    };
    decoded.unwrap_or_else(|error| Decoded::Raised(error.into_value(py).into_any()))
}

/// Decodes an outcome that other tasks may need, too: the caller gets only copies.
pub fn shared(py: Python<'_>, outcome: &TaskOutcome, reading: Reading<'_>) -> Decoded {
    let decoded = match outcome {
        TaskOutcome::Reply(bytes) => of_bytes(py, bytes, reading),
        TaskOutcome::Large(extent) => {
            let reply = TaskReply::decode(extent.bytes()).map_err(|error| damaged(py, error));
            reply.and_then(|reply| of_shared_memory(py, &reply, extent, reading))
        }
        TaskOutcome::Away(away) => match away.local_outcome() {
            Some(here) => return self::shared(py, here, reading),
            None => Err(lost(py, "it stayed with its worker, and the program did not fetch it")),
        },
        TaskOutcome::Failed(failed) => Err(failure(py, failed)),
        TaskOutcome::Unprepared(why) => Err(unprepared(py, why)),
        TaskOutcome::Lost(why) => Err(lost(py, why)),
        TaskOutcome::Raised(exception) => return Decoded::Raised(exception.clone_ref(py)),
        TaskOutcome::Dependency(chain) => dependency(py, chain, reading).map(Decoded::Raised),
        TaskOutcome::Shared(shared) => return self::shared(py, shared, reading),
    };
    decoded.unwrap_or_else(|error| Decoded::Raised(error.into_value(py).into_any()))
}

/// Makes the exception of a task that was not run because of another task.
fn dependency(py: Python<'_>, chain: &FailureChain, reading: Reading<'_>) -> PyResult<Py<PyAny>> {
    let cause = match &chain.cause {
        None => raise(py, intern!(py, "CancelledError"), ()).into_value(py).into_any(),
        Some(outcome) => match shared(py, outcome, reading) {
            Decoded::Raised(exception) | Decoded::Value(exception) => exception,
        },
    };
    let names = PyTuple::new(py, chain.nearest.iter().map(|target| &*target.name))?;
    let root = chain.root.as_ref().map(|target| &*target.name);
    let make = called(py, intern!(py, "dependency_error"))?;
    Ok(make.call1((names, chain.between, root, cause))?.unbind())
}

/// Makes the exception for a failed initializer.
pub fn unprepared(py: Python<'_>, why: &str) -> PyErr {
    let text = format!("the initializer failed in a worker, so that no task is run: {why}");
    raise(py, intern!(py, "ExecutorBroken"), (text, false))
}

fn lost(py: Python<'_>, why: &str) -> PyErr {
    let text = format!("the function ran, but its result is lost: {why}");
    raise(py, intern!(py, "TaskError"), (text, true))
}

fn of_bytes(py: Python<'_>, bytes: &[u8], reading: Reading<'_>) -> PyResult<Decoded> {
    let reply = TaskReply::decode(bytes).map_err(|error| damaged(py, error))?;
    of_reply(py, &reply, bytes, reading)
}

/// Decodes a reply in memory to which its worker can still write. Text is copied first, and the copy is checked and
/// used.
fn of_shared_memory(py: Python<'_>, reply: &TaskReply, extent: &Extent, reading: Reading<'_>) -> PyResult<Decoded> {
    match reply.kind {
        // A pickle and its buffers are copied to Python objects before they are read.
        reply::PICKLED => of_reply(py, reply, extent.bytes(), reading),
        _ => {
            let copy: Box<[u8]> = extent.bytes().into();
            of_reply(py, reply, &copy, reading)
        }
    }
}

fn of_reply(py: Python<'_>, reply: &TaskReply, bytes: &[u8], reading: Reading<'_>) -> PyResult<Decoded> {
    let body = &bytes[reply.body.pickle..][..reply.body.pickle_bytes];
    match reply.kind {
        reply::PLAIN => {
            let value = ValueReader::new(body).value(py).map_err(|error| damaged(py, error))?;
            Ok(Decoded::Value(value.unbind()))
        }
        reply::PICKLED => {
            let buffers = PyList::empty(py);
            for &(start, length) in &reply.body.buffers {
                // The buffer is writable, like the memory of an object that was never pickled.
                let buffer = pyo3::types::PyByteArray::new(py, &bytes[start..][..length]);
                buffers.append(buffer)?;
            }
            unpickle(py, body, &buffers, reading)
        }
        reply::EXCEPTION | reply::EXCEPTION_TEXT => {
            let start = reply.body.pickle - reply.traceback_bytes;
            let traceback = String::from_utf8_lossy(&bytes[start..][..reply.traceback_bytes]);
            let pickled = (reply.kind == reply::EXCEPTION).then(|| PyBytes::new(py, body));
            let text = String::from_utf8_lossy(if reply.kind == reply::EXCEPTION_TEXT { body } else { &[] });
            let exception = match reading.guard {
                None => called(py, intern!(py, "remote_exception"))?.call1((traceback, pickled, text)),
                Some(classes) => called(py, intern!(py, "read_exception"))?.call1((traceback, pickled, text, classes)),
            }?;
            Ok(Decoded::Raised(exception.unbind()))
        }
        _ => {
            let why = String::from_utf8_lossy(body);
            let text = format!("the worker did not take the task: {why}; the function did not run");
            Err(raise(py, intern!(py, "TaskError"), (text, false)))
        }
    }
}

fn of_memory(py: Python<'_>, extent: &Extent, reading: Reading<'_>) -> PyResult<Decoded> {
    let reply = TaskReply::decode(extent.bytes()).map_err(|error| damaged(py, error))?;
    if reply.kind != reply::PICKLED || reply.body.buffers.is_empty() {
        return of_shared_memory(py, &reply, extent, reading);
    }
    let body = extent.bytes()[reply.body.pickle..][..reply.body.pickle_bytes].to_vec();
    let buffers = PyList::empty(py);
    for (start, length) in reply.body.buffers {
        let piece = ResultView::new(extent, start, length).ok_or_else(|| damaged(py, FormatError::Short))?;
        buffers.append(Bound::new(py, piece)?)?;
    }
    unpickle(py, &body, &buffers, reading)
}

fn unpickle(py: Python<'_>, pickle: &[u8], buffers: &Bound<'_, PyList>, reading: Reading<'_>) -> PyResult<Decoded> {
    let pickle = PyBytes::new(py, pickle);
    let value = match reading.guard {
        None => called(py, intern!(py, "load_result"))?.call1((pickle, buffers)),
        Some(classes) => called(py, intern!(py, "read_result"))?.call1((pickle, buffers, reading.function, classes)),
    }?;
    Ok(Decoded::Value(value.unbind()))
}

fn damaged(py: Python<'_>, error: FormatError) -> PyErr {
    let text = format!("the function ran, but its result is damaged: {error}; install the same hotlease on both sides");
    raise(py, intern!(py, "TaskError"), (text, true))
}

fn ran(ran: RunCertainty) -> Option<bool> {
    match ran {
        RunCertainty::Yes => Some(true),
        RunCertainty::No => Some(false),
        RunCertainty::Unknown => None,
    }
}

/// Makes the exception for an error of the client library.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    failure(
        py,
        &Failed {
            error: error.clone(),
            deaths: 0,
        },
    )
}

fn failure(py: Python<'_>, failed: &Failed) -> PyErr {
    let error = &failed.error;
    let fields = PyDict::new(py);
    let set = || -> PyResult<()> {
        fields.set_item("ran", ran(error.ran()))?;
        if let Some(refusal) = error.refusal() {
            fields.set_item("may_pass", refusal.may_pass())?;
        }
        if let Error::WorkerDied { cause, output, .. } = error {
            fields.set_item("cause", cause.to_string())?;
            fields.set_item("output", output)?;
            fields.set_item("deaths", failed.deaths)?;
            let (exit, signal) = match cause {
                Cause::Exit { status, .. } => (Some(*status), None),
                Cause::Signal { signal, .. } => (None, Some(*signal)),
                _ => (None, None),
            };
            fields.set_item("exit_code", exit.or(signal.map(|signal| -signal)))?;
        }
        Ok(())
    };
    let kind = match error {
        Error::WorkerDied { .. } => "WorkerDied",
        Error::OutcomeUnknown { .. } | Error::Protocol { .. } => "OutcomeUnknown",
        Error::Deadline { .. } => "DeadlineExceeded",
        Error::LeaseEnded { .. } => "LeaseEnded",
        Error::MemoryLost { .. } => "MemoryLost",
        Error::NotRunning { .. } => "NotRunning",
        Error::Refused(_) | Error::NoRoom { .. } => "Refused",
        Error::Options { .. } => "OptionError",
        _ => "TaskError",
    };
    let made = set().and_then(|()| called(py, intern!(py, "failure"))?.call1((kind, error.to_string(), fields)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
