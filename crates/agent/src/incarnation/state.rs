//! When the state of an incarnation is found, restored, saved and given up, where its lease has one.

use super::{Incarnation, State, died, not_started};
use crate::active_lease::LoadedCode;
use crate::cause::KillReason;
use crate::worker::{NotStarted, Worker};
use hotlease_wire::{Cause, Refusal};

impl Incarnation {
    /// Before there is a worker.
    pub(super) async fn find_state(&self) -> Result<(), NotStarted> {
        match &self.keeping {
            Some(keeping) => keeping.begin().await,
            None => Ok(()),
        }
    }

    /// Before it serves anybody. Without any code there is nobody yet who understands it.
    pub(super) async fn restore_state(
        &self,
        worker: &Worker,
        codes: &[LoadedCode],
    ) -> Result<(), NotStarted> {
        match &self.keeping {
            Some(keeping) if !codes.is_empty() => keeping.restore(worker).await,
            _ => Ok(()),
        }
    }

    /// Once it has loaded the lease's library. If that cannot restore it, the worker is of no use.
    pub async fn restore_loaded(&self) -> Result<(), Refusal> {
        // What is gone meanwhile has its state with it again.
        let (State::Up(worker), Some(keeping)) = (self.state(), &self.keeping) else {
            return Ok(());
        };
        let why = tokio::select! {
            biased;
            () = self.until_killed() => return Err(died(self.gone().await)),
            restored = keeping.restore(&worker) => match restored {
                Ok(()) => return Ok(()),
                Err(why) => why,
            },
        };
        self.kill(KillReason::Unusable("its state was not restored"));
        let (_, output) = self.gone().await;
        Err(died((not_started(why), output)))
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
