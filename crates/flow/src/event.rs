//! Events that a driver reports to the kernel, and actions that the kernel orders.

use crate::id::{MemoKey, TaskId, WorkerIndex};

/// Limits of the kernel. Beyond a limit a submission is refused, and says what to wait for; nothing is dropped or
/// grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLimits {
    /// Largest number of tasks that have not ended.
    pub pending_max: u32,
    /// Largest number of tasks that are known: the pending ones, and ended ones whose result is still held.
    pub tasks_max: u32,
    /// Largest number of inputs of all tasks together.
    pub inputs_max: u32,
    /// Largest number of finished computations that are remembered by their key; the least recently used is forgotten.
    pub memo_max: u32,
    /// Largest number of bytes of the results of remembered computations.
    pub memo_bytes_max: u64,
    /// Number of worker deaths after which a task is not tried again, even an idempotent one.
    pub deaths_max: u8,
}

impl Default for FlowLimits {
    /// A million pending tasks, eight million known ones, 16 million inputs, a million keys with 1 GiB of results,
    /// two deaths.
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

/// A task to submit. `P` is what the driver runs: a closure, an object, a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTask<P> {
    /// The payload to run; it is handed back with the task's end, exactly once.
    pub payload: P,
    /// The driver's own number, kept as long as the task is known; see [`Flow::tag`](crate::Flow::tag).
    pub tag: u64,
    /// Priority; tasks with a higher one run first.
    pub priority: i32,
    /// How often the task is tried again after [`RunOutcome::Failed`].
    pub retries: u16,
    /// Whether the task may run again after its worker died during a run.
    pub idempotent: bool,
    /// Key of the computation, for memoisation.
    pub key: Option<MemoKey>,
}

impl<P> FlowTask<P> {
    /// A task that runs once, with priority 0, and is not remembered.
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

    /// Lets the task run again after its worker died during a run.
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
    /// The same computation is done or pending already. The payload is handed back, and will not run.
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

/// Reason why a submission was refused. Nothing has changed; the payload is handed back.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError<P> {
    /// A bound of [`FlowLimits`] is reached. [`FlowAction::Room`] says when to try again.
    #[error("{what} ({limit} at most): wait until {wait_for} of them are gone")]
    Full {
        /// The bound that is reached.
        what: LimitKind,
        /// Value of the bound.
        limit: u32,
        /// How many must go before [`FlowAction::Room`] follows.
        wait_for: u32,
        /// The submitted payload.
        payload: P,
    },
    /// The task has more inputs than all tasks together may have: it will never fit.
    #[error("a task with {inputs} inputs will never fit: {limit} at most for all tasks together")]
    TooManyInputs {
        /// Number of its inputs.
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
    /// With the driver: `R` is the value itself, and travels with the tasks that need it.
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
        /// Size of the result in bytes: placement and the memo's limit count it.
        bytes: u64,
        /// Place of the result.
        place: ResultPlace,
    },
    /// The run failed, and is retried as often as the task allows.
    Failed(E),
    /// The run failed in a way that another run would not mend.
    Fatal(E),
    /// The worker died while the task ran, or may have run: retried only if idempotent, and up to
    /// [`FlowLimits::deaths_max`].
    Died(E),
    /// The run did not start. The task is queued again, and this run does not count.
    NotRun,
    /// The run was stopped, as ordered.
    Stopped,
}

/// Event that a driver reports to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowEvent<R, E> {
    /// A worker accepts this many tasks at a time from now on; 0 lets it finish its present tasks. For a known
    /// worker, its credits change.
    WorkerUp {
        /// The worker.
        worker: WorkerIndex,
        /// Largest number of tasks that the worker may have at a time, up to [`CREDITS_MAX`](crate::CREDITS_MAX).
        credits: u32,
    },
    /// A worker is gone, with the results that were on it. The driver reports each of its runs, because only the
    /// driver knows how each ended.
    WorkerDown {
        /// The worker.
        worker: WorkerIndex,
    },
    /// A run ended. The end of a promise is reported by this too, as its attempt 0.
    Ended {
        /// The task.
        task: TaskId,
        /// The run's number, from [`FlowAction::Run`].
        attempt: u32,
        /// How the run ended.
        outcome: RunOutcome<R, E>,
    },
    /// A holder does not want the task any more. The tasks that wait for it fail. If others hold the task too, only
    /// this claim is given up.
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
    /// its result dropped; a pending task goes on.
    Release {
        /// The task.
        task: TaskId,
    },
    /// The driver wants the value itself: [`FlowAction::Fetch`] follows once the task is done, unless the driver has
    /// the value.
    Want {
        /// The task.
        task: TaskId,
    },
    /// The driver has the value now; it replaces the stand-in, which is handed back.
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
    /// The event names a task, run or worker that is over or unknown, or is beyond a limit. Nothing has changed; a
    /// result or error in the event is handed back by [`FlowAction::Dropped`].
    Stale,
    /// The task to cancel has ended before.
    TooLate,
    /// The task to cancel runs: [`FlowAction::Stop`] was ordered, and the task's end will be reported. If the run
    /// returns nevertheless, the task is done.
    Stopping,
    /// The task has other holders, too: it goes on for them.
    Shared,
}

/// Action that the kernel orders, or news that it tells. The order counts: inputs are forwarded before the run that
/// needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowAction<P, R, E> {
    /// Run the task; [`Flow::payload`](crate::Flow::payload) and [`Flow::inputs`](crate::Flow::inputs) hold the
    /// rest.
    Run {
        /// The task.
        task: TaskId,
        /// Number of the run, from 1.
        attempt: u32,
        /// The worker that runs it.
        worker: WorkerIndex,
    },
    /// Stop this run; its end is reported as usual.
    Stop {
        /// The task.
        task: TaskId,
        /// Number of the run.
        attempt: u32,
        /// The worker that runs it.
        worker: WorkerIndex,
    },
    /// Bring a result from one worker to another, where a run needs it.
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
    /// Bring a result to the driver; [`FlowEvent::Fetched`] is the answer.
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
    /// A run failed, and another one will follow.
    Retried {
        /// The task.
        task: TaskId,
        /// Number of the failed run.
        attempt: u32,
        /// Reason of the failure.
        error: E,
    },
    /// The task has failed; [`Flow::chain`](crate::Flow::chain) has the way to the task where the failure began.
    Failed {
        /// The task.
        task: TaskId,
        /// The payload that ran, or was to run.
        payload: Option<P>,
        /// The task that failed first: this one, or one that it depends on.
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
        /// Task that the value belonged to.
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
