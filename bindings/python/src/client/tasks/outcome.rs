//! Outcomes of tasks: replies, failures, and the paths of failures to tasks that were not run.

use super::remote_results::RemoteResult;
use super::target::Target;
use crate::client::memory::Extent;
use hotlease_client::Error;
use hotlease_wire::task::reply;
use pyo3::prelude::*;
use std::sync::Arc;

/// End of a task.
pub enum TaskOutcome {
    /// The task has a reply, in these bytes.
    Reply(Box<[u8]>),
    /// The task has a reply in shared memory.
    Large(Box<Extent>),
    /// The task has a reply that stays with a worker.
    Away(Arc<RemoteResult>),
    /// The task has no reply, because of this failure.
    Failed(Box<Failed>),
    /// The function ran, but its result is lost for this reason.
    Lost(Box<str>),
    /// The task has this exception.
    Raised(Py<PyAny>),
    /// The task was not sent: no worker can be prepared, for this reason.
    Unprepared(Box<str>),
    /// The task was not run, because a task that it needs has no result.
    Dependency(Box<FailureChain>),
    /// The task has this outcome, which other tasks share.
    Shared(Arc<TaskOutcome>),
}

impl TaskOutcome {
    /// Makes the outcome shareable among several tasks.
    pub fn share(self) -> Arc<Self> {
        match self {
            Self::Shared(shared) => shared,
            other => Arc::new(other),
        }
    }

    /// Whether the task was not run because a task that it needs has no result.
    pub fn is_dependency(&self) -> bool {
        match self {
            Self::Dependency(_) => true,
            Self::Shared(shared) => shared.is_dependency(),
            _ => false,
        }
    }

    /// Returns the bytes of the reply; `None` if there is no reply, or if it is not at the client.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Reply(bytes) => Some(bytes),
            Self::Large(extent) => Some(extent.bytes()),
            Self::Away(away) => away.local_outcome()?.bytes(),
            Self::Shared(shared) => shared.bytes(),
            _ => None,
        }
    }

    /// Returns the remote result of this outcome, also after it was brought to the client; `None` for other outcomes.
    pub fn remote_result(&self) -> Option<&Arc<RemoteResult>> {
        match self {
            Self::Away(away) => Some(away),
            Self::Shared(shared) => shared.remote_result(),
            _ => None,
        }
    }

    /// Bytes that are sent with dependent tasks: the reply, or the location reply of a remote result that is not at the
    /// client.
    pub fn sent_bytes(&self) -> Option<&[u8]> {
        match self.remote_result() {
            Some(away) => away.sent_bytes(),
            None => self.bytes(),
        }
    }

    /// Whether the outcome is a result that other tasks may use.
    pub fn is_result(&self) -> bool {
        if let Some(away) = self.remote_result() {
            return away.local_outcome().is_none_or(|here| here.is_result());
        }
        is_result(self.bytes().and_then(|bytes| bytes.first().copied()))
    }

    /// Whether the task itself raised an exception.
    pub fn is_raised(&self) -> bool {
        let kind = self.bytes().and_then(|bytes| bytes.first().copied());
        matches!(kind, Some(reply::EXCEPTION | reply::EXCEPTION_TEXT))
    }
}

/// Path of a failure to a task that was not run.
pub struct FailureChain {
    /// The task that failed first; `None`: a future that is not of this executor failed.
    pub root: Option<Arc<Target>>,
    /// The failure; `None`: the first task was cancelled.
    pub cause: Option<Arc<TaskOutcome>>,
    /// The task that was not run, and the tasks between it and `root`: each task needs the next one in the list. At
    /// most [`FailureChain::NAMED_MAX`].
    pub nearest: Vec<Arc<Target>>,
    /// Number of tasks between the last of `nearest` and `root`.
    pub between: usize,
}

impl FailureChain {
    /// Limit of the tasks that are named.
    const NAMED_MAX: usize = 8;

    /// Makes the chain of the task `target`, which was not run because of the task `needed`. `outcome`: the failure of
    /// `needed`; if `needed` was itself not run, its chain.
    pub fn of(target: Arc<Target>, needed: Option<&Arc<Target>>, outcome: Option<&Arc<TaskOutcome>>) -> Self {
        if let Some(TaskOutcome::Dependency(chain)) = outcome.map(|outcome| &**outcome) {
            let mut nearest = vec![target];
            nearest.extend(chain.nearest.iter().take(Self::NAMED_MAX - 1).cloned());
            return Self {
                root: chain.root.clone(),
                cause: chain.cause.clone(),
                between: chain.between + chain.nearest.len() + 1 - nearest.len(),
                nearest,
            };
        }
        Self {
            root: needed.cloned(),
            cause: outcome.cloned(),
            nearest: vec![target],
            between: 0,
        }
    }
}

/// Failure without a reply.
pub struct Failed {
    /// Error of the client library.
    pub error: Error,
    /// Number of workers that died of the task, the last worker included.
    pub deaths: u8,
}

/// Puts the name of the task's function into an error. Without this, the error names the function of the worker that
/// runs all tasks.
pub fn named(mut error: Error, target: &Target) -> Error {
    if let Error::WorkerDied {
        function: Some(function),
        ..
    } = &mut error
        && *function == crate::client::FUNCTION
    {
        *function = target.name.to_string();
    }
    error
}

/// Whether a reply of this kind is a result that other tasks may use.
pub fn is_result(kind: Option<u8>) -> bool {
    matches!(kind, Some(reply::PLAIN | reply::PICKLED))
}
