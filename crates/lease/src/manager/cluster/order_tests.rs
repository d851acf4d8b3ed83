//! Orders of operators.

use super::tests::{AGENT, commit, registered, report, wanted};
use super::*;
use crate::agent::{Availability, NodeLimits, OfferedCores};
use crate::manager::{AgentOffer, Allowance, EARLIER_MAX, NodeOrder, NodeWish, OfferWish, OrderRequest, WishedState};
use crate::request::LeaseSpec;

const NOW: Duration = Duration::ZERO;

fn order(request: u64, order: NodeOrder, at_ms: u64) -> ClusterEvent {
    ClusterEvent::Order {
        request: RequestId(request),
        order: OrderRequest {
            agent: AGENT,
            order,
            token: None,
            at_ms,
        },
    }
}

pub(super) fn ordered(cluster: &mut Cluster, request: u64, wanted: NodeOrder, at_ms: u64) -> (CommitId, NodeWish) {
    let (id, writes, rest) = commit(cluster.step(order(request, wanted, at_ms), NOW));
    assert!(rest.is_empty(), "no action before it is durable: {rest:?}");
    match &writes[..] {
        [StateWrite::PutWish { agent: AGENT, wish, .. }] => (id, wish.clone()),
        other => panic!("{other:?}"),
    }
}

pub(super) fn offer(cores: OfferedCores) -> NodeOrder {
    NodeOrder::Add(OfferWish {
        cores,
        memory_bytes: None,
        gpus: None,
        by_ms: 0,
    })
}

/// The question that sends a node its wish.
pub(super) fn order_request(actions: &[ClusterAction]) -> AskId {
    match actions {
        [ClusterAction::AskOrder { ask, agent: AGENT, .. }, ..] => *ask,
        other => panic!("{other:?}"),
    }
}

pub(super) fn answered(actions: &[ClusterAction]) -> &ClusterAnswer {
    match actions {
        [ClusterAction::Answer { answer, .. }] => answer,
        other => panic!("{other:?}"),
    }
}

fn acquire(cluster: &mut Cluster, request: u64) -> Vec<ClusterAction> {
    let acquire = ClusterEvent::Acquire {
        request: RequestId(request),
        wanted: wanted("uid:1", LeaseSpec::exclusive(1, 1)),
        allowance: Allowance::default(),
    };
    cluster.step(acquire, NOW)
}

pub(super) fn offers(availability: Availability, order: u64) -> AgentOffer {
    AgentOffer {
        availability,
        order,
        ..report(0, vec![]).offering
    }
}

pub(super) fn heartbeat(
    cluster: &mut Cluster,
    request: u64,
    availability: Availability,
    order: u64,
) -> Vec<ClusterAction> {
    let report = super::super::AgentReport {
        offering: offers(availability, order),
        ..report(0, vec![])
    };
    let event = ClusterEvent::Heartbeat {
        request: RequestId(request),
        report,
    };
    cluster.step(event, NOW)
}

#[test]
fn a_drained_node_is_asked_for_no_lease_from_the_order_on() {
    let mut cluster = registered();
    let (id, wish) = ordered(&mut cluster, 2, NodeOrder::Drain { by_ms: 9000 }, 1000);
    assert_eq!((wish.number, wish.state.drained_by_ms), (1000, Some(9000)));
    for durable in [false, true] {
        if durable {
            let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
            let offering = offers(Availability::Draining, 1000);
            let actions = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
            assert_eq!(answered(&actions), &ClusterAnswer::Ordered { done: true });
        }
        let actions = acquire(&mut cluster, 3);
        assert!(
            matches!(
                answered(&actions),
                ClusterAnswer::Refused(Rejection::Unavailable { .. })
            ),
            "durable {durable}: {actions:?}"
        );
    }
    let actions = heartbeat(&mut cluster, 4, Availability::Draining, 1000);
    assert_eq!(
        answered(&actions),
        &ClusterAnswer::HeartbeatAnswered { known: true },
        "the node has carried the order out"
    );
    let (id, wish) = ordered(&mut cluster, 5, NodeOrder::Resume, 2000);
    assert_eq!((wish.number, wish.state.drained_by_ms), (2000, None));
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let offering = offers(Availability::Serving, 2000);
    let _ = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    assert!(matches!(acquire(&mut cluster, 6)[..], [ClusterAction::AskGrant { .. }]));
    let (_, writes, _) = commit(heartbeat(&mut cluster, 7, Availability::Serving, 2000));
    assert_eq!(writes, [StateWrite::RemoveWish(AGENT)], "a fulfilled wish is removed");
    assert_eq!(cluster.wishes().count(), 0);
}

#[test]
fn an_order_for_a_node_that_is_away_is_told_when_it_comes() {
    let wish = NodeWish {
        number: 7,
        state: WishedState {
            drained_by_ms: Some(1),
            offer: None,
        },
        earlier: Vec::new(),
    };
    let mut cluster = registered().with_wishes([(AGENT, wish)]);
    assert!(matches!(answered(&acquire(&mut cluster, 2)), ClusterAnswer::Refused(_)));
    let actions = heartbeat(&mut cluster, 3, Availability::Serving, 0);
    let ask = order_request(&actions);
    assert!(
        !heartbeat(&mut cluster, 4, Availability::Serving, 0)
            .iter()
            .any(|action| matches!(action, ClusterAction::AskOrder { .. })),
        "one question at a time"
    );
    let refusal = Rejection::UnknownLease;
    assert!(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW).is_empty());
    order_request(&heartbeat(&mut cluster, 5, Availability::Serving, 0));

    let mut absent = Cluster::new([AGENT], [], NOW);
    let (id, _) = ordered(&mut absent, 2, NodeOrder::Remove, 500);
    let actions = absent.step(ClusterEvent::Committed { commit: id }, NOW);
    assert_eq!(answered(&actions), &ClusterAnswer::Ordered { done: false });
}

#[test]
fn an_order_that_is_not_durable_or_not_possible_changes_nothing() {
    let mut cluster = registered();
    let (commit_id, _) = ordered(&mut cluster, 2, NodeOrder::Remove, 1000);
    let refusal = Rejection::NoAgent;
    let failed = ClusterEvent::NotCommitted {
        commit: commit_id,
        refusal,
    };
    assert!(matches!(
        answered(&cluster.step(failed, NOW)),
        ClusterAnswer::Refused(_)
    ));
    assert!(matches!(acquire(&mut cluster, 3)[..], [ClusterAction::AskGrant { .. }]));

    let offer = offer(OfferedCores::These([99].into()));
    let (commit_id, _) = ordered(&mut cluster, 4, offer, 2000);
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: commit_id }, NOW));
    let refusal = Rejection::BadRequest { what: "core 99".into() };
    let (id, writes, rest) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
    assert_eq!(writes, [StateWrite::RemoveWish(AGENT)]);
    assert!(rest.is_empty(), "no action before it is durable: {rest:?}");
    let rest = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
    assert!(matches!(
        answered(&rest),
        ClusterAnswer::Refused(Rejection::BadRequest { .. })
    ));
    assert_eq!(cluster.wish(AGENT), None);
}

#[test]
fn a_node_that_rejects_an_order_gets_the_state_before_again() {
    let mut cluster = registered();
    let (first, drained) = ordered(&mut cluster, 2, NodeOrder::Remove, 1000);
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: first }, NOW));
    let offering = offers(Availability::Drained, 1000);
    let _ = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    let offer = offer(OfferedCores::Count(99));
    let (second, _) = ordered(&mut cluster, 3, offer, 2000);
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: second }, NOW));
    let refusal = Rejection::BadRequest { what: "99".into() };
    let (id, writes, _) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
    let again = NodeWish {
        number: 2001,
        ..drained
    };
    let put = StateWrite::PutWish {
        agent: AGENT,
        wish: again,
        order: None,
    };
    assert_eq!(writes, [put]);
    let actions = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
    let is_refused = matches!(
        &actions[0],
        ClusterAction::Answer {
            answer: ClusterAnswer::Refused(Rejection::BadRequest { .. }),
            ..
        }
    );
    assert!(is_refused, "{actions:?}");
    order_request(&actions[1..]);
}

#[test]
fn a_deadline_is_brought_forward_and_not_put_off() {
    let drained = NodeWish::default().after(NodeOrder::Drain { by_ms: 500 }, 100);
    let later = drained.after(NodeOrder::Drain { by_ms: 900 }, 100);
    assert_eq!((later.state.drained_by_ms, later.number), (Some(500), 101));
    assert_eq!(later.after(NodeOrder::Remove, 200).state.drained_by_ms, Some(200));
    assert!(later.after(NodeOrder::Resume, 300).is_nothing());
}

/// Found by the simulator.
#[test]
fn a_node_removed_while_another_agent_is_asked_gets_no_request_after_it() {
    const OTHER: AgentId = AgentId([2; 8]);
    let mut cluster = registered();
    let other = AgentProfile {
        id: OTHER,
        boot: BootId([2; 8]),
        ..super::tests::record(2)
    };
    let register = ClusterEvent::Register {
        request: RequestId(2),
        record: other,
        proof: 0,
    };
    let (id, ..) = commit(cluster.step(register, NOW));
    let _ = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
    let actions = acquire(&mut cluster, 3);
    let [ClusterAction::AskGrant { ask, agent: AGENT, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    let order = ClusterEvent::Order {
        request: RequestId(4),
        order: OrderRequest {
            agent: OTHER,
            order: NodeOrder::Remove,
            token: None,
            at_ms: 1,
        },
    };
    let _ = cluster.step(order, NOW);
    let refusal = Rejection::UnknownLease;
    let actions = cluster.step(ClusterEvent::Refused { ask, refusal }, NOW);
    assert!(matches!(answered(&actions), ClusterAnswer::Refused(_)), "{actions:?}");
}

/// A cluster with one agent, registered with its limits: two cores, no GPU, 100 bytes.
fn limited() -> Cluster {
    let mut cluster = Cluster::new([], [], NOW);
    let limits = NodeLimits {
        cores: [0, 1].into(),
        gpus: 0,
        memory_bytes: 100,
    };
    let register = ClusterEvent::Register {
        request: RequestId(1),
        record: AgentProfile {
            limits: Some(limits.into()),
            ..super::tests::record(1)
        },
        proof: 0,
    };
    let (id, ..) = commit(cluster.step(register, NOW));
    let _ = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
    cluster
}

#[test]
fn an_order_for_more_than_the_node_has_is_refused_before_anything_is_written() {
    let mut cluster = limited();
    let (id, wish) = ordered(&mut cluster, 2, offer(OfferedCores::Count(1)), 1000);
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let offering = offers(Availability::Serving, wish.number);
    let actions = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    let shown = NodeWish {
        earlier: Vec::new(),
        ..wish
    };
    let too_much = OfferWish {
        cores: OfferedCores::All,
        memory_bytes: Some(101),
        gpus: None,
        by_ms: 0,
    };
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, ClusterAction::Answer { .. }))
    );
    for wanted in [offer(OfferedCores::Count(7)), NodeOrder::Add(too_much)] {
        let actions = cluster.step(order(3, wanted.clone(), 2000), NOW);
        let [ClusterAction::Answer { answer, .. }] = &actions[..] else {
            panic!("{wanted:?} led to {actions:?}");
        };
        let is_rejected = matches!(answer, ClusterAnswer::Refused(Rejection::BadRequest { .. }));
        assert!(is_rejected, "{wanted:?}: {answer:?}");
        assert_eq!(cluster.wish(AGENT), Some(&shown), "{wanted:?} changed the wish");
    }
    let actions = heartbeat(&mut cluster, 4, Availability::Serving, 1000);
    assert_eq!(answered(&actions), &ClusterAnswer::HeartbeatAnswered { known: true });
}

/// The manager takes three offers for a node that is away. The node registers, and can make only the first offer.
#[test]
fn a_node_that_was_away_does_the_latest_order_that_it_can_also_after_a_restart_of_the_manager() {
    let mut cluster = Cluster::new([], [], NOW);
    let drain = NodeOrder::Drain { by_ms: 9000 };
    let mut written = NodeWish::default();
    for (number, wanted) in [
        NodeOrder::Remove,
        offer(OfferedCores::Count(1)),
        offer(OfferedCores::Count(7)),
        offer(OfferedCores::Count(8)),
    ]
    .into_iter()
    .enumerate()
    {
        let (id, wish) = ordered(&mut cluster, 2 + number as u64, wanted, 1000);
        let actions = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
        assert_eq!(answered(&actions), &ClusterAnswer::Ordered { done: false });
        written = wish;
    }
    let mut cluster = registered().with_wishes([(AGENT, written.clone())]);
    let mut ask = order_request(&heartbeat(&mut cluster, 9, Availability::Serving, 0));
    for count in [8, 7] {
        let state = cluster.wish(AGENT).expect("wanted").state.offer.clone();
        assert_eq!(state.map(|offer| offer.cores), Some(OfferedCores::Count(count)));
        let refusal = Rejection::BadRequest {
            what: "too many".into(),
        };
        let (id, writes, _) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
        let wish = cluster.wish(AGENT).expect("wanted").clone();
        assert!(wish.number > written.number, "the node accepts later orders only");
        let order = None;
        let put = StateWrite::PutWish {
            agent: AGENT,
            wish,
            order,
        };
        assert_eq!(writes, [put], "the node's rejection is durable");
        ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
        assert_eq!(cluster.rejected_orders().count(), 1, "a listing says so");
    }
    let wish = cluster.wish(AGENT).expect("wanted").clone();
    let offering = offers(Availability::Serving, wish.number);
    let (_, writes, _) = commit(cluster.step(ClusterEvent::Ordered { ask, offering }, NOW));
    let expected = NodeWish {
        number: wish.number,
        state: WishedState {
            drained_by_ms: None,
            offer: match offer(OfferedCores::Count(1)) {
                NodeOrder::Add(offer) => Some(offer),
                _ => None,
            },
        },
        earlier: Vec::new(),
    };
    let put = StateWrite::PutWish {
        agent: AGENT,
        wish: expected,
        order: None,
    };
    assert_eq!(writes, [put], "the states before are not needed any more");

    // A drain stays in force, whichever offer the node rejects.
    let drained = written.after(drain, 1000);
    let states = drained.earlier.iter().chain([&drained.state]);
    assert!(states.clone().count() == 4 && states.clone().all(|state| state.drained_by_ms.is_some()));
}

#[test]
fn offers_for_a_node_that_is_away_are_bounded_and_the_same_offer_counts_once() {
    let mut cluster = Cluster::new([], [], NOW);
    for count in 1..=EARLIER_MAX as u32 {
        for _ in 0..3 {
            let _ = ordered(&mut cluster, 1, offer(OfferedCores::Count(count)), 1000);
        }
    }
    let wish = cluster.wish(AGENT).expect("wanted").clone();
    assert_eq!(wish.earlier.len(), EARLIER_MAX, "{wish:?}");
    let more = offer(OfferedCores::Count(99));
    let actions = cluster.step(order(2, more, 1000), NOW);
    let is_refused = matches!(answered(&actions), ClusterAnswer::Refused(Rejection::TooMany { .. }));
    assert!(is_refused && cluster.wish(AGENT) == Some(&wish), "{actions:?}");
    let _ = ordered(&mut cluster, 3, NodeOrder::Remove, 1000);
}

/// A run of the agent with fewer resources rejects an order that an earlier run with more resources carried out.
#[test]
fn a_run_of_the_agent_that_rejects_the_wish_is_not_reminded_of_it_and_the_next_run_is_told_it() {
    let wish = NodeWish {
        number: 7,
        state: WishedState {
            drained_by_ms: None,
            offer: Some(OfferWish {
                cores: OfferedCores::Count(2),
                memory_bytes: None,
                gpus: None,
                by_ms: 0,
            }),
        },
        earlier: Vec::new(),
    };
    let mut cluster = registered().with_wishes([(AGENT, wish.clone())]);
    let ask = order_request(&heartbeat(&mut cluster, 2, Availability::Serving, 0));
    let refusal = Rejection::BadRequest {
        what: "too many".into(),
    };
    assert!(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW).is_empty());
    let actions = heartbeat(&mut cluster, 3, Availability::Serving, 0);
    assert_eq!(answered(&actions), &ClusterAnswer::HeartbeatAnswered { known: true });
    assert_eq!(cluster.wish(AGENT), Some(&wish));
    let mut again = registered().with_wishes([(AGENT, wish)]);
    order_request(&heartbeat(&mut again, 2, Availability::Serving, 0));
}
