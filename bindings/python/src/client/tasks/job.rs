//! Jobs: tasks on their way, with what is sent and what is kept to send it again.

use super::remote_results::RemoteResult;
use super::request::TaskPayload;
use super::target::Target;
use super::task_cell::TaskCell;
use crate::client::memory::HEADROOM;
use hotlease_flow::TaskId;
use std::sync::Arc;

/// A task.
pub struct TaskJob {
    pub cell: Arc<TaskCell>,
    pub target: Arc<Target>,
    pub payload: TaskPayload,
    /// Number of workers that died of the task.
    pub deaths: u8,
    /// Number of workers that ended before they started the task.
    pub moves: u8,
    /// The task was sent before: it cannot be cancelled any more.
    pub sent: bool,
    /// The task prepares a worker: no future waits for it, but all tasks of that worker do.
    pub prepares: bool,
    /// Higher priorities are sent first.
    pub priority: i32,
    /// Whether the task may run again after its worker died.
    pub idempotent: bool,
    /// The graph's name of the task, and the number of its run; `None`: the graph does not know it, or only waits for
    /// it.
    pub node: Option<(TaskId, u32)>,
    /// The slot that holds most of the bytes that the task needs.
    pub near: Option<usize>,
    /// Whether its result may stay with its worker.
    pub stays: bool,
    /// The worker has to fetch a result that the task needs from another worker.
    pub has_left: bool,
    /// Set if this is not a task but another request to a worker.
    pub errand: Option<Box<Errand>>,
}

/// Requests to a worker that are not tasks.
pub enum Errand {
    /// Fetch a result that stayed with the worker.
    Fetch(Arc<RemoteResult>),
    /// Release some of these results.
    Release,
}

impl TaskJob {
    /// A task that was not sent.
    pub fn new(cell: Arc<TaskCell>, target: Arc<Target>, payload: TaskPayload) -> Self {
        Self {
            idempotent: target.idempotent,
            priority: 0,
            node: None,
            cell,
            target,
            payload,
            deaths: 0,
            moves: 0,
            sent: false,
            prepares: false,
            near: None,
            stays: true,
            has_left: false,
            errand: None,
        }
    }

    /// A request that is not a task; `target` only attributes it to a function.
    pub fn errand(errand: Errand, target: Arc<Target>, payload: Box<[u8]>) -> Self {
        let mut job = Self::new(Arc::new(TaskCell::new(None)), target, TaskPayload::Own(payload));
        (job.idempotent, job.sent, job.stays) = (false, true, false);
        job.errand = Some(Box::new(errand));
        job
    }

    /// Bytes that the job keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }

    /// Whether all of it may have to be copied to be sent.
    pub fn is_copied(&self) -> bool {
        let is_shared = matches!(self.payload, TaskPayload::Shared(_));
        self.idempotent || !is_shared || self.target.blob.len() > HEADROOM / 2
    }
}
