//! Memoised results that outlive the program, in a checkpoint file (`hotlease-flow`).
//!
//! The graph collects results to write; the keeper writes them, without any lock that a task needs.

use super::graph::{Graph, Unwritten};
use crate::locks::locked;
use hotlease_flow::Checkpoint;
use std::path::Path;
use std::sync::Mutex;

/// Limit of the warnings about one file.
const TOLD_MAX: usize = 4;

/// The checkpoint file, if there is one.
#[derive(Default)]
pub struct CheckpointFile {
    file: Mutex<Option<Checkpoint>>,
    /// Problems since the last call of `warnings`.
    warnings: Mutex<Vec<String>>,
}

impl CheckpointFile {
    /// Opens a checkpoint, restores its undamaged results into the graph, and keeps the file open for writing.
    pub fn open(path: &Path, graph: &mut Graph) -> Result<Self, hotlease_flow::CheckpointError> {
        let (file, replay) = Checkpoint::open(path)?;
        let memory = Self::default();
        for found in replay {
            match found {
                // The result of `restore` is not needed, because the file has one record for each key.
                Ok(record) => drop(graph.restore(record.key, record.value)),
                Err(damage) => memory.warn(damage.to_string()),
            }
        }
        graph.unwritten = Some(Vec::new());
        *locked(&memory.file) = Some(file);
        Ok(memory)
    }

    fn warn(&self, text: String) {
        let mut warnings = locked(&self.warnings);
        if warnings.len() < TOLD_MAX {
            warnings.push(text);
        }
    }

    /// Writes results and flushes them to the kernel; syncs them to the disk if this is the `last` call. `unwritten` is
    /// called if there is a file. It returns the results to write, or `None` if there is nothing to do.
    pub fn write(&self, last: bool, unwritten: impl FnOnce() -> Option<Unwritten>) {
        let mut file = locked(&self.file);
        let Some(checkpoint) = &mut *file else { return };
        let Some(unwritten) = unwritten() else { return };
        for (key, outcome) in unwritten {
            let Some(bytes) = outcome.bytes() else { continue };
            if let Err(error) = checkpoint.append(key, bytes) {
                self.warn(error.to_string());
            }
        }
        let written = if last { checkpoint.sync() } else { checkpoint.flush() };
        if let Err(error) = written {
            self.warn(error.to_string());
        }
        if last {
            // Another process may open the file from now on.
            *file = None;
        }
    }

    /// Returns the problems since the last call. They do not affect any task.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *locked(&self.warnings))
    }
}
