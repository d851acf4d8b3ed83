//! Requests to end a lease. They are sent to the agent that granted the lease if this agent is known, else to one agent
//! after the other until one of them has the lease.

use super::{Cluster, Continuation, Question, answer, refuse};
use crate::ledger::FunctionTotals;
use crate::manager::{
    AskId, ClusterAction, ClusterAnswer, Demand, EndRequest, LeaseNote, LeaseReport, Need, RequestId, StateWrite,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use hotlease_wire::session::UsageTotals;
use std::collections::VecDeque;

/// A request to end a lease.
#[derive(Debug)]
pub(super) struct PendingRelease {
    release: EndRequest,
    known: Option<LeaseNote>,
    agents: VecDeque<AgentId>,
    refused: Rejection,
}

impl Cluster {
    pub(super) fn release(
        &mut self,
        request: RequestId,
        release: EndRequest,
        known: Option<LeaseNote>,
        actions: &mut Vec<ClusterAction>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let agents = match &known {
            Some(note) => VecDeque::from([note.agent]),
            None => self.reachable().collect(),
        };
        let releasing = PendingRelease {
            release,
            known,
            agents,
            refused: Rejection::UnknownLease,
        };
        self.releases.insert(request, releasing);
        self.end_next(request, actions);
    }

    fn end_next(&mut self, request: RequestId, actions: &mut Vec<ClusterAction>) {
        let Some(releasing) = self.releases.get_mut(&request) else {
            return;
        };
        if let Some(agent) = releasing.agents.pop_front() {
            let release = releasing.release.clone();
            let ask = self.ask(Question::End { request });
            actions.push(ClusterAction::AskEnd { ask, agent, release });
        } else if let Some(releasing) = self.releases.remove(&request) {
            refuse(request, releasing.refused, actions);
        }
    }

    pub(super) fn on_not_ended(&mut self, request: RequestId, refusal: Rejection, actions: &mut Vec<ClusterAction>) {
        if let Some(releasing) = self.releases.get_mut(&request)
            && refusal != Rejection::UnknownLease
        {
            releasing.refused = refusal;
        }
        self.end_next(request, actions);
    }

    /// Answers with the final total, after it is durable.
    pub(super) fn on_lease_over(&mut self, ask: AskId, usage: UsageTotals, actions: &mut Vec<ClusterAction>) {
        let Some(Question::End { request }) = self.asks.remove(&ask) else {
            return;
        };
        let Some(releasing) = self.releases.remove(&request) else {
            return;
        };
        let reply = ClusterAnswer::Released { usage };
        let Some(note) = releasing.known else {
            return answer(request, reply, actions);
        };
        let lease = releasing.release.lease;
        let demand = Demand {
            room: Need::of(&note.cores),
            gpus: note.gpus,
        };
        self.registry.note_released(note.agent, demand);
        let noted = super::reports::LeaseChange {
            agent: note.agent,
            boot: note.boot,
            active: Vec::new(),
            ended: vec![lease],
        };
        let report = LeaseReport {
            lease,
            boot: note.boot,
            tenant: note.tenant,
            label: note.label,
            epoch: note.epoch,
            cores: note.cores,
            gpus: note.gpus,
            usage,
            // The agent's next report contains the functions' usage.
            functions: FunctionTotals::default(),
            end_reason: Some(releasing.release.reason.to_string()),
        };
        let write = StateWrite::Report {
            agent: note.agent,
            leases: vec![report],
        };
        let noted_agent = noted.agent;
        let then = Continuation::Released {
            request,
            answer: reply,
            noted,
        };
        self.commit(noted_agent, vec![write], then, actions);
    }
}
