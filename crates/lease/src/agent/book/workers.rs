//! Workers of a lease: their start, their death, and their replacement in the same position.

use super::LeaseBook;
use crate::agent::{BookAction, CoreLease, LeasePhase, WorkerState};
use crate::ledger::FunctionTotals;
use hotlease_wire::Rejection;
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::UsageTotals;
use std::time::Duration;

impl LeaseBook {
    pub(super) fn replace(
        &mut self,
        id: LeaseId,
        index: WorkerIndex,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        let lease = self.active(id)?;
        let worker = lease
            .workers
            .get(usize::from(index.0))
            .ok_or(Rejection::UnknownWorker {
                index: index.0,
                workers: lease.workers.len() as u16,
            })?;
        if worker.state != WorkerState::Gone {
            return Ok(());
        }
        let epoch = self.next_epoch()?;
        let worker = &mut self.active_mut(id)?.workers[usize::from(index.0)];
        worker.epoch = epoch;
        worker.state = WorkerState::Starting;
        worker.has_moved = false;
        actions.push(BookAction::StartWorker {
            lease: id,
            worker: index,
            epoch,
            cores: worker.cores.clone(),
            gpus: worker.gpus.clone(),
        });
        Ok(())
    }

    /// The lease that has this incarnation of a worker; `None` if the incarnation is gone.
    pub(super) fn incarnation(&mut self, id: LeaseId, index: WorkerIndex, epoch: Epoch) -> Option<&mut CoreLease> {
        self.leases.get_mut(&id).filter(|lease| {
            lease
                .workers
                .get(usize::from(index.0))
                .is_some_and(|worker| worker.epoch == epoch && worker.state != WorkerState::Gone)
        })
    }

    pub(super) fn on_worker_up(&mut self, id: LeaseId, index: WorkerIndex, epoch: Epoch) {
        if let Some(lease) = self.incarnation(id, index, epoch) {
            lease.workers[usize::from(index.0)].state = WorkerState::Serving;
            settle(lease);
        }
    }

    pub(super) fn on_worker_gone(
        &mut self,
        id: LeaseId,
        index: WorkerIndex,
        epoch: Epoch,
        (used, functions): (UsageTotals, &FunctionTotals),
        now: Duration,
        actions: &mut Vec<BookAction>,
    ) {
        let Some(lease) = self.incarnation(id, index, epoch) else {
            return;
        };
        let worker = &mut lease.workers[usize::from(index.0)];
        worker.state = WorkerState::Gone;
        // The next incarnation starts on the core of this incarnation, so the core of an unfinished move is given back.
        let unused = worker.moving_to.take().map(|core| vec![core; worker.cores.len()]);
        lease.retired.hot_ns = lease.retired.hot_ns.saturating_add(used.hot_ns);
        lease.retired.compute_ns = lease.retired.compute_ns.saturating_add(used.compute_ns);
        lease.retired.invocations = lease.retired.invocations.saturating_add(used.invocations);
        lease.retired_functions.add_all(functions);
        let goes_on = lease.is_active();
        if goes_on {
            settle(lease);
            actions.push(BookAction::ReportWorkerDeath {
                lease: id,
                worker: index,
                epoch,
                sessions: lease.all_sessions(),
            });
        }
        self.cores.give_back_places(unused.into_iter().flatten());
        if !goes_on {
            self.finish(id, now, actions);
        }
    }
}

fn settle(lease: &mut CoreLease) {
    let settled = lease.workers.iter().all(|worker| worker.state != WorkerState::Starting);
    if lease.phase == LeasePhase::Starting && settled {
        lease.phase = LeasePhase::Serving;
    }
}
