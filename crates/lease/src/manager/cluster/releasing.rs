//! Requests to end a lease: at the agent that granted it if that is known, else at each agent until one knows the
//! lease.

use super::{Asked, Cluster, Then, answer, refuse};
use crate::ledger::FunctionTotals;
use crate::manager::{
    Action, Answer, AskId, Demand, LeaseNote, LeaseReport, Need, Release, RequestId, Write,
};
use hotlease_wire::Refusal;
use hotlease_wire::ids::AgentId;
use hotlease_wire::session::UsageTotals;
use std::collections::VecDeque;

/// A request to end a lease.
#[derive(Debug)]
pub(super) struct Releasing {
    release: Release,
    known: Option<LeaseNote>,
    agents: VecDeque<AgentId>,
    refused: Refusal,
}

impl Cluster {
    pub(super) fn release(
        &mut self,
        request: RequestId,
        release: Release,
        known: Option<LeaseNote>,
        actions: &mut Vec<Action>,
    ) {
        if let Err(refusal) = self.admit() {
            return refuse(request, refusal, actions);
        }
        let agents = match &known {
            Some(note) => VecDeque::from([note.agent]),
            None => self.reachable().collect(),
        };
        let releasing = Releasing {
            release,
            known,
            agents,
            refused: Refusal::UnknownLease,
        };
        self.releases.insert(request, releasing);
        self.end_next(request, actions);
    }

    fn end_next(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(releasing) = self.releases.get_mut(&request) else {
            return;
        };
        if let Some(agent) = releasing.agents.pop_front() {
            let release = releasing.release.clone();
            let ask = self.ask(Asked::End { request });
            actions.push(Action::AskEnd { ask, agent, release });
        } else if let Some(releasing) = self.releases.remove(&request) {
            refuse(request, releasing.refused, actions);
        }
    }

    pub(super) fn not_ended(&mut self, request: RequestId, refusal: Refusal, actions: &mut Vec<Action>) {
        if let Some(releasing) = self.releases.get_mut(&request)
            && refusal != Refusal::UnknownLease
        {
            releasing.refused = refusal;
        }
        self.end_next(request, actions);
    }

    /// Answers with the final total, after it is durable.
    pub(super) fn lease_over(&mut self, ask: AskId, usage: UsageTotals, actions: &mut Vec<Action>) {
        let Some(Asked::End { request }) = self.asks.remove(&ask) else {
            return;
        };
        let Some(releasing) = self.releases.remove(&request) else {
            return;
        };
        let reply = Answer::Released { usage };
        let Some(note) = releasing.known else {
            return answer(request, reply, actions);
        };
        let lease = releasing.release.lease;
        let demand = Demand {
            room: Need::of(&note.cores),
            gpus: note.gpus,
        };
        self.registry.released(note.agent, demand);
        let noted = super::reports::Noted {
            agent: note.agent,
            boot: note.boot,
            active: Vec::new(),
            over: vec![lease],
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
            // The functions' usage comes with the agent's next report.
            functions: FunctionTotals::default(),
            over: Some(releasing.release.reason.to_string()),
        };
        let write = Write::Report {
            agent: note.agent,
            leases: vec![report],
        };
        let noted_agent = noted.agent;
        let then = Then::Released {
            request,
            answer: reply,
            noted,
        };
        self.commit(noted_agent, vec![write], then, actions);
    }
}
