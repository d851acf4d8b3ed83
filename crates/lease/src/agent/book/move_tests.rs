//! Moves of workers between shared cores.

use super::tests::{SECOND, gone, grant, granted, id, request, up};
use super::*;
use crate::agent::{NodeOffer, OfferedCores};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn shared(workers: u32, slots: u32) -> LeaseRequest {
    let spec = LeaseSpec {
        sharing: CoreUse::Shared,
        ..LeaseSpec::exclusive(workers, slots)
    };
    LeaseRequest { spec, ..request(1, 1) }
}

fn moving(number: u64, worker: u16, epoch: Epoch, core: u32) -> BookEvent {
    BookEvent::Move {
        lease: id(number),
        worker: WorkerIndex(worker),
        epoch,
        core,
    }
}

fn moved(number: u64, worker: u16, epoch: Epoch, moved: bool) -> BookEvent {
    BookEvent::WorkerMoved {
        lease: id(number),
        worker: WorkerIndex(worker),
        epoch,
        moved,
    }
}

/// A book with two shared leases of two slots each on one core. An exclusive lease of the other core has ended.
fn crowded_book() -> (LeaseBook, [Epoch; 2]) {
    let mut book = LeaseBook::new(0..2, 0).with_places(4);
    let own = granted(&mut book, 9, request(1, 1), Duration::ZERO);
    let epochs = [1, 2].map(|number| granted(&mut book, number, shared(1, 2), Duration::ZERO));
    for (number, epoch) in [(1, epochs[0]), (2, epochs[1])] {
        assert_eq!(book.step(up(id(number), 0, epoch), Duration::ZERO).refusal, None);
    }
    let end = BookEvent::End {
        lease: id(9),
        reason: EndReason::Released,
    };
    assert_eq!(book.step(end, Duration::ZERO).refusal, None);
    assert_eq!(book.step(gone(id(9), 0, own), Duration::ZERO).refusal, None);
    assert_eq!(book.room(), BTreeMap::from([(0, 4), (1, 0)]));
    (book, epochs)
}

fn cores(book: &LeaseBook, number: u64) -> Vec<u32> {
    book.lease(id(number)).expect("granted").cores()
}

#[test]
fn a_moving_worker_holds_places_on_both_cores_until_it_has_answered() {
    let (mut book, [_, epoch]) = crowded_book();
    assert!(book.shares_cores());
    let step = book.step(moving(2, 0, epoch, 0), SECOND);
    let order = BookAction::MoveWorker {
        lease: id(2),
        worker: WorkerIndex(0),
        epoch,
        core: 0,
    };
    assert_eq!((step.refusal, step.actions), (None, vec![order]));
    assert_eq!((cores(&book, 2), book.free_cores()), (vec![1, 1], 0));
    assert_eq!(book.room(), BTreeMap::from([(0, 2), (1, 0)]));
    assert!(
        book.step(moving(2, 0, epoch, 0), SECOND).refusal.is_some(),
        "it is moving"
    );
    assert_eq!(book.step(moved(2, 0, epoch, true), SECOND), BookStep::default());
    assert_eq!((cores(&book, 1), cores(&book, 2)), (vec![1, 1], vec![0, 0]));
    assert_eq!(book.room(), BTreeMap::from([(0, 2), (1, 2)]));
    assert!(book.shares_cores(), "it might use the core that it has left");
    assert_eq!(book.step(moved(2, 0, epoch, true), SECOND), BookStep::default());
    assert_eq!(
        book.room(),
        BTreeMap::from([(0, 2), (1, 2)]),
        "a second answer changes nothing"
    );
    // A replacement of the worker starts on the new core. This process has not run on another core, so it has left
    // none.
    assert_eq!(book.step(gone(id(2), 0, epoch), SECOND).refusal, None);
    let replace = BookEvent::Replace {
        lease: id(2),
        worker: WorkerIndex(0),
    };
    let started = book.step(replace, SECOND).actions;
    assert!(
        matches!(&started[..], [BookAction::StartWorker { cores, .. }] if *cores == [0, 0]),
        "{started:?}"
    );
    assert!(!book.lease(id(2)).expect("granted").workers[0].has_moved);
}

#[test]
fn a_worker_that_stays_or_dies_gives_the_new_places_back() {
    for dies in [false, true] {
        let (mut book, [epoch, _]) = crowded_book();
        assert_eq!(book.step(moving(1, 0, epoch, 0), SECOND).refusal, None);
        let answer = match dies {
            true => gone(id(1), 0, epoch),
            false => moved(1, 0, epoch, false),
        };
        assert_eq!(book.step(answer, SECOND).refusal, None);
        assert_eq!(cores(&book, 1), [1, 1]);
        assert_eq!(book.room(), BTreeMap::from([(0, 4), (1, 0)]));
        assert_eq!(book.free_cores(), 1, "the new core is free again");
    }
    // The lease may end while its worker moves; the worker's answer then comes too late.
    let (mut book, [epoch, _]) = crowded_book();
    assert_eq!(book.step(moving(1, 0, epoch, 0), SECOND).refusal, None);
    let end = BookEvent::End {
        lease: id(1),
        reason: EndReason::Released,
    };
    assert_eq!(book.step(end, SECOND).refusal, None);
    let ended = book.step(gone(id(1), 0, epoch), SECOND).actions;
    assert!(matches!(ended[..], [BookAction::LeaseEnded { .. }]), "{ended:?}");
    assert_eq!(book.step(moved(1, 0, epoch, true), SECOND), BookStep::default());
    assert_eq!(book.room(), BTreeMap::from([(0, 4), (1, 2)]));
}

#[test]
fn an_impossible_move_is_refused_and_changes_nothing() {
    let (mut book, [epoch, second]) = crowded_book();
    let own = granted(&mut book, 5, request(1, 1), SECOND);
    assert_eq!(book.step(up(id(5), 0, own), SECOND).refusal, None);
    let room = book.room();
    for (why, event) in [
        ("it has a core of its own", moving(5, 0, own, 1)),
        ("the core is another lease's own", moving(1, 0, epoch, 0)),
        ("the node has no such core", moving(1, 0, epoch, 7)),
        ("it is there", moving(1, 0, epoch, 1)),
        ("that is an earlier incarnation", moving(1, 0, Epoch(0), 0)),
        ("that is another lease's epoch", moving(1, 0, second, 0)),
        ("there is no such worker", moving(1, 1, epoch, 0)),
        ("there is no such lease", moving(7, 0, epoch, 0)),
    ] {
        let step = book.step(event, SECOND);
        assert!(step.refusal.is_some() && step.actions.is_empty(), "{why}: {step:?}");
        assert_eq!(book.room(), room, "{why}");
    }
}

#[test]
fn a_lease_pays_for_the_cores_of_its_grant_wherever_its_workers_are_moved() {
    let mut book = LeaseBook::new(0..2, 0).with_places(4);
    granted(&mut book, 9, request(1, 1), Duration::ZERO);
    let epoch = granted(&mut book, 1, shared(2, 1), Duration::ZERO);
    assert_eq!(cores(&book, 1), [1, 1]);
    assert_eq!(book.step(up(id(1), 1, epoch), Duration::ZERO).refusal, None);
    assert_eq!(book.step(BookEvent::Renew { lease: id(1) }, SECOND).refusal, None);
    let paid = |book: &LeaseBook| book.lease(id(1)).expect("granted").allocated_ns(4 * SECOND);
    let before = paid(&book);
    let own = book.lease(id(9)).expect("granted").epoch;
    let end = BookEvent::End {
        lease: id(9),
        reason: EndReason::Released,
    };
    assert_eq!(book.step(end, SECOND).refusal, None);
    assert_eq!(book.step(gone(id(9), 0, own), SECOND).refusal, None);
    assert_eq!(book.step(moving(1, 1, epoch, 0), SECOND).refusal, None);
    assert_eq!(book.step(moved(1, 1, epoch, true), SECOND).refusal, None);
    assert_eq!(cores(&book, 1), [1, 0]);
    assert_eq!((before, paid(&book)), (4_000_000_000, 4_000_000_000));
}

#[test]
fn an_offer_that_shrinks_during_a_move_loses_no_core() {
    for (kept, succeeds) in [(0, true), (0, false), (1, true), (1, false)] {
        let (mut book, [_, epoch]) = crowded_book();
        assert_eq!(book.step(moving(2, 0, epoch, 0), SECOND).refusal, None);
        let offer = |cores| {
            BookEvent::Offer(NodeOffer {
                cores,
                memory_bytes: None,
                gpus: None,
                until: 3 * SECOND,
            })
        };
        let shrunk = offer(OfferedCores::These([kept].into()));
        assert_eq!(book.step(shrunk, SECOND).refusal, None);
        assert_eq!(book.free_cores(), 0, "both cores are held");
        assert_eq!(book.step(moved(2, 0, epoch, succeeds), SECOND).refusal, None);
        for number in [1, 2] {
            let end = BookEvent::End {
                lease: id(number),
                reason: EndReason::Released,
            };
            let epoch = book.lease(id(number)).expect("granted").epoch;
            assert_eq!(book.step(end, SECOND).refusal, None);
            assert_eq!(book.step(gone(id(number), 0, epoch), SECOND).refusal, None);
        }
        assert_eq!(
            book.free_cores(),
            1,
            "core {kept} is free, and the other one was given back"
        );
        assert_eq!(
            book.step(offer(OfferedCores::These([0, 1].into())), SECOND).refusal,
            None
        );
        assert_eq!(book.free_cores(), 2);
    }
}

/// In random histories each place is free or held by one worker, and all places are free once all leases have ended.
#[test]
fn no_place_is_lost_or_given_twice_by_moves() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut book = LeaseBook::new(0..4, 0).with_places(3);
        let mut number = 0;
        for step in 0..300 {
            let leases: Vec<_> = book.leases().cloned().collect();
            let some = leases.get(random.random_range(0..leases.len().max(1)));
            let event = match (random.random_range(0..8), some) {
                (0, _) | (_, None) => {
                    number += 1;
                    let (workers, slots) = (random.random_range(1..4), random.random_range(1..3));
                    match random.random_bool(0.7) {
                        true => grant(number, shared(workers, slots)),
                        false => grant(number, request(1, 1)),
                    }
                }
                (kind, Some(lease)) => {
                    let index = random.random_range(0..lease.workers.len()) as u16;
                    let epoch = lease.workers[usize::from(index)].epoch;
                    let worker = WorkerIndex(index);
                    match kind {
                        1 => up(lease.id, index, epoch),
                        2 => gone(lease.id, index, epoch),
                        3 => BookEvent::Replace {
                            lease: lease.id,
                            worker,
                        },
                        4 | 5 => BookEvent::Move {
                            lease: lease.id,
                            worker,
                            epoch,
                            core: random.random_range(0..4),
                        },
                        6 => BookEvent::WorkerMoved {
                            lease: lease.id,
                            worker,
                            epoch,
                            moved: random.random(),
                        },
                        _ => BookEvent::End {
                            lease: lease.id,
                            reason: EndReason::Released,
                        },
                    }
                }
            };
            let _ = book.step(event, Duration::ZERO);
            let held = |core: u32| -> usize {
                let workers = book.leases().flat_map(|lease| &lease.workers);
                let at = workers.map(|worker| {
                    let arriving = worker
                        .moving_to
                        .filter(|to| *to == core)
                        .map_or(0, |_| worker.cores.len());
                    worker.cores.iter().filter(|at| **at == core).count() + arriving
                });
                at.sum()
            };
            let room = book.room();
            for core in 0..4 {
                let own = book
                    .leases()
                    .any(|lease| lease.request.spec.sharing != CoreUse::Shared && lease.cores().contains(&core));
                let free = room.get(&core).map_or(0, |free| *free as usize);
                let all = if own { 1 } else { 3 };
                assert_eq!(held(core) + free, all, "seed {seed}, step {step}: core {core}");
            }
        }
    }
}
