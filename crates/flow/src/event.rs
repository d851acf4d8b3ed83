//! What a driver tells the kernel, and what the kernel wants done.

use crate::id::{Key, TaskId, WorkerIndex};

/// What is bounded. Beyond a bound a submission is refused, and says what to wait for; nothing is dropped and nothing grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tasks that have not ended, at most.
    pub pending_max: u32,
    /// Tasks that are known at all, at most: the pending ones, and those that ended and whose result somebody still holds.
    pub tasks_max: u32,
    /// Inputs of all tasks together, at most.
    pub inputs_max: u32,
    /// Finished computations that are remembered by their key, at most; the one not asked for the longest is forgotten.
    pub memo_max: u32,
    /// Bytes of their results, at most.
    pub memo_bytes_max: u64,
    /// After so many workers have died of a task it is not tried again, even an idempotent one.
    pub deaths_max: u8,
}

impl Default for Limits {
    /// A million pending tasks, eight million known ones, 16 million inputs, a million keys with 1 GiB of results, two deaths.
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

/// A task to submit. `P` is whatever the driver runs: a closure, an object, a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task<P> {
    /// What to run; comes back with the task's end, exactly once.
    pub payload: P,
    /// A number of the driver's own, kept as long as the task is known; see [`Flow::tag`](crate::Flow::tag).
    pub tag: u64,
    /// Higher ones run first.
    pub priority: i32,
    /// How often it is tried again after [`Outcome::Failed`].
    pub retries: u16,
    /// Whether it may run again after its worker died in the middle of it.
    pub idempotent: bool,
    /// What it computes, for memoisation.
    pub key: Option<Key>,
}

impl<P> Task<P> {
    /// Runs once, with priority 0, and is not remembered.
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

    /// With a number of the driver's own.
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// With another priority.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Tried again so often after it failed.
    pub fn retries(self, retries: u16) -> Self {
        Self { retries, ..self }
    }

    /// May run again after its worker died in the middle of it.
    pub fn idempotent(self) -> Self {
        let idempotent = true;
        Self { idempotent, ..self }
    }

    /// Remembered by what it computes.
    pub fn key(self, key: Key) -> Self {
        let key = Some(key);
        Self { key, ..self }
    }
}

/// What became of a submission. Either way the caller holds one claim on the result, see [`Event::Release`].
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<P> {
    /// A new task.
    Accepted(TaskId),
    /// The same computation was done already, or is pending: its task. The payload comes back, and will not run.
    Joined {
        /// Whose result it is.
        task: TaskId,
        /// What was to be submitted.
        payload: P,
    },
}

impl<P> Admission<P> {
    /// The task whose result it is.
    pub fn task(&self) -> TaskId {
        match self {
            Self::Accepted(task) | Self::Joined { task, .. } => *task,
        }
    }
}

/// Why a submission was not taken. Nothing has changed; the payload comes back.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal<P> {
    /// A bound of [`Limits`] is reached. [`Action::Room`] tells when it is worth trying again.
    #[error("{what} ({limit} at most): wait for {wait_for} of them to go")]
    Full {
        /// What there is too much of.
        what: Bound,
        /// The bound.
        limit: u32,
        /// How many must go before [`Action::Room`] comes.
        wait_for: u32,
        /// What was to be submitted.
        payload: P,
    },
    /// The task has more inputs than can be known of all tasks together: it will never fit.
    #[error("a task with {inputs} inputs will never fit: {limit} at most for all tasks together")]
    TooManyInputs {
        /// How many it has.
        inputs: usize,
        /// How many there may be.
        limit: u32,
        /// What was to be submitted.
        payload: P,
    },
    /// An input is no task that is known: its last claim was released before.
    #[error("input {input} is not known: a task must be held until those that need it are submitted")]
    UnknownInput {
        /// Which.
        input: TaskId,
        /// What was to be submitted.
        payload: P,
    },
}

/// What there may be too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    /// [`Limits::pending_max`].
    #[error("too many tasks are pending")]
    Pending,
    /// [`Limits::tasks_max`]: results must be released.
    #[error("too many results are held")]
    Tasks,
    /// [`Limits::inputs_max`].
    #[error("pending tasks have too many inputs")]
    Inputs,
}

/// Where a result stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// With the driver: `R` is the value itself, and travels with the tasks that need it.
    Here,
    /// On the worker that made it: `R` is only its name.
    Worker,
}

/// How a run of a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<R, E> {
    /// It returned.
    Done {
        /// Its result, or what stands for it.
        result: R,
        /// Size of the result: what placement and the memo's bound count.
        bytes: u64,
        /// Where the result is.
        place: Place,
    },
    /// It failed, and is tried again as often as its task says.
    Failed(E),
    /// It failed in a way that another run would not mend.
    Fatal(E),
    /// Its worker died while it ran, or may have run: tried again only if idempotent, and up to [`Limits::deaths_max`].
    Died(E),
    /// It did not start. Goes back to where it was, and this run does not count.
    NotRun,
    /// It was stopped, as wanted.
    Stopped,
}

/// What a driver tells the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<R, E> {
    /// A worker takes so many tasks at a time from now on; 0 lets it finish what it has. A known one has its credits changed.
    WorkerUp {
        /// Which.
        worker: WorkerIndex,
        /// Tasks that it may have at a time, up to [`CREDITS_MAX`](crate::CREDITS_MAX).
        credits: u32,
    },
    /// A worker is gone, and what stood on it. The driver reports each run that it had, because it knows how each ended.
    WorkerDown {
        /// Which.
        worker: WorkerIndex,
    },
    /// A run ended. A promise is ended by this too, as its attempt 0.
    Ended {
        /// Of which task.
        task: TaskId,
        /// Which run of it, from [`Action::Run`].
        attempt: u32,
        /// How.
        outcome: Outcome<R, E>,
    },
    /// Somebody does not want the task any more. What waits for it fails. While others hold it too, only this claim is given
    /// up.
    Cancel {
        /// Which.
        task: TaskId,
    },
    /// One more claim on a task's result.
    Hold {
        /// Which.
        task: TaskId,
    },
    /// One claim less. With the last one, of holders and of tasks that need it, an ended task is forgotten and its result
    /// dropped; a pending one goes on.
    Release {
        /// Which.
        task: TaskId,
    },
    /// Somebody wants the value itself: [`Action::Fetch`] follows once it is done, unless the driver has it.
    Want {
        /// Which.
        task: TaskId,
    },
    /// The driver has the value now; it takes the place of what stood for it, which is handed back.
    Fetched {
        /// Of which task.
        task: TaskId,
        /// The value.
        result: R,
    },
    /// A result is not on a worker on which it was thought to be: a copy failed, or the worker has dropped it.
    CopyLost {
        /// Of which task.
        task: TaskId,
        /// Where it is not.
        worker: WorkerIndex,
    },
}

/// How an event was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// As told.
    Taken,
    /// It speaks of a task, run or worker that is over or unknown, or is beyond a limit. Nothing has changed; a result or
    /// error that came with it is handed back by [`Action::Dropped`].
    Stale,
    /// A task to cancel has ended before.
    TooLate,
    /// A task to cancel runs: [`Action::Stop`] was given, and what becomes of it will be told. If it returns all the same,
    /// it is done.
    Stopping,
    /// Others hold the task too: it goes on, for them.
    Shared,
}

/// What the kernel wants done, or tells. In order: what a run needs is forwarded before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<P, R, E> {
    /// Run it; [`Flow::payload`](crate::Flow::payload) and [`Flow::inputs`](crate::Flow::inputs) have the rest.
    Run {
        /// Which.
        task: TaskId,
        /// Which run of it this is, from 1.
        attempt: u32,
        /// Where.
        worker: WorkerIndex,
    },
    /// Stop this run; it is reported as any other.
    Stop {
        /// Of which task.
        task: TaskId,
        /// Which run.
        attempt: u32,
        /// Where.
        worker: WorkerIndex,
    },
    /// Bring a result from one worker to another, where a run needs it.
    Forward {
        /// Whose result.
        task: TaskId,
        /// Its size.
        bytes: u64,
        /// Where it is.
        from: WorkerIndex,
        /// Where it is needed.
        to: WorkerIndex,
    },
    /// Bring a result here; [`Event::Fetched`] is the answer.
    Fetch {
        /// Whose result.
        task: TaskId,
        /// Where it is.
        from: WorkerIndex,
    },
    /// The task is done; [`Flow::result`](crate::Flow::result) has the result.
    Done {
        /// Which.
        task: TaskId,
        /// What ran.
        payload: Option<P>,
    },
    /// A run failed, and there will be another one.
    Retried {
        /// Which task.
        task: TaskId,
        /// Which run of it failed.
        attempt: u32,
        /// Why.
        error: E,
    },
    /// The task has failed; [`Flow::chain`](crate::Flow::chain) has the way to where that began.
    Failed {
        /// Which.
        task: TaskId,
        /// What ran, or was to run.
        payload: Option<P>,
        /// The task that failed first: itself, or one that it depends on.
        root: TaskId,
    },
    /// The task was cancelled.
    Cancelled {
        /// Which.
        task: TaskId,
        /// What ran, or was to run.
        payload: Option<P>,
    },
    /// The result of a task that was done is gone with its worker. What still needed it fails.
    Lost {
        /// Which.
        task: TaskId,
        /// What stood for it.
        result: R,
    },
    /// A worker need not keep a result any longer.
    Forget {
        /// Whose result.
        task: TaskId,
        /// Where.
        worker: WorkerIndex,
    },
    /// Nobody references this any more, or nobody wants it: the driver may let it go.
    Dropped {
        /// Whose it was.
        task: TaskId,
        /// What it was.
        value: Result<R, E>,
    },
    /// After a refusal: it is worth submitting again.
    Room {
        /// So many more may be pending.
        free: u32,
    },
}
