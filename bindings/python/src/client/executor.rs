//! The base of `hotlease.Executor`: submitting, and giving everything back.

use super::cell::{Cell, Outcome};
use super::core::{Closed, Core, FORKED};
use super::decode;
use super::encode::{self, Callable, Functions};
use super::future::{self, finish_all, forked};
use super::job::{Job, Payload};
use super::keeper;
use super::options;
use hotlease_client::{Code, Invoker};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

/// How often a waiting thread looks whether Ctrl-C was pressed.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);
/// How often a task looks for room in a full queue.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// The base of `hotlease.Executor`.
#[pyclass(subclass, frozen, module = "hotlease._core")]
pub struct Client {
    opened: OnceLock<Opened>,
}

struct Opened {
    core: Arc<Core>,
    functions: Functions,
    future: Py<PyAny>,
    idempotent: bool,
}

impl Client {
    fn opened(&self) -> PyResult<&Opened> {
        self.opened.get().ok_or_else(|| {
            PyRuntimeError::new_err("the executor was not opened: Executor.__init__ did not run")
        })
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) -> Self {
        Self {
            opened: OnceLock::new(),
        }
    }

    /// Takes the lease. `future`: the class of futures.
    fn _open(
        &self,
        py: Python<'_>,
        future: Py<PyAny>,
        options: &Bound<'_, PyDict>,
        initializer: Option<(Bound<'_, PyAny>, Bound<'_, PyTuple>)>,
    ) -> PyResult<()> {
        let asked = options::read(options)?;
        let (lease, code) = (asked.lease, Code::python());
        let invoker = py.detach(|| Invoker::allocate(&code, lease));
        let invoker = invoker.map_err(|error| decode::exception(py, &error))?;
        let functions = Functions::default();
        let initializer = match initializer {
            None => None,
            Some((function, args)) => Some(prepare(&functions, &invoker, &function, &args)?),
        };
        let core = py.detach(|| Core::new(invoker, asked.queue_bytes, initializer));
        let core = core.map_err(|error| decode::exception(py, &error))?;
        keeper::start(&core)?;
        let opened = Opened {
            core,
            functions,
            future,
            idempotent: asked.idempotent,
        };
        if let Err(opened) = self.opened.set(opened) {
            close(&opened.core, false);
            return Err(PyRuntimeError::new_err("the executor is open already"));
        }
        Ok(())
    }

    /// Schedules ``function(*args, **kwargs)`` and returns its future.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn submit<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let opened = self.opened()?;
        let core = &opened.core;
        if core.is_foreign() {
            return Err(forked());
        }
        let cell = Arc::new(Cell::new());
        let (target, encoded) = match opened.functions.find(function, opened.idempotent) {
            Ok(Callable::Target(target)) => {
                let encoded = encode::request(&target, args, kwargs, &core.invoker, &core.pool);
                (target, encoded)
            }
            Ok(Callable::Argument(target)) => {
                let mut all = vec![function.clone()];
                all.extend(args.iter());
                let args = PyTuple::new(py, all)?;
                let encoded = encode::request(&target, &args, kwargs, &core.invoker, &core.pool);
                (target, encoded)
            }
            Err(error) => return unsendable(py, opened, cell, error),
        };
        let payload = match encoded {
            Ok(payload) => payload,
            Err(error) => return unsendable(py, opened, cell, error),
        };
        while !core.has_room() {
            py.detach(|| std::thread::park_timeout(ROOM_LOOK));
            py.check_signals()?;
        }
        let future = future::make(opened.future.bind(py), cell.clone(), core.clone())?;
        match core.accept(Job::new(cell, target, payload)) {
            Ok(()) => Ok(future),
            Err((_, closed)) => Err(closed_error(py, &closed)),
        }
    }

    /// Slots that tasks run on.
    fn _slots(&self) -> PyResult<usize> {
        Ok(self.opened()?.core.invoker.slots())
    }

    /// Tasks that have not ended.
    fn _pending(&self) -> PyResult<usize> {
        Ok(self.opened()?.core.state().pending)
    }

    /// Accepts nothing more; see ``Executor.shutdown``.
    fn _shutdown(&self, py: Python<'_>, wait: bool, cancel_futures: bool) -> PyResult<()> {
        let Some(Opened { core, .. }) = self.opened.get() else {
            return Ok(());
        };
        if core.is_foreign() {
            return Ok(());
        }
        py.detach(|| close(core, cancel_futures));
        finish_all(py, core);
        if wait && !core.keeper.is_current() {
            while !core.ended.load(Ordering::Acquire) {
                py.detach(|| {
                    let guard = core.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
                    if !core.ended.load(Ordering::Acquire) {
                        drop(core.progress.1.wait_timeout(guard, SIGNAL_LOOK));
                    }
                });
                finish_all(py, core);
                py.check_signals()?;
            }
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // As in concurrent.futures: what was submitted is still run, and then everything is given back.
        if let Some(opened) = self.opened.get()
            && !opened.core.is_foreign()
        {
            close(&opened.core, false);
        }
    }
}

fn close(core: &Arc<Core>, cancel_futures: bool) {
    let mut state = core.state();
    if state.closed.is_none() {
        state.closed = Some(Closed::ShutDown);
    }
    drop(state);
    if cancel_futures {
        core.cancel_queued();
    }
    core.keeper.rouse(&core.invoker);
}

/// A task that cannot be sent has a future all the same, as in `ProcessPoolExecutor`.
fn unsendable<'py>(
    py: Python<'py>,
    opened: &Opened,
    cell: Arc<Cell>,
    error: PyErr,
) -> PyResult<Bound<'py, PyAny>> {
    // Not under the lock: what follows runs code of Python's.
    let closed = opened.core.state().closed.clone();
    if let Some(closed) = closed {
        return Err(closed_error(py, &closed));
    }
    cell.start();
    let raised = decode::called(py, intern!(py, "not_sent"))?.call1((error.into_value(py),))?;
    cell.resolve(Outcome::Raised(raised.unbind()));
    future::make(opened.future.bind(py), cell, opened.core.clone())
}

fn closed_error(py: Python<'_>, closed: &Closed) -> PyErr {
    match closed {
        Closed::ShutDown => PyRuntimeError::new_err("cannot schedule new futures after shutdown"),
        Closed::Lost(error) => {
            let text = format!("the executor has no workers any more: {error}; the function did not run");
            decode::raise(py, intern!(py, "ExecutorBroken"), (text, false))
        }
        Closed::Unprepared(why) => decode::unprepared(py, why),
    }
}

type Initializer = (Arc<super::job::Target>, Box<[u8]>);

fn prepare(
    functions: &Functions,
    invoker: &Invoker,
    function: &Bound<'_, PyAny>,
    args: &Bound<'_, PyTuple>,
) -> PyResult<Initializer> {
    let py = function.py();
    let prepare = decode::called(py, intern!(py, "prepare"))?;
    let mut all = vec![function.clone()];
    all.extend(args.iter());
    let args = PyTuple::new(py, all)?;
    let (Callable::Target(target) | Callable::Argument(target)) = functions.find(&prepare, false)?;
    match encode::request(&target, &args, None, invoker, &Arc::default())? {
        Payload::Small(bytes) => Ok((target, bytes)),
        Payload::Large(_) => Err(PyTypeError::new_err(
            "the initializer and its arguments are too large; let it read from a file what it needs",
        )),
    }
}

/// In the child of a fork: executors of the parent are of no use there.
#[pyfunction]
pub fn _forked() {
    FORKED.fetch_add(1, Ordering::Relaxed);
}
