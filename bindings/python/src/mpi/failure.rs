//! Conversion of errors to `MPI.Exception`.

use hotlease_comm::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static EXCEPTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn new_error(py: Python<'_>, text: String, kind: &str, rank: Option<u32>, cause: Option<String>) -> PyErr {
    let class = EXCEPTION.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("hotlease.MPI._errors")?.getattr("Exception")?.unbind())
    });
    match class.and_then(|class| class.bind(py).call1((text, kind, rank, cause))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Makes the exception for an error of the library.
pub fn of(py: Python<'_>, error: &Error) -> PyErr {
    let debug = format!("{error:?}");
    let kind = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let cause = match error {
        Error::MemberLost { loss, .. } | Error::Outcast { loss, .. } => Some(loss.to_string()),
        _ => None,
    };
    new_error(py, error.to_string(), kind, error.rank(), cause)
}

/// Makes the exception for an error that was found here.
pub fn error(py: Python<'_>, kind: &str, text: impl Into<String>) -> PyErr {
    new_error(py, text.into(), kind, None, None)
}
