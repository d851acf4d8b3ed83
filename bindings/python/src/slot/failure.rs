//! Reasons why a task has no result.

use hotlease_wire::task::FormatError;
use pyo3::prelude::*;
use std::borrow::Cow;

/// Reason why a task has no result.
pub enum TaskFailure {
    /// The function raised, or the task does not unpickle.
    Raised(PyErr),
    /// The function is not here.
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
