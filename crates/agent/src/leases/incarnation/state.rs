//! Saved state of an incarnation, if its lease has one: when it is found, restored, saved and ended.

use super::{Incarnation, IncarnationState, not_started, worker_died};
use crate::leases::cause::KillReason;
use crate::leases::libraries::LoadedCode;
use crate::workers::worker::{StartError, StartedWorker};
use hotlease_wire::{Cause, EndReason, Rejection};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Time for saving a state while a batch job waits for the node.
const BEFORE_JOB_LIMIT: Duration = Duration::from_millis(80);

impl Incarnation {
    /// Finds the state, before there is a worker.
    pub(super) async fn find_state(&self) -> Result<(), StartError> {
        match &self.keeping {
            Some(keeping) => keeping.begin().await,
            None => Ok(()),
        }
    }

    /// Restores the state before the worker serves any client, if code that understands the state is loaded already.
    pub(super) async fn restore_state(&self, worker: &StartedWorker, codes: &[LoadedCode]) -> Result<(), StartError> {
        match &self.keeping {
            Some(keeping) if !codes.is_empty() => keeping.restore(worker).await,
            _ => Ok(()),
        }
    }

    /// Restores the state once the worker has loaded the lease's library. If that fails, the worker is killed.
    pub async fn restore_loaded(&self) -> Result<(), Rejection> {
        // An incarnation that has ended meanwhile has put its state back.
        let (IncarnationState::Up(worker), Some(keeping)) = (self.state(), &self.keeping) else {
            return Ok(());
        };
        let why = tokio::select! {
            biased;
            () = self.until_killed() => return Err(worker_died(self.wait_for_end().await)),
            restored = keeping.restore(&worker) => match restored {
                Ok(()) => return Ok(()),
                Err(why) => why,
            },
        };
        self.kill(KillReason::Unusable("its state was not restored"));
        let (_, output) = self.wait_for_end().await;
        Err(worker_died((not_started(why), output)))
    }

    /// Saves the state at the end of its lease, before the worker is killed, if no function runs.
    pub(super) async fn save_state(&self, worker: &Arc<StartedWorker>) {
        let limit = match *self.killed.borrow() {
            Some(KillReason::LeaseEnded(EndReason::BatchJob(_))) => Some(BEFORE_JOB_LIMIT),
            Some(KillReason::LeaseEnded(_)) => Some(Duration::MAX),
            _ => None,
        };
        if let (Some(keeping), Some(limit)) = (&self.keeping, limit)
            && self.running().next().is_none()
        {
            let (keeping, worker) = (Arc::clone(keeping), Arc::clone(worker));
            // Saving is a task of its own. If it waits for another save of this state, or for the file system, it
            // continues after the limit, and ends with the worker. Its result is ignored, because `save` records it.
            let saving = tokio::spawn(async move { keeping.save(&worker, limit).await.is_ok() });
            let _ = timeout(limit, saving).await;
        }
    }

    /// Text about the incarnation's end, for the report of a state that was not saved.
    pub(super) fn end_text(&self, cause: &Cause) -> String {
        let runs = self.running().next().is_some();
        let while_running = if runs { " while a function ran" } else { "" };
        format!("{cause}{while_running}")
    }

    /// Ends the use of the state, and makes a written state durable. `why`: text about the incarnation's end.
    pub(super) async fn end_state(&self, why: &str) {
        if let Some(keeping) = &self.keeping {
            keeping.end(why.to_owned()).await;
        }
    }
}
