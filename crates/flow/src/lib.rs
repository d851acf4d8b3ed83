//! L3: the dataflow kernel: which task may run, where, what its end means to others, and which results are still needed.
//!
//! ```text
//!                    ┌── inputs done ──┐   credit of a worker      the driver reports
//!   submit ──▶ Waiting ─────────────▶ Ready ─────────────▶ Running ──────────▶ Done ──▶ forgotten
//!                │                     │  ◀── retry, not run ──┘ │ └─────────▶ Failed     when nobody
//!                └── an input failed ──┴──▶ DependencyFailed     └── cancel ─▶ Cancelled  holds it
//! ```
//!
//! The kernel is pure: [`Flow::submit`] and [`Flow::step`] take what happened, and add to a list what is to be done. It has no
//! clock, thread, lock or I/O, and knows nothing of what runs: payloads, results and errors are types of the driver's, which
//! are carried and handed back, exactly once each. A driver (the Python package's, a thread pool, a simulator) owns the
//! kernel, runs what it says, and reports.
//!
//! * **Dependencies** are results of earlier tasks, so there are no cycles. Ready tasks go by priority, then age.
//! * **Workers** have credits: no more tasks at a time than these.
//! * **Results** stay where they were made. A task goes to the worker with most bytes of its inputs; what is missing there
//!   is forwarded from worker to worker, once. When neither a holder nor a task needs a result, it is dropped and its
//!   workers are told.
//! * **Failure** is retried within the task's limit, then told to each dependent once, with the [chain](Flow::chain) that
//!   leads to where it began.
//! * **Cancelling** a task that has not started ends it, and fails what depends on it. One that runs is stopped, and what
//!   comes of that counts: a cancelled task never starts again, and one that finished all the same is done.
//! * **Bounds**: beyond [`Limits`] a submission is refused and says for how many it should wait; [`Action::Room`] calls it back.
//! * **Memoisation**: tasks with the same [`Key`] are one computation, pending or done.
//!
//! ```
//! use hotlease_flow::{Action, Event, Flow, Limits, Outcome, Place, Task, WorkerIndex};
//!
//! // Tasks are functions of numbers here, results are numbers, errors are texts.
//! type Function = fn(&[i64]) -> i64;
//! let mut flow: Flow<Function, i64, String> = Flow::new(Limits::default());
//! let mut actions = Vec::new();
//!
//! let two = flow.submit(Task::new((|_| 2) as Function), &[], &mut actions)?.task();
//! let three = flow.submit(Task::new((|_| 3) as Function), &[], &mut actions)?.task();
//! let sum = flow.submit(Task::new((|inputs| inputs.iter().sum()) as Function), &[two, three], &mut actions)?.task();
//! // Nobody but `sum` needs them now.
//! flow.step(Event::Release { task: two }, &mut actions);
//! flow.step(Event::Release { task: three }, &mut actions);
//!
//! // One worker that takes one task at a time.
//! flow.step(Event::WorkerUp { worker: WorkerIndex(0), credits: 1 }, &mut actions);
//! while !actions.is_empty() {
//!     for action in std::mem::take(&mut actions) {
//!         if let Action::Run { task, attempt, .. } = action {
//!             let inputs: Vec<i64> = flow.inputs(task).map(|input| *input.result).collect();
//!             let function = flow.payload(task).expect("it runs");
//!             let outcome = Outcome::Done { result: function(&inputs), bytes: 8, place: Place::Here };
//!             flow.step(Event::Ended { task, attempt, outcome }, &mut actions);
//!         }
//!     }
//! }
//! assert_eq!(flow.result(sum), Some(&5));
//! assert_eq!(flow.result(two), None, "dropped as soon as the sum was there");
//! # Ok::<(), hotlease_flow::Refusal<Function>>(())
//! ```
//!
//! A failure, and how it is told:
//!
//! ```
//! use hotlease_flow::{Action, Event, Flow, Limits, Outcome, Task, WorkerIndex};
//!
//! let mut flow: Flow<&str, (), &str> = Flow::new(Limits::default());
//! let mut actions = Vec::new();
//! let read = flow.submit(Task::new("read").tag(1), &[], &mut actions)?.task();
//! let parse = flow.submit(Task::new("parse").tag(2), &[read], &mut actions)?.task();
//! let draw = flow.submit(Task::new("draw").tag(3), &[parse], &mut actions)?.task();
//! flow.step(Event::WorkerUp { worker: WorkerIndex(0), credits: 1 }, &mut actions);
//!
//! actions.clear();
//! flow.step(Event::Ended { task: read, attempt: 1, outcome: Outcome::Failed("no such file") }, &mut actions);
//! assert_eq!(actions.len(), 3, "each of the three has failed");
//! let chain: Vec<_> = flow.chain(draw).collect();
//! assert_eq!(chain, [draw, parse, read]);
//! assert_eq!(flow.error(read), Some(&"no such file"));
//! # Ok::<(), hotlease_flow::Refusal<&str>>(())
//! ```

#![forbid(unsafe_code)]

pub mod checkpoint;
mod edges;
mod event;
mod flow;
mod id;
mod memo;
mod nodes;
mod ready;
mod workers;

pub use checkpoint::{Checkpoint, CheckpointError, Record, Replay};
pub use event::{Action, Admission, Bound, Event, Heard, Limits, Outcome, Place, Refusal, Task};
pub use flow::{Flow, Input, Load, Phase};
pub use id::{Key, TaskId, WorkerIndex};
pub use workers::{CREDITS_MAX, WORKERS_MAX};
