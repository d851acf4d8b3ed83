//! Orders of operators for nodes.
//!
//! ```text
//! Order ──► check ──► Commit ──► AskOrder ──► Ordered ──► Answer
//!                         │        ▲  ▲  agent away: answered at once
//!                         └────────┴──┼─ each report of another number
//!                      Commit ────────┘
//!                         ▲ rejected: the state that was wanted before
//! ```
//!
//! If a node has reported its limits, an order that exceeds them is refused before anything is written. The manager
//! repeats the wish to the node until the node's reports name the order's number. If the node rejects the order after
//! all, the wish returns to the state before the order. From the order on the manager asks the node for no lease that
//! the order forbids, even before the node receives the order.

use super::{Cluster, Continuation, Question, answer, refuse};
use crate::manager::{
    AgentOffer, AgentState, AskId, ClusterAction, ClusterAnswer, EARLIER_MAX, NodeOrder, NodeWish, OrderRecord,
    OrderRequest, OrderToken, RequestId, StateWrite, WISHES_MAX,
};
use hotlease_wire::Rejection;
use hotlease_wire::ids::{AgentId, BootId};

/// Largest number of requests that wait for one order: the first request, and repetitions with its token.
const WAITING_MAX: usize = 64;

/// A node's wish, and its progress.
#[derive(Debug)]
pub(super) struct WishRecord {
    wish: NodeWish,
    durable: bool,
    /// The question under way that sends the node its wish.
    asking: Option<AskId>,
}

impl WishRecord {
    /// Whether the node's operator lets the node grant leases.
    pub(super) fn may_serve(&self) -> bool {
        self.wish.state.drained_by_ms.is_none()
    }

    fn durable(wish: NodeWish) -> Self {
        Self {
            wish,
            durable: true,
            asking: None,
        }
    }
}

/// An order that is being carried out; the requests that wait for it are in `Cluster::order_requests`.
#[derive(Debug)]
pub(super) struct PendingOrder {
    agent: AgentId,
    number: u64,
    /// The wish before this order.
    before: Option<NodeWish>,
}

/// An order that its node has rejected, while the state before the order is written.
#[derive(Debug)]
pub(super) struct GivenUpOrder {
    order: PendingOrder,
    why: Rejection,
    /// The state before, as an order; `None` if the node needs no order.
    fallback: Option<PendingOrder>,
}

/// The latest order that a node has rejected.
#[derive(Debug)]
pub(super) struct RejectedOrder {
    /// The run of the agent that rejected the order.
    boot: Option<BootId>,
    number: u64,
    why: Rejection,
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

    /// Adds the orders of the durable state that are remembered by their tokens.
    #[must_use]
    pub fn with_orders(mut self, orders: impl IntoIterator<Item = OrderRecord>) -> Self {
        orders.into_iter().for_each(|order| self.known_orders.note(order));
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

    /// Nodes that have rejected their latest order, and why.
    pub fn rejected_orders(&self) -> impl Iterator<Item = (AgentId, &Rejection)> {
        let rejected = self.rejected_orders.iter();
        rejected.map(|(agent, rejected)| (*agent, &rejected.why))
    }

    /// The order that a caller has sent with this token, as long as the order is remembered.
    pub fn known_order(&self, token: &OrderToken) -> Option<&OrderRecord> {
        self.known_orders.of(&token.caller, &token.token)
    }

    /// Whether the agent's operator lets the agent grant leases.
    pub(super) fn may_serve(&self, agent: AgentId) -> bool {
        self.wishes.get(&agent).is_none_or(WishRecord::may_serve)
    }

    pub(super) fn order(&mut self, request: RequestId, asked: OrderRequest, actions: &mut Vec<ClusterAction>) {
        self.known_orders.expire(asked.at_ms);
        let known = asked.token.as_ref().and_then(|token| self.known_order(token));
        if let (Some(known), Some(token)) = (known, &asked.token) {
            if known.token != *token {
                return answer(request, ClusterAnswer::OtherOrder, actions);
            }
            let (agent, number) = (known.agent, known.number);
            return self.repeat_answer(request, agent, number, actions);
        }
        match self.check_order(&asked) {
            Ok(wish) => self.record_order(request, asked, wish, actions),
            Err(refusal) => refuse(request, refusal, actions),
        }
    }

    /// Returns the wish after an order, or the reason to refuse the order. Changes nothing.
    fn check_order(&self, asked: &OrderRequest) -> Result<NodeWish, Rejection> {
        let too_many = |what: &str, limit: usize| {
            Err(Rejection::TooMany {
                what: what.into(),
                limit: limit as u64,
            })
        };
        self.admit()?;
        if asked.token.is_some() {
            self.known_orders.admit()?;
        }
        let agent = asked.agent;
        if self.wishes.len() >= WISHES_MAX && !self.wishes.contains_key(&agent) {
            return too_many("nodes with orders", WISHES_MAX);
        }
        let before = self.wish(agent).cloned().unwrap_or_default();
        let wish = before.after(asked.order.clone(), asked.at_ms);
        if wish.earlier.len() > EARLIER_MAX {
            return too_many("offers that the node has not answered", EARLIER_MAX);
        }
        // A drain is possible with every offer.
        let offer = wish.state.offer.as_ref();
        if let (NodeOrder::Add(_) | NodeOrder::Resume, Some(offer)) = (&asked.order, offer)
            && let Some((known, state, _)) = self.registry.agent(agent)
            && let (Some(limits), true) = (&known.limits, state != AgentState::Gone)
        {
            limits.check(&offer.cores, offer.gpus.as_ref(), offer.memory_bytes)?;
        }
        Ok(wish)
    }

    fn record_order(
        &mut self,
        request: RequestId,
        asked: OrderRequest,
        wish: NodeWish,
        actions: &mut Vec<ClusterAction>,
    ) {
        let (agent, number) = (asked.agent, wish.number);
        let ordering = PendingOrder {
            agent,
            number,
            before: self.wish(agent).cloned(),
        };
        let wished = WishRecord {
            wish: wish.clone(),
            durable: false,
            asking: None,
        };
        self.wishes.insert(agent, wished);
        self.rejected_orders.remove(&agent);
        self.order_requests.insert((agent, number), vec![request]);
        let order = asked.token.map(|token| OrderRecord {
            token,
            agent,
            number,
            at_ms: asked.at_ms,
        });
        order.iter().for_each(|order| self.known_orders.note(order.clone()));
        self.commit(
            agent,
            vec![StateWrite::PutWish { agent, wish, order }],
            Continuation::Wished(ordering),
            actions,
        );
    }

    /// Answers a repeated order: together with the first request if this is still unanswered, else at once with the
    /// present state.
    fn repeat_answer(&mut self, request: RequestId, agent: AgentId, number: u64, actions: &mut Vec<ClusterAction>) {
        match self.order_requests.get_mut(&(agent, number)) {
            Some(waiting) if waiting.len() < WAITING_MAX => waiting.push(request),
            Some(_) => {
                let what = "requests with one token at a time".into();
                let limit = WAITING_MAX as u64;
                refuse(request, Rejection::TooMany { what, limit }, actions);
            }
            None => {
                let agent = self.registry.agent(agent);
                let done = agent.is_some_and(|(known, state, _)| state != AgentState::Gone && known.order >= number);
                answer(request, ClusterAnswer::Ordered { done }, actions);
            }
        }
    }

    /// Continues with a durable order: sends the wish to the node, if the node is reachable.
    pub(super) fn on_wish_durable(&mut self, ordering: PendingOrder, actions: &mut Vec<ClusterAction>) {
        let agent = ordering.agent;
        let here = self.reachable().any(|known| known == agent);
        match self.wishes.get_mut(&agent) {
            Some(wished) if wished.wish.number == ordering.number => wished.durable = true,
            // There is a later order, whose wish contains or undoes this order.
            _ => return self.answer_order(&ordering, false, actions),
        }
        if here {
            self.tell(ordering, actions);
        } else {
            self.answer_order(&ordering, false, actions);
        }
    }

    /// Undoes an order that could not be written down.
    pub(super) fn on_wish_not_durable(
        &mut self,
        ordering: PendingOrder,
        refusal: Rejection,
        actions: &mut Vec<ClusterAction>,
    ) {
        let agent = ordering.agent;
        self.known_orders.forget(agent, ordering.number);
        if self.wish(agent).map(|wish| wish.number) == Some(ordering.number) {
            match &ordering.before {
                Some(wish) => {
                    self.wishes.insert(agent, WishRecord::durable(wish.clone()));
                }
                None => {
                    self.wishes.remove(&agent);
                }
            }
        }
        self.refuse_order(&ordering, refusal, actions);
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
        self.note_carried_out(ordering.agent, ordering.number, actions);
        self.answer_order(&ordering, true, actions);
    }

    /// Forgets the states before a wish that the node has carried out: the wish will not have to return to them.
    fn note_carried_out(&mut self, agent: AgentId, number: u64, actions: &mut Vec<ClusterAction>) {
        let wished = self.wishes.get_mut(&agent);
        let Some(wished) = wished.filter(|wished| wished.wish.number == number) else {
            return;
        };
        let Some(wish) = wished.wish.carried_out() else {
            return;
        };
        wished.wish = wish.clone();
        let write = StateWrite::PutWish {
            agent,
            wish,
            order: None,
        };
        self.commit(agent, vec![write], Continuation::NoReply, actions);
    }

    /// Notes that a node has refused its wish, or did not answer.
    pub(super) fn on_not_ordered(
        &mut self,
        ask: AskId,
        ordering: PendingOrder,
        refusal: Rejection,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.note_answer(ask, ordering.agent);
        if !matches!(refusal, Rejection::BadRequest { .. }) {
            // The node's next report makes the manager repeat the wish.
            return self.answer_order(&ordering, false, actions);
        }
        self.give_up_order(ordering, refusal, actions);
    }

    /// Gives up an order for a node that was away, if the node has now registered with too few resources for the order.
    pub(super) fn check_wish(&mut self, agent: AgentId, actions: &mut Vec<ClusterAction>) {
        let wished = self.wishes.get(&agent).filter(|wished| wished.durable);
        let limits = self.registry.agent(agent).and_then(|(known, ..)| known.limits.clone());
        let (Some(wished), Some(limits)) = (wished, limits) else {
            return;
        };
        let Some(offer) = wished.wish.state.offer.as_ref().filter(|_| wished.may_serve()) else {
            return;
        };
        if let Err(why) = limits.check(&offer.cores, offer.gpus.as_ref(), offer.memory_bytes) {
            let order = PendingOrder {
                agent,
                number: wished.wish.number,
                before: None,
            };
            self.give_up_order(order, why, actions);
        }
    }

    /// Returns the wish to the state before an order that the node has rejected, and will never carry out. The order's
    /// caller gets the answer once this state is durable.
    fn give_up_order(&mut self, ordering: PendingOrder, why: Rejection, actions: &mut Vec<ClusterAction>) {
        let (agent, number) = (ordering.agent, ordering.number);
        let mut writes = Vec::new();
        let mut fallback = None;
        // The order's token is forgotten before the wish changes: otherwise a repetition of the order could be answered
        // as if the order had been carried out.
        if self.known_orders.forget(agent, number) {
            writes.push(StateWrite::ForgetOrder { agent, number });
        }
        let wish = self.wish(agent).filter(|wish| wish.number == number).cloned();
        if let Some(rejected) = wish {
            let boot = self.registry.agent(agent).map(|(known, ..)| known.boot);
            let rejection = RejectedOrder {
                boot,
                number,
                why: why.clone(),
            };
            self.rejected_orders.insert(agent, rejection);
            match rejected.rejected() {
                Some(wish) if wish.is_nothing() => {
                    self.wishes.remove(&agent);
                    writes.push(StateWrite::RemoveWish(agent));
                }
                Some(wish) => {
                    fallback = Some(PendingOrder {
                        agent,
                        number: wish.number,
                        before: Some(rejected),
                    });
                    self.wishes.insert(
                        agent,
                        WishRecord {
                            wish: wish.clone(),
                            durable: false,
                            asking: None,
                        },
                    );
                    let order = None;
                    writes.push(StateWrite::PutWish { agent, wish, order });
                }
                // No earlier state is left, because another run of the agent has carried out the wish: the wish stays,
                // for that run.
                None => {}
            }
        }
        if writes.is_empty() {
            return self.refuse_order(&ordering, why, actions);
        }
        let then = Continuation::OrderGivenUp(Box::new(GivenUpOrder {
            order: ordering,
            why,
            fallback,
        }));
        self.commit(agent, writes, then, actions);
    }

    pub(super) fn on_given_up(&mut self, given_up: GivenUpOrder, actions: &mut Vec<ClusterAction>) {
        self.refuse_order(&given_up.order, given_up.why, actions);
        if let Some(fallback) = given_up.fallback {
            self.on_wish_durable(fallback, actions);
        }
    }

    /// The writes have failed, so the durable state still has the rejected order: the node gets the order again, and
    /// rejects it again.
    pub(super) fn on_not_given_up(
        &mut self,
        given_up: GivenUpOrder,
        refusal: Rejection,
        actions: &mut Vec<ClusterAction>,
    ) {
        self.refuse_order(&given_up.order, refusal.clone(), actions);
        if let Some(fallback) = given_up.fallback {
            self.rejected_orders.remove(&fallback.agent);
            self.on_wish_not_durable(fallback, refusal, actions);
        }
    }

    /// Repeats the wish to a node whose report names another order than the latest.
    pub(super) fn remind(&mut self, agent: AgentId, order: u64, actions: &mut Vec<ClusterAction>) {
        let Some(wished) = self.wishes.get(&agent) else {
            return;
        };
        if !wished.durable || wished.asking.is_some() {
            return;
        }
        let number = wished.wish.number;
        if number != order {
            let boot = self.registry.agent(agent).map(|(known, ..)| known.boot);
            let rejected = self.rejected_orders.get(&agent);
            if rejected.is_some_and(|rejected| (rejected.boot, rejected.number) == (boot, number)) {
                return;
            }
            let ordering = PendingOrder {
                agent,
                number,
                before: None,
            };
            self.tell(ordering, actions);
        } else if wished.wish.is_nothing() {
            // The node's state is the same as without a wish, also after its next start.
            self.wishes.remove(&agent);
            self.commit(
                agent,
                vec![StateWrite::RemoveWish(agent)],
                Continuation::NoReply,
                actions,
            );
        } else {
            self.note_carried_out(agent, number, actions);
        }
    }

    fn answer_order(&mut self, ordering: &PendingOrder, done: bool, actions: &mut Vec<ClusterAction>) {
        for request in self.take_requests(ordering) {
            answer(request, ClusterAnswer::Ordered { done }, actions);
        }
    }

    fn refuse_order(&mut self, ordering: &PendingOrder, refusal: Rejection, actions: &mut Vec<ClusterAction>) {
        for request in self.take_requests(ordering) {
            refuse(request, refusal.clone(), actions);
        }
    }

    fn take_requests(&mut self, ordering: &PendingOrder) -> Vec<RequestId> {
        let key = (ordering.agent, ordering.number);
        self.order_requests.remove(&key).unwrap_or_default()
    }
}
