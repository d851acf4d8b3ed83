//! The client's side: `hotlease.Executor` and its futures.
//!
//! | module | job |
//! |---|---|
//! | `executor` | the base of `Executor`: submit, shutdown |
//! | `future` | the base of `Future`, and telling its watchers |
//! | `encode`, `decode` | calls to requests, outcomes to objects |
//! | `native` | calls of native functions to requests |
//! | `gather` | futures among the arguments of a call |
//! | `graph` | tasks that depend on others, are retried, or are memoised |
//! | `joined` | equal tasks at the same time, of which one runs |
//! | `planned` | these tasks themselves |
//! | `away` | results that stay with workers on other hosts |
//! | `queue` | tasks that wait for a slot |
//! | `memo` | memoised results that outlive the program |
//! | `cell` | state that a task and its future share |
//! | `job`, `lane` | a task on its way; a slot, and the tasks that were sent there |
//! | `core` | the queue, the slots, and all that is shared |
//! | `collect` | collection of results; retries; replacement of dead workers |
//! | `waiting`, `keeper` | collecting threads: the one that waits for a result, else the core's own |
//! | `pace` | how many tasks a slot is sent ahead, and how a thread waits, by the length of tasks |
//! | `growth` | workers that become free a little later |
//! | `memory` | shared memory for large arguments and results |
//! | `expected` | prediction of a function's next result size |
//! | `showing` | output of tasks, until it is shown |
//! | `times`, `hint` | times of a task's stages; a hint where submitting takes longer than running |
//! | `options` | the options of an executor |
//! | `starting` | phases of an executor's start |

mod checkpoint;
mod collect;
mod core;
mod decode;
mod encode;
mod executor;
mod expected;
mod future;
mod graph;
mod growth;
mod hint;
mod inputs;
mod job;
mod join_table;
mod keeper;
mod lane;
mod memory;
mod native;
mod options;
mod output;
mod pace;
mod planned_tasks;
mod queue;
mod remote_results;
mod start_phases;
mod task_cell;
mod task_times;
mod wait;

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

/// Number of forks between this process and the one that imported the module, as far as Python reported them.
pub fn forks() -> u32 {
    core::FORKED.load(std::sync::atomic::Ordering::Relaxed)
}

/// Adds the client's side to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<executor::Client>()?;
    module.add_class::<future::Task>()?;
    module.add_class::<options::TaskOptions>()?;
    inputs::add_to(module)?;
    module.add_function(wrap_pyfunction!(start_phases::_cold_start, module)?)?;
    module.add_function(wrap_pyfunction!(start_phases::_has_network, module)?)?;
    module.add_function(wrap_pyfunction!(executor::_forked, module)?)?;
    module.add_function(wrap_pyfunction!(executor::_await_dropped, module)?)?;
    module.add("Error", module.py().get_type::<Error>())
}
