use super::*;
use crate::agent::ENDED_MAX;
use crate::request::TTL_MAX;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn id(number: u64) -> LeaseId {
    LeaseId(number.to_be_bytes())
}

pub(super) fn request(workers: u32, slots: u32) -> LeaseRequest {
    LeaseRequest::new("uid:1000", LeaseSpec::exclusive(workers, slots), 5 * SECOND)
}

pub(super) fn grant(number: u64, request: LeaseRequest) -> BookEvent {
    BookEvent::Grant {
        lease: id(number),
        request: request.into(),
    }
}

pub(super) fn granted(book: &mut LeaseBook, number: u64, request: LeaseRequest, now: Duration) -> Epoch {
    let step = book.step(grant(number, request), now);
    assert_eq!(step.refusal, None);
    book.lease(id(number)).expect("granted").epoch
}

fn attach(session: u64, lease: LeaseId, epoch: Epoch) -> BookEvent {
    BookEvent::Attach {
        session: SessionId(session),
        lease,
        epoch,
        tenant: "uid:1000".into(),
        until: 5 * SECOND,
    }
}

pub(super) fn up(lease: LeaseId, worker: u16, epoch: Epoch) -> BookEvent {
    BookEvent::WorkerUp {
        lease,
        worker: WorkerIndex(worker),
        epoch,
    }
}

pub(super) fn gone(lease: LeaseId, worker: u16, epoch: Epoch) -> BookEvent {
    BookEvent::WorkerGone {
        lease,
        worker: WorkerIndex(worker),
        epoch,
        used: UsageTotals {
            allocated_ns: 0,
            hot_ns: 10,
            compute_ns: 20,
            invocations: 3,
        },
        functions: Default::default(),
    }
}

#[test]
fn cores_are_free_only_after_every_worker_is_gone() {
    let mut book = LeaseBook::new(0..4, 0);
    let epoch = granted(&mut book, 1, request(2, 2), Duration::ZERO);
    let end = BookEvent::End {
        lease: id(1),
        reason: EndReason::Released,
    };
    let step = book.step(end.clone(), SECOND);
    assert_eq!(step.actions.len(), 2, "both workers are to be killed: {step:?}");
    assert_eq!(
        book.step(end, SECOND).refusal,
        Some(Rejection::LeaseEnded(EndReason::Released))
    );
    let step = book.step(gone(id(1), 0, epoch), SECOND);
    assert_eq!(
        (step.actions.len(), book.free_cores(), book.ending_cores()),
        (0, 0, 4),
        "one worker still lives"
    );
    let refusal = book.step(grant(2, request(1, 1)), SECOND).refusal;
    assert_eq!(
        refusal,
        Some(Rejection::NoCapacity {
            asked: 1,
            free: 0,
            offered: 4
        })
    );

    let step = book.step(gone(id(1), 1, epoch), 2 * SECOND);
    assert_eq!(book.free_cores(), 4);
    let usage = UsageTotals {
        allocated_ns: 4 * 2_000_000_000,
        hot_ns: 20,
        compute_ns: 40,
        invocations: 6,
    };
    let ended = BookAction::LeaseEnded {
        lease: id(1),
        reason: EndReason::Released,
        usage,
        sessions: vec![],
    };
    assert_eq!(step.actions, [ended]);
    assert_eq!(
        book.step(gone(id(1), 1, epoch), 2 * SECOND),
        BookStep::default(),
        "a second report changes nothing"
    );
}

#[test]
fn a_lease_lasts_no_longer_than_its_operator_allows_however_often_it_is_renewed() {
    let mut book = LeaseBook::new(0..1, 0).with_longest(Some(8 * SECOND));
    granted(&mut book, 1, request(1, 1), SECOND);
    for second in 2..9 {
        let renewed = book.step(BookEvent::Renew { lease: id(1) }, second * SECOND);
        assert_eq!(renewed, BookStep::default(), "at {second} s");
    }
    assert_eq!(book.next_expiry(), Some(9 * SECOND));
    // A drain with a later deadline does not put off the end of the lease.
    let drain = BookEvent::Drain { until: 20 * SECOND };
    assert_eq!(book.step(drain, 8 * SECOND).refusal, None);
    let step = book.step(BookEvent::Renew { lease: id(1) }, 9 * SECOND);
    assert_eq!(step.refusal, Some(Rejection::LeaseEnded(EndReason::DurationOver)));
}

#[test]
fn a_worker_that_asks_for_no_memory_has_the_share_of_its_cores() {
    let book = LeaseBook::new(0..4, 8000).with_places(4);
    let shared = LeaseSpec {
        sharing: CoreUse::Shared,
        ..LeaseSpec::exclusive(3, 2)
    };
    assert_eq!(book.memory_share(&LeaseSpec::exclusive(3, 1)), 2000);
    assert_eq!(book.memory_share(&LeaseSpec::exclusive(1, 2)), 4000);
    assert_eq!(book.memory_share(&shared), 1000);
    let unknown = LeaseBook::new(0..4, 0);
    assert_eq!(unknown.memory_share(&LeaseSpec::exclusive(1, 1)), 0);
}

#[test]
fn a_lease_that_is_not_renewed_expires_at_its_ttl_and_not_before() {
    let mut book = LeaseBook::new(0..1, 0);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    let renew = BookEvent::Renew { lease: id(1) };
    assert_eq!(book.step(renew.clone(), 4 * SECOND), BookStep::default());
    assert_eq!(book.next_expiry(), Some(9 * SECOND));
    assert_eq!(
        book.step(BookEvent::Tick, Duration::from_millis(8999)),
        BookStep::default()
    );
    let step = book.step(renew, 9 * SECOND);
    assert_eq!(step.refusal, Some(Rejection::LeaseEnded(EndReason::Expired)));
    let kill = BookAction::KillWorker {
        lease: id(1),
        worker: WorkerIndex(0),
        epoch,
        reason: EndReason::Expired,
    };
    assert_eq!(step.actions, [kill], "a refused event still carries out the expiry");
    assert_eq!(book.next_expiry(), None);
}

#[test]
fn a_long_lease_that_no_client_attaches_to_does_not_keep_its_cores() {
    let mut book = LeaseBook::new(0..2, 0);
    let long = || LeaseRequest {
        ttl: TTL_MAX,
        ..request(1, 1)
    };
    granted(&mut book, 1, long(), Duration::ZERO);
    let epoch = granted(&mut book, 2, long(), Duration::ZERO);
    assert_eq!(book.step(attach(1, id(2), epoch), SECOND), BookStep::default());
    let step = book.step(BookEvent::Tick, ATTACH_WITHIN);
    assert!(
        matches!(step.actions[..], [BookAction::KillWorker { lease, .. }] if lease == id(1)),
        "{step:?}"
    );
    assert_eq!(book.next_expiry(), Some(SECOND + TTL_MAX));
}

#[test]
fn the_last_session_that_closes_ends_the_lease() {
    let mut book = LeaseBook::new(0..1, 0);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    for session in [1, 2] {
        assert_eq!(book.step(attach(session, id(1), epoch), SECOND).refusal, None);
    }
    let closed = |session| BookEvent::SessionClosed {
        session: SessionId(session),
        lease: id(1),
    };
    assert_eq!(book.step(closed(7), SECOND), BookStep::default());
    assert_eq!(book.step(closed(1), SECOND), BookStep::default());
    assert_eq!(
        book.step(closed(1), SECOND),
        BookStep::default(),
        "a session closes once"
    );
    assert!(matches!(
        book.step(closed(2), SECOND).actions[..],
        [BookAction::KillWorker {
            reason: EndReason::ClientGone,
            ..
        }]
    ));
}

#[test]
fn a_token_opens_only_its_own_living_lease() {
    let mut book = LeaseBook::new(0..2, 0);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    let mut refusal = |event, now| book.step(event, now).refusal;
    let other = Epoch(epoch.0 + 1);
    assert_eq!(
        refusal(attach(1, id(1), other), SECOND),
        Some(Rejection::StaleEpoch {
            token: other,
            current: epoch
        })
    );
    assert_eq!(refusal(attach(1, id(2), epoch), SECOND), Some(Rejection::UnknownLease));
    let stranger = BookEvent::Attach {
        session: SessionId(1),
        lease: id(1),
        epoch,
        tenant: "uid:1".into(),
        until: 5 * SECOND,
    };
    assert_eq!(refusal(stranger, SECOND), Some(Rejection::WrongTenant));
    assert_eq!(refusal(BookEvent::Renew { lease: id(1) }, 2 * SECOND), None);
    assert!(
        matches!(
            refusal(attach(1, id(1), epoch), 5 * SECOND),
            Some(Rejection::NotPermitted { .. })
        ),
        "the lease lives, but the token is too old"
    );
    let end = BookEvent::End {
        lease: id(1),
        reason: EndReason::Revoked,
    };
    assert_eq!(refusal(end, SECOND * 5), None);
    let ended = Some(Rejection::LeaseEnded(EndReason::Revoked));
    assert_eq!(refusal(attach(1, id(1), epoch), SECOND * 5), ended);
    assert_eq!(refusal(gone(id(1), 0, epoch), SECOND * 5), None);
    assert_eq!(refusal(attach(1, id(1), epoch), SECOND * 5), ended);
}

#[test]
fn a_dead_worker_is_reported_and_replaced_in_a_new_epoch() {
    let mut book = LeaseBook::new(0..2, 0);
    let epoch = granted(&mut book, 1, request(1, 2), Duration::ZERO);
    assert_eq!(book.step(attach(1, id(1), epoch), SECOND).refusal, None);
    assert_eq!(book.lease(id(1)).expect("alive").phase, LeasePhase::Starting);
    assert_eq!(book.step(up(id(1), 0, epoch), SECOND), BookStep::default());
    assert_eq!(book.lease(id(1)).expect("alive").phase, LeasePhase::Serving);
    let replace = BookEvent::Replace {
        lease: id(1),
        worker: WorkerIndex(0),
    };
    assert_eq!(
        book.step(replace.clone(), SECOND),
        BookStep::default(),
        "it is not dead"
    );
    let told = BookAction::ReportWorkerDeath {
        lease: id(1),
        worker: WorkerIndex(0),
        epoch,
        sessions: vec![SessionId(1)],
    };
    assert_eq!(book.step(gone(id(1), 0, epoch), SECOND).actions, [told]);
    let next = Epoch(epoch.0 + 1);
    let start = BookAction::StartWorker {
        lease: id(1),
        worker: WorkerIndex(0),
        epoch: next,
        cores: vec![0, 1],
        gpus: vec![],
    };
    assert_eq!(book.step(replace, SECOND).actions, [start]);
    assert_eq!(
        book.step(gone(id(1), 0, epoch), SECOND),
        BookStep::default(),
        "the report is about an earlier incarnation"
    );
    let missing = BookEvent::Replace {
        lease: id(1),
        worker: WorkerIndex(1),
    };
    let refusal = Rejection::UnknownWorker { index: 1, workers: 1 };
    assert_eq!(book.step(missing, SECOND).refusal, Some(refusal));
}

#[test]
fn requests_that_make_no_sense_are_refused_and_change_nothing() {
    let good = || request(1, 1);
    let with_memory = |workers, memory_bytes| LeaseRequest {
        spec: LeaseSpec {
            memory_bytes,
            ..LeaseSpec::exclusive(workers, 1)
        },
        ..good()
    };
    let of_tenant = |tenant: String| LeaseRequest { tenant, ..good() };
    let bad = [
        request(0, 1),
        request(1, 0),
        request(u32::MAX, u32::MAX),
        LeaseRequest {
            ttl: TTL_MAX + Duration::from_nanos(1),
            ..good()
        },
        of_tenant(String::new()),
        of_tenant("t".repeat(TENANT_BYTES_MAX + 1)),
        with_memory(1, 1001),
        with_memory(2, u64::MAX),
    ];
    let mut book = LeaseBook::new(0..2, 1000);
    for request in bad {
        let step = book.step(grant(1, request.clone()), Duration::ZERO);
        assert!(
            step.refusal.is_some() && step.actions.is_empty(),
            "{request:?} gave {step:?}"
        );
    }
    assert_eq!((book.free_cores(), book.epoch()), (2, Epoch(0)));
    granted(&mut book, 1, with_memory(1, 600), Duration::ZERO);
    assert!(matches!(
        book.step(grant(2, with_memory(1, 600)), Duration::ZERO).refusal,
        Some(Rejection::TooMany { limit: 400, .. })
    ));
    let twice = book.step(grant(1, good()), Duration::ZERO);
    assert!(matches!(twice.refusal, Some(Rejection::BadRequest { .. })), "{twice:?}");
}

#[test]
fn a_stopping_agent_ends_all_leases_and_grants_none() {
    let mut book = LeaseBook::new(0..2, 0);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    assert_eq!(book.step(BookEvent::Stop, SECOND).actions.len(), 1);
    assert!(matches!(
        book.step(grant(2, request(1, 1)), SECOND).refusal,
        Some(Rejection::Unavailable { .. })
    ));
    assert!(matches!(
        book.step(gone(id(1), 0, epoch), SECOND).actions[..],
        [BookAction::LeaseEnded {
            reason: EndReason::AgentStopping,
            ..
        }]
    ));
}

#[test]
fn epochs_that_run_out_refuse_grants_instead_of_repeating() {
    let mut book = LeaseBook::new(0..1, 0);
    book.epoch = Epoch(u32::MAX - 1);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    assert_eq!(book.step(gone(id(1), 0, epoch), SECOND).refusal, None);
    let replace = BookEvent::Replace {
        lease: id(1),
        worker: WorkerIndex(0),
    };
    assert!(matches!(
        book.step(replace, SECOND).refusal,
        Some(Rejection::Unavailable { .. })
    ));
}

#[test]
fn ended_leases_are_remembered_up_to_a_bound() {
    let mut book = LeaseBook::new(0..1, 0);
    for number in 0..=ENDED_MAX as u64 {
        let epoch = granted(&mut book, number, request(1, 1), Duration::ZERO);
        let end = BookEvent::End {
            lease: id(number),
            reason: EndReason::Released,
        };
        assert_eq!(book.step(end, Duration::ZERO).refusal, None);
        assert_eq!(book.step(gone(id(number), 0, epoch), Duration::ZERO).refusal, None);
    }
    assert_eq!(book.ended_leases().count(), ENDED_MAX);
    assert_eq!(book.active(id(0)), Err(Rejection::UnknownLease));
    assert_eq!(book.active(id(1)), Err(Rejection::LeaseEnded(EndReason::Released)));
}

fn active(book: &LeaseBook) -> usize {
    book.leases().filter(|lease| lease.is_active()).count()
}

#[test]
fn a_drain_grants_nothing_and_ends_the_remaining_leases_at_its_deadline() {
    let mut book = LeaseBook::new(0..4, 0);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    let step = book.step(BookEvent::Drain { until: 3 * SECOND }, SECOND);
    assert!(step.actions.is_empty(), "leases go on until the deadline: {step:?}");
    let refusal = book.step(grant(2, request(1, 1)), SECOND).refusal;
    assert!(matches!(refusal, Some(Rejection::Unavailable { .. })));
    assert_eq!(book.step(BookEvent::Renew { lease: id(1) }, 2 * SECOND).refusal, None);
    assert_eq!(
        book.next_expiry(),
        Some(3 * SECOND),
        "no renewal reaches past the deadline"
    );
    let step = book.step(BookEvent::Drain { until: 9 * SECOND }, 2 * SECOND);
    assert!(step.actions.is_empty());
    assert_eq!(book.next_expiry(), Some(3 * SECOND), "a deadline is not put off");
    let step = book.step(BookEvent::Tick, 3 * SECOND);
    assert!(
        matches!(
            step.actions[..],
            [BookAction::KillWorker {
                reason: EndReason::Reclaimed,
                ..
            }]
        ),
        "{step:?}"
    );
    let step = book.step(gone(id(1), 0, epoch), 3 * SECOND);
    assert_eq!(step.actions.last(), Some(&BookAction::Drained));
    assert!(
        book.step(BookEvent::Tick, 4 * SECOND).actions.is_empty(),
        "it is said once"
    );
    assert_eq!(book.step(BookEvent::Resume, 4 * SECOND).refusal, None);
    granted(&mut book, 3, request(1, 1), 4 * SECOND);
}

#[test]
fn immediate_removal_ends_everything_in_one_step() {
    let mut book = LeaseBook::new(0..4, 0);
    granted(&mut book, 1, request(2, 1), Duration::ZERO);
    granted(&mut book, 2, request(1, 2), Duration::ZERO);
    let step = book.step(BookEvent::Drain { until: SECOND }, SECOND);
    assert_eq!(step.actions.len(), 3, "all three workers are killed: {step:?}");
    assert_eq!(
        (active(&book), book.free_cores()),
        (0, 0),
        "cores wait for their workers"
    );
}

#[test]
fn a_stopping_agent_takes_no_leases_again() {
    let mut book = LeaseBook::new(0..1, 0);
    let _ = book.step(BookEvent::Stop, SECOND);
    let refusal = book.step(BookEvent::Resume, SECOND).refusal;
    assert!(matches!(refusal, Some(Rejection::Unavailable { .. })));
}
