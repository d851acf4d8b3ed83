//! Output of tasks in the core: taken out of replies, and shown.

use super::ExecutorCore;
use crate::client::output::{LAST_PATIENCE, PATIENCE};
use crate::client::tasks::target::Target;
use crate::client::tasks::task_times::TaskTimes;
use crate::task_output;
use hotlease_wire::task::reply;
use pyo3::prelude::*;
use std::sync::Arc;

/// Function that a reply belongs to, and times of its task, if they are recorded.
pub type ReplyOwner<'a> = (&'a Arc<Target>, Option<&'a Arc<TaskTimes>>);

impl ExecutorCore {
    /// Removes the task's output from a reply, and the running time if it was asked for. The output is shown later.
    /// Returns the length that is left.
    #[inline]
    pub fn strip_output(&self, (target, times): ReplyOwner<'_>, worker: usize, reply: &mut [u8]) -> usize {
        let mut length = reply.len();
        if let Some((end, pieces)) = task_output::split(reply) {
            self.showing.leave((target, worker), pieces, self.guard().is_some());
            reply[0] &= !task_output::FLAG;
            length = end;
        }
        if let Some(times) = times
            && let Some(ns) = reply::take_time(&mut reply[..length])
        {
            times.set_running(ns);
        }
        length
    }

    /// Shows the output of ended tasks.
    #[inline]
    pub fn show(&self, py: Python<'_>) -> PyResult<()> {
        if self.showing.is_any() && !self.is_foreign() {
            return self.showing.show(py, PATIENCE);
        }
        Ok(())
    }

    /// Shows the output of ended tasks where no caller can receive an error.
    pub fn show_or_tell(&self, py: Python<'_>) {
        self.showing.show_or_tell(py, PATIENCE);
    }

    /// Shows the last output.
    pub fn show_the_last(&self) {
        if self.showing.is_any() {
            // `None` while the interpreter ends: no one can see the output then.
            Python::try_attach(|py| self.showing.show_or_tell(py, LAST_PATIENCE));
        }
    }
}
