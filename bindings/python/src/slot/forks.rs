//! Processes that tasks fork.
//!
//! A child that returns from its task must not continue as a copy of its worker, because both processes would answer.

use hotlease_worker::is_child;
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;

/// Ends the process after a task if it is a child of the worker, with the exit status that Python would return.
#[inline]
pub fn end_child(py: Python<'_>, result: &PyResult<Bound<'_, PyAny>>) {
    if is_child() {
        end(py, result);
    }
}

/// Ends the process after a native function if it is a child of the worker. Does not need the GIL, which a child may be
/// unable to take.
#[inline]
pub fn end_native_child() {
    if is_child() {
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
}

#[cold]
fn end(py: Python<'_>, result: &PyResult<Bound<'_, PyAny>>) -> ! {
    let status = match result {
        Ok(_) => 0,
        Err(error) if error.is_instance_of::<PySystemExit>(py) => {
            let code = error.value(py).getattr("code");
            code.map_or(1, |code| if code.is_none() { 0 } else { code.extract().unwrap_or(1) })
        }
        Err(error) => {
            error.print(py);
            1
        }
    };
    for stream in ["stdout", "stderr"] {
        // An error is ignored, because no reader of it is left.
        let _ = py
            .import("sys")
            .and_then(|sys| sys.getattr(stream)?.call_method0("flush"));
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}
