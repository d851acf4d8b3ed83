//! Functions that tasks call, and the options that functions declare for their tasks.

use super::expected::Expected;
use hotlease_client::Code;
use hotlease_flow::pace::FunctionPace;
use hotlease_wire::task::FunctionKey;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A function that tasks call. Its content identifies it.
pub struct Target {
    /// Name of the function on the wire.
    pub key: FunctionKey,
    /// Function or library, as it is sent to workers.
    pub blob: Blob,
    pub rerun: Rerun,
    /// Name shown to users; empty if users are shown the name of the function that this function calls.
    pub name: Box<str>,
    /// Declarations of the function for its tasks.
    pub plan: TaskPlan,
    /// Hash of the function's content, for memoisation; computed on first use.
    pub content: OnceLock<[u8; 32]>,
    /// Estimates for the function's next tasks.
    pub estimates: Estimates,
}

/// Estimates for the next tasks of a function, changed under the core's `state` only.
#[derive(Default)]
pub struct Estimates {
    /// Size of the next result.
    pub size: Expected,
    /// Time that the next task takes.
    pub pace: FunctionPace,
}

/// Whether a task may run again after its worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rerun {
    /// The task is idempotent.
    Allowed,
    Forbidden,
}

impl From<bool> for Rerun {
    fn from(idempotent: bool) -> Self {
        match idempotent {
            true => Self::Allowed,
            false => Self::Forbidden,
        }
    }
}

/// Form in which a function is sent.
#[derive(Clone)]
pub enum Blob {
    /// A pickle of a callable.
    Pickle(Arc<[u8]>),
    /// The library of a native function, which may hold other functions, too.
    Library(Code),
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pickle(bytes) => bytes,
            Self::Library(code) => code.bytes(),
        }
    }
}

/// Options that decide when a task is sent, whether it is sent again, and whether it is sent at all; `None`: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskPlan {
    /// Number of retries after the task raised an exception.
    pub retries: Option<u16>,
    /// Priority; tasks with higher priorities are sent first.
    pub priority: Option<i32>,
    /// Whether the result is memoised, and under which key.
    pub memo: Option<MemoChoice>,
    pub rerun: Option<Rerun>,
}

/// Options of a task, all of them set.
pub struct TaskPolicy {
    pub retries: u16,
    pub priority: i32,
    pub memo: MemoChoice,
    pub rerun: Rerun,
}

/// Key under which a result is memoised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoChoice {
    /// The result is not memoised.
    Not,
    /// Key made of the function and arguments.
    Content,
    /// The key that the program has given.
    Key(Box<[u8; 32]>),
}

impl TaskPlan {
    /// Returns these options; an option that is not set is taken from `other`.
    pub fn or(&self, other: &Self) -> Self {
        Self {
            retries: self.retries.or(other.retries),
            priority: self.priority.or(other.priority),
            memo: self.memo.clone().or_else(|| other.memo.clone()),
            rerun: self.rerun.or(other.rerun),
        }
    }

    /// Returns the options of a task of this function.
    pub fn settle(self, target: &Target) -> TaskPolicy {
        TaskPolicy {
            retries: self.retries.unwrap_or(0),
            priority: self.priority.unwrap_or(0),
            memo: self.memo.unwrap_or(MemoChoice::Not),
            rerun: self.rerun.unwrap_or(target.rerun),
        }
    }

    /// Whether no option needs the graph.
    pub fn is_plain(&self) -> bool {
        self.retries.unwrap_or(0) == 0 && matches!(self.memo, None | Some(MemoChoice::Not))
    }
}
