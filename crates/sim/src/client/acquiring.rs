//! A client that acquires a lease.

use super::{ACQUIRE_LIMIT, ClientProcess, GRANT_LIMIT, InvocationFailure};
use crate::hold::Hold;
use crate::message::Request;
use crate::node::Node;
use crate::shared_state::{SharedState, SimEvent};
use hotlease_lease::client::{Acquisition, AcquisitionAction, AcquisitionEvent, GrantSource, Patience};
use hotlease_wire::{Rejection, RunCertainty};
use rand::RngExt;
use std::time::Duration;

impl ClientProcess {
    pub(super) fn begin_acquisition(&mut self, node: Node, site: &mut SharedState) {
        let now = self.now(site);
        let plan = Self::plan(node, site);
        let way = if plan.direct {
            GrantSource::Direct((0..site.scenario.agents.len()).map(crate::agent::id).collect())
        } else {
            GrantSource::Managed
        };
        let patience = Patience(plan.patience.max(if site.is_faulty() {
            Duration::ZERO
        } else {
            // Without faults, the request must succeed in the end, because all other clients release idle leases.
            Duration::from_secs(25)
        }));
        let seed = site.random.random();
        self.acquisition = Some(Acquisition::new(way, patience, seed, now));
        self.acquire(node, AcquisitionEvent::Tick, site);
    }

    /// Makes a step of the acquisition and carries out its action.
    pub(super) fn acquire(&mut self, node: Node, event: AcquisitionEvent, site: &mut SharedState) {
        let now = self.now(site);
        let Some(acquisition) = &mut self.acquisition else {
            return;
        };
        if event != AcquisitionEvent::Tick {
            site.note(node, || format!("{event:?}"));
            self.asked = None;
        }
        let action = acquisition.step(event, now);
        let plan = Self::plan(node, site).clone();
        let managed = matches!(action, Some(AcquisitionAction::AskManager { .. }));
        let wanted = crate::spread::lease_request(&plan, node.to_string(), managed, &mut self.whole, &mut site.random);
        let (to, request, limit) = match action {
            None => return,
            Some(AcquisitionAction::AskManager { .. }) => (Node::Manager, Request::Acquire(wanted), ACQUIRE_LIMIT),
            Some(AcquisitionAction::AskAgent(agent)) => {
                let agents = 0..site.scenario.agents.len();
                let number = agents.into_iter().find(|number| crate::agent::id(*number) == agent);
                (
                    Node::Agent(number.unwrap_or_default()),
                    Request::Grant(wanted),
                    GRANT_LIMIT,
                )
            }
            Some(AcquisitionAction::GiveUp(refusal)) => {
                site.note(node, || format!("gives up: {refusal}"));
                self.acquisition = None;
                let failed = InvocationFailure {
                    ran: RunCertainty::No,
                    of_the_worker: false,
                };
                for task in std::mem::take(&mut self.queue) {
                    self.fail(node, task, failed, site);
                }
                return;
            }
        };
        let call = self.request(node, to, request, site);
        self.asked = Some(call);
        site.after(limit, node, SimEvent::TimedOut { run: self.run, call });
    }

    pub(super) fn step_acquisition(&mut self, node: Node, now: Duration, site: &mut SharedState) {
        if let Hold::Attaching { until, .. } = &self.hold
            && *until <= now
        {
            self.close(node, site);
            let refusal = Rejection::Timeout {
                what: "the agent".into(),
                after_ms: 0,
            };
            self.acquire(node, AcquisitionEvent::Refused(refusal), site);
        }
        self.acquire(node, AcquisitionEvent::Tick, site);
    }
}
