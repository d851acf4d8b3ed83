//! Options of an executor, read from a Python dict.

use crate::client::calls::encode::memo_of;
use crate::client::tasks::target::{Rerun, TaskPlan};
use hotlease_client::{LeaseOptions, Polling, Python, Spread};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::path::PathBuf;
use std::time::Duration;

/// Default limit of the bytes of tasks that may wait.
const QUEUE_BYTES: usize = 1 << 30;
/// Default limit of the tasks that may be pending.
const PENDING_MAX: u32 = 1_000_000;
/// Depth of the rings: enough for the no-op tasks that run between two collections of results by the keeper.
const DEPTH: u32 = 512;
/// Options of an executor.
pub struct ExecutorOptions {
    pub lease: LeaseOptions,
    pub rerun: Rerun,
    pub queue_bytes: usize,
    pub pending_max: u32,
    /// Defaults for the executor's tasks.
    pub plan: TaskPlan,
    /// Checkpoint file for memoised results.
    pub checkpoint: Option<PathBuf>,
    /// Whether other programs get the executor's cores while the executor is idle.
    pub lends: bool,
    /// Number of tasks whose times are kept.
    pub timing: u32,
    /// Callable that shows the output of tasks.
    pub show: Option<Py<PyAny>>,
    /// Classes that results from sandboxes may contain; `None`: results are trusted.
    pub classes: Option<Py<PyAny>>,
}

/// Options of the tasks that are submitted with this object; see `Executor.options`.
#[pyclass(frozen, module = "hotlease._core")]
pub struct TaskOptions(pub TaskPlan);

#[pymethods]
impl TaskOptions {
    #[new]
    #[pyo3(signature = (*, retries = None, priority = None, memo = None, idempotent = None))]
    fn new(
        retries: Option<u16>,
        priority: Option<i32>,
        memo: Option<&Bound<'_, PyAny>>,
        idempotent: Option<bool>,
    ) -> PyResult<Self> {
        Ok(Self(TaskPlan {
            retries,
            priority,
            memo: memo.map(memo_of).transpose()?,
            rerun: idempotent.map(Rerun::from),
        }))
    }
}

/// Reads all options; an unknown option is an error.
pub fn read(options: &Bound<'_, PyDict>) -> PyResult<ExecutorOptions> {
    let mut asked = ExecutorOptions {
        lease: LeaseOptions {
            depth: DEPTH,
            ..LeaseOptions::default()
        },
        rerun: Rerun::Forbidden,
        queue_bytes: QUEUE_BYTES,
        pending_max: PENDING_MAX,
        plan: TaskPlan::default(),
        checkpoint: None,
        lends: false,
        timing: 0,
        show: None,
        classes: None,
    };
    let lease = &mut asked.lease;
    for (name, value) in options {
        let name = name.cast_into::<PyString>()?;
        match name.to_str()? {
            "workers" => lease.workers = value.extract()?,
            "at_least" => lease.spread = Spread::AtLeast(value.extract()?),
            "state" => lease.state = value.extract()?,
            "memory" => lease.memory_bytes = value.extract()?,
            "gpus" => lease.gpus = value.extract()?,
            "sandbox" => lease.sandbox = value.extract()?,
            "mounts" => {
                let mounts = value.extract::<Vec<String>>()?;
                let read = mounts.iter().map(|text| text.parse()).collect::<Result<_, _>>();
                lease.reach.directories =
                    read.map_err(|error: hotlease_client::Error| PyValueError::new_err(error.to_string()))?;
            }
            "storage" => {
                let places = value.extract::<Vec<String>>()?;
                let read = places.iter().map(|text| text.parse()).collect::<Result<_, _>>();
                lease.reach.storage =
                    read.map_err(|bad: hotlease_client::StoragePlaceError| PyValueError::new_err(bad.to_string()))?;
            }
            "network" => lease.reach.network = value.extract()?,
            "polling" => lease.polling = polling(value.extract()?)?,
            "hot_budget" => lease.hot_budget = seconds("hot_budget", &value)?,
            "depth" => lease.depth = value.extract()?,
            "ttl" => lease.ttl = seconds("ttl", &value)?,
            "timeout" => lease.timeout = Some(seconds("timeout", &value)?),
            "patience" => lease.patience = seconds("patience", &value)?,
            "manager" => lease.manager = Some(value.extract()?),
            "identity" => lease.identity = Some(value.extract::<PathBuf>()?),
            "runtime_dir" => lease.runtime_dir = Some(value.extract::<PathBuf>()?),
            "transport" => lease.transport = Some(value.extract()?),
            "label" => lease.label = value.extract()?,
            "job" => lease.job = value.extract()?,
            "python" => lease.python = Some(python(&value.cast_into()?)?),
            "idempotent" => asked.rerun = value.extract::<bool>()?.into(),
            "queue_bytes" => asked.queue_bytes = value.extract()?,
            "max_pending" => asked.pending_max = value.extract::<u32>()?.max(1),
            "retries" => asked.plan.retries = Some(value.extract()?),
            "memo" => asked.plan.memo = Some(memo_of(&value)?),
            "lends" => asked.lends = value.extract()?,
            "timing" => asked.timing = value.extract()?,
            "output" => asked.show = Some(value.unbind()),
            "result_classes" => asked.classes = Some(value.unbind()),
            "checkpoint" => asked.checkpoint = Some(value.extract()?),
            other => return Err(PyTypeError::new_err(format!("Executor has no option {other:?}"))),
        }
    }
    Ok(asked)
}

fn python(of: &Bound<'_, PyDict>) -> PyResult<Python> {
    let item = |name: &str| {
        of.get_item(name)?
            .ok_or_else(|| PyTypeError::new_err(format!("python has no {name}")))
    };
    Ok(Python {
        interpreter: item("interpreter")?.extract()?,
        environment: item("environment")?.extract()?,
        path: item("path")?.extract()?,
        directory: item("directory")?.extract()?,
        version: item("version")?.extract()?,
        hotlease: item("hotlease")?.extract()?,
        cloudpickle: item("cloudpickle")?.extract()?,
        image: item("image")?.extract()?,
    })
}

pub(in crate::client) fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = value.extract()?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{name} must be a number of seconds from 0 on, not {seconds}")))
}

fn polling(name: &str) -> PyResult<Polling> {
    match name {
        "adaptive" => Ok(Polling::Adaptive),
        "hot" => Ok(Polling::Hot),
        "warm" => Ok(Polling::Warm),
        other => {
            let text = format!("polling is \"adaptive\", \"hot\" or \"warm\", not {other:?}");
            Err(PyValueError::new_err(text))
        }
    }
}
