use super::*;
use crate::agent::Availability;
use crate::manager::{AgentOffer, AgentReport, Allowance, EndRequest, GrantedLease, LeaseReport, SUSPECTED_AFTER};
use crate::request::{CoreUse, LeaseRequest, LeaseSpec};
use hotlease_wire::EndReason;
use hotlease_wire::session::UsageTotals;

pub(super) const AGENT: AgentId = AgentId([1; 8]);
pub(super) const BOOT: BootId = BootId([1; 8]);
const LEASE: LeaseId = LeaseId([9; 8]);

pub(super) fn record(boot: u8) -> AgentProfile {
    AgentProfile {
        id: AGENT,
        boot: BootId([boot; 8]),
        address: "/run/agent.sock".into(),
        session_socket: "/run/session.sock".into(),
        endpoint: String::new(),
        owner: String::new(),
        cores: vec![0, 1],
        free_cores: 2,
        places_per_core: 4,
        free_places: 8,
        memory_bytes: 0,
        pool: 0,
        host: String::new(),
        availability: Availability::Serving,
        order: 0,
        gpus: 2,
        free_gpus: 2,
        gpu_numbers: vec![0, 1],
        limits: None,
    }
}

pub(super) fn report(epoch: u32, leases: Vec<LeaseReport>) -> AgentReport {
    AgentReport {
        agent: AGENT,
        boot: BOOT,
        whole: true,
        epoch: Epoch(epoch),
        free_cores: 2,
        free_places: 8,
        free_gpus: 2,
        pool: 0,
        offering: AgentOffer {
            cores: vec![0, 1],
            gpus: 2,
            gpu_numbers: vec![0, 1],
            ..AgentOffer::default()
        },
        leaving: false,
        leases,
    }
}

fn lease(end_reason: Option<&str>) -> LeaseReport {
    LeaseReport {
        lease: LEASE,
        boot: BOOT,
        tenant: "uid:1".into(),
        label: String::new(),
        epoch: Epoch(1),
        cores: vec![0],
        gpus: 0,
        usage: UsageTotals::default(),
        functions: Default::default(),
        end_reason: end_reason.map(Into::into),
    }
}

/// A lease of one core, as in the durable state.
pub(super) fn note() -> LeaseNote {
    LeaseNote {
        agent: AGENT,
        boot: BOOT,
        tenant: "uid:1".into(),
        label: String::new(),
        job: String::new(),
        epoch: Epoch(1),
        cores: vec![0],
        billable_cores: 1,
        busy_cores: 1,
        memory_bytes: 0,
        gpus: 0,
        granted_ms: 7,
    }
}

/// The commit that a step orders, and its other actions.
pub(super) fn commit(actions: Vec<ClusterAction>) -> (CommitId, Vec<StateWrite>, Vec<ClusterAction>) {
    let mut found = None;
    let mut rest = Vec::new();
    for action in actions {
        match action {
            ClusterAction::Commit { commit, writes, .. } => {
                assert!(found.replace((commit, writes)).is_none())
            }
            other => rest.push(other),
        }
    }
    let (commit, writes) = found.expect("a commit");
    (commit, writes, rest)
}

pub(super) fn registered() -> Cluster {
    let mut cluster = Cluster::new([], [], Duration::ZERO);
    let register = ClusterEvent::Register {
        request: RequestId(1),
        record: record(1),
        proof: 0,
    };
    let (id, writes, rest) = commit(cluster.step(register, Duration::ZERO));
    assert_eq!(writes, [StateWrite::PutAgent(record(1))]);
    assert!(rest.is_empty(), "nothing is answered before it is durable: {rest:?}");
    let actions = cluster.step(ClusterEvent::Committed { commit: id }, Duration::ZERO);
    assert_eq!(actions.len(), 2, "{actions:?}");
    cluster
}

pub(super) fn wanted(tenant: &str, spec: LeaseSpec) -> LeaseRequest {
    LeaseRequest::new(tenant, spec, Duration::from_secs(5))
}

/// Returns the question to the agent when a client wants a core.
fn asked_grant(cluster: &mut Cluster) -> AskId {
    let acquire = ClusterEvent::Acquire {
        request: RequestId(2),
        wanted: wanted("uid:1", LeaseSpec::exclusive(1, 1)),
        allowance: Allowance::default(),
    };
    let actions = cluster.step(acquire, Duration::ZERO);
    let [ClusterAction::AskGrant { ask, agent: AGENT, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    ask
}

#[test]
fn a_lease_is_billed_by_its_request_and_not_by_what_its_agent_grants() {
    let mut cluster = registered();
    let spec = LeaseSpec {
        memory_bytes: 10,
        gpus: 1,
        sharing: CoreUse::Shared,
        ..LeaseSpec::exclusive(2, 1)
    };
    let acquire = ClusterEvent::Acquire {
        request: RequestId(2),
        wanted: LeaseRequest {
            job: "42".into(),
            ..wanted("uid:1", spec)
        },
        allowance: Allowance::default(),
    };
    let actions = cluster.step(acquire, Duration::ZERO);
    let [ClusterAction::AskGrant { ask, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    let granted = GrantedLease {
        lease: LEASE,
        boot: BOOT,
        epoch: Epoch(1),
        cores: vec![0, 1, 2],
        memory_bytes: 0,
        granted_ms: 9,
    };
    let (_, writes, _) = commit(cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO));
    let note = LeaseNote {
        job: "42".into(),
        cores: vec![0, 1, 2],
        billable_cores: 2,
        busy_cores: 2,
        memory_bytes: 20,
        gpus: 2,
        granted_ms: 9,
        ..note()
    };
    assert_eq!(writes, [StateWrite::PutLease { lease: LEASE, note }]);
}

/// The registration with which a run of the agent replaces the known run, with the proof that it is alive.
pub(super) fn taking_over(cluster: &mut Cluster, record: AgentProfile) -> ClusterEvent {
    let register = |proof| ClusterEvent::Register {
        request: RequestId(3),
        record: record.clone(),
        proof,
    };
    let actions = cluster.step(register(0), Duration::ZERO);
    let [
        ClusterAction::Answer {
            answer: ClusterAnswer::Challenged { challenge },
            ..
        },
    ] = actions[..]
    else {
        panic!("{actions:?}");
    };
    register(challenge)
}

fn with_lease() -> Cluster {
    let mut cluster = registered();
    let ask = asked_grant(&mut cluster);
    let granted = GrantedLease {
        lease: LEASE,
        boot: BOOT,
        epoch: Epoch(1),
        cores: vec![0],
        memory_bytes: 0,
        granted_ms: 7,
    };
    let (id, _, rest) = commit(cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO));
    assert!(rest.is_empty(), "a lease is handed out once it is noted: {rest:?}");
    let actions = cluster.step(ClusterEvent::Committed { commit: id }, Duration::ZERO);
    let granted = ClusterAction::Answer {
        request: RequestId(2),
        answer: ClusterAnswer::Granted { asks: vec![ask] },
    };
    assert_eq!(actions, [granted]);
    assert_eq!(cluster.active_leases().collect::<Vec<_>>(), [LEASE]);
    cluster
}

#[test]
fn a_report_is_acknowledged_only_once_it_is_durable() {
    let mut cluster = with_lease();
    let heartbeat = |number| ClusterEvent::Heartbeat {
        request: RequestId(number),
        report: report(1, vec![lease(None)]),
    };
    let (id, _, rest) = commit(cluster.step(heartbeat(3), Duration::ZERO));
    assert!(rest.is_empty(), "{rest:?}");
    let refusal = Rejection::NoAgent;
    let failed = ClusterEvent::NotCommitted {
        commit: id,
        refusal: refusal.clone(),
    };
    let refused = ClusterAction::Answer {
        request: RequestId(3),
        answer: ClusterAnswer::Refused(refusal),
    };
    assert_eq!(cluster.step(failed, Duration::ZERO), [refused]);
    let (id, ..) = commit(cluster.step(heartbeat(4), Duration::ZERO));
    let heard = ClusterAction::Answer {
        request: RequestId(4),
        answer: ClusterAnswer::HeartbeatAnswered { known: true },
    };
    assert_eq!(
        cluster.step(ClusterEvent::Committed { commit: id }, Duration::ZERO),
        [heard]
    );
}

#[test]
fn a_lease_that_its_agent_would_have_named_is_over() {
    let mut cluster = with_lease();
    let written_before_the_grant = ClusterEvent::Heartbeat {
        request: RequestId(3),
        report: report(0, Vec::new()),
    };
    let actions = cluster.step(written_before_the_grant, Duration::ZERO);
    assert_eq!(actions.len(), 1, "nothing is to be written: {actions:?}");
    let written_after = ClusterEvent::Heartbeat {
        request: RequestId(4),
        report: report(1, Vec::new()),
    };
    let (id, writes, _) = commit(cluster.step(written_after, Duration::ZERO));
    assert!(
        matches!(writes[..], [StateWrite::EndLease { lease: LEASE, .. }]),
        "{writes:?}"
    );
    let _ = cluster.step(ClusterEvent::Committed { commit: id }, Duration::ZERO);
    assert_eq!(cluster.active_leases().count(), 0);
}

#[test]
fn a_grant_of_a_run_that_is_over_is_not_handed_out() {
    let mut cluster = registered();
    let ask = asked_grant(&mut cluster);
    let register = taking_over(&mut cluster, record(2));
    let (id, ..) = commit(cluster.step(register, Duration::ZERO));
    let _ = cluster.step(ClusterEvent::Committed { commit: id }, Duration::ZERO);
    let granted = GrantedLease {
        lease: LEASE,
        boot: BOOT,
        epoch: Epoch(1),
        cores: vec![0],
        memory_bytes: 0,
        granted_ms: 7,
    };
    let actions = cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO);
    assert!(
        matches!(
            actions[..],
            [ClusterAction::Answer {
                answer: ClusterAnswer::Refused(Rejection::Unavailable { .. }),
                ..
            }]
        ),
        "{actions:?}"
    );
}

/// A run may have died before its first message arrives. That message must not end the leases of the living run.
#[test]
fn a_run_replaces_another_only_if_it_proves_that_it_lives() {
    let mut cluster = Cluster::new([], [], Duration::ZERO).with_challenges_after(41);
    let mut requests = 0;
    let mut register = |cluster: &mut Cluster, boot, proof| {
        requests += 1;
        let event = ClusterEvent::Register {
            request: RequestId(requests),
            record: record(boot),
            proof,
        };
        let mut actions = cluster.step(event, Duration::ZERO);
        while let Some(ClusterAction::Commit { commit, .. }) = actions.first() {
            let commit = *commit;
            actions = cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO);
        }
        match actions.pop() {
            Some(ClusterAction::Answer { answer, .. }) => answer,
            other => panic!("{other:?}"),
        }
    };
    let challenged = |challenge| ClusterAnswer::Challenged { challenge };
    let present = |cluster: &Cluster| cluster.registry().agent(AGENT).expect("known").0.boot;
    let (dead, live, next) = (1, 2, 3);
    assert_eq!(register(&mut cluster, live, 0), ClusterAnswer::Registered);
    assert_eq!(register(&mut cluster, dead, 0), challenged(42));
    assert_eq!(
        register(&mut cluster, live, 0),
        ClusterAnswer::Registered,
        "known as it is"
    );
    assert_eq!(present(&cluster), BootId([live; 8]));
    // A challenge of another run, an earlier challenge and a guess are no proof.
    assert_eq!(register(&mut cluster, next, 42), challenged(43));
    assert_eq!(register(&mut cluster, next, 41), challenged(44));
    assert_eq!(register(&mut cluster, next, 44), ClusterAnswer::Registered);
    assert_eq!(present(&cluster), BootId([next; 8]));
    assert_eq!(register(&mut cluster, live, 44), challenged(45), "it is over");
}

/// A restarted manager has the leases of a run before the run registers.
#[test]
fn leases_of_a_run_that_was_not_heard_yet_are_not_ended_by_a_dead_ones_words() {
    let mut cluster = Cluster::new([AGENT], [(LEASE, note())], Duration::ZERO);
    let register = ClusterEvent::Register {
        request: RequestId(1),
        record: record(2),
        proof: 0,
    };
    let actions = cluster.step(register, Duration::ZERO);
    assert!(
        matches!(
            actions[..],
            [ClusterAction::Answer {
                answer: ClusterAnswer::Challenged { .. },
                ..
            }]
        ),
        "{actions:?}"
    );
    assert_eq!(cluster.active_leases().count(), 1);
}

/// A late message of the registered run would end the lease of another run, even if the other run is the present run.
#[test]
fn a_grant_of_a_run_that_has_not_registered_is_given_back() {
    let mut cluster = registered();
    let ask = asked_grant(&mut cluster);
    let granted = GrantedLease {
        lease: LEASE,
        boot: BootId([2; 8]),
        epoch: Epoch(1),
        cores: vec![0],
        memory_bytes: 0,
        granted_ms: 7,
    };
    let actions = cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO);
    assert!(
        matches!(&actions[..], [
            ClusterAction::AskEnd { agent: AGENT, release, .. },
            ClusterAction::Answer { answer: ClusterAnswer::Refused(Rejection::Unavailable { .. }), .. },
        ] if release.lease == LEASE),
        "{actions:?}"
    );
}

#[test]
fn a_lease_that_cannot_be_written_down_is_given_back() {
    let mut cluster = registered();
    let ask = asked_grant(&mut cluster);
    let granted = GrantedLease {
        lease: LEASE,
        boot: BOOT,
        epoch: Epoch(1),
        cores: vec![0],
        memory_bytes: 0,
        granted_ms: 7,
    };
    let (id, ..) = commit(cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO));
    let failed = ClusterEvent::NotCommitted {
        commit: id,
        refusal: Rejection::NoAgent,
    };
    let actions = cluster.step(failed, Duration::ZERO);
    assert!(
        matches!(&actions[..], [
            ClusterAction::AskEnd { agent: AGENT, release, .. },
            ClusterAction::Answer { answer: ClusterAnswer::Refused(_), .. },
        ] if release.lease == LEASE),
        "{actions:?}"
    );
}

#[test]
fn agents_of_the_durable_state_have_time_to_come_back() {
    let mut cluster = Cluster::new([AGENT], [(LEASE, note())], Duration::ZERO);
    assert!(cluster.step(ClusterEvent::Tick, SUSPECTED_AFTER).is_empty());
    assert_eq!(cluster.active_leases().count(), 1);
    let (_, writes, rest) = commit(cluster.step(ClusterEvent::Tick, super::super::FORGOTTEN_AFTER));
    assert_eq!(writes, [StateWrite::RemoveAgent(AGENT)]);
    assert_eq!(rest, [ClusterAction::AgentGone(AGENT)]);
}

#[test]
fn a_lease_that_is_not_recorded_is_looked_for_everywhere() {
    let mut cluster = registered();
    let release = ClusterEvent::Release {
        request: RequestId(2),
        release: EndRequest {
            lease: LEASE,
            tenant: "uid:1".into(),
            reason: EndReason::Released,
            unused: false,
        },
        known: None,
    };
    let actions = cluster.step(release, Duration::ZERO);
    let [ClusterAction::AskEnd { ask, agent: AGENT, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    let refusal = Rejection::UnknownLease;
    let actions = cluster.step(ClusterEvent::Refused { ask, refusal }, Duration::ZERO);
    let refused = ClusterAction::Answer {
        request: RequestId(2),
        answer: ClusterAnswer::Refused(Rejection::UnknownLease),
    };
    assert_eq!(actions, [refused]);
    assert_eq!(cluster.requests(), 0);
}

#[test]
fn only_a_whole_report_ends_what_it_does_not_name() {
    let mut cluster = registered();
    let mut hear = |number, report| {
        let heard = cluster.step(
            ClusterEvent::Heartbeat {
                request: RequestId(number),
                report,
            },
            Duration::ZERO,
        );
        let commits = heard.iter().filter_map(|action| match action {
            ClusterAction::Commit { commit, writes, .. } => Some((*commit, writes.clone())),
            _ => None,
        });
        let commits: Vec<_> = commits.collect();
        for (commit, _) in &commits {
            cluster.step(ClusterEvent::Committed { commit: *commit }, Duration::ZERO);
        }
        commits.into_iter().flat_map(|(_, writes)| writes).collect::<Vec<_>>()
    };
    assert_eq!(hear(10, report(1, vec![lease(None)])).len(), 1);
    let partial = AgentReport {
        whole: false,
        ..report(1, Vec::new())
    };
    assert_eq!(hear(11, partial), [], "it says nothing of the lease");
    let ended = hear(12, report(1, Vec::new()));
    assert!(
        matches!(ended[..], [StateWrite::EndLease { lease: LEASE, .. }]),
        "{ended:?}"
    );
}

#[test]
fn the_more_leases_there_are_the_less_often_they_are_reported() {
    let leases = (0..2000_u64).map(|number| (LeaseId(number.to_be_bytes()), note()));
    let mut cluster = Cluster::new([AGENT], leases, Duration::ZERO);
    cluster.step(ClusterEvent::Tick, Duration::ZERO);
    assert_eq!(cluster.totals_every(), Duration::from_secs(1));
    let mut none = Cluster::new([], [], Duration::ZERO);
    none.step(ClusterEvent::Tick, Duration::ZERO);
    assert_eq!(none.totals_every(), Duration::ZERO);
}
