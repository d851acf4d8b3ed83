//! `hotlease.MPI`: mpi4py's names over the communicators of `hotlease_comm`. What needs memory, waits or is short is here; objects that are
//! pickled, and what few programs ask for, are Python, in `python/hotlease/MPI`.
//!
//! | module | job |
//! |---|---|
//! | `pinned` | the memory of an object, which stays where it is |
//! | `spec` | what programs say of memory: `array`, `[array, MPI.DOUBLE]`, `[array, counts, displacements, type]` |
//! | `datatype`, `operator`, `status` | these objects |
//! | `member` | a communicator: joined when it is first used, not used in a forked process |
//! | `work` | operations on pinned memory: waiting with an ear for Ctrl-C, and what becomes of those that nobody waits for |
//! | `request`, `several` | operations that go on, one and several at a time |
//! | `messages` | the methods that send and receive |
//! | `collectives` | what a collective is asked to do, of what programs say |
//! | `asked` | a collective with all that it needs |
//! | `comm` | the methods that all members call |
//! | `failure` | errors as `MPI.Exception` |

#![allow(non_snake_case, reason = "mpi4py's names")]

mod asked;
mod collectives;
mod comm;
mod datatype;
mod failure;
mod member;
mod messages;
mod operator;
mod pinned;
mod request;
mod several;
mod spec;
mod status;
mod work;

use pyo3::prelude::*;

/// The classes of this side, made when `hotlease.MPI` is imported and not before: few programs do.
#[pyfunction]
pub fn _mpi(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "hotlease._core._mpi")?;
    module.add_class::<datatype::Datatype>()?;
    module.add_class::<operator::Op>()?;
    module.add_class::<status::Status>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<request::Bytes>()?;
    module.add_class::<member::Handle>()?;
    module.add_class::<messages::Messages>()?;
    module.add_class::<comm::Collectives>()?;
    module.add_function(wrap_pyfunction!(member::end_all, &module)?)?;
    Ok(module)
}
