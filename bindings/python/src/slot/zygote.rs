//! What workers are forked from: an interpreter that has imported what they need.

use hotlease_nursery::zygote::{Hooks, Orders};
use hotlease_worker::Worker;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A process that an agent has started to fork workers from.
#[pyclass(module = "hotlease._core")]
pub struct Zygote {
    orders: Orders,
    control: Option<Worker>,
}

/// What Python does around a fork.
struct Interpreter;

impl Hooks for Interpreter {
    fn before(&mut self) {
        // SAFETY: this thread has the GIL, and is the only one.
        unsafe { ffi::PyOS_BeforeFork() }
    }

    fn in_zygote(&mut self) {
        // SAFETY: follows the above, in the same process.
        unsafe { ffi::PyOS_AfterFork_Parent() }
    }
}

#[pymethods]
impl Zygote {
    /// Becomes one: standard input is the agent's, and forks are ordered by what came with it.
    #[new]
    fn new() -> PyResult<Self> {
        let failed = |error| PyOSError::new_err(format!("this process was not started as a zygote: {error}"));
        Ok(Self {
            control: Some(Worker::take_over().map_err(failed)?),
            orders: Orders::take().map_err(failed)?,
        })
    }

    /// Tells the agent why nothing can be forked from this process, and ends.
    fn refuse(&mut self, why: String) -> PyResult<()> {
        self.take()?.refuse(why)
    }

    /// Tells the agent that it waits, and forks whenever it is told to: comes back in each worker, with the agent's socket as its standard
    /// input. Never comes back in this process. `imports_ns`: how long imports took.
    fn serve(&mut self, imports_ns: u64) -> PyResult<()> {
        let mut control = self.take()?;
        control.set_imports(Duration::from_nanos(imports_ns));
        let mut own: Vec<OwnedFd> = vec![control.become_zygote()?];
        let is_worker = self.orders.next(&mut Interpreter, &mut own);
        if is_worker? {
            // SAFETY: follows `before`, in the child; this thread has the GIL.
            unsafe { ffi::PyOS_AfterFork_Child() };
            return Ok(());
        }
        // Nothing of a tenant's is to be run at the end of a process that has only waited.
        // SAFETY: ends it.
        unsafe { libc::_exit(0) }
    }
}

impl Zygote {
    fn take(&mut self) -> PyResult<Worker> {
        let taken = self.control.take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this process is a zygote already"))
    }
}
