//! Leases that agents granted directly and whose holders report them to the manager.

use super::{Cluster, Continuation, refuse};
use crate::manager::{ClusterAction, LeaseNote, RequestId, StateWrite};
use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;

impl Cluster {
    /// Writes down a lease that an agent granted without the manager, as if it had been granted here. The word is
    /// that of the holder, who pays for the lease.
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
            let what = format!("agent {agent} in that run: it is not registered here (yet)");
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
        let noted = super::reports::LeaseChange {
            agent,
            boot,
            active: vec![super::reports::ActiveLease {
                lease,
                epoch: note.epoch,
                tenant: note.tenant.clone(),
                amount: note.amount(),
            }],
            over: Vec::new(),
        };
        let then = Continuation::Vouched { request, noted };
        self.commit(agent, vec![StateWrite::PutLease { lease, note }], then, actions);
    }
}
