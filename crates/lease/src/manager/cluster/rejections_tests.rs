//! The refusal of a request that no agent granted: whether the client may wait, and the reasons.

use super::spread_tests::{TENANT, agent, asked, cluster, full, refused};
use super::tests::wanted;
use super::*;
use crate::manager::Allowance;
use crate::request::{LeaseRequest, LeaseSpec, PlacementSpread};
use hotlease_wire::rejection::objections::Objection;
use std::collections::BTreeSet;

fn acquire(cluster: &mut Cluster, wanted: LeaseRequest, without: &[u8]) -> Vec<ClusterAction> {
    let event = ClusterEvent::Acquire {
        request: RequestId(1),
        wanted: LeaseRequest {
            without: without.iter().map(|number| agent(*number)).collect(),
            ..wanted
        },
        allowance: Allowance::default(),
    };
    cluster.step(event, Duration::ZERO)
}

fn one_core() -> LeaseRequest {
    wanted(TENANT, LeaseSpec::exclusive(1, 1))
}

/// Request for exactly `workers` workers, spread over several agents.
fn several(workers: u32) -> LeaseRequest {
    LeaseRequest {
        spread: PlacementSpread::Several { least: workers },
        ..wanted(TENANT, LeaseSpec::exclusive(workers, 1))
    }
}

fn says(ask: AskId, refusal: &Rejection) -> ClusterEvent {
    let refusal = refusal.clone();
    ClusterEvent::Refused { ask, refusal }
}

fn no_sandbox(why: &str) -> Rejection {
    Rejection::NoSandbox {
        kind: "container".into(),
        why: why.into(),
    }
}

fn away() -> Rejection {
    Rejection::Unavailable {
        what: "it is away".into(),
    }
}

/// The refusal that a client gets when its candidates give these answers, in the order in which they are asked.
fn told(words: &[Rejection]) -> Rejection {
    let mut cluster = cluster(&vec![2; words.len()]);
    let mut actions = acquire(&mut cluster, one_core(), &[]);
    for word in words {
        let (ask, ..) = asked(&actions);
        actions = cluster.step(says(ask, word), Duration::ZERO);
    }
    refused(&actions).1
}

#[test]
fn a_request_waits_if_one_agent_may_serve_it_later() {
    let (never, capacity) = (
        no_sandbox("no crun"),
        Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 2,
        },
    );
    for later in [away(), capacity] {
        for words in [[never.clone(), later.clone()], [later.clone(), never.clone()]] {
            let told = told(&words);
            assert!(told.may_pass(), "{told} of {words:?}");
        }
    }
    assert_eq!(told(&[never.clone(), never.clone()]), never, "all say the same");
}

#[test]
fn different_rejections_are_listed_with_their_agents() {
    let refusal = told(&[no_sandbox("no crun"), no_sandbox("no kernel")]);
    let Rejection::NoSuitableAgent { reasons } = &refusal else {
        panic!("{refusal:?}");
    };
    let whys: Vec<&str> = reasons.iter().map(|Objection { why, .. }| why.as_str()).collect();
    assert!(whys[0].contains("no crun") && whys[1].contains("no kernel"), "{whys:?}");
    let named: BTreeSet<String> = reasons.iter().flat_map(|reason| reason.nodes.clone()).collect();
    let agents = [0, 1].map(|number| format!("agent {}", agent(number)));
    assert_eq!(named, BTreeSet::from(agents));
    assert!(!refusal.may_pass());
}

#[test]
fn agents_that_the_client_has_tried_are_not_asked_and_none_is_waited_for_beyond_them() {
    let mut cluster = cluster(&[2, 2]);
    let (_, first, _) = asked(&acquire(&mut cluster, one_core(), &[0]));
    assert_eq!(first, agent(1));
    let actions = acquire(&mut cluster, one_core(), &[0, 1]);
    assert_eq!(refused(&actions).1, Rejection::NoSuitableAgent { reasons: vec![] });
    // An agent that is full could serve the request later.
    let (ask, ..) = asked(&acquire(&mut cluster, one_core(), &[0]));
    let actions = cluster.step(full(ask, 0), Duration::ZERO);
    assert!(matches!(refused(&actions).1, Rejection::NoCapacity { .. }));
}

#[test]
fn an_agent_with_too_few_cores_counts_as_no_capacity() {
    let mut cluster = cluster(&[2]);
    let actions = acquire(&mut cluster, wanted(TENANT, LeaseSpec::exclusive(3, 1)), &[]);
    assert!(matches!(refused(&actions).1, Rejection::NoCapacity { asked: 3, .. }));
}

#[test]
fn a_spread_request_is_over_when_those_that_would_serve_it_offer_too_little() {
    for (workers, may_pass) in [(2, true), (3, false)] {
        let mut cluster = cluster(&[2, 2]);
        let (ask, first, _) = asked(&acquire(&mut cluster, several(workers), &[]));
        let actions = cluster.step(says(ask, &no_sandbox("no crun")), Duration::ZERO);
        let (ask, second, _) = asked(&actions);
        assert_ne!(first, second);
        // Another lease has the agent's cores at the moment.
        let mut actions = cluster.step(full(ask, 0), Duration::ZERO);
        while let [ClusterAction::AskGrant { ask, .. }] = actions[..] {
            actions = cluster.step(full(ask, 0), Duration::ZERO);
        }
        let (_, told) = refused(&actions);
        assert_eq!(told.may_pass(), may_pass, "{workers} workers: {told}");
    }
    // No part is granted before it is known whether the request can be served.
    let mut cluster = cluster(&[2, 2]);
    let (ask, ..) = asked(&acquire(&mut cluster, several(3), &[]));
    let (ask, ..) = asked(&cluster.step(full(ask, 2), Duration::ZERO));
    let (given_back, told) = refused(&cluster.step(says(ask, &no_sandbox("no crun")), Duration::ZERO));
    assert_eq!((given_back.len(), told), (0, no_sandbox("no crun")));
}

#[test]
fn workers_that_lack_gpus_are_told_so_where_they_may_be_spread() {
    let told = |cores| {
        let spec = LeaseSpec {
            gpus: 1,
            ..LeaseSpec::exclusive(1, cores)
        };
        let wanted = LeaseRequest {
            spread: PlacementSpread::Several { least: 1 },
            ..wanted(TENANT, spec)
        };
        refused(&acquire(&mut cluster(&[2]), wanted, &[])).1
    };
    let no_gpus = Rejection::NoGpus {
        asked: 1,
        free: 0,
        offered: 0,
    };
    assert_eq!(told(1), no_gpus);
    assert_eq!(told(3), Rejection::NotTogether { asked: 1, found: 0 });
}
