//! `hotlease.MPI`: mpi4py's names over the communicators of `hotlease_comm`. Calls on memory, calls that wait and short
//! calls are in Rust; pickled objects and rare calls are in Python, in `python/hotlease/MPI`.
//!
//! | module | job |
//! |---|---|
//! | `pinned_buffer` | pinned memory of an object |
//! | `buffer_spec`, `buffer_blocks` | buffer arguments: `array`, `[array, MPI.DOUBLE]`; with a block for each rank |
//! | `memory` | `MPI.memory`: memory as an object with an address |
//! | `datatype`, `operator`, `status` | `MPI.Datatype`, `MPI.Op`, `MPI.Status` |
//! | `element`, `layout` | types of elements, and layouts of derived types |
//! | `packed` | copies without gaps, which are sent and received in place of elements with gaps |
//! | `member` | a communicator that joins on first use, and is not used in a forked process |
//! | `operation` | operations on pinned memory: waits that Ctrl-C interrupts, and abandoned operations |
//! | `request`, `requests` | requests, one and several at a time |
//! | `messages` | the methods that send and receive |
//! | `collectives` | preparation of collectives from the arguments of a call |
//! | `prepared` | a prepared collective: run, or begun |
//! | `comm` | the methods that all members call |
//! | `failure` | errors as `MPI.Exception` |

#![allow(non_snake_case, reason = "mpi4py's names")]

mod buffer_blocks;
mod buffer_spec;
mod collectives;
mod comm;
mod datatype;
mod element;
mod failure;
mod layout;
mod member;
mod memory;
mod messages;
mod operation;
mod operator;
mod packed;
mod pinned_buffer;
mod prepared;
mod request;
mod requests;
mod status;

use pyo3::prelude::*;

/// Makes the module of the classes in Rust. Called only when `hotlease.MPI` is imported, because few programs import
/// it.
#[pyfunction]
pub fn _mpi(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let module = PyModule::new(py, "hotlease._core._mpi")?;
    module.add_class::<datatype::Datatype>()?;
    module.add_class::<operator::Op>()?;
    module.add_class::<status::Status>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<request::Bytes>()?;
    module.add_class::<member::Handle>()?;
    module.add_class::<memory::MemoryObject>()?;
    module.add_class::<memory::BufferBytes>()?;
    module.add_class::<messages::Messages>()?;
    module.add_class::<comm::Collectives>()?;
    module.add_function(wrap_pyfunction!(member::end_all, &module)?)?;
    Ok(module)
}
