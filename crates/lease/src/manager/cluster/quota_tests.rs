//! Quotas: a request is counted at once, and a lease that is over is no longer counted.

use super::tests::{AGENT, BOOT, note, record, registered, report, wanted};
use super::*;
use crate::manager::{Allowance, GrantedLease, LeaseReport, Quota};
use crate::request::LeaseSpec;
use hotlease_wire::session::UsageTotals;

const ALICE: &str = "alice";

fn acquire(request: u64, tenant: &str, cores: u32, quota: Quota) -> ClusterEvent {
    ClusterEvent::Acquire {
        request: RequestId(request),
        wanted: wanted(tenant, LeaseSpec::exclusive(1, cores)),
        allowance: Allowance {
            quota,
            ..Allowance::default()
        },
    }
}

fn of_cores(cores: u64) -> Quota {
    Quota {
        cores: Some(cores),
        ..Quota::default()
    }
}

/// Returns the question to an agent, or the refusal.
fn asked(actions: &[ClusterAction]) -> Result<AskId, Rejection> {
    match actions {
        [ClusterAction::AskGrant { ask, .. }] => Ok(*ask),
        [
            ClusterAction::Answer {
                answer: ClusterAnswer::Refused(refusal),
                ..
            },
        ] => Err(refusal.clone()),
        other => panic!("neither asked nor refused: {other:?}"),
    }
}

fn granted(cluster: &mut Cluster, ask: AskId, lease: u8, cores: Vec<u32>) {
    let granted = GrantedLease {
        lease: LeaseId([lease; 8]),
        boot: BOOT,
        epoch: Epoch(lease.into()),
        cores,
        memory_bytes: 0,
        granted_ms: 7,
    };
    let actions = cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO);
    let [ClusterAction::Commit { commit, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO);
}

fn heartbeat(cluster: &mut Cluster, request: u64, named: &[(u8, &str, usize)]) {
    let leases = named.iter().map(|(lease, tenant, cores)| LeaseReport {
        lease: LeaseId([*lease; 8]),
        boot: BOOT,
        tenant: (*tenant).into(),
        label: String::new(),
        epoch: Epoch((*lease).into()),
        cores: vec![0; *cores],
        gpus: 0,
        usage: UsageTotals::default(),
        functions: Default::default(),
        end_reason: None,
    });
    let report = report(200, leases.collect());
    let event = ClusterEvent::Heartbeat {
        request: RequestId(request),
        report,
    };
    for action in cluster.step(event, Duration::ZERO) {
        if let ClusterAction::Commit { commit, .. } = action {
            cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO);
        }
    }
}

#[test]
fn requests_under_way_at_the_same_time_do_not_pass_a_quota_together() {
    let mut cluster = registered();
    let first = asked(&cluster.step(acquire(2, ALICE, 1, of_cores(1)), Duration::ZERO)).expect("within it");
    // No agent has granted anything yet.
    let second = asked(&cluster.step(acquire(3, ALICE, 1, of_cores(1)), Duration::ZERO));
    let exceeded = Rejection::QuotaExceeded {
        tenant: ALICE.into(),
        what: "cores".into(),
        limit: 1,
        used: 1,
    };
    assert_eq!(
        second,
        Err(exceeded),
        "the second of two requests at a time passed the quota"
    );
    let other = asked(&cluster.step(acquire(4, "bob", 1, of_cores(1)), Duration::ZERO));
    assert!(other.is_ok(), "another tenant's quota is its own");
    granted(&mut cluster, first, 1, vec![0]);
    assert_eq!(
        cluster.holdings_of(ALICE).1.cores,
        1,
        "held once: as a lease, not as a request too"
    );
}

#[test]
fn refused_requests_and_ended_leases_leave_the_quota() {
    let mut cluster = registered();
    for round in 0..3 {
        let request = 10 + round;
        let ask = asked(&cluster.step(acquire(request, ALICE, 2, of_cores(2)), Duration::ZERO));
        let ask = ask.unwrap_or_else(|refusal| panic!("round {round}: {refusal}"));
        let refusal = Rejection::Unavailable { what: "gone".into() };
        cluster.step(ClusterEvent::Refused { ask, refusal }, Duration::ZERO);
        assert_eq!(
            cluster.holdings_of(ALICE),
            (0, Amount::default()),
            "a refused request still counts"
        );
    }
    let ask = asked(&cluster.step(acquire(20, ALICE, 2, of_cores(2)), Duration::ZERO)).expect("free again");
    granted(&mut cluster, ask, 1, vec![0, 1]);
    assert_eq!(cluster.holdings_of(ALICE).0, 1);
    heartbeat(&mut cluster, 21, &[]);
    assert_eq!(
        cluster.holdings_of(ALICE).0,
        0,
        "a lease that its agent does not name any more still counts"
    );
}

#[test]
fn a_grant_that_was_not_written_down_counts_no_more() {
    let mut cluster = registered();
    let ask = asked(&cluster.step(acquire(2, ALICE, 1, of_cores(1)), Duration::ZERO)).expect("within it");
    let granted = GrantedLease {
        lease: LeaseId([1; 8]),
        boot: BOOT,
        epoch: Epoch(1),
        cores: vec![0],
        memory_bytes: 0,
        granted_ms: 7,
    };
    let actions = cluster.step(ClusterEvent::Granted { ask, granted }, Duration::ZERO);
    let [ClusterAction::Commit { commit, .. }] = actions[..] else {
        panic!("{actions:?}");
    };
    let refusal = Rejection::Unavailable { what: "disk".into() };
    cluster.step(ClusterEvent::NotCommitted { commit, refusal }, Duration::ZERO);
    assert_eq!(cluster.holdings_of(ALICE).0, 0);
}

#[test]
fn reported_leases_and_recorded_notes_count_against_the_quota() {
    let mut cluster = registered();
    heartbeat(&mut cluster, 2, &[(5, ALICE, 3)]);
    let refused = asked(&cluster.step(acquire(3, ALICE, 1, of_cores(3)), Duration::ZERO));
    assert!(
        refused.is_err(),
        "a lease that no agent here granted does not count: {refused:?}"
    );
    let note = LeaseNote {
        tenant: ALICE.into(),
        cores: vec![0, 1],
        memory_bytes: 7,
        gpus: 1,
        ..note()
    };
    let restarted = Cluster::new([AGENT], [(LeaseId([1; 8]), note)], Duration::ZERO);
    let held = Amount {
        cores: 2,
        memory_bytes: 7,
        gpus: 1,
    };
    assert_eq!(
        restarted.holdings_of(ALICE),
        (1, held),
        "a manager that starts again has forgotten who holds what"
    );
}

#[test]
fn each_bound_holds_by_itself() {
    let spec = LeaseSpec {
        memory_bytes: 10,
        gpus: 1,
        ..LeaseSpec::exclusive(1, 1)
    };
    let quota = |change: fn(&mut Quota)| {
        let mut quota = Quota::default();
        change(&mut quota);
        quota
    };
    for (what, quota) in [
        ("leases", quota(|quota| quota.leases = Some(0))),
        ("bytes of memory", quota(|quota| quota.memory_bytes = Some(9))),
        ("GPUs", quota(|quota| quota.gpus = Some(0))),
        ("core-seconds", quota(|quota| quota.core_seconds = Some(100))),
    ] {
        let mut cluster = registered();
        let event = ClusterEvent::Acquire {
            request: RequestId(2),
            wanted: wanted(ALICE, spec),
            allowance: Allowance {
                quota,
                core_seconds_used: 100,
            },
        };
        match asked(&cluster.step(event, Duration::ZERO)) {
            Err(Rejection::QuotaExceeded { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    // Memory without a limit would exceed any quota.
    let mut cluster = registered();
    let quota = quota(|quota| quota.memory_bytes = Some(1 << 40));
    let unbounded = asked(&cluster.step(acquire(2, ALICE, 1, quota), Duration::ZERO));
    assert!(matches!(unbounded, Err(Rejection::BadRequest { .. })), "{unbounded:?}");
}

/// Announces a lease that an agent has granted without the manager; returns the refusal, if there is one.
fn vouched(cluster: &mut Cluster, lease: LeaseId, note: LeaseNote) -> Result<(), Rejection> {
    let request = RequestId(99);
    let actions = cluster.step(ClusterEvent::Vouch { request, lease, note }, Duration::ZERO);
    let commit = match &actions[..] {
        [ClusterAction::Commit { commit, .. }] => *commit,
        other => return asked(other).map(drop),
    };
    let actions = cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO);
    let answered = matches!(
        &actions[..],
        [ClusterAction::Answer {
            answer: ClusterAnswer::Vouched,
            ..
        }]
    );
    assert!(answered, "{actions:?}");
    Ok(())
}

#[test]
fn a_tenant_that_announces_leases_never_granted_takes_no_room_from_others() {
    let mut cluster = registered();
    // No report names an epoch as late as this, so no report can show that such a lease is over.
    let of = |tenant: &str| LeaseNote {
        tenant: tenant.into(),
        epoch: Epoch(u32::MAX),
        ..note()
    };
    let granted = LeaseId([7; 8]);
    vouched(&mut cluster, granted, of(ALICE)).expect("the first");
    let invented = (0..3 * UNSEEN_MAX as u64).map(|number| LeaseId(number.to_be_bytes()));
    let taken = invented.filter(|lease| vouched(&mut cluster, *lease, of(ALICE)).is_ok());
    assert_eq!(taken.count(), UNSEEN_MAX - 1);
    vouched(&mut cluster, LeaseId([8; 8]), of("bob")).expect("another tenant has room");
    let more = |cluster: &mut Cluster, number| vouched(cluster, LeaseId([number; 8]), of(ALICE));
    let refused = more(&mut cluster, 9);
    assert!(
        matches!(refused, Err(Rejection::TooMany { limit, .. }) if limit == UNSEEN_MAX as u64),
        "{refused:?}"
    );
    heartbeat(&mut cluster, 3, &[(7, ALICE, 1)]);
    more(&mut cluster, 10).expect("a lease that its agent reports is none of them");
    assert!(more(&mut cluster, 11).is_err(), "one report makes room for one");
}

#[test]
fn a_lease_stays_its_tenants_and_its_agents_when_others_announce_it() {
    let mut cluster = registered();
    heartbeat(&mut cluster, 2, &[(1, ALICE, 2)]);
    let of = |tenant: &str| LeaseNote {
        tenant: tenant.into(),
        ..note()
    };
    let lease = LeaseId([1; 8]);
    assert_eq!(vouched(&mut cluster, lease, of("bob")), Err(Rejection::WrongTenant));
    let other = AgentProfile {
        id: AgentId([2; 8]),
        boot: BootId([2; 8]),
        ..record(1)
    };
    let register = ClusterEvent::Register {
        request: RequestId(3),
        record: other.clone(),
        proof: 0,
    };
    for action in cluster.step(register, Duration::ZERO) {
        if let ClusterAction::Commit { commit, .. } = action {
            cluster.step(ClusterEvent::Committed { commit }, Duration::ZERO);
        }
    }
    let elsewhere = LeaseNote {
        agent: other.id,
        boot: other.boot,
        ..of(ALICE)
    };
    let refused = vouched(&mut cluster, lease, elsewhere);
    assert!(matches!(refused, Err(Rejection::BadRequest { .. })), "{refused:?}");
    assert_eq!(cluster.holdings_of(ALICE).1.cores, 2);
}
