//! Batch jobs that begin on a node with leases.

use super::tests::{SECOND, gone, grant, granted, id, request};
use super::*;
use crate::agent::{NodeOffer, OfferedCores};
use hotlease_wire::batch::JobShare;
use hotlease_wire::ids::JobId;

const JOB: JobId = JobId(17);

fn begin(job: JobId, share: JobShare) -> BookEvent {
    BookEvent::BeginJob { job, share }
}

fn part(cores: impl IntoIterator<Item = u32>, gpus: impl IntoIterator<Item = u32>, memory_bytes: u64) -> JobShare {
    JobShare::Part {
        cores: cores.into_iter().collect(),
        gpus: gpus.into_iter().collect(),
        memory_bytes,
    }
}

/// Leases whose workers this step kills, with the reasons.
fn killed(step: &BookStep) -> Vec<(LeaseId, EndReason)> {
    let kills = step.actions.iter().filter_map(|action| match action {
        BookAction::KillWorker { lease, reason, .. } => Some((*lease, *reason)),
        _ => None,
    });
    kills.collect()
}

#[test]
fn a_job_that_has_the_node_ends_all_leases_at_once_and_none_is_granted_until_it_ends() {
    let mut book = LeaseBook::new(0..4, 0);
    let epoch = granted(&mut book, 1, request(1, 2), Duration::ZERO);
    let step = book.step(begin(JOB, JobShare::Node), SECOND);
    assert_eq!(step.refusal, None);
    assert_eq!(killed(&step), [(id(1), EndReason::BatchJob(JOB))]);
    assert!(!book.has_room_for(JOB), "its worker still runs");
    let refusal = book.step(grant(2, request(1, 1)), SECOND).refusal;
    let expected = Rejection::Unavailable {
        what: "batch jobs have the node".into(),
    };
    assert_eq!(refusal, Some(expected));
    let step = book.step(gone(id(1), 0, epoch), SECOND);
    assert!(
        matches!(
            &step.actions[..],
            [BookAction::LeaseEnded {
                reason: EndReason::BatchJob(JOB),
                ..
            }]
        ),
        "{step:?}"
    );
    assert!(book.has_room_for(JOB));
    assert_eq!(
        (book.availability(), book.offer_now().0),
        (Availability::Standby, vec![])
    );
    // Another job begins before the first has ended. A second report of the same beginning, or of the same end, changes
    // nothing.
    for job in [JOB, JobId(18), JobId(18)] {
        assert_eq!(book.step(begin(job, JobShare::Node), SECOND), BookStep::default());
    }
    for job in [JOB, JOB, JobId(99)] {
        assert_eq!(book.step(BookEvent::EndJob { job }, SECOND), BookStep::default());
        assert_eq!(book.availability(), Availability::Standby);
    }
    assert_eq!(book.step(BookEvent::EndJob { job: JobId(18) }, SECOND).refusal, None);
    assert_eq!((book.availability(), book.free_cores()), (Availability::Serving, 4));
    granted(&mut book, 3, request(4, 1), SECOND);
}

#[test]
fn a_job_with_a_part_of_the_node_disturbs_no_lease_on_the_rest() {
    let mut book = LeaseBook::new(0..4, 0).with_gpus(3);
    let with_gpu = LeaseRequest {
        spec: LeaseSpec {
            gpus: 1,
            ..LeaseSpec::exclusive(1, 1)
        },
        ..request(1, 1)
    };
    // The leases get core 0 and GPU 0, core 1 and GPU 1, and core 2.
    let first = granted(&mut book, 1, with_gpu.clone(), Duration::ZERO);
    granted(&mut book, 2, with_gpu.clone(), Duration::ZERO);
    granted(&mut book, 3, request(1, 1), Duration::ZERO);
    let step = book.step(begin(JOB, part([0, 3], [2], 0)), SECOND);
    assert_eq!(killed(&step), [(id(1), EndReason::BatchJob(JOB))]);
    assert_eq!((book.offer_now().0, book.offered_gpus()), (vec![1, 2], 2));
    let _ = book.step(gone(id(1), 0, first), SECOND);
    assert!(book.has_room_for(JOB));
    assert_eq!((book.free_cores(), book.free_gpus()), (0, 1), "its core is the job's");
    // The job gets GPU 1, too, which ends the lease that holds it. Then the job shrinks, and ends.
    let step = book.step(begin(JOB, part([0, 3], [1, 2], 0)), SECOND);
    assert_eq!(killed(&step), [(id(2), EndReason::BatchJob(JOB))]);
    let _ = book.step(begin(JOB, part([0], [], 0)), SECOND);
    assert_eq!((book.offer_now().0, book.free_cores()), (vec![1, 2, 3], 1));
    let _ = book.step(BookEvent::EndJob { job: JOB }, SECOND);
    assert_eq!((book.offered_cores(), book.offered_gpus()), (4, 3));
    assert_eq!(book.lease(id(3)).expect("undisturbed").cut, None);
}

#[test]
fn memory_of_a_job_costs_the_youngest_leases_also_those_with_their_share() {
    let mut book = LeaseBook::new(0..4, 400);
    let asks = LeaseRequest {
        spec: LeaseSpec {
            memory_bytes: 150,
            ..LeaseSpec::exclusive(1, 1)
        },
        ..request(1, 1)
    };
    granted(&mut book, 1, asks, Duration::ZERO);
    // Leases 2 and 3 have a hundred each: a quarter of the node.
    granted(&mut book, 2, request(1, 1), SECOND);
    granted(&mut book, 3, request(1, 1), 2 * SECOND);
    let step = book.step(begin(JOB, part([3], [], 50)), 3 * SECOND);
    assert!(killed(&step).is_empty(), "350 are held, and 350 are left");
    assert!(book.has_room_for(JOB));
    let step = book.step(begin(JOB, part([3], [], 51)), 3 * SECOND);
    assert_eq!(killed(&step), [(id(3), EndReason::BatchJob(JOB))]);
    assert!(!book.has_room_for(JOB), "it is held until the worker is gone");
}

#[test]
fn leases_that_ask_for_no_memory_take_none_of_a_job_s() {
    let mut book = LeaseBook::new(0..4, 400);
    let first = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    // A hundred bytes are held. Two hundred are left for three cores.
    let _ = book.step(begin(JOB, part([3], [], 200)), SECOND);
    granted(&mut book, 2, request(1, 1), SECOND);
    let refusal = book.step(grant(3, request(1, 1)), SECOND).refusal;
    let full = Rejection::NoCapacity {
        asked: 1,
        free: 0,
        offered: 3,
    };
    assert_eq!(refusal, Some(full));
    assert!(book.has_room_for(JOB), "the leases have 166 of 200");
    // An ending lease holds its memory until its worker is gone: no other lease gets that memory before.
    let step = book.step(begin(JOB, part([0, 3], [], 250)), SECOND);
    assert_eq!(killed(&step), [(id(1), EndReason::BatchJob(JOB))]);
    assert!(book.step(grant(3, request(1, 1)), SECOND).refusal.is_some());
    let _ = book.step(gone(id(1), 0, first), SECOND);
    assert!(book.has_room_for(JOB), "66 are held of 150");
    // A job may use all memory, but not all cores. A lease without a memory request is then refused: its share would be
    // 0, and 0 means no limit.
    let _ = book.step(begin(JOB, part([3], [], 400)), SECOND);
    assert!(matches!(
        book.step(grant(4, request(1, 1)), SECOND).refusal,
        Some(Rejection::Unavailable { .. })
    ));
    let _ = book.step(BookEvent::EndJob { job: JOB }, SECOND);
    granted(&mut book, 5, request(1, 1), SECOND);
}

#[test]
fn a_job_with_all_memory_has_the_node_although_it_leaves_cores() {
    let mut book = LeaseBook::new(0..4, 400);
    let epoch = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    let step = book.step(begin(JOB, part([3], [], 400)), SECOND);
    assert_eq!(killed(&step), [(id(1), EndReason::BatchJob(JOB))]);
    assert!(!book.has_room_for(JOB));
    assert_eq!(
        (book.availability(), book.offer_now().0),
        (Availability::Standby, vec![])
    );
    let _ = book.step(gone(id(1), 0, epoch), SECOND);
    assert!(book.has_room_for(JOB));
    // Then a second job takes the rest of the memory. If the node still offered cores, it would grant workers without a
    // memory limit.
    let step = book.step(begin(JOB, part([3], [], 200)), SECOND);
    assert_eq!((step.refusal, book.free_cores()), (None, 3));
    let _ = book.step(begin(JobId(18), part([2], [], 200)), SECOND);
    assert_eq!(book.free_cores(), 0, "both have all memory");
}

#[test]
fn a_job_brings_no_deadline_of_an_operator_forward_and_an_operator_offers_no_more_than_jobs_leave() {
    let mut book = LeaseBook::new(0..3, 0);
    granted(&mut book, 1, request(3, 1), Duration::ZERO);
    let offer = |cores: u32, until| {
        BookEvent::Offer(NodeOffer {
            cores: OfferedCores::Count(cores),
            memory_bytes: None,
            gpus: None,
            until,
        })
    };
    let _ = book.step(offer(2, 4 * SECOND), SECOND);
    assert_eq!(book.lease(id(1)).expect("there").cut, Some(4 * SECOND));
    let _ = book.step(begin(JOB, part([7], [], 0)), SECOND);
    let _ = book.step(BookEvent::EndJob { job: JOB }, SECOND);
    assert_eq!(book.lease(id(1)).expect("there").cut, Some(4 * SECOND));
    let step = book.step(BookEvent::Tick, 4 * SECOND);
    assert_eq!(killed(&step)[0], (id(1), EndReason::Reclaimed));

    let mut book = LeaseBook::new(0..3, 0);
    let _ = book.step(begin(JOB, part([0, 1], [], 0)), SECOND);
    let _ = book.step(offer(3, SECOND), SECOND);
    assert_eq!(book.offer_now().0, [2]);
    let _ = book.step(offer(1, SECOND), SECOND);
    assert_eq!(
        book.offer_now().0,
        [0; 0],
        "a free core goes first, then one of the job"
    );
    let _ = book.step(BookEvent::EndJob { job: JOB }, SECOND);
    assert_eq!(book.offered_cores(), 1);
}
