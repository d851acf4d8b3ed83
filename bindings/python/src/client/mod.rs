//! The client's side.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    hotlease,
    Error,
    PyException,
    "What went wrong between a program and its workers."
);

/// Adds what this side has to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())
}
