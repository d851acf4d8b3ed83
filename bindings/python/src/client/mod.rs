//! The client's side: `hotlease.Executor` and its futures.
//!
//! | module | job |
//! |---|---|
//! | `executor` | the base of `Executor`: submit, shutdown |
//! | `future` | the base of `Future`, and telling who watches one |
//! | `encode`, `decode` | calls to requests, outcomes to objects |
//! | `native` | the same for calls of native functions |
//! | `gather` | futures among the arguments of a call |
//! | `graph` | tasks that need others, are tried again, or remembered |
//! | `joined` | equal ones at the same time, of which one is run |
//! | `planned` | these tasks themselves |
//! | `away` | results that stay with workers on other hosts |
//! | `queue` | tasks that wait for a slot |
//! | `memo` | what is remembered beyond the end of the program |
//! | `cell` | what a task and its future share |
//! | `job`, `lane` | a task on its way; a slot, and what was sent there |
//! | `core` | the queue, the slots, and all that is shared |
//! | `collect` | what a result means; retries; another worker for one that is gone |
//! | `waiting`, `keeper` | who takes in results: the thread that waits for one, else the core's own |
//! | `pace` | how many tasks a slot is sent ahead, and how a thread waits, by how long tasks take |
//! | `growth` | workers that are free a little later |
//! | `memory` | shared memory for large arguments and results |
//! | `expected` | how large a function's next result is likely to be |
//! | `showing` | what tasks print, until it is shown |
//! | `times`, `hint` | when tasks come how far; a hint where that is more overhead than work |
//! | `options` | the options of an executor |
//! | `starting` | where the time of its start went |

mod away;
mod cell;
mod collect;
mod core;
mod decode;
mod encode;
mod executor;
mod expected;
mod future;
mod gather;
mod graph;
mod growth;
mod hint;
mod job;
mod joined;
mod keeper;
mod lane;
mod memo;
mod memory;
mod native;
mod options;
mod pace;
mod planned;
mod queue;
mod showing;
mod starting;
mod times;
mod waiting;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// The one function of a library of Python workers.
const FUNCTION: &str = "hotlease.call";

create_exception!(
    hotlease,
    Error,
    PyException,
    "What went wrong between a program and its workers."
);

/// How often this process was forked off another one, as far as Python told.
pub fn forks() -> u32 {
    core::FORKED.load(std::sync::atomic::Ordering::Relaxed)
}

/// Adds what this side has to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<executor::Client>()?;
    module.add_class::<future::Task>()?;
    module.add_class::<options::Asking>()?;
    gather::add_to(module)?;
    module.add_function(wrap_pyfunction!(starting::_cold_start, module)?)?;
    module.add_function(wrap_pyfunction!(starting::_has_network, module)?)?;
    module.add_function(wrap_pyfunction!(executor::_forked, module)?)?;
    module.add_function(wrap_pyfunction!(executor::_await_dropped, module)?)?;
    module.add("Error", module.py().get_type::<Error>())
}
