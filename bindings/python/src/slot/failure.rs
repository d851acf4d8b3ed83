//! Reasons why a task has no result.

use hotlease_wire::task::FormatError;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::borrow::Cow;

/// Reason why a task has no result.
pub enum TaskFailure {
    /// The function raised, or the task does not unpickle.
    Raised(PyErr),
    /// The worker does not have the function.
    Unknown,
    /// A result of another task could not be fetched from its worker.
    Unfetched(String),
    /// The request is not a valid task.
    Refused(Cow<'static, str>),
}

impl From<PyErr> for TaskFailure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<FormatError> for TaskFailure {
    fn from(_: FormatError) -> Self {
        Self::Refused("the plain arguments are damaged".into())
    }
}

/// Replaces an exception that would end the program which reads it, such as `SystemExit`. The exception was raised
/// while an object was pickled or unpickled, as `what` describes, and not by the task's function. `ran`: whether the
/// function had run.
pub fn harmless(py: Python<'_>, error: PyErr, what: &str, ran: bool) -> PyErr {
    if error.is_instance_of::<PyException>(py) {
        return error;
    }
    let make = || py.import("hotlease.errors")?.getattr("TaskError");
    match make().and_then(|class| class.call1((format!("{what}: {error}"), ran))) {
        Ok(exception) => {
            let harmless = PyErr::from_value(exception);
            harmless.set_cause(py, Some(error));
            harmless
        }
        Err(error) => error,
    }
}
