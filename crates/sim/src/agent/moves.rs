//! An agent's daemon: moves of workers from one shared core to another.
//!
//! Moves are drawn at random, to any core and without a reason, because the promises must hold for every move.

use super::{AgentNode, ProcessDied};
use crate::shared_state::{SharedState, SimEvent};
use hotlease_lease::CoreUse;
use hotlease_lease::agent::{BookEvent, WorkerState};
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use rand::RngExt;
use std::time::Duration;

/// Longest time until a worker has carried out an order to move.
const ORDER_MAX: Duration = Duration::from_millis(20);

impl AgentNode {
    /// Occasionally moves a worker that shares its core, if there is one.
    pub(super) fn move_some_worker(&mut self, site: &mut SharedState) -> Result<(), ProcessDied> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        let mut serving = Vec::new();
        for lease in process.book.leases() {
            if lease.request.spec.sharing == CoreUse::Shared {
                let workers = lease.workers.iter().zip(0..);
                let workers = workers.filter(|(worker, _)| worker.state == WorkerState::Serving);
                serving.extend(workers.map(|(worker, index)| (lease.id, WorkerIndex(index), worker.epoch)));
            }
        }
        if serving.is_empty() || !self.moves.random_bool(0.1) {
            return Ok(());
        }
        let (lease, worker, epoch) = serving[self.moves.random_range(0..serving.len())];
        let core = self.moves.random_range(0..site.scenario.agents[self.number]);
        let event = BookEvent::Move {
            lease,
            worker,
            epoch,
            core,
        };
        self.step(event, site).map(drop)
    }

    pub(super) fn order_move(&mut self, of: (LeaseId, WorkerIndex, Epoch), core: u32, site: &mut SharedState) {
        let takes = Duration::from_nanos(self.moves.random_range(0..=ORDER_MAX.as_nanos() as u64));
        if let Some(process) = self.workers.process_of(of) {
            site.after(takes, self.node(), SimEvent::WorkerMoves { process, core });
        }
    }

    pub(super) fn worker_moves(&mut self, process: u64, core: u32, site: &mut SharedState) {
        if let Some(((lease, worker, epoch), moved)) = self.workers.move_to(process, core, site) {
            // The daemon handles this as a separate event, possibly later.
            let answer = SimEvent::WorkerMoved {
                lease,
                worker,
                epoch,
                moved,
            };
            site.after(Duration::ZERO, self.node(), answer);
        }
    }
}
