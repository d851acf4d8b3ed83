//! Place of a worker, and its move to another shared core while it serves.
//!
//! The book takes places on the new core before the order, and frees the places on the old core after the worker's
//! answer. A worker that does not answer occupies both cores until it dies, because it may be on either core.

use super::{Incarnation, IncarnationState};
use crate::leases::book_steps::BookSteps;
use crate::leases::supply::WorkerSupply;
use crate::leases::terms::ServedLease;
use crate::workers::worker::{OrderError, StartedWorker};
use hotlease_lease::agent::BookEvent;
use hotlease_sandbox::Kind;
use hotlease_wire::control::WorkerOrder;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Cores of a worker.
pub(super) struct WorkerPlace {
    /// Core of each slot; on a shared core, the same core for all slots.
    cores: Vec<u32>,
    /// Shared core to which it is being moved.
    moving_to: Option<u32>,
}

impl WorkerPlace {
    pub fn new(cores: Vec<u32>) -> Self {
        Self { cores, moving_to: None }
    }
}

impl Incarnation {
    fn place(&self) -> MutexGuard<'_, WorkerPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cores, one for each slot; on a shared core, the same core for all slots.
    pub fn cores(&self) -> Vec<u32> {
        self.place().cores.clone()
    }

    /// The core that it shares with others (the first of its cores), and the core to which it is being moved.
    pub fn shared_core(&self) -> (Option<u32>, Option<u32>) {
        let place = self.place();
        (place.cores.first().copied(), place.moving_to)
    }

    /// Notes that it may use this core from now on; [`change_core`](Self::change_core) follows.
    pub fn begin_move(&self, core: u32) {
        self.place().moving_to = Some(core);
    }

    /// Orders its worker to move to another shared core, waits for the answer, and reports the result to the book.
    pub async fn change_core(
        self: Arc<Self>,
        core: u32,
        book: Arc<impl BookSteps>,
        supply: Arc<WorkerSupply>,
        lease: ServedLease,
    ) {
        let moved = self.order_move(core, &supply, &lease).await;
        {
            let mut place = self.place();
            place.moving_to = None;
            if moved.is_ok() {
                place.cores.fill(core);
            }
        }
        match &moved {
            Ok(()) => tracing::debug!(lease = %lease.id, worker = %self.index, core, "worker moved to an idle core"),
            Err(why) => tracing::debug!(lease = %lease.id, worker = %self.index, core, why, "worker not moved"),
        }
        // The book cannot refuse this event, which only reports.
        let _ = book.step(BookEvent::WorkerMoved {
            lease: lease.id,
            worker: self.index,
            epoch: self.epoch,
            moved: moved.is_ok(),
        });
    }

    async fn order_move(&self, core: u32, supply: &WorkerSupply, lease: &ServedLease) -> Result<(), String> {
        let (IncarnationState::Up(worker), (Some(before), _)) = (self.state(), self.shared_core()) else {
            return Err("it does not serve".into());
        };
        let claim = supply.claims.of(core).map_err(|error| error.to_string())?;
        // The kernel may confine a sandbox to its cores. The sandbox first gets both cores, so that its threads can
        // move from one to the other. Then it gets only the core that the worker uses.
        limit_cores(&worker, lease, vec![before, core]).await?;
        let answer = worker.send(&WorkerOrder::Move { core }, &[claim.fd()]);
        let moved = answer.wait_while_alive().await.map_err(|error| match error {
            OrderError::Failed(why) => why,
            OrderError::Died | OrderError::TimedOut => "it died".into(),
        });
        let at = if moved.is_ok() { core } else { before };
        if let Err(error) = limit_cores(&worker, lease, vec![at]).await {
            tracing::warn!(lease = %lease.id, worker = %self.index, error, "a worker may use a core that it has left");
        }
        moved
    }
}

/// Limits a worker's sandbox, if it has one, to these cores.
async fn limit_cores(worker: &StartedWorker, lease: &ServedLease, cores: Vec<u32>) -> Result<(), String> {
    match lease.terms.sandbox {
        Kind::Process => Ok(()),
        _ => worker.limit(lease.terms.memory_bytes, cores).await.map(drop),
    }
}
