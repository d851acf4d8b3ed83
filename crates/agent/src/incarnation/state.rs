//! When the state of an incarnation is found, restored, saved and given up, where its lease has one.

use super::Incarnation;
use crate::cause::KillReason;
use crate::worker::{NotStarted, Worker};
use hotlease_wire::Cause;

impl Incarnation {
    /// Before there is a worker.
    pub(super) async fn find_state(&self) -> Result<(), NotStarted> {
        match &self.keeping {
            Some(keeping) => keeping.begin().await,
            None => Ok(()),
        }
    }

    /// Before it serves anybody.
    pub(super) async fn restore_state(&self, worker: &Worker) -> Result<(), NotStarted> {
        match &self.keeping {
            Some(keeping) => keeping.restore(worker).await,
            None => Ok(()),
        }
    }

    /// At the end of its lease, where nothing runs: before it is killed.
    pub(super) async fn save_state(&self, worker: &Worker) {
        let ended = matches!(*self.killed.borrow(), Some(KillReason::LeaseEnded(_)));
        if let Some(keeping) = self.keeping.as_ref().filter(|_| ended)
            && self.running().next().is_none()
        {
            // What becomes of it is told there.
            let _ = keeping.save(worker).await;
        }
    }

    /// It is gone, for this reason.
    pub(super) async fn end_state(&self, cause: &Cause) {
        if let Some(keeping) = &self.keeping {
            let runs = self.running().next().is_some();
            let while_running = if runs { " while a function ran" } else { "" };
            keeping.end(format!("{cause}{while_running}")).await;
        }
    }
}
