//! Orders of operators for nodes.
//!
//! ```text
//! Order ──► Commit ──► AskOrder ──► Ordered ──► Answer
//!              │           ▲  agent away: answered at once
//!              └───────────┴─ each report of another number
//! ```
//!
//! The manager repeats a node's wish to it until the node's reports name the order's number. From the order on the
//! manager asks the node for no lease that the order forbids, whether or not the node knows of the order.

use super::{Cluster, Continuation, Question, answer, refuse};
use crate::manager::{
    AgentOffer, AskId, ClusterAction, ClusterAnswer, NodeOrder, NodeWish, RequestId, StateWrite, WISHES_MAX,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;

/// A node's wish, and its progress.
#[derive(Debug)]
pub(super) struct WishRecord {
    wish: NodeWish,
    durable: bool,
    /// The question under way that tells the node its wish.
    asking: Option<AskId>,
}

impl WishRecord {
    /// Whether its operator lets the node grant leases.
    pub(super) fn may_serve(&self) -> bool {
        self.wish.drained_by_ms.is_none()
    }

    fn durable(wish: NodeWish) -> Self {
        Self {
            wish,
            durable: true,
            asking: None,
        }
    }
}

/// An order that is being carried out.
#[derive(Debug)]
pub(super) struct PendingOrder {
    /// The request to answer; none if the node is merely reminded.
    request: Option<RequestId>,
    agent: AgentId,
    number: u64,
    /// The wish before this order.
    before: Option<NodeWish>,
}

impl Cluster {
    /// Adds the wishes of the durable state.
    #[must_use]
    pub fn with_wishes(mut self, wishes: impl IntoIterator<Item = (AgentId, NodeWish)>) -> Self {
        let wishes = wishes.into_iter();
        self.wishes
            .extend(wishes.map(|(agent, wish)| (agent, WishRecord::durable(wish))));
        self
    }

    /// All wishes for nodes.
    pub fn wishes(&self) -> impl Iterator<Item = (AgentId, &NodeWish)> {
        self.wishes.iter().map(|(agent, wished)| (*agent, &wished.wish))
    }

    /// The wish for one node.
    pub fn wish(&self, agent: AgentId) -> Option<&NodeWish> {
        self.wishes.get(&agent).map(|wished| &wished.wish)
    }

    /// Whether its operator lets this agent grant leases.
    pub(super) fn may_serve(&self, agent: AgentId) -> bool {
        self.wishes.get(&agent).is_none_or(WishRecord::may_serve)
    }

    pub(super) fn order(
        &mut self,
        request: RequestId,
        agent: AgentId,
        order: NodeOrder,
        at_ms: u64,
        actions: &mut Vec<ClusterAction>,
    ) {
        let full = self.wishes.len() >= WISHES_MAX && !self.wishes.contains_key(&agent);
        let admitted = self.admit().and(match full {
            false => Ok(()),
            true => Err(Rejection::TooMany {
                what: "nodes with orders".into(),
                limit: WISHES_MAX as u64,
            }),
        });
        if let Err(refusal) = admitted {
            return refuse(request, refusal, actions);
        }
        let before = self.wish(agent).cloned();
        let wish = before.clone().unwrap_or_default().after(order, at_ms);
        let ordering = PendingOrder {
            request: Some(request),
            agent,
            number: wish.number,
            before,
        };
        let wished = WishRecord {
            wish: wish.clone(),
            durable: false,
            asking: None,
        };
        self.wishes.insert(agent, wished);
        self.commit(
            agent,
            vec![StateWrite::PutWish { agent, wish }],
            Continuation::Wished(ordering),
            actions,
        );
    }

    /// Continues with a durable order: tells the node, if it is there.
    pub(super) fn on_wish_durable(&mut self, ordering: PendingOrder, actions: &mut Vec<ClusterAction>) {
        let agent = ordering.agent;
        let here = self.reachable().any(|known| known == agent);
        match self.wishes.get_mut(&agent) {
            Some(wished) if wished.wish.number == ordering.number => wished.durable = true,
            // A later order came; its wish contains or undoes this order.
            _ => return answer_order(&ordering, false, actions),
        }
        if here {
            self.tell(ordering, actions);
        } else {
            answer_order(&ordering, false, actions);
        }
    }

    /// Undoes an order that could not be written down.
    pub(super) fn on_wish_not_durable(
        &mut self,
        ordering: PendingOrder,
        refusal: Rejection,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.take_back(&ordering);
        if let Some(request) = ordering.request {
            refuse(request, refusal, actions);
        }
    }

    fn tell(&mut self, ordering: PendingOrder, actions: &mut Vec<ClusterAction>) {
        let agent = ordering.agent;
        let Some(wish) = self.wish(agent).cloned() else {
            return;
        };
        let ask = self.ask(Question::Order(ordering));
        self.orders_asked += 1;
        if let Some(wished) = self.wishes.get_mut(&agent) {
            wished.asking = Some(ask);
        }
        actions.push(ClusterAction::AskOrder { ask, agent, wish });
    }

    fn note_answer(&mut self, ask: AskId, agent: AgentId) {
        self.orders_asked -= 1;
        if let Some(wished) = self.wishes.get_mut(&agent)
            && wished.asking == Some(ask)
        {
            wished.asking = None;
        }
    }

    /// Notes that a node has carried out its wish.
    pub(super) fn on_ordered(&mut self, ask: AskId, offering: AgentOffer, actions: &mut Vec<ClusterAction>) {
        let Some(Question::Order(ordering)) = self.asks.remove(&ask) else {
            return;
        };
        self.note_answer(ask, ordering.agent);
        self.registry.offers(ordering.agent, offering);
        answer_order(&ordering, true, actions);
    }

    /// Notes that a node has refused, or did not answer.
    pub(super) fn on_not_ordered(
        &mut self,
        ask: AskId,
        ordering: PendingOrder,
        refusal: Rejection,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.note_answer(ask, ordering.agent);
        let Some(request) = ordering.request else {
            return;
        };
        if !matches!(refusal, Rejection::BadRequest { .. }) {
            // The node's next report makes the manager repeat the wish.
            return answer_order(&ordering, false, actions);
        }
        // The node will never carry the order out.
        let agent = ordering.agent;
        // The node has seen this number, and accepts only later ones.
        let before = ordering.before.map(|wish| NodeWish {
            number: ordering.number + 1,
            ..wish
        });
        let ordering = PendingOrder { before, ..ordering };
        if self.take_back(&ordering) {
            let write = match ordering.before {
                Some(wish) => StateWrite::PutWish { agent, wish },
                None => StateWrite::RemoveWish(agent),
            };
            self.commit(agent, vec![write], Continuation::NoReply, actions);
        }
        refuse(request, refusal, actions);
    }

    /// Restores the wish before this order, unless a later order came. Returns whether it did.
    fn take_back(&mut self, ordering: &PendingOrder) -> bool {
        let latest = self.wish(ordering.agent).map(|wish| wish.number) == Some(ordering.number);
        if latest {
            match &ordering.before {
                Some(wish) => {
                    self.wishes.insert(ordering.agent, WishRecord::durable(wish.clone()));
                }
                None => {
                    self.wishes.remove(&ordering.agent);
                }
            }
        }
        latest
    }

    /// Repeats the wish to a node whose report names another order than the latest.
    pub(super) fn remind(&mut self, agent: AgentId, order: u64, actions: &mut Vec<ClusterAction>) {
        let Some(wished) = self.wishes.get(&agent) else {
            return;
        };
        if !wished.durable || wished.asking.is_some() {
            return;
        }
        if wished.wish.number != order {
            let ordering = PendingOrder {
                request: None,
                agent,
                number: wished.wish.number,
                before: None,
            };
            self.tell(ordering, actions);
        } else if wished.wish.is_nothing() {
            // The node is as it would be without a wish, also after its next start.
            self.wishes.remove(&agent);
            self.commit(
                agent,
                vec![StateWrite::RemoveWish(agent)],
                Continuation::NoReply,
                actions,
            );
        }
    }
}

fn answer_order(ordering: &PendingOrder, done: bool, actions: &mut Vec<ClusterAction>) {
    if let Some(request) = ordering.request {
        answer(request, ClusterAnswer::Ordered { done }, actions);
    }
}
