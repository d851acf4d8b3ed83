//! Events that a driver reports to the kernel, and actions that the kernel orders.

use crate::id::{MemoKey, TaskId, WorkerIndex};

/// Limits of the kernel. A submission that would exceed a limit is refused with an error that names what to wait for;
/// no task is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLimits {
    /// Largest number of tasks that have not ended.
    pub pending_max: u32,
    /// Largest number of known tasks: pending tasks, and ended tasks whose result is still held.
    pub tasks_max: u32,
    /// Largest number of inputs of all tasks together.
    pub inputs_max: u32,
    /// Largest number of finished computations that are remembered by their key. Beyond it, the least recently used
    /// computation is forgotten.
    pub memo_max: u32,
    /// Largest size of the results of all remembered computations together, bytes.
    pub memo_bytes_max: u64,
    /// Number of worker deaths after which a task is not tried again, even if it is idempotent.
    pub deaths_max: u8,
}

impl Default for FlowLimits {
    /// A million pending tasks, eight million known tasks, 16 million inputs, a million keys with 1 GiB of results, two
    /// deaths.
    fn default() -> Self {
        Self {
            pending_max: 1 << 20,
            tasks_max: 1 << 23,
            inputs_max: 1 << 24,
            memo_max: 1 << 20,
            memo_bytes_max: 1 << 30,
            deaths_max: 2,
        }
    }
}

/// A task to submit. `P` is the payload that the driver runs: a closure, an object, a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTask<P> {
    /// The payload to run. It is returned with the task's end, exactly once.
    pub payload: P,
    /// The driver's own number, kept as long as the task is known; see [`Flow::tag`](crate::Flow::tag).
    pub tag: u64,
    /// Priority; tasks with a higher priority run first.
    pub priority: i32,
    /// How often the task is tried again after [`RunOutcome::Failed`].
    pub retries: u16,
    /// Whether the task may run again after its worker died during a run.
    pub idempotent: bool,
    /// Key of the computation, for memoisation.
    pub key: Option<MemoKey>,
}

impl<P> FlowTask<P> {
    /// Makes a task that runs once, with priority 0, and is not remembered.
    pub fn new(payload: P) -> Self {
        Self {
            payload,
            tag: 0,
            priority: 0,
            retries: 0,
            idempotent: false,
            key: None,
        }
    }

    /// Sets the driver's own number.
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Sets the priority.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets how often the task is tried again after a failure.
    pub fn retries(self, retries: u16) -> Self {
        Self { retries, ..self }
    }

    /// Allows that the task runs again after its worker died during a run.
    pub fn idempotent(self) -> Self {
        let idempotent = true;
        Self { idempotent, ..self }
    }

    /// Sets the key under which the task is remembered.
    pub fn key(self, key: MemoKey) -> Self {
        let key = Some(key);
        Self { key, ..self }
    }
}

/// Result of a submission. In both cases the caller holds one claim on the result, see [`FlowEvent::Release`].
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<P> {
    /// The submission made a new task.
    Accepted(TaskId),
    /// A task with the same key is done or pending already. The payload is returned, and will not run.
    Joined {
        /// Task of the computation.
        task: TaskId,
        /// The submitted payload.
        payload: P,
    },
}

impl<P> Admission<P> {
    /// The task that has or will have the result.
    pub fn task(&self) -> TaskId {
        match self {
            Self::Accepted(task) | Self::Joined { task, .. } => *task,
        }
    }
}

/// Reason why a submission was refused. Nothing has changed, and the payload is returned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError<P> {
    /// A bound of [`FlowLimits`] is reached. The submission can be tried again after [`FlowAction::Room`].
    #[error("{what} ({limit} at most): wait until {wait_for} of them are gone")]
    Full {
        /// The bound that is reached.
        what: LimitKind,
        /// Value of the bound.
        limit: u32,
        /// Number of entries that must be removed before [`FlowAction::Room`] follows.
        wait_for: u32,
        /// The submitted payload.
        payload: P,
    },
    /// The task has more inputs than all tasks together may have, so it can never be submitted.
    #[error("a task with {inputs} inputs will never fit: {limit} at most for all tasks together")]
    TooManyInputs {
        /// Number of the task's inputs.
        inputs: usize,
        /// Largest number of inputs of all tasks together.
        limit: u32,
        /// The submitted payload.
        payload: P,
    },
    /// An input is not a known task: its last claim was released before.
    #[error("input {input} is not known: a task must be held until those that need it are submitted")]
    UnknownInput {
        /// The unknown input.
        input: TaskId,
        /// The submitted payload.
        payload: P,
    },
}

/// Bounds that a submission can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitKind {
    /// [`FlowLimits::pending_max`].
    #[error("too many tasks are pending")]
    Pending,
    /// [`FlowLimits::tasks_max`]: results must be released.
    #[error("too many results are held")]
    Tasks,
    /// [`FlowLimits::inputs_max`].
    #[error("pending tasks have too many inputs")]
    Inputs,
}

/// Place of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultPlace {
    /// With the driver: `R` is the value itself, and is sent along with the tasks that need it.
    Here,
    /// On the worker that made it: `R` is only a stand-in.
    Worker,
}

/// End of a run of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOutcome<R, E> {
    /// The run returned.
    Done {
        /// The result, or its stand-in.
        result: R,
        /// Size of the result in bytes, for placement and for the memo's limit.
        bytes: u64,
        /// Place of the result.
        place: ResultPlace,
    },
    /// The run failed, and is retried as often as the task allows.
    Failed(E),
    /// The run failed in a way that makes another run useless.
    Fatal(E),
    /// The worker died while the task ran, or may have run. The task is tried again only if it is idempotent, and up to
    /// [`FlowLimits::deaths_max`].
    Died(E),
    /// The run did not start. The task is queued again, and this run is not counted as a try.
    NotRun,
    /// The run was stopped, as ordered.
    Stopped,
}

/// Event that a driver reports to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvent<R, E> {
    /// A worker accepts up to `credits` tasks at a time from now on. With 0 credits, it only finishes its present
    /// tasks. If the worker is known, this changes its credits.
    WorkerUp {
        /// The worker.
        worker: WorkerIndex,
        /// Largest number of tasks that the worker may have at a time, up to [`CREDITS_MAX`](crate::CREDITS_MAX).
        credits: u32,
    },
    /// A worker is gone, with the results that were on it. The driver must also report the end of each of the worker's
    /// runs, because only the driver can find out how each run ended.
    WorkerDown {
        /// The worker.
        worker: WorkerIndex,
    },
    /// A run ended. The end of a promise is also reported by this event, as attempt 0.
    Ended {
        /// The task.
        task: TaskId,
        /// The run's number, from [`FlowAction::Run`].
        attempt: u32,
        /// How the run ended.
        outcome: RunOutcome<R, E>,
    },
    /// A holder does not want the task any more. Tasks that wait for it fail. If the task has other holders, only this
    /// claim is released.
    Cancel {
        /// The task.
        task: TaskId,
    },
    /// Adds a claim on a task's result.
    Hold {
        /// The task.
        task: TaskId,
    },
    /// Releases a claim. When the last claim of holders and dependent tasks is gone, an ended task is forgotten and
    /// its result dropped; a pending task continues.
    Release {
        /// The task.
        task: TaskId,
    },
    /// The driver wants the value itself: [`FlowAction::Fetch`] follows once the task is done, unless the driver
    /// already has the value.
    Want {
        /// The task.
        task: TaskId,
    },
    /// The driver has the value now. The value replaces the stand-in, which is returned.
    Fetched {
        /// The task.
        task: TaskId,
        /// The value.
        result: R,
    },
    /// A result is not on a worker as expected: a copy failed, or the worker has dropped it.
    CopyLost {
        /// The task.
        task: TaskId,
        /// The worker that does not have it.
        worker: WorkerIndex,
    },
}

/// Reaction of the kernel to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The event was applied.
    Applied,
    /// The event names a task, run or worker that is over or unknown, or exceeds a limit. Nothing has changed. A result
    /// or error in the event is returned by [`FlowAction::Dropped`].
    Stale,
    /// The task to cancel had already ended.
    TooLate,
    /// The task to cancel runs: [`FlowAction::Stop`] was ordered, and the task's end will be reported. If the run
    /// returns a result nevertheless, the task is done.
    Stopping,
    /// The task has other holders, too, and continues for them.
    Shared,
}

/// Action that the kernel orders, or report of the kernel. The order is significant: inputs are forwarded before the
/// run that needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowAction<P, R, E> {
    /// Run the task; [`Flow::payload`](crate::Flow::payload) and [`Flow::inputs`](crate::Flow::inputs) return payload
    /// and inputs.
    Run {
        /// The task.
        task: TaskId,
        /// Number of the run, from 1.
        attempt: u32,
        /// The worker that runs it.
        worker: WorkerIndex,
    },
    /// Stop this run. The driver reports its end as usual.
    Stop {
        /// The task.
        task: TaskId,
        /// Number of the run.
        attempt: u32,
        /// The worker that runs it.
        worker: WorkerIndex,
    },
    /// Copy a result from one worker to another worker, where a run needs it.
    Forward {
        /// Task that made the result.
        task: TaskId,
        /// Size of the result.
        bytes: u64,
        /// Worker that has the result.
        from: WorkerIndex,
        /// Worker that needs the result.
        to: WorkerIndex,
    },
    /// Copy a result to the driver; [`FlowEvent::Fetched`] is the answer.
    Fetch {
        /// Task that made the result.
        task: TaskId,
        /// Worker that has the result.
        from: WorkerIndex,
    },
    /// The task is done; [`Flow::result`](crate::Flow::result) has the result.
    Done {
        /// The task.
        task: TaskId,
        /// The payload that ran.
        payload: Option<P>,
    },
    /// A run failed, and another run will follow.
    Retried {
        /// The task.
        task: TaskId,
        /// Number of the failed run.
        attempt: u32,
        /// Reason of the failure.
        error: E,
    },
    /// The task has failed; [`Flow::chain`](crate::Flow::chain) returns the tasks from this task to the task where the
    /// failure began.
    Failed {
        /// The task.
        task: TaskId,
        /// The payload that ran, or was to run.
        payload: Option<P>,
        /// The task that failed first: this task, or a task on which it depends.
        root: TaskId,
    },
    /// The task was cancelled.
    Cancelled {
        /// The task.
        task: TaskId,
        /// The payload that ran, or was to run.
        payload: Option<P>,
    },
    /// The result of a done task was lost with its worker. The tasks that still needed it fail.
    Lost {
        /// The task.
        task: TaskId,
        /// The stand-in of the result.
        result: R,
    },
    /// A worker need not keep a result any longer.
    Forget {
        /// Task that made the result.
        task: TaskId,
        /// The worker.
        worker: WorkerIndex,
    },
    /// No task, holder or driver needs this value any more: the driver may drop it.
    Dropped {
        /// Task to which the value belonged.
        task: TaskId,
        /// The result or error.
        value: Result<R, E>,
    },
    /// There is room again after a refusal: refused tasks can be submitted again.
    Room {
        /// Number of further tasks that may be pending.
        free: u32,
    },
}
