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
    /// With the bytes of a reply.
    Reply(Box<[u8]>),
    /// With a reply in shared memory.
    Large(Box<Extent>),
    /// With a reply that stays with a worker.
    Away(Arc<RemoteResult>),
    /// Without a reply.
    Failed(Box<Failed>),
    /// The function ran, but its result is lost for this reason.
    Lost(Box<str>),
    /// With this exception.
    Raised(Py<PyAny>),
    /// The task was not sent: no worker can be prepared, for this reason.
    Unprepared(Box<str>),
    /// A task that this one needs has no result.
    Dependency(Box<FailureChain>),
    /// With this outcome, which other tasks share.
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

    /// Whether a task that this one needs has no result.
    pub fn is_dependency(&self) -> bool {
        match self {
            Self::Dependency(_) => true,
            Self::Shared(shared) => shared.is_dependency(),
            _ => false,
        }
    }

    /// The bytes of a reply.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Reply(bytes) => Some(bytes),
            Self::Large(extent) => Some(extent.bytes()),
            Self::Away(away) => away.local_outcome()?.bytes(),
            Self::Shared(shared) => shared.bytes(),
            _ => None,
        }
    }

    /// The remote result behind this outcome, if it is, or was, one.
    pub fn remote_result(&self) -> Option<&Arc<RemoteResult>> {
        match self {
            Self::Away(away) => Some(away),
            Self::Shared(shared) => shared.remote_result(),
            _ => None,
        }
    }

    /// Bytes that dependent tasks are sent: the reply, or the location reply of a remote result.
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
    /// The task that was not run, the task that it needs, the task that this one needs, and so on towards `root`; at
    /// most [`FailureChain::NAMED_MAX`].
    pub nearest: Vec<Arc<Target>>,
    /// Number of tasks between the last of `nearest` and `root`.
    pub between: usize,
}

impl FailureChain {
    /// Limit of the tasks that are named.
    const NAMED_MAX: usize = 8;

    /// Chain of a task that needs a task that failed or that was itself not run.
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
    /// Number of workers that died of the task, this time included.
    pub deaths: u8,
}

/// The error of a task, with the name of the task's function: for workers, one function runs all tasks, and the error
/// names that one.
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
