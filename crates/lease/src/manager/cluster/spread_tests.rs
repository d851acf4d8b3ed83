//! Requests that are spread over several agents.

use super::tests::wanted;
use super::*;
use crate::agent::Availability;
use crate::manager::{AgentProfile, Allowance, EndRequest, GrantedLease};
use crate::request::{LeaseRequest, LeaseSpec, PlacementSpread};
use std::collections::{BTreeSet, VecDeque};

pub(super) const TENANT: &str = "uid:1";

pub(super) fn agent(number: u8) -> AgentId {
    AgentId([number; 8])
}

fn boot(number: u8) -> BootId {
    BootId([number; 8])
}

fn lease(number: u8) -> LeaseId {
    LeaseId([number; 8])
}

fn record(number: u8, cores: u32) -> AgentProfile {
    AgentProfile {
        id: agent(number),
        boot: boot(number),
        address: String::new(),
        session_socket: String::new(),
        endpoint: String::new(),
        owner: String::new(),
        cores: (0..cores).collect(),
        free_cores: cores,
        memory_bytes: 0,
        pool: 0,
        free_places: 0,
        places_per_core: 0,
        host: String::new(),
        availability: Availability::Serving,
        order: 0,
        gpus: 0,
        free_gpus: 0,
        gpu_numbers: Vec::new(),
        limits: None,
    }
}

/// A manager with one agent for each entry of `cores`, which is the number of cores that the agent offers. Agents are
/// numbered from 0.
pub(super) fn cluster(cores: &[u32]) -> Cluster {
    let mut cluster = Cluster::new([], [], Duration::ZERO);
    for (number, cores) in (0..).zip(cores) {
        let register = ClusterEvent::Register {
            request: RequestId(1000 + u64::from(number)),
            record: record(number, *cores),
            proof: 0,
        };
        settle_commits(&mut cluster, register, false);
    }
    cluster
}

/// Makes a step and settles all its commits, which fail if `fail`.
pub(super) fn settle_commits(cluster: &mut Cluster, event: ClusterEvent, fail: bool) -> Vec<ClusterAction> {
    let mut rest = Vec::new();
    let mut actions: VecDeque<_> = cluster.step(event, Duration::ZERO).into();
    while let Some(action) = actions.pop_front() {
        match action {
            ClusterAction::Commit { commit, .. } if fail => actions.extend(cluster.step(
                ClusterEvent::NotCommitted {
                    commit,
                    refusal: Rejection::NoAgent,
                },
                Duration::ZERO,
            )),
            ClusterAction::Commit { commit, .. } => {
                actions.extend(cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO));
            }
            action => rest.push(action),
        }
    }
    rest
}

fn acquire(cluster: &mut Cluster, workers: u32, cores: u32, least: u32) -> Vec<ClusterAction> {
    let event = ClusterEvent::Acquire {
        request: RequestId(1),
        wanted: LeaseRequest {
            spread: PlacementSpread::Several { least },
            ..wanted(TENANT, LeaseSpec::exclusive(workers, cores))
        },
        allowance: Allowance::default(),
    };
    cluster.step(event, Duration::ZERO)
}

pub(super) fn asked(actions: &[ClusterAction]) -> (AskId, AgentId, u32) {
    let [
        ClusterAction::AskGrant {
            ask, agent, workers, ..
        },
    ] = actions
    else {
        panic!("one question was expected: {actions:?}");
    };
    (*ask, *agent, *workers)
}

pub(super) fn grants(ask: AskId, number: u8) -> ClusterEvent {
    ClusterEvent::Granted {
        ask,
        granted: GrantedLease {
            lease: lease(number),
            boot: boot(number),
            epoch: Epoch(1),
            cores: vec![0],
            memory_bytes: 0,
            granted_ms: 7,
        },
    }
}

pub(super) fn full(ask: AskId, free: u32) -> ClusterEvent {
    ClusterEvent::Refused {
        ask,
        refusal: Rejection::NoCapacity {
            asked: 9,
            free,
            offered: 9,
        },
    }
}

/// Returns the leases that are given back, and the refusal; panics if there are other actions.
pub(super) fn refused(actions: &[ClusterAction]) -> (BTreeSet<LeaseId>, Rejection) {
    let (mut given_back, mut refusal) = (BTreeSet::new(), None);
    for action in actions {
        match action {
            ClusterAction::AskEnd {
                release: EndRequest { lease, tenant, .. },
                ..
            } => {
                assert_eq!(tenant, TENANT);
                given_back.insert(*lease);
            }
            ClusterAction::Answer {
                answer: ClusterAnswer::Refused(why),
                ..
            } => refusal = Some(why.clone()),
            other => panic!("{other:?}"),
        }
    }
    (given_back, refusal.expect("a refusal"))
}

#[test]
fn one_agent_with_room_for_all_gets_all() {
    let mut cluster = cluster(&[2, 8, 4]);
    let actions = acquire(&mut cluster, 2, 2, 2);
    let (ask, asked_agent, workers) = asked(&actions);
    assert_eq!((asked_agent, workers), (agent(2), 2), "the tightest fit");
    let actions = settle_commits(&mut cluster, grants(ask, 2), false);
    assert!(
        matches!(&actions[..], [ClusterAction::Answer { answer: ClusterAnswer::Granted { asks }, .. }] if *asks == [ask]),
        "{actions:?}"
    );
}

/// Answers for agents that all their cores are free, until an agent is asked for a part; returns the actions with that
/// question.
fn count(cluster: &mut Cluster, mut actions: Vec<ClusterAction>, each: u32) -> Vec<ClusterAction> {
    loop {
        let (ask, agent, workers) = asked(&actions);
        let (record, ..) = cluster.registry().agent(agent).expect("it is registered");
        let offered = record.cores.len() as u32;
        if workers * each <= offered {
            return actions;
        }
        actions = cluster.step(full(ask, offered), Duration::ZERO);
    }
}

#[test]
fn nothing_is_held_before_all_have_said_for_how_many_they_have_room() {
    let mut cluster = cluster(&[4, 2, 2]);
    let mut actions = acquire(&mut cluster, 4, 2, 4);
    for free in [4, 2, 0] {
        let (ask, asked_agent, workers) = asked(&actions);
        let offered = if asked_agent == agent(0) { 4 } else { 2 };
        assert!(workers * 2 > offered, "{workers} workers of two cores could be granted");
        actions = cluster.step(full(ask, free), Duration::ZERO);
    }
    let (given_back, refusal) = refused(&actions);
    assert_eq!(given_back, BTreeSet::new(), "nothing was granted");
    assert_eq!(refusal, Rejection::NotTogether { asked: 4, found: 3 });
    assert_eq!(cluster.requests(), 0);
}

#[test]
fn no_agent_is_asked_for_more_than_all_agents_together_offer() {
    let mut cluster = cluster(&[4, 2]);
    let (ask, ..) = asked(&acquire(&mut cluster, 1, 2, 1));
    settle_commits(&mut cluster, grants(ask, 1), false);
    for (workers, cores, found) in [(7, 1, 4), (3, 3, 1), (u32::MAX, 1, 4)] {
        let (given_back, refusal) = refused(&acquire(&mut cluster, workers, cores, workers));
        let asked = workers;
        assert_eq!(
            (given_back.len(), refusal),
            (0, Rejection::NotTogether { asked, found })
        );
    }
    asked(&acquire(&mut cluster, 7, 1, 6));
}

#[test]
fn no_agent_is_asked_for_a_part_that_needs_all_its_cores() {
    let mut cluster = cluster(&[4]);
    // In the registry two of the four cores are free; a third core was released just now.
    let (ask, ..) = asked(&acquire(&mut cluster, 2, 1, 2));
    settle_commits(&mut cluster, grants(ask, 0), false);
    let (ask, _, workers) = asked(&acquire(&mut cluster, 4, 1, 4));
    assert_eq!(workers, 4);
    let (given_back, refusal) = refused(&cluster.step(full(ask, 3), Duration::ZERO));
    assert_eq!(given_back, BTreeSet::new());
    assert_eq!(refusal, Rejection::NotTogether { asked: 4, found: 3 });
}

#[test]
fn parts_are_handed_out_together_once_all_are_written_down() {
    let mut cluster = cluster(&[4, 2, 2]);
    let actions = acquire(&mut cluster, 3, 2, 3);
    let (first, asked_agent, workers) = asked(&count(&mut cluster, actions, 2));
    assert_eq!((asked_agent, workers), (agent(0), 2), "who has most is asked first");
    let (second, other, workers) = asked(&cluster.step(grants(first, 0), Duration::ZERO));
    assert_eq!(workers, 1);
    let actions = cluster.step(grants(second, other.0[0]), Duration::ZERO);
    let commits: Vec<_> = actions
        .iter()
        .map(|action| match action {
            ClusterAction::Commit { commit, .. } => *commit,
            other => panic!("nothing is said before it is durable: {other:?}"),
        })
        .collect();
    assert_eq!(commits.len(), 2, "{actions:?}");
    let commit = |commit| ClusterEvent::Committed { commit };
    assert_eq!(cluster.step(commit(commits[1]), Duration::ZERO), []);
    let actions = cluster.step(commit(commits[0]), Duration::ZERO);
    let answer = ClusterAnswer::Granted {
        asks: vec![first, second],
    };
    let request = RequestId(1);
    assert_eq!(actions, [ClusterAction::Answer { request, answer }]);
    assert_eq!(cluster.active_leases().count(), 2);
    assert_eq!(cluster.requests(), 0);
}

#[test]
fn room_that_another_lease_took_meanwhile_ends_the_request_and_its_parts_are_not_billed() {
    let mut cluster = cluster(&[4, 2]);
    let actions = acquire(&mut cluster, 3, 2, 3);
    let (first, ..) = asked(&count(&mut cluster, actions, 2));
    let (second, ..) = asked(&cluster.step(grants(first, 0), Duration::ZERO));
    let actions = settle_commits(&mut cluster, full(second, 1), false);
    let unused = |action: &ClusterAction| matches!(action, ClusterAction::AskEnd { release, .. } if release.unused);
    assert!(actions.iter().any(unused), "{actions:?}");
    let (given_back, refusal) = refused(&actions);
    assert_eq!(given_back, BTreeSet::from([lease(0)]), "what was granted is given back");
    assert_eq!(refusal, Rejection::NotTogether { asked: 3, found: 2 });
    assert_eq!(cluster.active_leases().count(), 0);
    assert_eq!(cluster.requests(), 0);
}

#[test]
fn only_enough_parts_are_granted() {
    let mut cluster = cluster(&[4, 2]);
    let (first, ..) = asked(&acquire(&mut cluster, 3, 2, 2));
    let (second, ..) = asked(&cluster.step(grants(first, 0), Duration::ZERO));
    let actions = settle_commits(&mut cluster, full(second, 1), false);
    assert!(
        matches!(&actions[..], [ClusterAction::Answer { answer: ClusterAnswer::Granted { asks }, .. }] if *asks == [first]),
        "{actions:?}"
    );
}

#[test]
fn agent_that_has_room_for_fewer_is_asked_for_those_once() {
    let mut cluster = cluster(&[8]);
    let (first, _, workers) = asked(&acquire(&mut cluster, 4, 2, 1));
    assert_eq!(workers, 4);
    let (second, _, workers) = asked(&cluster.step(full(first, 5), Duration::ZERO));
    assert_eq!(workers, 2, "5 cores are 2 workers");
    let (given_back, refusal) = refused(&cluster.step(full(second, 4), Duration::ZERO));
    assert_eq!(
        (given_back.len(), refusal),
        (0, Rejection::NotTogether { asked: 1, found: 0 })
    );
}

#[test]
fn parts_of_which_one_cannot_be_written_down_are_all_given_back() {
    let mut cluster = cluster(&[2, 2]);
    let (first, asked_agent, _) = asked(&acquire(&mut cluster, 2, 2, 1));
    let (second, other, _) = asked(&cluster.step(grants(first, asked_agent.0[0]), Duration::ZERO));
    let actions = cluster.step(grants(second, other.0[0]), Duration::ZERO);
    let commits: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            ClusterAction::Commit { commit, .. } => Some(*commit),
            _ => None,
        })
        .collect();
    let [one, other] = commits[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(
        cluster.step(ClusterEvent::Committed { commit: one }, Duration::ZERO),
        []
    );
    let failed = ClusterEvent::NotCommitted {
        commit: other,
        refusal: Rejection::NoAgent,
    };
    let (given_back, _) = refused(&cluster.step(failed, Duration::ZERO));
    assert_eq!(given_back, BTreeSet::from([lease(0), lease(1)]));
}

#[test]
fn part_of_an_agent_that_was_started_again_meanwhile_is_not_handed_out() {
    let mut cluster = cluster(&[2, 2]);
    let actions = acquire(&mut cluster, 2, 2, 2);
    let (first, asked_agent, _) = asked(&count(&mut cluster, actions, 2));
    let (one, other) = (asked_agent.0[0], 1 - asked_agent.0[0]);
    let (second, ..) = asked(&cluster.step(grants(first, one), Duration::ZERO));
    let again = AgentProfile {
        boot: boot(9),
        ..record(one, 2)
    };
    let again = super::tests::taking_over(&mut cluster, again);
    settle_commits(&mut cluster, again, false);
    let (given_back, refusal) = refused(&cluster.step(grants(second, other), Duration::ZERO));
    assert!(given_back.contains(&lease(other)), "{given_back:?}");
    assert!(matches!(refusal, Rejection::Unavailable { .. }), "{refusal:?}");
}

#[test]
fn no_agent_is_asked_for_ever() {
    let mut cluster = cluster(&[2; 40]);
    let mut actions = acquire(&mut cluster, 40, 2, 40);
    let mut answers = 0;
    // Each answer takes a second: after eight seconds the request is refused.
    while let [ClusterAction::AskGrant { .. }] = actions[..] {
        answers += 1;
        let (ask, ..) = asked(&actions);
        actions = cluster.step(full(ask, 2), Duration::from_secs(answers));
    }
    let (given_back, _) = refused(&actions);
    assert_eq!((answers, given_back.len()), (8, 0));
}
