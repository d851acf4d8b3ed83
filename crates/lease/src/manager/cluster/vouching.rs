//! Leases that agents granted directly and whose holders report them to the manager.

use super::{Cluster, Then, refuse};
use crate::manager::{Action, Amount, LeaseNote, RequestId, Write};
use hotlease_wire::Refusal;
use hotlease_wire::ids::LeaseId;

impl Cluster {
    /// Writes down a lease that an agent granted without the manager, as if it had been granted here. The word is
    /// that of the holder, who pays for the lease.
    pub(super) fn vouch(
        &mut self,
        request: RequestId,
        lease: LeaseId,
        note: LeaseNote,
        actions: &mut Vec<Action>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let (agent, boot) = (note.agent, note.boot);
        let record = self.registry.agent(agent).map(|(record, ..)| record);
        let Some(record) = record.filter(|record| record.boot == boot && !self.is_replaced(agent, boot))
        else {
            let what = format!("agent {agent} in that run: it is not registered here (yet)");
            return refuse(request, Refusal::Unavailable { what }, actions);
        };
        if note.cores.iter().any(|core| !record.cores.contains(core)) {
            let what = format!("agent {agent} does not offer these cores");
            return refuse(request, Refusal::BadRequest { what }, actions);
        }
        if note.gpus > record.gpus {
            let what = format!("agent {agent} offers {} GPUs, not {}", record.gpus, note.gpus);
            return refuse(request, Refusal::BadRequest { what }, actions);
        }
        let noted = super::reports::Noted {
            agent,
            boot,
            active: vec![super::reports::Active {
                lease,
                epoch: note.epoch,
                tenant: note.tenant.clone(),
                amount: Amount {
                    cores: note.cores.len() as u64,
                    memory_bytes: note.memory_bytes,
                    gpus: note.gpus.into(),
                },
            }],
            over: Vec::new(),
        };
        let then = Then::Vouched { request, noted };
        self.commit(agent, vec![Write::PutLease { lease, note }], then, actions);
    }
}
