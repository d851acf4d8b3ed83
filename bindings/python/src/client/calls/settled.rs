//! Functions that are described once for many calls. A function that uses globals of the program is otherwise pickled
//! anew for each call, because the globals may have changed.

use crate::client::calls::encode::Callable;
use crate::client::executor::Client;
use crate::client::tasks::target::Target;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// A function of the program, in its state at one moment.
#[pyclass(module = "hotlease._core", frozen)]
pub struct SettledFunction(Py<PyAny>, Arc<Target>);

/// Describes a function for many calls. Returns `None` if each call has to describe the function.
#[pyfunction]
pub fn _settle(client: &Bound<'_, Client>, function: &Bound<'_, PyAny>) -> PyResult<Option<SettledFunction>> {
    let opened = client.get().opened()?;
    match opened.functions.find(function, opened.rerun) {
        Ok(Callable::Target(target)) if !target.name.is_empty() => {
            Ok(Some(SettledFunction(function.clone().unbind(), target)))
        }
        // If the function cannot be described, each call returns a future that raises the reason.
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Schedules a call of a settled function, and returns its future.
#[pyfunction]
#[pyo3(signature = (client, settled, /, *args))]
pub fn _submit_settled<'py>(
    client: &Bound<'py, Client>,
    settled: &Bound<'py, SettledFunction>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let SettledFunction(function, target) = settled.get();
    let function = function.bind(settled.py());
    client
        .get()
        .opened()?
        .submit(None, (function, Some(target)), args, None)
}
