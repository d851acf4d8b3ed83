//! What is remembered beyond the end of the program: results of memoised tasks, in a checkpoint file (`hotlease-flow`).
//!
//! The graph gives out what is to be written; the keeper writes it, without any lock that a task needs.

use super::core::Core;
use super::graph::Graph;
use hotlease_flow::Checkpoint;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Warnings that are told of one file.
const TOLD_MAX: usize = 4;

/// The file, if there is one.
#[derive(Default)]
pub struct Memory {
    file: Mutex<Option<Checkpoint>>,
    /// What went wrong since somebody asked.
    warnings: Mutex<Vec<String>>,
}

impl Memory {
    /// What is in a checkpoint, as far as it is whole, into the graph; it is written to from now on.
    pub fn open(path: &Path, graph: &mut Graph) -> Result<Self, hotlease_flow::CheckpointError> {
        let (file, replay) = Checkpoint::open(path)?;
        let memory = Self::default();
        for found in replay {
            match found {
                // The last one of a key would be as good; there is only one.
                Ok(record) => drop(graph.restore(record.key, record.value)),
                Err(damage) => memory.warn(damage.to_string()),
            }
        }
        graph.unwritten = Some(Vec::new());
        *memory.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(memory)
    }

    fn warn(&self, text: String) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < TOLD_MAX {
            warnings.push(text);
        }
    }

    /// What went wrong since this was called last; nothing of it concerns a task.
    pub fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Core {
    /// Writes what tasks have left, and hands it to the system; to the disk if it is the `last` time.
    pub fn write_checkpoint(&self, last: bool) {
        let mut file = self.memory.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(checkpoint) = &mut *file else { return };
        let unwritten = match &mut self.state().graph.unwritten {
            Some(unwritten) if !unwritten.is_empty() => std::mem::take(unwritten),
            _ if last => Vec::new(),
            _ => return,
        };
        for (key, outcome) in unwritten {
            let Some(bytes) = outcome.bytes() else { continue };
            if let Err(error) = checkpoint.append(key, bytes) {
                self.memory.warn(error.to_string());
            }
        }
        let written = if last {
            checkpoint.sync()
        } else {
            checkpoint.flush()
        };
        if let Err(error) = written {
            self.memory.warn(error.to_string());
        }
        if last {
            // Others may have it from now on.
            *file = None;
        }
    }
}
