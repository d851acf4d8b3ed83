//! Results of other tasks that arrived with a request, kept while its arguments are unpickled.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;

thread_local! {
    static RESULTS: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `load`, during which [`_result`] returns these results.
pub fn during<T>(results: Vec<Py<PyAny>>, load: impl FnOnce() -> T) -> T {
    let before = RESULTS.replace(results);
    let loaded = load();
    // Dropped outside of the cell, because dropping runs Python code.
    drop(RESULTS.replace(before));
    loaded
}

/// Returns the result with this number in the request whose arguments are being unpickled; see
/// `hotlease._remote.result`.
#[pyfunction]
pub fn _result(py: Python<'_>, number: usize) -> PyResult<Py<PyAny>> {
    let found = RESULTS.with_borrow(|results| results.get(number).map(|result| result.clone_ref(py)));
    found.ok_or_else(|| {
        PyRuntimeError::new_err("the result of another task is only there for the task that it was given to")
    })
}
