//! Zygote: an interpreter with imports done, from which workers are forked.

use hotlease_nursery::zygote::{ForkHooks, Orders};
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

/// Python's actions around a fork.
struct Interpreter;

impl ForkHooks for Interpreter {
    fn before(&mut self) {
        // SAFETY: this thread has the GIL, and is the only one.
        unsafe { ffi::PyOS_BeforeFork() }
    }

    fn in_zygote(&mut self) {
        // SAFETY: follows `before`, in the same process.
        unsafe { ffi::PyOS_AfterFork_Parent() }
    }
}

#[pymethods]
impl Zygote {
    /// Becomes a zygote: standard input is the agent's control socket, and fork orders arrive over another descriptor
    /// that the process was started with.
    #[new]
    fn new() -> PyResult<Self> {
        let failed = |error| PyOSError::new_err(format!("this process was not started as a zygote: {error}"));
        Ok(Self {
            control: Some(Worker::take_over().map_err(failed)?),
            orders: Orders::take().map_err(failed)?,
        })
    }

    /// Tells the agent why no worker can be forked from this process, and ends.
    fn refuse(&mut self, why: String) -> PyResult<()> {
        self.take()?.reject(why)
    }

    /// Tells the agent that the zygote waits, and forks on each order. Returns in each worker, with the agent's socket
    /// as its standard input; never returns in the zygote. `imports_ns`: time that imports took.
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
        // Code of a tenant must not run at the end of a process that has only waited.
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
}

impl Zygote {
    fn take(&mut self) -> PyResult<Worker> {
        let taken = self.control.take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this process is a zygote already"))
    }
}
