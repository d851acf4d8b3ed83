//! Platform of the batch job in which the program runs.

use pyo3::prelude::*;

/// Addresses of the manager that serves this batch job, with commas between them; empty if it is starting; `None` if the
/// job has no platform of its own.
#[pyfunction]
pub fn _job_managers() -> Option<String> {
    // A folder that cannot be used fails the executor, which says why; no other platform stands for it.
    hotlease_client::job_managers().unwrap_or_else(|_| Some(String::new()))
}
