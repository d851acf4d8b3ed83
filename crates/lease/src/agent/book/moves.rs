//! Moves of workers from one shared core to another.
//!
//! ```text
//!               Move                                   WorkerMoved { moved: true }
//!   on core 0 ────────► on core 0, with places on 1 ───────────────────────────────► on core 1
//!       ▲                            │
//!       └────────────────────────────┘ WorkerMoved { moved: false }, WorkerGone
//! ```
//!
//! A move takes the places on the new core at once, and gives the places on the old core back when the worker has
//! answered. So no other lease gets these places, on either core, while it is not known on which of the two the worker
//! is. The book is not written to disk: if an agent dies during a move, its workers die too, and its next run begins
//! with free cores.

use super::LeaseBook;
use crate::agent::{BookAction, WorkerState};
use crate::request::CoreUse;
use hotlease_wire::Rejection;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use std::collections::BTreeMap;

impl LeaseBook {
    /// Number of places that are not taken on each offered core that is free or shared.
    pub fn room(&self) -> BTreeMap<u32, u32> {
        self.cores.room()
    }

    /// Whether the agent has to look at shared cores: several workers may want one core, or a worker may use a core
    /// that it has left.
    pub fn shares_cores(&self) -> bool {
        let shared = self
            .leases
            .values()
            .filter(|lease| lease.request.spec.sharing == CoreUse::Shared);
        self.cores.is_any_crowded() || shared.flat_map(|lease| &lease.workers).any(|worker| worker.has_moved)
    }

    pub(super) fn move_worker(
        &mut self,
        id: LeaseId,
        index: WorkerIndex,
        epoch: Epoch,
        core: u32,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        let lease = self.active(id)?;
        let worker = lease.workers.get(usize::from(index.0)).filter(|worker| {
            let serves = worker.state == WorkerState::Serving && worker.epoch == epoch;
            serves && worker.moving_to.is_none() && worker.cores.first() != Some(&core)
        });
        let slots = match worker {
            Some(worker) if lease.request.spec.sharing == CoreUse::Shared => worker.cores.len() as u32,
            _ => {
                return Err(Rejection::BadRequest {
                    what: format!("worker {index} of lease {id} cannot be moved to core {core}"),
                });
            }
        };
        if !self.cores.take_places_on(core, slots) {
            return Err(Rejection::NoPlaces {
                asked: slots,
                free: self.free_places(),
                offered: self.offered_cores() * self.places_per_core(),
            });
        }
        self.active_mut(id)?.workers[usize::from(index.0)].moving_to = Some(core);
        actions.push(BookAction::MoveWorker {
            lease: id,
            worker: index,
            epoch,
            core,
        });
        Ok(())
    }

    pub(super) fn on_worker_moved(&mut self, id: LeaseId, index: WorkerIndex, epoch: Epoch, moved: bool) {
        let Some(lease) = self.incarnation(id, index, epoch) else {
            return;
        };
        let worker = &mut lease.workers[usize::from(index.0)];
        let Some(core) = worker.moving_to.take() else {
            return;
        };
        let mut left = vec![core; worker.cores.len()];
        if moved {
            std::mem::swap(&mut worker.cores, &mut left);
            worker.has_moved = true;
        }
        self.cores.give_back_places(left);
    }
}
