//! Base of `hotlease.Executor`: submits tasks, and releases everything at the end.

use crate::client::calls::encode::{self, Callable, Functions};
use crate::client::calls::options::{self, TaskOptions};
use crate::client::core::dataflow::PlanRefusal;
use crate::client::core::keeper;
use crate::client::core::{Closed, ExecutorCore};
use crate::client::dataflow::checkpoint::CheckpointFile;
use crate::client::dataflow::graph::Graph;
use crate::client::futures::decode;
use crate::client::futures::future::{self, finish_others, forked};
use crate::client::futures::inputs::{self, FutureInput};
use crate::client::growth;
use crate::client::memory::ResultView;
use crate::client::output::OutputQueue;
use crate::client::tasks::hint::Hint;
use crate::client::tasks::job::{TaskJob, Waiter};
use crate::client::tasks::outcome::TaskOutcome;
use crate::client::tasks::planned_tasks::PlannedTask;
use crate::client::tasks::request::TaskPayload;
use crate::client::tasks::state::TaskCell;
use crate::client::tasks::target::{Blob, Estimates, MemoChoice, Rerun, Target, TaskPlan};
use crate::client::tasks::task_times::{TaskTimes, TimesRecorder, TimesRow};
use crate::locks::locked;
use hotlease_client::{Code, Invoker, LeaseOptions};
use hotlease_fabric::clock::monotonic_ns;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Name of a function, and the times of one of its tasks.
type Record<'py> = (Bound<'py, PyString>, TimesRow);

/// Interval at which a waiting thread checks for Ctrl-C.
const SIGNAL_LOOK: Duration = Duration::from_millis(50);
/// The base of `hotlease.Executor`.
#[pyclass(subclass, frozen, module = "hotlease._core")]
pub struct Client {
    opened: OnceLock<Opened>,
}

pub(super) struct Opened {
    pub(super) core: Arc<ExecutorCore>,
    pub(super) functions: Functions,
    future: Py<PyAny>,
    pub(super) rerun: Rerun,
    /// Defaults for options that neither a task nor its function sets.
    plan: TaskPlan,
    hint: Hint,
    /// Records the times of tasks, if the options ask for that.
    recorder: Option<TimesRecorder>,
}

impl Client {
    pub(super) fn opened(&self) -> PyResult<&Opened> {
        self.opened
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("the executor was not opened: Executor.__init__ did not run"))
    }
}

impl Opened {
    /// Submits a task. `settled`: target of the function, if it is known already.
    pub(super) fn submit<'py>(
        &self,
        asked: Option<&TaskPlan>,
        (function, settled): (&Bound<'py, PyAny>, Option<&Arc<Target>>),
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let core = &self.core;
        if core.is_foreign() {
            return Err(forked());
        }
        let number = core.submitted.fetch_add(1, Ordering::Relaxed);
        let is_sample = Hint::is_measured(number);
        if is_sample && let Some((submitting, running)) = self.hint.give() {
            decode::called(py, intern!(py, "hint"))?.call1((submitting, running))?;
        }
        let times = (is_sample || self.recorder.is_some()).then(TaskTimes::begin);
        let found = settled.map_or_else(
            || self.functions.of_call(function, args, self.rerun),
            |target| Ok((target.clone(), args.clone())),
        );
        let (target, args) = match found {
            Ok(found) => found,
            Err(error) => return unsendable(py, self, None, error),
        };
        let (mut payload, inputs) = match encode::call((function, &target), &args, kwargs, core) {
            Ok(encoded) => encoded,
            Err(error) => return unsendable(py, self, Some(target), error),
        };
        let mut room_ns = 0;
        if !core.has_room(py) {
            let since = monotonic_ns();
            await_room(py, core)?;
            room_ns = monotonic_ns() - since;
        }
        if let Some(times) = &times {
            payload.ask_time();
            times.accepted();
            // Library functions are short, and their arguments long: packing more calls into one task would not help.
            if is_sample && matches!(target.blob, Blob::Pickle(_)) {
                self.hint.measure(times);
            }
            if let Some(recorder) = &self.recorder {
                recorder.keep(&target, times);
            }
        }
        let is_usual = inputs.is_empty() && asked.is_none() && target.plan.is_plain() && self.plan.is_plain();
        let cell = Arc::new(TaskCell::new(times));
        if !is_usual {
            let task = (cell.clone(), target, payload);
            let (future, waited_ns) = self.plan(asked, function, task, &args, kwargs, inputs)?;
            if let Some(times) = &cell.times {
                times.submitted(room_ns + waited_ns);
            }
            return Ok(future);
        }
        let (future, core) = (self.future.bind(py), core.clone());
        let future = future::make(future, cell.clone(), core, Some(target.clone()))?;
        let mut job = TaskJob::new(Waiter::Future(cell.clone()), target, payload);
        job.priority = job.target.plan.priority.unwrap_or(0);
        match self.core.accept(py, job) {
            Ok(()) => {
                if let Some(times) = &cell.times {
                    times.submitted(room_ns);
                }
                Ok(future)
            }
            Err(closed) => Err(closed_error(py, &closed)),
        }
    }

    /// Submits a task that depends on other tasks, or is to be retried or memoised. Returns its future, and the time
    /// spent waiting for room.
    fn plan<'py>(
        &self,
        asked: Option<&TaskPlan>,
        function: &Bound<'py, PyAny>,
        (cell, target, payload): (Arc<TaskCell>, Arc<Target>, TaskPayload),
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        inputs: Vec<FutureInput>,
    ) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let (py, core) = (function.py(), &self.core);
        let mut waited_ns = 0;
        let plan = target.plan.or(&self.plan);
        let plan = asked.map_or_else(|| plan.clone(), |asked| asked.or(&plan));
        if plan.memo == Some(MemoChoice::Content)
            && let Err(error) = inputs::hash_function(&target, function)
        {
            return Ok((unsendable(py, self, Some(target), error)?, 0));
        }
        let meaning = match plan.memo {
            Some(MemoChoice::Content) => inputs::meaning(core, &payload, args, kwargs)?,
            _ => None,
        };
        let (mut sources, mut foreign) = inputs::sources(core, inputs)?;
        let class = self.future.bind(py);
        let future = future::make(class, cell.clone(), core.clone(), Some(target.clone()))?;
        let mut planned = PlannedTask::new(cell, target.clone(), payload, plan.settle(&target));
        planned.meaning = meaning;
        loop {
            match core.plan(py, planned, &sources) {
                Ok(()) => break,
                Err(PlanRefusal::Full(again)) => {
                    planned = again;
                    let since = monotonic_ns();
                    make_room(py, core)?;
                    waited_ns += monotonic_ns() - since;
                }
                Err(PlanRefusal::Encode(again)) => {
                    planned = again;
                    // Ends the promises of the refused attempt, because the task is encoded anew.
                    foreign.iter().for_each(|(node, _)| core.end_foreign(*node, None));
                    let inputs;
                    (planned.payload, inputs) = encode::call((function, &target), args, kwargs, core)?;
                    if planned.cell.times.is_some() {
                        planned.payload.ask_time();
                    }
                    (sources, foreign) = inputs::sources(core, inputs)?;
                }
                Err(PlanRefusal::Closed(closed)) => {
                    foreign.iter().for_each(|(node, _)| core.end_foreign(*node, None));
                    return Err(closed_error(py, &closed));
                }
            }
        }
        for (node, future) in &foreign {
            inputs::await_foreign(py, core, *node, future)?;
        }
        Ok((future, waited_ns))
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

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(opened) = self.opened.get() else {
            return Ok(());
        };
        visit.call(&opened.future)?;
        opened.functions.traverse(&visit)
    }

    fn __clear__(&self) {
        if let Some(opened) = self.opened.get() {
            opened.functions.clear();
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
        let invoker = allocate(py, asked.lease)?;
        let functions = Functions::default();
        let mut graph = Graph::new(asked.pending_max);
        let memory = match &asked.checkpoint {
            None => CheckpointFile::default(),
            Some(path) => py
                .detach(|| CheckpointFile::open(path, &mut graph))
                .map_err(|error| decode::raise(py, intern!(py, "OptionError"), (error.to_string(), false)))?,
        };
        let initializer = match initializer {
            None => None,
            Some((function, args)) => Some(prepare(&functions, &function, &args)?),
        };
        let bounds = (asked.queue_bytes, asked.pending_max);
        let results = (OutputQueue::new(asked.show), asked.classes);
        let core = py.detach(|| ExecutorCore::new(invoker, bounds, (graph, memory), initializer, results));
        let core = core.map_err(|error| decode::exception(py, &error))?;
        keeper::start(&core, future::finish_all)?;
        growth::start(&core);
        if asked.lends {
            core.lend_when_idle();
        }
        let opened = Opened {
            core,
            functions,
            future,
            rerun: asked.rerun,
            plan: asked.plan,
            hint: Hint::default(),
            recorder: (asked.timing > 0).then(|| TimesRecorder::new(asked.timing as usize)),
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
        let opened = self.opened()?;
        opened.submit(None, (function, None), args, kwargs)
    }

    /// Submits a task with the options `asking`.
    #[pyo3(signature = (asking, function, /, *args, **kwargs))]
    fn _submit_as<'py>(
        &self,
        asking: &Bound<'py, TaskOptions>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.opened()?;
        opened.submit(Some(&asking.get().0), (function, None), args, kwargs)
    }

    /// Returns memory for an array of the program; tasks get the array without a copy. See ``Executor.empty``.
    fn _memory(&self, py: Python<'_>, bytes: usize) -> PyResult<ResultView> {
        let core = &self.opened()?.core;
        if core.is_foreign() {
            return Err(forked());
        }
        let given = py.detach(|| core.pool.give(&core.invoker, bytes));
        given.map_err(|error| decode::exception(py, &error))
    }

    /// Problems with the checkpoint since the last call.
    fn _warnings(&self) -> Vec<String> {
        let opened = self.opened.get();
        opened.map_or_else(Vec::new, |opened| opened.core.memory.warnings())
    }

    /// Number of slots that tasks run on.
    fn _slots(&self) -> PyResult<usize> {
        Ok(self.opened()?.core.slots.load(Ordering::Relaxed))
    }

    /// Number of tasks that have not ended.
    fn _pending(&self) -> PyResult<usize> {
        let core = &self.opened()?.core;
        // In a fork no task is pending, and the lock may have been held when the process was forked.
        Ok(if core.is_foreign() { 0 } else { core.state().pending })
    }

    /// Number of tasks that were submitted.
    fn _submitted(&self) -> PyResult<u64> {
        Ok(self.opened()?.core.submitted.load(Ordering::Relaxed))
    }

    /// The last tasks that were submitted: name of the function, and times; `None` if times are not recorded.
    fn _records<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Record<'py>>>> {
        let named = |(target, row): (Arc<Target>, TimesRow)| (PyString::intern(py, &target.name), row);
        let recorder = self.opened()?.recorder.as_ref();
        Ok(recorder.map(|recorder| recorder.rows().into_iter().map(named).collect()))
    }

    /// Stops accepting tasks; see ``Executor.shutdown``.
    fn _shutdown(&self, py: Python<'_>, wait: bool, cancel_futures: bool) -> PyResult<()> {
        let Some(Opened { core, .. }) = self.opened.get() else {
            return Ok(());
        };
        if core.is_foreign() {
            return Ok(());
        }
        py.detach(|| close(core, cancel_futures));
        finish_others(py, core);
        if wait { await_end(py, core) } else { Ok(()) }
    }
}

/// Takes the lease. Meanwhile Python imports the modules that the first task needs, which takes about the same time.
fn allocate(py: Python<'_>, lease: LeaseOptions) -> PyResult<Invoker> {
    let take = || Invoker::allocate(&Code::python(), lease);
    let (taken, imported) = if decode::is_imported(py) {
        (py.detach(take), Ok(()))
    } else {
        std::thread::scope(|scope| -> PyResult<_> {
            let thread = std::thread::Builder::new().name("hotlease-opening".into());
            let taking = thread.spawn_scoped(scope, take)?;
            let imported = decode::called(py, intern!(py, "import_early")).and_then(|early| early.call0().map(drop));
            let taken = py.detach(|| taking.join());
            Ok((taken.unwrap_or_else(|panic| resume_unwind(panic)), imported))
        })?
    };
    match (taken, imported) {
        (Ok(invoker), Ok(())) => Ok(invoker),
        (Ok(invoker), Err(error)) => {
            // For instance Ctrl-C. The GIL is released, because dropping the invoker waits for the agent.
            py.detach(|| drop(invoker));
            Err(error)
        }
        (Err(error), imported) => Err(imported.err().unwrap_or_else(|| decode::exception(py, &error))),
    }
}

fn await_room(py: Python<'_>, core: &Arc<ExecutorCore>) -> PyResult<()> {
    while !core.has_room(py) {
        make_room(py, core)?;
    }
    Ok(())
}

fn make_room(py: Python<'_>, core: &Arc<ExecutorCore>) -> PyResult<()> {
    py.detach(|| core.make_room());
    finish_others(py, core);
    py.check_signals()
}

/// Executors that were dropped with tasks pending: the program does not end before these tasks have ended.
static DROPPED: Mutex<Vec<Weak<ExecutorCore>>> = Mutex::new(Vec::new());

fn await_end(py: Python<'_>, core: &Arc<ExecutorCore>) -> PyResult<()> {
    if core.keeper.is_current() {
        return Ok(());
    }
    while !core.ended.load(Ordering::Acquire) {
        py.detach(|| {
            let guard = locked(&core.progress.0);
            if !core.ended.load(Ordering::Acquire) {
                drop(core.progress.1.wait_timeout(guard, SIGNAL_LOOK));
            }
        });
        finish_others(py, core);
        py.check_signals()?;
    }
    Ok(())
}

/// Waits, at the end of the program, for the tasks of dropped executors.
#[pyfunction]
pub fn _await_dropped(py: Python<'_>) -> PyResult<()> {
    let dropped = std::mem::take(&mut *locked(&DROPPED));
    let left = dropped.iter().filter_map(Weak::upgrade);
    let mut mine = left.filter(|core| !core.is_foreign());
    mine.try_for_each(|core| await_end(py, &core))
}

impl Drop for Client {
    fn drop(&mut self) {
        // As in concurrent.futures: submitted tasks still run, and then everything is released.
        if let Some(opened) = self.opened.get()
            && !opened.core.is_foreign()
        {
            close(&opened.core, false);
            let mut dropped = locked(&DROPPED);
            // Forgets the cores that have ended: no reference to them is left.
            dropped.retain(|core| core.strong_count() > 0);
            dropped.push(Arc::downgrade(&opened.core));
        }
    }
}

pub(super) fn close(core: &Arc<ExecutorCore>, cancel_futures: bool) {
    let mut state = core.state();
    if state.closed.is_none() {
        state.closed = Some(Closed::ShutDown);
    }
    drop(state);
    if cancel_futures {
        core.cancel_queued();
    }
    core.keeper.wake(&core.invoker);
}

/// Makes a failed future for a task that cannot be sent, as `ProcessPoolExecutor` does.
fn unsendable<'py>(
    py: Python<'py>,
    opened: &Opened,
    target: Option<Arc<Target>>,
    error: PyErr,
) -> PyResult<Bound<'py, PyAny>> {
    // The lock is not held any more below, because `not_sent` and `make` run Python code.
    let closed = opened.core.state().closed.clone();
    if let Some(closed) = closed {
        return Err(closed_error(py, &closed));
    }
    let raised = decode::called(py, intern!(py, "not_sent"))?.call1((error.into_value(py),))?;
    let cell = TaskCell::with_outcome(TaskOutcome::Raised(raised.unbind()));
    future::make(opened.future.bind(py), Arc::new(cell), opened.core.clone(), target)
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

type Initializer = (Arc<Target>, Box<[u8]>);

fn prepare(functions: &Functions, function: &Bound<'_, PyAny>, args: &Bound<'_, PyTuple>) -> PyResult<Initializer> {
    let py = function.py();
    let prepare = decode::called(py, intern!(py, "prepare"))?;
    let mut all = vec![function.clone()];
    all.extend(args.iter());
    let args = PyTuple::new(py, all)?;
    let (Callable::Target(target) | Callable::Argument(target)) = functions.find(&prepare, Rerun::Forbidden)?;
    let request = encode::encode_kept(&target, &args)?;
    let name = function.getattr(intern!(py, "__qualname__"));
    let name = name.and_then(|name| name.extract::<String>());
    let named = Target {
        key: target.key,
        blob: target.blob.clone(),
        name: name
            .or_else(|_| function.get_type().qualname().map(|name| name.to_string()))?
            .into(),
        rerun: Rerun::Forbidden,
        plan: TaskPlan::default(),
        content: OnceLock::new(),
        estimates: Estimates::default(),
    };
    Ok((Arc::new(named), request))
}
