//! Futures: Python's view of a task. `hotlease.Future` adds `concurrent.futures.Future` as a second base, for code that
//! checks for that type, and inherits all behaviour from here.

use crate::client::core::ExecutorCore;
use crate::client::futures::decode::{self, Decoded, Reading};
use crate::client::futures::inputs;
use crate::client::tasks::state::{Cancellation, Stage, TaskCell};
use crate::client::tasks::target::Target;
use crate::client::tasks::task_times::TimesRow;
use crate::locks::locked;
use hotlease_fabric::clock::monotonic_ns;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Interval at which a waiting thread checks for Ctrl-C.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);

/// Parts of a future: shared state, core, and target.
type FutureParts = (Arc<TaskCell>, Arc<ExecutorCore>, Option<Arc<Target>>);

thread_local! {
    /// Parts of the next future that this thread makes. They are passed in this variable because the class is defined
    /// in Python: only a call of the class makes an object of it.
    static NEXT: RefCell<Option<FutureParts>> = const { RefCell::new(None) };
}

/// Objects that only watched futures have.
struct Watchers {
    condition: Py<PyAny>,
    waiters: Py<PyList>,
    callbacks: Mutex<Vec<Py<PyAny>>>,
}

/// The base of `hotlease.Future`.
#[pyclass(subclass, frozen, module = "hotlease._core")]
pub struct Task {
    pub(in crate::client) cell: Arc<TaskCell>,
    pub(in crate::client) core: Arc<ExecutorCore>,
    /// The function that the task calls, if it was found.
    pub(in crate::client) target: Option<Arc<Target>>,
    decoded: OnceLock<Decoded>,
    watch: OnceLock<Box<Watchers>>,
}

/// Makes a future of this class.
pub fn make<'py>(
    class: &Bound<'py, PyAny>,
    cell: Arc<TaskCell>,
    core: Arc<ExecutorCore>,
    target: Option<Arc<Target>>,
) -> PyResult<Bound<'py, PyAny>> {
    NEXT.with(|next| next.replace(Some((cell, core, target))));
    class.call0()
}

impl Task {
    fn watch<'a>(slf: &'a Bound<'_, Self>) -> PyResult<&'a Watchers> {
        let (py, this) = (slf.py(), slf.get());
        if this.watch.get().is_none() {
            let watch = Watchers {
                condition: decode::called(py, intern!(py, "condition"))?.call0()?.unbind(),
                waiters: PyList::empty(py).unbind(),
                callbacks: Mutex::default(),
            };
            // Another thread may have been faster while a condition was made.
            if this.watch.set(Box::new(watch)).is_ok() {
                this.core.watched.fetch_add(1, Ordering::Relaxed);
                let is_done = this.cell.watch(slf.clone().into_any().unbind());
                if is_done {
                    this.core.watched.fetch_sub(1, Ordering::Relaxed);
                } else {
                    this.core.keeper.attend();
                }
            }
        }
        this.watch
            .get()
            .map(|watch| &**watch)
            .ok_or_else(|| PyRuntimeError::new_err("a watch was lost"))
    }

    /// Waits until the task is done. Returns `false` if the timeout passed first.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.cell.is_done() {
            self.core.show(py)?;
            return Ok(true);
        }
        if self.core.is_foreign() {
            return Err(forked());
        }
        let now = Instant::now();
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let until = limit.and_then(|limit| now.checked_add(limit));
        loop {
            let look = Instant::now() + SIGNAL_LOOK;
            let next = until.map_or(look, |until| until.min(look));
            py.detach(|| self.core.wait(&self.cell, next));
            // The task's output arrived before its end. So it is shown before this thread makes the end visible.
            let has_ended = self.cell.has_ended();
            self.core.show(py)?;
            finish_others(py, &self.core);
            if has_ended && !self.cell.is_done() {
                finish(py, &self.cell)?;
            }
            if has_ended && self.cell.is_done() {
                return Ok(true);
            }
            py.check_signals()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    pub(in crate::client) fn decoded(&self, py: Python<'_>) -> PyResult<&Decoded> {
        loop {
            if let Some(decoded) = self.decoded.get() {
                return Ok(decoded);
            }
            match self.cell.take_outcome() {
                // Decoding runs Python code, so other threads may run meanwhile. They find no outcome, and yield until
                // it is decoded.
                Some(outcome) => {
                    let times = self.cell.times.as_ref().map(|times| (times, monotonic_ns()));
                    let reading = Reading::of(&self.core, self.target.as_deref());
                    drop(self.decoded.set(decode::outcome(py, outcome, reading)));
                    if let Some((times, begun)) = times {
                        times.set_reading(monotonic_ns() - begun);
                    }
                }
                None => {
                    py.check_signals()?;
                    py.detach(std::thread::yield_now);
                }
            }
        }
    }

    /// The result as Python objects, if the task has ended.
    fn finished(&self, py: Python<'_>) -> PyResult<Option<&Decoded>> {
        match self.cell.stage() {
            Stage::Finished => self.decoded(py).map(Some),
            _ => Ok(None),
        }
    }

    fn resolved(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<&Decoded> {
        if !self.wait(py, timeout)? {
            return Err(decode::raise(py, intern!(py, "TimeoutError"), ()));
        }
        if self.cell.stage() == Stage::Cancelled {
            return Err(decode::raise(py, intern!(py, "CancelledError"), ()));
        }
        self.decoded(py)
    }

    fn callbacks(watch: &Watchers) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        locked(&watch.callbacks)
    }

    fn is_lost(&self) -> bool {
        self.core.is_foreign() && !self.cell.is_done()
    }
}

#[pymethods]
impl Task {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let (cell, core, target) = NEXT
            .with(|next| next.take())
            .ok_or_else(|| PyTypeError::new_err("futures are made by Executor.submit"))?;
        Ok(Self {
            cell,
            core,
            target,
            decoded: OnceLock::new(),
            watch: OnceLock::new(),
        })
    }

    /// Replaces the initializer of `concurrent.futures.Future`, which makes a condition for each future.
    #[pyo3(signature = (*_args, **_kwargs))]
    fn __init__(&self, _args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) {}

    /// Cancels the task, if it was not sent to a worker yet.
    fn cancel(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = slf.get();
        if this.is_lost() {
            return Err(forked());
        }
        let notices = match this.cell.cancel() {
            Cancellation::Done(notices) => notices,
            Cancellation::Earlier => return Ok(true),
            Cancellation::TooLate => return Ok(false),
        };
        if notices.is_watched {
            this.core.finish_later(this.cell.clone());
        }
        if let Some(task) = notices.graph {
            // Tasks that depend on this task fail, and may be watched.
            let mut state = this.core.state();
            this.core.cancel_linked(&mut state, task, this.target.clone());
        }
        if notices.is_watched {
            finish_watched(slf.py(), &this.core, &this.cell);
        }
        finish_others(slf.py(), &this.core);
        this.core.tell_followers();
        Ok(true)
    }

    /// Whether the task was cancelled.
    fn cancelled(&self) -> bool {
        self.cell.stage() == Stage::Cancelled
    }

    /// Whether the task was sent to a worker and has not ended.
    fn running(&self) -> bool {
        matches!(self.cell.stage(), Stage::Running | Stage::Ending)
    }

    /// Whether the task has ended or was cancelled.
    fn done(&self) -> bool {
        self.cell.is_done()
    }

    /// Waits for the result and returns it, or raises what the task raised.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        match self.resolved(py, timeout)? {
            Decoded::Value(value) => Ok(value.clone_ref(py)),
            Decoded::Raised(exception) => Err(PyErr::from_value(exception.bind(py).clone())),
        }
    }

    /// Waits for the end and returns what the task raised, or None.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.resolved(py, timeout)? {
            Decoded::Value(_) => Ok(None),
            Decoded::Raised(exception) => Ok(Some(exception.clone_ref(py))),
        }
    }

    /// Calls `function` with the future when the task has ended or was cancelled; calls it at once if the task has
    /// ended already.
    fn add_done_callback(slf: &Bound<'_, Self>, function: Bound<'_, PyAny>) -> PyResult<()> {
        let this = slf.get();
        if this.is_lost() {
            return Err(forked());
        }
        if !this.cell.is_done() {
            let watch = Self::watch(slf)?;
            let mut callbacks = Self::callbacks(watch);
            // If the task is not done here, the callback will be called: the thread that finishes the task takes the
            // callbacks only after the task has become done.
            if !this.cell.is_done() {
                callbacks.push(function.unbind());
                return Ok(());
            }
        }
        let py = slf.py();
        this.core.show(py)?;
        decode::called(py, intern!(py, "call_back"))?.call1((function, slf))?;
        Ok(())
    }

    /// Pickles the future as an argument of a task of its executor: as a placeholder for its result.
    fn __reduce_ex__<'py>(
        slf: &Bound<'py, Self>,
        _protocol: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        inputs::reduce(slf.as_any())
    }

    /// Fails: only the executor may resolve its futures.
    fn set_running_or_notify_cancel(&self) -> PyResult<bool> {
        Err(not_yours())
    }

    /// Fails: only the executor may resolve its futures.
    fn set_result(&self, _result: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_yours())
    }

    /// Fails: only the executor may resolve its futures.
    fn set_exception(&self, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_yours())
    }

    /// Times of the task's stages; `None` if times are not recorded.
    fn _times(&self) -> Option<TimesRow> {
        self.cell.times.as_ref().map(|times| times.row())
    }

    // The garbage collector needs the next two methods, because futures are often in a cycle: a future holds an
    // exception, its traceback holds frames, and one of the frames holds the future.

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(Decoded::Value(object) | Decoded::Raised(object)) = self.decoded.get() {
            visit.call(object)?;
        }
        if let Some(watch) = self.watch.get() {
            visit.call(&watch.condition)?;
            visit.call(&watch.waiters)?;
            // A list that another thread is changing is not garbage.
            if let Ok(callbacks) = watch.callbacks.try_lock() {
                callbacks.iter().try_for_each(|callback| visit.call(callback))?;
            }
        }
        Ok(())
    }

    /// Drops the callbacks, but keeps the outcome: a holder of the future may still ask for the outcome. The cycle is
    /// broken nevertheless, because exceptions and frames drop their own references.
    fn __clear__(&self) {
        if let Some(watch) = self.watch.get() {
            let callbacks = watch.callbacks.try_lock().map(|mut list| std::mem::take(&mut *list));
            drop(callbacks);
        }
    }

    // `concurrent.futures.wait` and `as_completed` use the following attributes.

    #[getter]
    fn _state<'py>(&self, py: Python<'py>) -> Bound<'py, pyo3::types::PyString> {
        match self.cell.stage() {
            Stage::Pending | Stage::Cancelling => intern!(py, "PENDING"),
            Stage::Running | Stage::Ending => intern!(py, "RUNNING"),
            Stage::Finished => intern!(py, "FINISHED"),
            Stage::Cancelled => intern!(py, "CANCELLED_AND_NOTIFIED"),
        }
        .clone()
    }

    #[getter]
    fn _condition(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(Self::watch(slf)?.condition.clone_ref(slf.py()))
    }

    #[getter]
    fn _waiters(slf: &Bound<'_, Self>) -> PyResult<Py<PyList>> {
        Ok(Self::watch(slf)?.waiters.clone_ref(slf.py()))
    }

    #[getter]
    fn _result(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(match self.finished(py)? {
            Some(Decoded::Value(value)) => Some(value.clone_ref(py)),
            _ => None,
        })
    }

    #[getter]
    fn _exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(match self.finished(py)? {
            Some(Decoded::Raised(exception)) => Some(exception.clone_ref(py)),
            _ => None,
        })
    }
}

/// Finishes the watched tasks that have an outcome, and tells their watchers. Only the core's own thread may call this
/// function: it calls callbacks, and a callback may need a lock that another thread holds while that thread waits for
/// its own task.
pub fn finish_all(py: Python<'_>, core: &ExecutorCore) {
    while core.has_to_finish.swap(false, Ordering::AcqRel) {
        let cells = std::mem::take(&mut *locked(&core.to_finish));
        // The output of these tasks arrived before their outcomes, and is shown first.
        core.show_or_tell(py);
        for cell in cells {
            finish_watched(py, core, &cell);
        }
    }
}

/// Makes the core's own thread finish the watched tasks that have an outcome.
pub fn finish_others(py: Python<'_>, core: &ExecutorCore) {
    if !core.has_to_finish.load(Ordering::Acquire) {
        return;
    }
    if core.keeper.is_current() {
        finish_all(py, core);
    } else {
        core.keeper.wake(&core.invoker);
    }
}

/// Finishes a task and calls its callbacks, unless another thread does.
fn finish_watched(py: Python<'_>, core: &ExecutorCore, cell: &TaskCell) {
    let Some(future) = cell.take_watcher() else {
        return;
    };
    core.watched.fetch_sub(1, Ordering::Relaxed);
    let future = future.bind(py);
    let told = tell(py, cell, future).and_then(|()| call_back(py, future));
    if !cell.is_done() {
        cell.finish();
    }
    if let Err(error) = told {
        error.write_unraisable(py, Some(future));
    }
}

/// Finishes the task that this thread waits for; the core's own thread calls its callbacks.
fn finish(py: Python<'_>, cell: &TaskCell) -> PyResult<()> {
    match cell.watcher(py) {
        Some(future) => tell(py, cell, future.bind(py)),
        None => {
            // Another thread is finishing the task.
            py.detach(std::thread::yield_now);
            Ok(())
        }
    }
}

/// Tells waiters, under the future's condition: see [`crate::client::tasks::state`].
fn tell(py: Python<'_>, cell: &TaskCell, future: &Bound<'_, PyAny>) -> PyResult<()> {
    let task = future.cast::<Task>()?.get();
    let Some(watch) = task.watch.get() else {
        return Ok(());
    };
    let condition = watch.condition.bind(py);
    condition.call_method0(intern!(py, "acquire"))?;
    let told = if cell.is_done() {
        Ok(())
    } else {
        cell.finish();
        tell_waiters(py, cell, task, watch, future)
    };
    condition.call_method0(intern!(py, "release"))?;
    told
}

fn tell_waiters(
    py: Python<'_>,
    cell: &TaskCell,
    task: &Task,
    watch: &Watchers,
    future: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let waiters = watch.waiters.bind(py);
    if waiters.is_empty() {
        return Ok(());
    }
    let name = match cell.stage() {
        Stage::Cancelled => intern!(py, "add_cancelled"),
        _ => match task.decoded(py) {
            Ok(Decoded::Raised(_)) => intern!(py, "add_exception"),
            _ => intern!(py, "add_result"),
        },
    };
    let mut told = Ok(());
    // The loop uses a copy, because waiters that are told may remove themselves.
    for waiter in waiters.get_slice(0, waiters.len()) {
        told = told.and(waiter.call_method1(name, (future,)).map(drop));
    }
    told
}

fn call_back(py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(watch) = future.cast::<Task>()?.get().watch.get() else {
        return Ok(());
    };
    let callbacks = std::mem::take(&mut *Task::callbacks(watch));
    let mut told = Ok(());
    for callback in callbacks {
        let called = decode::called(py, intern!(py, "call_back"))?.call1((callback, future));
        told = told.and(called.map(drop));
    }
    told
}

/// Error of every operation that a forked child tries on its parent's executor.
pub fn forked() -> PyErr {
    PyRuntimeError::new_err(
        "this executor belongs to the process that was forked: its workers answer only there; make an Executor in this process",
    )
}

fn not_yours() -> PyErr {
    PyRuntimeError::new_err("only its executor resolves a hotlease.Future")
}
