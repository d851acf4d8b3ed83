//! What tasks, workers and computations are called.

use std::fmt;

/// "No entry" in tables whose entries are named by 32 bits.
pub(crate) const NIL: u32 = u32::MAX;

/// Names a task. Never comes again: the place of a task that is gone is used by others under another generation.
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

/// A worker, by a number that the driver gives it, from 0 up: a place in tables, so the smaller the better. A number is free
/// again when its worker is down and the last task on it has been reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub u32);

/// Says what a task computes: a hash of its function and arguments, made by the driver. Two tasks of the same key are taken
/// for the same computation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
