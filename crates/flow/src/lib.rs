//! L3: the dataflow kernel. It decides which task may run, and where, how the end of a task affects other tasks, and
//! which results are still needed.
//!
//! ```text
//!                    ┌── inputs done ──┐   credit of a worker      the driver reports
//!   submit ──▶ Waiting ─────────────▶ Ready ─────────────▶ Running ──────────▶ Done ──▶ forgotten
//!                │                     │  ◀── retry, not run ──┘ │ └─────────▶ Failed     when no claim
//!                └── an input failed ──┴──▶ DependencyFailed     └── cancel ─▶ Cancelled  is left
//! ```
//!
//! The kernel is pure: [`Flow::submit`] and [`Flow::step`] take an event, and append the actions to carry out to a
//! list. The kernel has no clock, thread, lock or I/O, and does not depend on the code that runs. Payloads, results and
//! errors are types of the driver: the kernel stores such values and returns each exactly once. A driver (the Python
//! package's, a thread pool, a simulator) owns the kernel, carries out its actions, and reports.
//!
//! * **Dependencies** are results of earlier tasks, so there are no cycles. Ready tasks are ordered by priority, then
//!   age.
//! * **Workers** have credits: the largest number of tasks that a worker may have at a time.
//! * **Results** stay where they were made. A task goes to the worker that has most bytes of its inputs; missing
//!   inputs are forwarded from worker to worker, once. When neither a holder nor a task needs a result any more, it is
//!   dropped, also on its workers.
//! * **Failure** of a run is retried within the task's limit. When the limit is reached, the task fails, and each
//!   dependent task fails once, with the [chain](Flow::chain) that leads to the task where the failure began.
//! * **Cancelling** a task that has not started ends it, and fails the tasks that depend on it. A running task is
//!   stopped, and its result depends on how the run ends: if it returned a result nevertheless, the task is done, else
//!   it is cancelled and never starts again.
//! * **Bounds**: beyond [`FlowLimits`] a submission is refused, with the number of tasks or inputs to wait for. It can
//!   be tried again after [`FlowAction::Room`].
//! * **Memoisation**: tasks with the same [`MemoKey`] are one computation, pending or done.
//!
//! Beside the kernel, [`pace`] decides how many tasks a driver sends ahead to a worker.
//!
//! ```
//! use hotlease_flow::{FlowAction, FlowEvent, Flow, FlowLimits, RunOutcome, ResultPlace, FlowTask, WorkerIndex};
//!
//! // Tasks are functions of numbers here, results are numbers, errors are texts.
//! type Function = fn(&[i64]) -> i64;
//! let mut flow: Flow<Function, i64, String> = Flow::new(FlowLimits::default());
//! let mut actions = Vec::new();
//!
//! let two = flow.submit(FlowTask::new((|_| 2) as Function), &[], &mut actions)?.task();
//! let three = flow.submit(FlowTask::new((|_| 3) as Function), &[], &mut actions)?.task();
//! let sum = flow.submit(FlowTask::new((|inputs| inputs.iter().sum()) as Function), &[two, three], &mut actions)?.task();
//! // Only `sum` needs them now.
//! flow.step(FlowEvent::Release { task: two }, &mut actions);
//! flow.step(FlowEvent::Release { task: three }, &mut actions);
//!
//! // One worker that takes one task at a time.
//! flow.step(FlowEvent::WorkerUp { worker: WorkerIndex(0), credits: 1 }, &mut actions);
//! while !actions.is_empty() {
//!     for action in std::mem::take(&mut actions) {
//!         if let FlowAction::Run { task, attempt, .. } = action {
//!             let inputs: Vec<i64> = flow.inputs(task).map(|input| *input.result).collect();
//!             let function = flow.payload(task).expect("it runs");
//!             let outcome = RunOutcome::Done { result: function(&inputs), bytes: 8, place: ResultPlace::Here };
//!             flow.step(FlowEvent::Ended { task, attempt, outcome }, &mut actions);
//!         }
//!     }
//! }
//! assert_eq!(flow.result(sum), Some(&5));
//! assert_eq!(flow.result(two), None, "dropped as soon as the sum was there");
//! # Ok::<(), hotlease_flow::SubmitError<Function>>(())
//! ```
//!
//! A failure, and how it is reported:
//!
//! ```
//! use hotlease_flow::{FlowAction, FlowEvent, Flow, FlowLimits, RunOutcome, FlowTask, WorkerIndex};
//!
//! let mut flow: Flow<&str, (), &str> = Flow::new(FlowLimits::default());
//! let mut actions = Vec::new();
//! let read = flow.submit(FlowTask::new("read").tag(1), &[], &mut actions)?.task();
//! let parse = flow.submit(FlowTask::new("parse").tag(2), &[read], &mut actions)?.task();
//! let draw = flow.submit(FlowTask::new("draw").tag(3), &[parse], &mut actions)?.task();
//! flow.step(FlowEvent::WorkerUp { worker: WorkerIndex(0), credits: 1 }, &mut actions);
//!
//! actions.clear();
//! flow.step(FlowEvent::Ended { task: read, attempt: 1, outcome: RunOutcome::Failed("no such file") }, &mut actions);
//! assert_eq!(actions.len(), 3, "each of the three has failed");
//! let chain: Vec<_> = flow.chain(draw).collect();
//! assert_eq!(chain, [draw, parse, read]);
//! assert_eq!(flow.error(read), Some(&"no such file"));
//! # Ok::<(), hotlease_flow::SubmitError<&str>>(())
//! ```

#![forbid(unsafe_code)]

pub mod checkpoint;
mod edges;
mod event;
mod flow;
mod id;
mod memo;
mod nodes;
pub mod pace;
mod ready;
mod workers;

pub use checkpoint::{Checkpoint, CheckpointError, CheckpointRecord, CheckpointReplay};
pub use event::{
    Admission, FlowAction, FlowEvent, FlowLimits, FlowTask, LimitKind, Reaction, ResultPlace, RunOutcome, SubmitError,
};
pub use flow::{Flow, FlowLoad, TaskInput, TaskPhase};
pub use id::{MemoKey, TaskId, WorkerIndex};
pub use workers::{CREDITS_MAX, WORKERS_MAX};
