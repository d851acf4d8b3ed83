//! Names of tasks, workers and computations.

use std::fmt;

/// Marks "no entry" in tables whose indices have 32 bits.
pub(crate) const NIL: u32 = u32::MAX;

/// Name of a task. No name is used twice: a later task in the same table entry has another generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Number of a worker, chosen by the driver, from 0 up. It is an index into tables, so small numbers are better. The
/// driver may reuse a number when its worker is down and the end of the last task on it has been reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u32);

/// Key of a computation: a hash of a task's function and arguments, made by the driver. Two tasks with the same key are
/// treated as the same computation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoKey(pub [u8; 32]);

impl fmt::Debug for MemoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}
