//! Extension module `hotlease._core` of the Python package: a client's side and a worker's side.
//!
//! | module | job |
//! |---|---|
//! | `client` | API for programs: leases, submitting tasks, futures |
//! | `mpi` | `hotlease.MPI`: message passing under mpi4py's names |
//! | `slot` | code of a worker process: the loop of `hotlease-worker`, and the calling of Python functions |
//! | `native` | native functions, for both sides |
//! | `pickled` | pickles with their buffers, for both sides |
//! | `plain` | small plain values as objects, for both sides |
//! | `locks` | locks whose holder may have panicked |
//! | `task_output` | output of tasks, in bounded memory and in bytes, for both sides |
//!
//! `hotlease_wire::task` defines the bytes of tasks and results for both sides; `FORMAT.md` describes them.

mod client;
mod locks;
mod mpi;
mod native;
mod pickled;
mod plain;
mod slot;
mod task_output;

use pyo3::prelude::*;

/// Module initialiser of `hotlease._core`.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    client::add_to(module)?;
    module.add_class::<native::Native>()?;
    module.add_function(wrap_pyfunction!(mpi::_mpi, module)?)?;
    slot::add_to(module)
}
