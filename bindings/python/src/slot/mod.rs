//! A worker's side.

use pyo3::prelude::*;

/// Adds what this side has to the module.
pub fn add_to(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
