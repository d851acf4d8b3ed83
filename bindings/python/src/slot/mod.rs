//! The worker's side: the process that `hotlease._slot` runs in.
//!
//! The loop of `hotlease-worker` polls, sleeps and counts, on Python's main thread and without the GIL. It calls a
//! function of this module for each task. One process has one slot.
//!
//! | module | job |
//! |---|---|
//! | `task` | one task, from its request to its reply |
//! | `native` | one native task: a function of a library |
//! | `request` | bytes of a request |
//! | `failure` | reasons why a task has no result |
//! | `functions` | the functions that this worker was sent |
//! | `input` | memory of the request as Python objects, for as long as the task runs |
//! | `results` | results of other tasks that arrived with the request |
//! | `output` | replies, and results that did not fit |
//! | `aligned` | private memory that is aligned like requests |
//! | `shelf` | results that stay here for other workers, and their delivery |
//! | `fetch` | results that are fetched from other workers |
//! | `output_streams` | output and log records, until a reply carries them |
//! | `invocation` | state of the running invocation, for its function |
//! | `state` | state that tasks left in this interpreter, saved and restored by the program's own functions |
//! | `zygote` | process that workers are forked from, with imports done |
//! | `forks` | processes that tasks fork |

mod aligned;
mod failure;
mod fetch;
mod forks;
mod functions;
mod input;
mod invocation;
mod native;
mod output;
mod output_streams;
mod request;
mod results;
mod shelf;
mod state;
mod task;
mod zygote;

use hotlease_worker::Worker;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::time::Duration;

/// A process that an agent has started, before its first task.
#[pyclass(name = "Slot", module = "hotlease._core")]
struct Slot {
    worker: Option<Worker>,
}

#[pymethods]
impl Slot {
    /// Becomes a worker; standard input is the agent's control socket.
    #[new]
    fn new() -> PyResult<Self> {
        let worker = Worker::take_over()
            .map_err(|error| PyOSError::new_err(format!("standard input is not an agent's control socket: {error}")))?;
        Ok(Self { worker: Some(worker) })
    }

    /// Tells the client why this process cannot be its worker, and ends.
    fn refuse(&mut self, why: String) -> PyResult<()> {
        self.take()?.reject(why)
    }

    /// Waits for a lease, then runs tasks. `load`, `dump` and `describe`: see `hotlease._slot`; `imports_ns`: time that
    /// imports have taken so far; `tasks_max`: number of tasks after which the process ends; 0: no limit.
    #[pyo3(signature = (load, dump, describe, imports_ns = 0, tasks_max = 0))]
    fn serve(
        &mut self,
        py: Python<'_>,
        load: Py<PyAny>,
        dump: Py<PyAny>,
        describe: Py<PyAny>,
        imports_ns: u64,
        tasks_max: u64,
    ) -> PyResult<()> {
        let mut worker = self.take()?;
        worker.set_imports(Duration::from_nanos(imports_ns));
        output_streams::note_pipe();
        task::prepare(load, dump, describe, tasks_max);
        let hosted = py
            .detach(|| worker.host(task::call, Some(state::FUNCTIONS)))
            .map_err(PyOSError::new_err)?;
        // The variable is set here, because Python read its environment before the lease was known.
        if let Ok(gpus) = std::env::var("HOTLEASE_GPUS") {
            let environment = py.import("os")?.getattr("environ")?;
            environment.set_item("HOTLEASE_GPUS", PyString::new(py, &gpus))?;
        }
        py.detach(|| hosted.run())
    }
}

impl Slot {
    fn take(&mut self) -> PyResult<Worker> {
        let taken = self.worker.take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this process is a worker already"))
    }
}

/// Adds the worker's side to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Slot>()?;
    module.add_class::<zygote::Zygote>()?;
    module.add_function(wrap_pyfunction!(results::_result, module)?)?;
    module.add_function(wrap_pyfunction!(functions::_forget_functions, module)?)?;
    module.add_class::<output_streams::Tee>()?;
    module.add_function(wrap_pyfunction!(output_streams::_logged, module)?)?;
    module.add_function(wrap_pyfunction!(invocation::_is_guarded, module)?)?;
    module.add_function(wrap_pyfunction!(invocation::cancelled, module)?)?;
    module.add_function(wrap_pyfunction!(invocation::deadline, module)?)
}
