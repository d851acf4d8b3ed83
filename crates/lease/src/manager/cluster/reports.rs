//! Reports of agents, and leases that end because a report does not name them.

use super::{Cluster, Continuation, answer, refuse};
use crate::manager::{AgentReport, Amount, ClusterAction, ClusterAnswer, LeaseNote, RequestId, StateWrite};
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A lease that is still active.
#[derive(Debug)]
pub(super) struct ActiveLease {
    pub lease: LeaseId,
    pub epoch: Epoch,
    pub tenant: String,
    pub amount: Amount,
}

/// Leases of one agent that a commit makes active in the durable state, and leases that it ends.
#[derive(Debug)]
pub(super) struct LeaseChange {
    pub agent: AgentId,
    pub boot: BootId,
    pub active: Vec<ActiveLease>,
    pub ended: Vec<LeaseId>,
}

impl Cluster {
    pub(super) fn hear(
        &mut self,
        request: RequestId,
        report: AgentReport,
        now: Duration,
        actions: &mut Vec<ClusterAction>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let (agent, boot) = (report.agent, report.boot);
        let known = !self.is_replaced(agent, boot)
            && self.registry.heartbeat(
                agent,
                boot,
                (report.free_cores, report.free_places, report.free_gpus),
                report.pool,
                now,
            );
        if !known {
            // The agent must register first; it then sends the same totals again.
            return answer(request, ClusterAnswer::HeartbeatAnswered { known: false }, actions);
        }
        let order = report.offering.order;
        self.registry.offers(agent, report.offering.clone());
        if !report.leaving {
            self.remind(agent, order, actions);
        }
        let over = self.missing(&report);
        let mut writes = Vec::new();
        let mut noted = LeaseChange {
            agent,
            boot,
            active: Vec::new(),
            ended: over.clone(),
        };
        for lease in &report.leases {
            match lease.end_reason {
                Some(_) => noted.ended.push(lease.lease),
                None => noted.active.push(ActiveLease {
                    lease: lease.lease,
                    epoch: lease.epoch,
                    tenant: lease.tenant.clone(),
                    amount: Amount {
                        cores: lease.cores.len() as u64,
                        gpus: lease.gpus.into(),
                        ..Amount::default()
                    },
                }),
            }
        }
        if !report.leases.is_empty() {
            writes.push(StateWrite::Report {
                agent,
                leases: report.leases,
            });
        }
        let why = "its agent no longer reports it";
        writes.extend(over.into_iter().map(|lease| StateWrite::EndLease { lease, why }));
        if report.leaving {
            self.registry.deregister(agent, boot);
            actions.push(ClusterAction::AgentGone(agent));
            writes.push(StateWrite::RemoveAgent(agent));
        }
        if writes.is_empty() {
            return answer(request, ClusterAnswer::HeartbeatAnswered { known: true }, actions);
        }
        self.commit(agent, writes, Continuation::Heard { request, noted }, actions);
        if report.leaving {
            self.forget_leases(agent);
        }
    }

    /// Leases that were granted before a whole report was written, but are not in the report, so they are over.
    fn missing(&self, report: &AgentReport) -> Vec<LeaseId> {
        let Some(noted) = self
            .noted
            .get(&report.agent)
            .filter(|noted| report.whole && noted.boot == report.boot)
        else {
            return Vec::new();
        };
        let named: BTreeSet<LeaseId> = report.leases.iter().map(|lease| lease.lease).collect();
        let granted_before = noted.leases.iter().filter(|(_, epoch)| **epoch <= report.epoch);
        granted_before
            .map(|(lease, _)| *lease)
            .filter(|lease| !named.contains(lease))
            .collect()
    }

    /// Applies a change of leases whose commit is durable.
    pub(super) fn apply(&mut self, change: LeaseChange) {
        let Some(noted) = self.noted.get_mut(&change.agent) else {
            return;
        };
        if noted.boot != change.boot {
            return;
        }
        for lease in &change.ended {
            noted.leases.remove(lease);
        }
        for active in &change.active {
            noted.leases.insert(active.lease, active.epoch);
        }
        for lease in change.ended {
            self.free(lease);
        }
        for active in change.active {
            self.holdings.hold(active.lease, &active.tenant, active.amount);
        }
    }

    /// Notes that the agent of these leases has reported them as active.
    pub(super) fn see(&mut self, change: &LeaseChange) {
        let is_present = |noted: &super::AgentLeases| noted.boot == change.boot;
        if self.noted.get(&change.agent).is_some_and(is_present) {
            change.active.iter().for_each(|active| self.mark_seen(active.lease));
        }
    }

    /// Adds a lease that is active in the durable state.
    pub(super) fn note(&mut self, lease: LeaseId, note: &LeaseNote) {
        let noted = self.noted.entry(note.agent).or_insert_with(|| super::AgentLeases {
            boot: note.boot,
            leases: BTreeMap::new(),
        });
        if noted.boot == note.boot {
            noted.leases.insert(lease, note.epoch);
            self.holdings.hold(lease, &note.tenant, note.amount());
        }
    }
}
