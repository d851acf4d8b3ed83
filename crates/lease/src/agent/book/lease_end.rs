//! Ends of leases, and the states in which a node grants no new leases.

use super::LeaseBook;
use crate::agent::{Availability, BookAction, CoreLease, ENDED_MAX, EndedLease, LeasePhase, WorkerState};
use crate::ledger::FunctionTotals;
use crate::request::CoreUse;
use hotlease_wire::ids::{LeaseId, WorkerIndex};
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Rejection};
use std::time::Duration;

impl LeaseBook {
    /// Ends each lease at `node_ends` at the latest, however often it is renewed, because the node is taken away at
    /// that time. No drain of the node is needed for this. Must be called before the first lease.
    #[must_use]
    pub fn with_end(mut self, node_ends: Option<Duration>) -> Self {
        self.node_ends = node_ends;
        self
    }

    /// Whether the node takes leases.
    pub fn availability(&self) -> Availability {
        match self.availability {
            Availability::Serving if self.cores.offered() == 0 => Availability::Standby,
            availability => availability,
        }
    }

    /// Refuses grants while the node is drained, on standby, or stopping.
    pub(super) fn admit_grants(&self) -> Result<(), Rejection> {
        let what = match self.availability() {
            Availability::Serving => return Ok(()),
            Availability::Draining | Availability::Drained if self.is_out_of_time() => {
                "the node's time is nearly over (`--until` of its agent)"
            }
            Availability::Draining => "the node is being given back",
            Availability::Drained => "the node was given back",
            Availability::Standby if self.jobs.iter().next().is_some() => "batch jobs have the node",
            Availability::Standby => "the node offers no cores",
            Availability::Stopping => "the agent is stopping",
        };
        Err(Rejection::Unavailable { what: what.into() })
    }

    /// Whether the node is drained because its own time ends, and not by an earlier order.
    fn is_out_of_time(&self) -> bool {
        self.node_ends.is_some() && self.drained_by == self.node_ends
    }

    /// Grants no more leases, and ends all leases at `until` at the latest. A later call can only make the end earlier.
    pub(super) fn drain(&mut self, until: Duration, now: Duration, actions: &mut Vec<BookAction>) {
        if self.availability == Availability::Serving {
            self.availability = Availability::Draining;
        }
        self.drained_by = Some(self.drained_by.map_or(until, |by| by.min(until)));
        self.cut_leases();
        self.expire(now, actions);
    }

    /// Sets for each lease the time at which it ends even if its holder renews it.
    pub(super) fn cut_leases(&mut self) {
        for lease in self.leases.values_mut() {
            let of_node = self.drained_by.into_iter().chain(self.node_ends);
            let ends = of_node.chain(lease.leaving).chain(lease.longest);
            lease.cut = ends.min();
        }
    }

    /// Grants leases again. Leases that are still active after a drain no longer end at its deadline.
    pub(super) fn resume(&mut self) -> Result<(), Rejection> {
        if self.availability == Availability::Stopping {
            return Err(Rejection::Unavailable {
                what: "the agent is stopping".into(),
            });
        }
        self.availability = Availability::Serving;
        self.drained_by = None;
        self.cut_leases();
        Ok(())
    }

    /// Ends all leases, for good.
    pub(super) fn stop(&mut self, now: Duration, actions: &mut Vec<BookAction>) {
        self.availability = Availability::Stopping;
        for lease in self.active_ids(|_| true) {
            self.end(lease, EndReason::AgentStopping, now, actions);
        }
    }

    /// Reports, once, that no lease is left on a draining node.
    pub(super) fn note_drained(&mut self, actions: &mut Vec<BookAction>) {
        if self.availability == Availability::Draining && self.leases.is_empty() {
            self.availability = Availability::Drained;
            actions.push(BookAction::Drained);
        }
    }

    fn active_ids(&self, which: impl Fn(&CoreLease) -> bool) -> Vec<LeaseId> {
        self.leases
            .values()
            .filter(|lease| lease.is_active() && which(lease))
            .map(|lease| lease.id)
            .collect()
    }

    pub(super) fn expire(&mut self, now: Duration, actions: &mut Vec<BookAction>) {
        for lease in self.active_ids(|lease| lease.ends_at() <= now) {
            let Some(reason) = self.leases.get(&lease).map(|lease| lease.reason_at(now)) else {
                continue;
            };
            self.end(lease, reason, now, actions);
        }
        self.expire_delegations(now, actions);
    }

    /// Begins to end an active lease.
    pub(super) fn end(&mut self, id: LeaseId, reason: EndReason, now: Duration, actions: &mut Vec<BookAction>) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.phase = LeasePhase::Ending(reason);
        for (index, worker) in lease.workers.iter().enumerate() {
            if worker.state != WorkerState::Gone {
                actions.push(BookAction::KillWorker {
                    lease: id,
                    worker: WorkerIndex(index as u16),
                    epoch: worker.epoch,
                    reason,
                });
            }
        }
        self.finish(id, now, actions);
    }

    /// Frees the cores of an ending lease once all its workers are gone.
    pub(super) fn finish(&mut self, id: LeaseId, now: Duration, actions: &mut Vec<BookAction>) {
        let Some(lease) = self.leases.get(&id) else {
            return;
        };
        let (LeasePhase::Ending(reason), true) = (lease.phase, lease.is_empty()) else {
            return;
        };
        let usage = UsageTotals {
            allocated_ns: lease.allocated_ns(now),
            ..lease.retired
        };
        let Some(lease) = self.leases.remove(&id) else {
            return;
        };
        let mut functions = FunctionTotals::default();
        functions.merge(&lease.retired_functions, usage);
        let cores = lease.cores();
        // Cores that are no longer offered return to their owner.
        match lease.request.spec.sharing {
            CoreUse::Exclusive(_) => self.cores.give_back_exclusive(cores.iter().copied()),
            CoreUse::Shared => self.cores.give_back_places(cores.iter().copied()),
        }
        let gpus = lease.gpus();
        self.gpus.give_back(gpus.iter().copied());
        actions.push(BookAction::LeaseEnded {
            lease: id,
            reason,
            usage,
            sessions: lease.all_sessions(),
        });
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedLease {
            id,
            request: lease.request,
            epoch: lease.epoch,
            cores,
            gpus,
            reason,
            usage,
            functions,
            ended: now,
        });
    }
}
