//! Platform of the batch job in which the program runs.

use pyo3::prelude::*;

/// Returns the addresses of the manager that serves this batch job, separated by commas: an empty string if the manager
/// is starting, `None` if the job has no platform of its own.
#[pyfunction]
pub fn _job_managers() -> Option<String> {
    // If the folder cannot be used, the executor fails with the reason: it does not use another platform instead.
    hotlease_client::job_managers().unwrap_or_else(|_| Some(String::new()))
}
