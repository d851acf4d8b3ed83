//! Tasks: the functions that they call, their requests, states and outcomes. Nothing here knows an executor.

pub mod expected;
pub mod hint;
pub mod job;
pub mod planned_tasks;
pub mod queue;
pub mod remote_results;
pub mod task_cell;
pub mod task_times;
