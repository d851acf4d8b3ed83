//! L3: the dataflow kernel.

#![forbid(unsafe_code)]

mod edges;
mod event;
mod flow;
mod id;
mod memo;
mod nodes;
mod ready;
mod workers;

pub use event::{Action, Admission, Bound, Event, Heard, Limits, Outcome, Place, Refusal, Task};
pub use flow::{Flow, Input, Load, Phase};
pub use id::{Key, TaskId, WorkerIndex};
pub use workers::{CREDITS_MAX, WORKERS_MAX};
