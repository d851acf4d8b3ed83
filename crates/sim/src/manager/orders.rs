//! An operator at the manager's node, who gives one order after the other, and repeats unanswered orders.

use super::{Caller, ManagerNode, NODE};
use crate::agent::{ProcessDied, id};
use crate::durable::Durable;
use crate::message::AgentOrder;
use crate::scenario::OperatorOrder;
use crate::shared_state::SharedState;
use hotlease_lease::agent::OfferedCores;
use hotlease_lease::manager::{ClusterAnswer, ClusterEvent, NodeOrder, NodeWish, OfferWish, OrderRequest, RequestId};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// An operator. Crashes of the manager do not affect its memory.
#[derive(Default)]
pub struct Operator {
    wants: VecDeque<(usize, OperatorOrder)>,
    /// Run of the manager that got the order, and the order's number.
    asked: Option<(u32, u64)>,
    /// Number of times that the operator has given the order.
    tries: u32,
    /// Whether the order's agent had been given back before the order.
    was_given_back: bool,
    /// Agents that the operator was told are given back.
    given_back: BTreeSet<AgentId>,
}

/// Milliseconds since 1970 on the manager's clock.
fn at_ms(now: Duration) -> u64 {
    1_000_000 + now.as_millis() as u64
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Order as it is sent to an agent.
pub(super) fn order_for_agent(wish: &NodeWish, now: Duration) -> AgentOrder {
    let within = |by_ms: u64| Duration::from_millis(by_ms.saturating_sub(at_ms(now)));
    let offer = wish.state.offer.as_ref();
    AgentOrder {
        number: wish.number,
        drained_within: wish.state.drained_by_ms.map(within),
        offer: offer.map(|offer| (offer.cores.clone(), within(offer.by_ms))),
    }
}

impl Operator {
    pub fn add_order(&mut self, agent: usize, order: OperatorOrder) {
        self.wants.push_back((agent, order));
    }

    pub fn is_idle(&self) -> bool {
        self.wants.is_empty()
    }

    /// Checks that no lease is requested from an agent after the operator was told that it is given back.
    pub(super) fn check_grant(&self, agent: AgentId, site: &mut SharedState) {
        site.check_promise(NODE, !self.given_back.contains(&agent), || {
            format!("agent {agent} is asked for a lease after its operator was told that it is given back")
        });
    }

    /// Handles an answer, and checks its promises against what really happened.
    pub(super) fn handle_answer(&mut self, answer: &ClusterAnswer, durable: &Durable, site: &mut SharedState) {
        site.note(NODE, || format!("tells the operator {answer:?}"));
        let asked = self.asked.take();
        if let ClusterAnswer::Refused(Rejection::BadRequest { .. }) = answer {
            // After this refusal the state before the order is in force again, at manager and agent. After several
            // attempts that is not certain: an earlier attempt may be recorded for an agent that was away, and that
            // agent will reject it only later.
            if let Some((agent, _)) = self.wants.pop_front()
                && self.was_given_back
                && self.tries == 1
            {
                self.given_back.insert(id(agent));
            }
            self.tries = 0;
            return;
        }
        let (ClusterAnswer::Ordered { done }, Some((_, number))) = (answer, asked) else {
            return;
        };
        let Some((agent, order)) = self.wants.pop_front() else {
            return;
        };
        self.tries = 0;
        site.check_promise(NODE, durable.has_recorded(id(agent), number), || {
            format!("the order {number} for agent{agent} is acknowledged, and not durable")
        });
        let carried_out = site.truth.carried_out.contains(&(agent, number));
        site.check_promise(NODE, !done || carried_out, || {
            format!("agent{agent} is said to have carried out the order {number}, and has not")
        });
        if matches!(order, OperatorOrder::Drain { .. } | OperatorOrder::Remove) {
            self.given_back.insert(id(agent));
        }
    }
}

impl ManagerNode {
    /// Number of unfinished wishes of a running manager.
    pub fn cluster_wishes(&self) -> usize {
        let process = self.process.as_ref();
        process.map_or(0, |process| {
            process.cluster.wishes().filter(|(_, wish)| !is_all(wish)).count()
        })
    }

    /// Sends the operator's next order, unless the operator waits for an answer.
    pub(super) fn give_next_order(&mut self, site: &mut SharedState) -> Result<(), ProcessDied> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let waits = self.operator.asked.is_some_and(|(run, _)| run == process.run);
        let (false, Some((agent, order))) = (waits, self.operator.wants.front().copied()) else {
            return Ok(());
        };
        let now_ms = at_ms(site.now);
        let known = process.cluster.wish(id(agent)).map_or(0, |wish| wish.number);
        self.operator.asked = Some((process.run, now_ms.max(known + 1)));
        self.operator.tries += 1;
        if !matches!(order, OperatorOrder::Drain { .. } | OperatorOrder::Remove) {
            self.operator.was_given_back = self.operator.given_back.remove(&id(agent));
        }
        process.last_request += 1;
        let request = RequestId(process.last_request);
        let caller = Caller {
            node: NODE,
            run: process.run,
            call: 0,
            wanted: None,
            carried: Vec::new(),
        };
        process.requests.insert(request, caller);
        let offer = |cores, within: Duration| {
            NodeOrder::Add(OfferWish {
                cores,
                memory_bytes: None,
                gpus: None,
                by_ms: now_ms + ms(within),
            })
        };
        let order = match order {
            OperatorOrder::AddAll => offer(OfferedCores::All, Duration::ZERO),
            OperatorOrder::Offer { cores, within } => offer(OfferedCores::Count(cores), within),
            OperatorOrder::Drain { within } => NodeOrder::Drain {
                by_ms: now_ms + ms(within),
            },
            OperatorOrder::Resume => NodeOrder::Resume,
            OperatorOrder::Remove => NodeOrder::Remove,
        };
        let event = ClusterEvent::Order {
            request,
            order: OrderRequest {
                agent: id(agent),
                order,
                token: None,
                at_ms: now_ms,
            },
        };
        self.step(event, site)
    }
}

/// Whether the node offers everything and is not drained.
fn is_all(wish: &NodeWish) -> bool {
    let offers_all = |offer: &OfferWish| offer.cores == OfferedCores::All;
    wish.state.drained_by_ms.is_none() && wish.state.offer.as_ref().is_some_and(offers_all)
}
