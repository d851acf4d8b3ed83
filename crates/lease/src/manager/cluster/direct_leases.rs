//! Leases that agents granted directly and whose holders report them to the manager.

use super::{Cluster, Continuation, UNSEEN_MAX, refuse};
use crate::manager::{ClusterAction, LeaseNote, RequestId, StateWrite};
use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;

impl Cluster {
    /// Writes down a lease that an agent granted without the manager, as if the manager had granted it.
    /// The holder, who pays for the lease, announces it, and could announce a lease that does not exist. The durable
    /// state has one bound for all tenants together. So the number of a tenant's announced leases that no report of an
    /// agent has named is limited.
    pub(super) fn vouch(
        &mut self,
        request: RequestId,
        lease: LeaseId,
        note: LeaseNote,
        actions: &mut Vec<ClusterAction>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let (agent, boot) = (note.agent, note.boot);
        let record = self.registry.agent(agent).map(|(record, ..)| record);
        let Some(record) = record.filter(|record| record.boot == boot && !self.is_replaced(agent, boot)) else {
            let what = format!("agent {agent}: the run of it that granted the lease is not registered here (yet)");
            return refuse(request, Rejection::Unavailable { what }, actions);
        };
        if note.cores.iter().any(|core| !record.cores.contains(core)) {
            let what = format!("agent {agent} does not offer these cores");
            return refuse(request, Rejection::BadRequest { what }, actions);
        }
        if note.gpus > record.gpus {
            let what = format!("agent {agent} offers {} GPUs, not {}", record.gpus, note.gpus);
            return refuse(request, Rejection::BadRequest { what }, actions);
        }
        if self.holdings.holder(lease).is_some_and(|holder| holder != note.tenant) {
            return refuse(request, Rejection::WrongTenant, actions);
        }
        // A lease that another agent has granted must not be recorded for this agent. This agent's next report would
        // not name the lease. The quota would then no longer count the lease, although the other agent still serves it.
        let mut others = self.noted.iter().filter(|(id, _)| **id != agent);
        if others.any(|(_, noted)| noted.leases.contains_key(&lease)) {
            let what = "another agent has granted this lease".into();
            return refuse(request, Rejection::BadRequest { what }, actions);
        }
        let unseen = (note.tenant.clone(), lease);
        let is_noted = self
            .noted
            .get(&agent)
            .is_some_and(|noted| noted.leases.contains_key(&lease));
        if !is_noted && self.unseen.insert(unseen.clone()) && self.count_unseen(&note.tenant) > UNSEEN_MAX {
            self.unseen.remove(&unseen);
            let refusal = Rejection::TooMany {
                what: "leases of a tenant that their agents have not reported yet".into(),
                limit: UNSEEN_MAX as u64,
            };
            return refuse(request, refusal, actions);
        }
        let noted = super::reports::LeaseChange {
            agent,
            boot,
            active: vec![super::reports::ActiveLease {
                lease,
                epoch: note.epoch,
                tenant: note.tenant.clone(),
                amount: note.amount(),
            }],
            ended: Vec::new(),
        };
        let then = Continuation::Vouched { request, noted, unseen };
        self.commit(agent, vec![StateWrite::PutLease { lease, note }], then, actions);
    }

    fn count_unseen(&self, tenant: &str) -> usize {
        let from = (tenant.to_owned(), LeaseId([0; 8]));
        let own = self.unseen.range(from..).take_while(|(whose, _)| whose == tenant);
        own.count()
    }
}
