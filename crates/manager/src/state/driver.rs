//! Execution of the actions of [`hotlease_lease::manager::Cluster`]: requests to agents, writes, answers.

use super::agent_connections::answer;
use super::machine::{ClusterDriver, Commit, MachineAnswer, PendingRequest};
use crate::records::{node_wish, offering, totals};
use crate::state::ManagerState;
use crate::trace::Trace;
use hotlease_lease::manager::{
    AskId, ClusterAction, ClusterAnswer, ClusterEvent, EndRequest, GrantedLease, NodeWish, RequestId,
};
use hotlease_wire::grpc::{AcquireRequest, Grant, ReleaseRequest};
use hotlease_wire::ids::{AgentId, Epoch};
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use tokio::sync::oneshot;
use tracing::Instrument;

/// Reasons in a [`ReleaseRequest`]: the holder releases the lease, an operator revokes it, or it was never handed out.
pub(crate) const RELEASED: &str = "released";
pub(crate) const REVOKED: &str = "revoked";
const UNUSED: &str = "unused";

impl ManagerState {
    /// Sends a request to the state machine, and waits for its answer. `message`: the message for agents, if the
    /// request is one for a lease.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        message: Option<AcquireRequest>,
        event: impl FnOnce(RequestId) -> ClusterEvent,
    ) -> Result<MachineAnswer, Rejection> {
        let (sender, receiver) = oneshot::channel();
        let event = {
            let mut machine = self.machine();
            machine.last_request += 1;
            let id = RequestId(machine.last_request);
            let waiting = PendingRequest {
                answer: sender,
                message: message.map(Arc::new),
                trace: Trace::current(),
            };
            machine.waiting.insert(id, waiting);
            event(id)
        };
        self.step(event);
        match receiver.await {
            Ok((ClusterAnswer::Refused(refusal), _)) => Err(refusal),
            Ok(answered) => Ok(answered),
            Err(_) => Err(Rejection::Unavailable {
                what: "the manager is stopping".into(),
            }),
        }
    }

    /// Passes an event to the state machine, and carries out its actions.
    pub(crate) fn step(self: &Arc<Self>, event: ClusterEvent) {
        let now = self.now();
        let mut machine = self.machine();
        for action in machine.cluster.step(event, now) {
            self.carry_out(&mut machine, action);
        }
    }

    fn carry_out(self: &Arc<Self>, machine: &mut ClusterDriver, action: ClusterAction) {
        match action {
            ClusterAction::Commit { commit, agent, writes } => {
                let commit = Commit {
                    id: commit,
                    agent,
                    writes,
                };
                if machine.commits.send(commit).is_err() {
                    tracing::debug!("a write came after the manager stopped");
                }
            }
            ClusterAction::AskGrant {
                ask,
                agent,
                request,
                workers,
            } => {
                let waiting = machine.waiting.get(&request);
                let trace = waiting.and_then(|waiting| waiting.trace);
                match waiting.and_then(|waiting| waiting.message.clone()) {
                    Some(message) => {
                        let asking = Arc::clone(self).ask_grant(ask, agent, (message, workers), trace);
                        tokio::spawn(asking.instrument(Trace::span(trace)));
                    }
                    None => tracing::error!(ask = ask.0, "an agent is asked for a lease that no request wants"),
                }
            }
            ClusterAction::AskEnd { ask, agent, release } => {
                // The lease ends, so its grant must not be handed out.
                machine
                    .grants
                    .retain(|_, grant| grant.lease != release.lease.to_string());
                let trace = Trace::current();
                let asking = Arc::clone(self).ask_end(ask, agent, release, trace);
                tokio::spawn(asking.instrument(Trace::span(trace)));
            }
            ClusterAction::AskOrder { ask, agent, wish } => {
                tokio::spawn(Arc::clone(self).ask_order(ask, agent, wish));
            }
            ClusterAction::Answer { request, answer } => self.answer(machine, request, answer),
            ClusterAction::AgentJoined(record) => {
                let cores = record.cores.len();
                tracing::info!(agent = %record.id, boot = %record.boot, cores, "agent registered");
                self.links.remove(record.id);
                self.newest_agent.send_replace(Some(record));
            }
            ClusterAction::AgentGone(agent) => {
                tracing::info!(%agent, "agent left, or is silent for long");
                self.links.remove(agent);
            }
        }
    }

    fn answer(self: &Arc<Self>, machine: &mut ClusterDriver, request: RequestId, answer: ClusterAnswer) {
        let grant = match &answer {
            ClusterAnswer::Granted { asks } => {
                let mut parts = asks.iter().filter_map(|ask| machine.grants.remove(ask));
                parts.next().map(|mut first| {
                    first.others = parts.collect();
                    Box::new(first)
                })
            }
            _ => None,
        };
        let Some(waiting) = machine.waiting.remove(&request) else {
            return;
        };
        // The caller no longer waits, so the lease would not be used.
        if let Err((_, Some(mut grant))) = waiting.answer.send((answer, grant)) {
            for part in std::mem::take(&mut grant.others) {
                tokio::spawn(Arc::clone(self).give_back(part));
            }
            tokio::spawn(Arc::clone(self).give_back(*grant));
        }
    }

    /// Asks an agent for a lease of this many workers, and passes the answer to the state machine.
    async fn ask_grant(
        self: Arc<Self>,
        ask: AskId,
        agent: AgentId,
        (message, workers): (Arc<AcquireRequest>, u32),
        trace: Option<Trace>,
    ) {
        // Read before the agent can grant: the agent may bill no more than the time since this moment.
        let granted_ms = self.unix_ms();
        let whole = AcquireRequest::clone(&message);
        let part = AcquireRequest {
            workers,
            spread_least: 0,
            ..whole
        };
        let asked = async {
            let mut client = self.links.client(&self.agent(agent)?)?;
            let grant = client.grant(Trace::mark(trace, part));
            let mut grant = answer(agent, self.config.grant_timeout, grant).await?;
            grant.workers = workers;
            Ok((self.granted_lease(agent, &grant, granted_ms)?, grant))
        };
        let event = match asked.await {
            Ok((granted, grant)) => {
                tracing::debug!(lease = %grant.lease, %agent, "agent granted a lease");
                self.machine().grants.insert(ask, grant);
                ClusterEvent::Granted { ask, granted }
            }
            Err(refusal) => {
                tracing::debug!(%agent, %refusal, "agent refused a lease");
                ClusterEvent::Refused { ask, refusal }
            }
        };
        self.step(event);
    }

    fn granted_lease(&self, agent: AgentId, grant: &Grant, granted_ms: u64) -> Result<GrantedLease, Rejection> {
        let unusable = |what: &str| Rejection::Unavailable {
            what: format!("agent {agent} granted a lease without a usable {what}"),
        };
        let known = self.agent(agent).map(|record| record.boot);
        Ok(GrantedLease {
            lease: grant.lease.parse().map_err(|_| unusable("id"))?,
            boot: grant.boot.parse().or(known).map_err(|_| unusable("boot"))?,
            epoch: Epoch(grant.epoch),
            cores: grant.cores.clone(),
            memory_bytes: grant.memory_bytes,
            granted_ms,
        })
    }

    async fn ask_end(self: Arc<Self>, ask: AskId, agent: AgentId, release: EndRequest, trace: Option<Trace>) {
        let event = match self.end_at(agent, release, trace).await {
            Ok(usage) => ClusterEvent::LeaseOver { ask, usage },
            Err(refusal) => ClusterEvent::Refused { ask, refusal },
        };
        self.step(event);
    }

    async fn end_at(
        &self,
        agent: AgentId,
        release: EndRequest,
        trace: Option<Trace>,
    ) -> Result<hotlease_wire::session::UsageTotals, Rejection> {
        let request = ReleaseRequest {
            lease: release.lease.to_string(),
            tenant: release.tenant,
            reason: match release.reason {
                EndReason::Revoked => REVOKED.into(),
                _ if release.unused => UNUSED.into(),
                _ => RELEASED.into(),
            },
        };
        let mut client = self.links.client(&self.agent(agent)?)?;
        let over = answer(
            agent,
            self.config.end_timeout,
            client.end_lease(Trace::mark(trace, request)),
        )
        .await?;
        Ok(totals(over.usage))
    }

    /// Ends a granted lease that could not be handed out; if that fails, the lease expires.
    async fn give_back(self: Arc<Self>, grant: Grant) {
        let (Ok(lease), Ok(agent)) = (grant.lease.parse(), grant.agent.parse()) else {
            return;
        };
        let release = EndRequest {
            lease,
            // An empty name: the manager itself ends the lease.
            tenant: String::new(),
            reason: EndReason::Released,
            unused: false,
        };
        if let Err(error) = self.end_at(agent, release, None).await {
            tracing::warn!(%lease, %error, "a lease that was not handed out has to expire");
        }
    }

    /// Sends an agent the operator's wish for its node, and passes the answer to the state machine.
    async fn ask_order(self: Arc<Self>, ask: AskId, agent: AgentId, wish: NodeWish) {
        let asked = async {
            let mut client = self.links.client(&self.agent(agent)?)?;
            let wanted = node_wish(&wish, self.unix_ms());
            let told = answer(agent, self.config.order_timeout, client.order(wanted)).await?;
            offering(&told.agent.unwrap_or_default())
        };
        let event = match asked.await {
            Ok(offering) => ClusterEvent::Ordered { ask, offering },
            Err(refusal) => {
                tracing::warn!(%agent, %refusal, "a node has not carried out its operator's order yet");
                ClusterEvent::Refused { ask, refusal }
            }
        };
        self.step(event);
    }
}

/// Error for an answer of the state machine that does not fit the request.
pub(crate) fn unexpected_answer(answer: &ClusterAnswer) -> Rejection {
    tracing::error!(?answer, "the state machine's answer does not fit the request");
    Rejection::Unavailable {
        what: "the manager's answer does not fit the request; this is a bug".into(),
    }
}
