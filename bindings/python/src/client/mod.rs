//! The client's side: `hotlease.Executor` and its futures.
//!
//! | module | what it holds |
//! |---|---|
//! | `batch_job` | the platform of the batch job in which the program runs |
//! | `executor` | the base of `Executor`: submit, shutdown |
//! | `calls` | calls to requests: arguments, options, native functions |
//! | `futures` | the base of `Future`, outcomes to objects, futures among the arguments of a call |
//! | `tasks` | tasks themselves: functions, requests, states, outcomes, times; results that stay with workers |
//! | `dataflow` | tasks that depend on others, equal tasks that run only once, memoised results |
//! | `core` | the queue and the slots; collection of results, retries, replacement of dead workers; collecting threads |
//! | `kill` | the end of an executor before its tasks have ended |
//! | `growth` | workers that become free a little later |
//! | `memory` | shared memory for large arguments and results |
//! | `output` | output of tasks, until it is shown |
//! | `remote_memory` | memory of other nodes |
//! | `start_phases` | phases of an executor's start |

mod batch_job;
mod calls;
mod core;
mod dataflow;
mod executor;
mod futures;
mod growth;
mod kill;
mod memory;
mod output;
mod remote_memory;
mod start_phases;
mod tasks;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// The only function of a library of Python workers.
const FUNCTION: &str = "hotlease.call";

create_exception!(
    hotlease,
    Error,
    PyException,
    "What went wrong between a program and its workers."
);

/// Adds the client's side to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<executor::Client>()?;
    module.add_class::<calls::settled::SettledFunction>()?;
    module.add_function(wrap_pyfunction!(calls::settled::_settle, module)?)?;
    module.add_function(wrap_pyfunction!(calls::settled::_submit_settled, module)?)?;
    module.add_class::<futures::future::Task>()?;
    module.add_class::<calls::options::TaskOptions>()?;
    module.add_class::<remote_memory::MemoryBase>()?;
    module.add_class::<remote_memory::MemoryCopy>()?;
    futures::inputs::add_to(module)?;
    module.add_function(wrap_pyfunction!(start_phases::_cold_start, module)?)?;
    module.add_function(wrap_pyfunction!(batch_job::_job_managers, module)?)?;
    module.add_function(wrap_pyfunction!(start_phases::_has_network, module)?)?;
    module.add_function(wrap_pyfunction!(start_phases::_hidden, module)?)?;
    module.add_function(wrap_pyfunction!(start_phases::_is_confined, module)?)?;
    module.add_function(wrap_pyfunction!(futures::check::_check_pickle, module)?)?;
    module.add_function(wrap_pyfunction!(executor::_await_dropped, module)?)?;
    module.add_function(wrap_pyfunction!(kill::_kill, module)?)?;
    module.add("Error", module.py().get_type::<Error>())
}
