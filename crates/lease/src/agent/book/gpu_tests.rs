//! GPUs in leases and offers.

use super::tests::{SECOND, gone, grant, granted, id, request};
use super::*;
use crate::agent::{NodeOffer, OfferedCores, OfferedGpus};
use hotlease_wire::limits::GPUS_PER_WORKER_MAX;

#[test]
fn gpus_are_granted_exactly_and_come_back_with_the_last_worker() {
    let mut book = LeaseBook::new(0..8, 0).with_gpus(4);
    let spec = |workers, slots, gpus| LeaseSpec {
        gpus,
        ..LeaseSpec::exclusive(workers, slots)
    };
    let asks = |number, spec| grant(number, LeaseRequest { spec, ..request(1, 1) });
    let step = book.step(asks(1, spec(2, 1, 1)), Duration::ZERO);
    let started = step.actions.into_iter().map(|action| match action {
        BookAction::StartWorker { gpus, .. } => gpus,
        other => panic!("{other:?}"),
    });
    let started: Vec<_> = started.collect();
    assert_eq!(started, [[0], [1]], "each worker has a device of its own");
    assert_eq!((book.free_gpus(), book.free_cores()), (2, 6));
    assert_eq!(
        book.step(asks(2, spec(1, 1, 3)), Duration::ZERO).refusal,
        Some(Rejection::NoGpus {
            asked: 3,
            free: 2,
            offered: 4
        })
    );
    let refused = book.step(asks(2, spec(7, 1, 0)), Duration::ZERO).refusal;
    assert!(matches!(refused, Some(Rejection::NoCapacity { .. })), "{refused:?}");
    let no_cores = asks(2, spec(1, 7, 2));
    assert!(book.step(no_cores, Duration::ZERO).refusal.is_some());
    assert_eq!((book.free_gpus(), book.free_cores()), (2, 6), "a refusal takes nothing");
    let too_many = book.step(asks(2, spec(1, 1, GPUS_PER_WORKER_MAX + 1)), Duration::ZERO);
    assert!(
        matches!(too_many.refusal, Some(Rejection::BadRequest { .. })),
        "{too_many:?}"
    );
    // A restarted worker gets the same GPUs.
    let epoch = book.lease(id(1)).expect("granted").epoch;
    assert_eq!(book.step(gone(id(1), 1, epoch), SECOND).refusal, None);
    let replace = BookEvent::Replace {
        lease: id(1),
        worker: WorkerIndex(1),
    };
    let again = book.step(replace, SECOND).actions;
    assert!(
        matches!(&again[..], [BookAction::StartWorker { gpus, .. }] if *gpus == [1]),
        "{again:?}"
    );
    let second = book.lease(id(1)).expect("granted").workers[1].epoch;
    let end = BookEvent::End {
        lease: id(1),
        reason: EndReason::Reclaimed,
    };
    assert_eq!(book.step(end, SECOND).refusal, None);
    let _ = book.step(gone(id(1), 0, epoch), SECOND);
    assert_eq!(book.free_gpus(), 2, "GPUs wait for their workers");
    let _ = book.step(gone(id(1), 1, second), SECOND);
    assert_eq!(book.free_gpus(), 4);
    assert_eq!(book.ended_leases().next_back().expect("ended").gpus, [0, 1]);
}

#[test]
fn the_first_gpus_stay_and_holders_of_others_leave_by_the_notice() {
    let mut book = LeaseBook::new(0..3, 0).with_gpus(3);
    for number in 1..=3_u64 {
        let spec = LeaseSpec {
            gpus: 1,
            ..LeaseSpec::exclusive(1, 1)
        };
        let asked = LeaseRequest { spec, ..request(1, 1) };
        granted(&mut book, number, asked, SECOND * number as u32);
    }
    let first = |gpus| {
        BookEvent::Offer(NodeOffer {
            cores: OfferedCores::Unchanged,
            memory_bytes: None,
            gpus: Some(OfferedGpus::Count(gpus)),
            until: 9 * SECOND,
        })
    };
    let more = book.step(first(4), 4 * SECOND).refusal;
    assert!(matches!(more, Some(Rejection::BadRequest { .. })), "{more:?}");
    assert_eq!(book.offered_gpus(), 3, "a refused order changed nothing");
    assert_eq!(book.step(first(1), 4 * SECOND).refusal, None);
    let cuts: Vec<_> = book.leases().map(|lease| lease.cut.is_some()).collect();
    assert_eq!(cuts, [false, true, true]);
    assert_eq!((book.free_gpus(), book.offered_gpus()), (0, 1));
    assert_eq!(book.step(first(2), 5 * SECOND).refusal, None);
    assert_eq!(book.lease(id(2)).expect("there").cut, None, "it is offered again");
}

#[test]
fn gpus_that_are_named_are_granted_and_no_others() {
    let mut book = LeaseBook::new(0..4, 0).with_gpus(4);
    let with_gpu = |number: u64| {
        let spec = LeaseSpec {
            gpus: 1,
            ..LeaseSpec::exclusive(1, 1)
        };
        grant(number, LeaseRequest { spec, ..request(1, 1) })
    };
    assert_eq!(book.step(with_gpu(1), Duration::ZERO).refusal, None);
    let named = |gpus: &[u32]| {
        BookEvent::Offer(NodeOffer {
            cores: OfferedCores::Unchanged,
            memory_bytes: None,
            gpus: Some(OfferedGpus::These(gpus.iter().copied().collect())),
            until: 9 * SECOND,
        })
    };
    let refusal = book.step(named(&[1, 4]), SECOND).refusal;
    assert!(matches!(refusal, Some(Rejection::BadRequest { .. })), "{refusal:?}");
    assert_eq!(book.offered_gpus(), 4, "a refused order changed nothing");
    assert_eq!(book.step(named(&[1, 3]), SECOND).refusal, None);
    assert_eq!(book.gpu_numbers().collect::<Vec<_>>(), [1, 3]);
    let cut = book.lease(id(1)).expect("there").cut;
    assert_eq!(cut, Some(9 * SECOND), "it holds GPU 0");
    for (number, device) in [(2, 1), (3, 3)] {
        assert_eq!(book.step(with_gpu(number), SECOND).refusal, None);
        assert_eq!(book.lease(id(number)).expect("granted").gpus(), [device]);
    }
    let refusal = book.step(with_gpu(4), SECOND).refusal;
    assert!(
        matches!(
            refusal,
            Some(Rejection::NoGpus {
                free: 0,
                offered: 2,
                ..
            })
        ),
        "{refusal:?}"
    );
    assert_eq!(book.step(named(&[]), SECOND).refusal, None);
    assert_eq!((book.offered_gpus(), book.free_gpus()), (0, 0));
}
