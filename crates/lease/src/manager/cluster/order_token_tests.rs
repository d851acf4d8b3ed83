//! Orders that are repeated with their tokens.

use super::order_tests::{answered, offer, offers, order_request, ordered};
use super::tests::{AGENT, commit, registered};
use super::*;
use crate::agent::{Availability, OfferedCores};
use crate::manager::{NodeOrder, OrderRecord, OrderRequest, OrderToken};

const NOW: Duration = Duration::ZERO;

fn with_token(request: u64, wanted: NodeOrder, content: u8, at_ms: u64) -> ClusterEvent {
    ClusterEvent::Order {
        request: RequestId(request),
        order: OrderRequest {
            agent: AGENT,
            order: wanted,
            token: Some(OrderToken {
                caller: "hook".into(),
                token: "job 17".into(),
                content: content.to_string(),
            }),
            at_ms,
        },
    }
}

#[test]
fn an_order_that_is_repeated_with_its_token_is_answered_again_and_not_carried_out_again() {
    let mut cluster = registered();
    let drain = NodeOrder::Drain { by_ms: 9000 };
    let (id, writes, _) = commit(cluster.step(with_token(2, drain.clone(), 1, 1000), NOW));
    let [
        StateWrite::PutWish {
            order: Some(record), ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    let record = record.clone();
    // The first request is not answered yet, so both requests are answered together.
    assert!(cluster.step(with_token(3, drain.clone(), 1, 1001), NOW).is_empty());
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let offering = offers(Availability::Draining, record.number);
    let actions = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    let answers: Vec<_> = actions
        .iter()
        .map(|action| match action {
            ClusterAction::Answer { request, answer } => (request.0, answer.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let done = ClusterAnswer::Ordered { done: true };
    assert_eq!(answers, [(2, done.clone()), (3, done.clone())]);

    let (id, resumed) = ordered(&mut cluster, 4, NodeOrder::Resume, 2000);
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let offering = offers(Availability::Serving, resumed.number);
    let _ = cluster.step(ClusterEvent::Ordered { ask, offering }, NOW);
    let actions = cluster.step(with_token(5, drain.clone(), 1, 3000), NOW);
    assert_eq!(answered(&actions), &done, "it came late and drains nothing");
    assert_eq!(cluster.wish(AGENT), Some(&resumed));
    let actions = cluster.step(with_token(6, NodeOrder::Remove, 2, 3000), NOW);
    assert_eq!(answered(&actions), &ClusterAnswer::OtherOrder);
    assert_eq!(cluster.wish(AGENT), Some(&resumed));

    // Another manager reads the order from the durable state, and remembers it until the order's time is over.
    let restart = || {
        let records: [OrderRecord; 1] = [record.clone()];
        registered()
            .with_wishes([(AGENT, resumed.clone())])
            .with_orders(records)
    };
    let actions = restart().step(with_token(2, drain.clone(), 1, 1000 + ORDER_KNOWN_MS), NOW);
    assert!(
        matches!(answered(&actions), ClusterAnswer::Ordered { .. }),
        "{actions:?}"
    );
    let (_, writes, _) = commit(restart().step(with_token(2, drain, 1, 1001 + ORDER_KNOWN_MS), NOW));
    assert!(
        matches!(writes[..], [StateWrite::PutWish { order: Some(_), .. }]),
        "{writes:?}"
    );
}

#[test]
fn the_token_of_an_order_that_its_node_rejects_is_forgotten_before_the_wish_changes() {
    let mut cluster = registered();
    let asked = with_token(2, offer(OfferedCores::Count(99)), 1, 1000);
    let (id, ..) = commit(cluster.step(asked.clone(), NOW));
    let ask = order_request(&cluster.step(ClusterEvent::Committed { commit: id }, NOW));
    let refusal = Rejection::BadRequest { what: "99".into() };
    let (id, writes, _) = commit(cluster.step(ClusterEvent::Refused { ask, refusal }, NOW));
    let forget = StateWrite::ForgetOrder {
        agent: AGENT,
        number: 1000,
    };
    assert_eq!(writes, [forget, StateWrite::RemoveWish(AGENT)]);
    let _ = cluster.step(ClusterEvent::Committed { commit: id }, NOW);
    let (_, writes, _) = commit(cluster.step(asked, NOW));
    assert!(
        matches!(writes[..], [StateWrite::PutWish { .. }]),
        "it is an order like any other: {writes:?}"
    );
}
