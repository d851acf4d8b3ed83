//! Orders of operators.

use super::tests::{AGENT, commit, registered, report, wanted};
use super::*;
use crate::agent::{Availability, OfferedCores};
use crate::manager::{AgentOffer, Allowance, NodeOrder, NodeWish, OfferWish};
use crate::request::LeaseSpec;

const NOW: Duration = Duration::ZERO;

fn ordered(cluster: &mut Cluster, request: u64, order: NodeOrder, at_ms: u64) -> (CommitId, NodeWish) {
    let order = ClusterEvent::Order {
        request: RequestId(request),
        agent: AGENT,
        order,
        at_ms,
    };
    let (id, writes, rest) = commit(cluster.step(order, NOW));
    assert!(rest.is_empty(), "nothing is told before it is durable: {rest:?}");
    match &writes[..] {
        [StateWrite::PutWish { agent: AGENT, wish }] => (id, wish.clone()),
        other => panic!("{other:?}"),
    }
}

/// The question that tells a node its wish.
fn told(actions: &[ClusterAction]) -> AskId {
    match actions {
        [ClusterAction::AskOrder { ask, agent: AGENT, .. }, ..] => *ask,
        other => panic!("{other:?}"),
    }
}

fn answered(actions: &[ClusterAction]) -> &ClusterAnswer {
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

fn offers(availability: Availability, order: u64) -> AgentOffer {
    AgentOffer {
        availability,
        order,
        ..report(0, vec![]).offering
    }
}

fn hears(cluster: &mut Cluster, request: u64, availability: Availability, order: u64) -> Vec<ClusterAction> {
    let report = super::super::AgentReport {
        offering: offers(availability, order),
        ..report(0, vec![])
    };
    let heartbeat = ClusterEvent::Heartbeat {
        request: RequestId(request),
        report,
    };
    cluster.step(heartbeat, NOW)
}

#[test]
fn a_drained_node_is_asked_for_no_lease_from_the_order_on() {
    let mut cluster = registered();
    let (id, wish) = ordered(&mut cluster, 2, NodeOrder::Drain { by_ms: 9000 }, 1000);
    assert_eq!((wish.number, wish.drained_by_ms), (1000, Some(9000)));
    for durable in [false, true] {
        if durable {
            let ask = told(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
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
    let actions = hears(&mut cluster, 4, Availability::Draining, 1000);
    assert_eq!(
        answered(&actions),
        &ClusterAnswer::Heard { known: true },
        "nothing to remind of"
    );
    let (id, wish) = ordered(&mut cluster, 5, NodeOrder::Resume, 2000);
    assert_eq!((wish.number, wish.drained_by_ms), (2000, None));
    let ask = told(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let offering = offers(Availability::Serving, 2000);
    let _ = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    assert!(matches!(acquire(&mut cluster, 6)[..], [ClusterAction::AskGrant { .. }]));
    let (_, writes, _) = commit(hears(&mut cluster, 7, Availability::Serving, 2000));
    assert_eq!(writes, [StateWrite::RemoveWish(AGENT)], "what is so need not be wanted");
    assert_eq!(cluster.wishes().count(), 0);
}

#[test]
fn an_order_for_a_node_that_is_away_is_told_when_it_comes() {
    let wish = NodeWish {
        number: 7,
        drained_by_ms: Some(1),
        offer: None,
    };
    let mut cluster = registered().with_wishes([(AGENT, wish)]);
    assert!(matches!(answered(&acquire(&mut cluster, 2)), ClusterAnswer::Refused(_)));
    let actions = hears(&mut cluster, 3, Availability::Serving, 0);
    let ask = told(&actions);
    assert!(
        !hears(&mut cluster, 4, Availability::Serving, 0)
            .iter()
            .any(|action| matches!(action, ClusterAction::AskOrder { .. })),
        "one question at a time"
    );
    let refusal = Rejection::UnknownLease;
    assert!(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW).is_empty());
    told(&hears(&mut cluster, 5, Availability::Serving, 0));

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

    let offer = NodeOrder::Add(OfferWish {
        cores: OfferedCores::These([99].into()),
        memory_bytes: None,
        gpus: None,
        by_ms: 0,
    });
    let (commit_id, _) = ordered(&mut cluster, 4, offer, 2000);
    let ask = told(&cluster.step(ClusterEvent::Committed { commit: commit_id }, NOW));
    let refusal = Rejection::BadRequest { what: "core 99".into() };
    let (_, writes, rest) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
    assert_eq!(writes, [StateWrite::RemoveWish(AGENT)]);
    assert!(matches!(
        answered(&rest),
        ClusterAnswer::Refused(Rejection::BadRequest { .. })
    ));
    assert_eq!(cluster.wish(AGENT), None);
}

#[test]
fn a_node_that_cannot_do_an_order_is_told_the_one_before_again() {
    let mut cluster = registered();
    let (first, drained) = ordered(&mut cluster, 2, NodeOrder::Remove, 1000);
    let ask = told(&cluster.step(ClusterEvent::Committed { commit: first }, NOW));
    let offering = offers(Availability::Drained, 1000);
    let _ = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    let offer = NodeOrder::Add(OfferWish {
        cores: OfferedCores::Count(99),
        memory_bytes: None,
        gpus: None,
        by_ms: 0,
    });
    let (second, _) = ordered(&mut cluster, 3, offer, 2000);
    let ask = told(&cluster.step(ClusterEvent::Committed { commit: second }, NOW));
    let refusal = Rejection::BadRequest { what: "99".into() };
    let (_, writes, _) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
    let again = NodeWish {
        number: 2001,
        ..drained
    };
    let put = StateWrite::PutWish {
        agent: AGENT,
        wish: again,
    };
    assert_eq!(writes, [put]);
    told(&hears(&mut cluster, 4, Availability::Serving, 2000));
}

#[test]
fn a_deadline_is_brought_forward_and_not_put_off() {
    let drained = NodeWish::default().after(NodeOrder::Drain { by_ms: 500 }, 100);
    let later = drained.after(NodeOrder::Drain { by_ms: 900 }, 100);
    assert_eq!((later.drained_by_ms, later.number), (Some(500), 101));
    assert_eq!(later.after(NodeOrder::Remove, 200).drained_by_ms, Some(200));
    assert!(later.after(NodeOrder::Resume, 300).is_nothing());
}

/// Found by the simulator.
#[test]
fn a_node_that_is_ordered_back_while_another_is_asked_is_not_asked_after_it() {
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
        agent: OTHER,
        order: NodeOrder::Remove,
        at_ms: 1,
    };
    let _ = cluster.step(order, NOW);
    let refusal = Rejection::UnknownLease;
    let actions = cluster.step(ClusterEvent::Refused { ask, refusal }, NOW);
    assert!(matches!(answered(&actions), ClusterAnswer::Refused(_)), "{actions:?}");
}
