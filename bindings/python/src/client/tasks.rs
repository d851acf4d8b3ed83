//! Tasks: the functions that they call, their requests, states and outcomes. Nothing here depends on an executor.

pub mod expected;
pub mod hint;
pub mod job;
pub mod outcome;
pub mod planned_tasks;
pub mod queue;
pub mod remote_results;
pub mod request;
pub mod state;
pub mod target;
pub mod task_times;

use hotlease_flow::TaskId;

/// A run of a task of the graph: the task and the attempt.
pub type Run = (TaskId, u32);
