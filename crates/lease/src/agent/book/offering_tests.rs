//! Offers that grow and shrink.

use super::tests::{SECOND, gone, grant, granted, id, request};
use super::*;
use crate::agent::{NodeOffer, OfferedCores};

fn offer(cores: OfferedCores, until: Duration) -> BookEvent {
    BookEvent::Offer(NodeOffer {
        cores,
        memory_bytes: None,
        gpus: None,
        until,
    })
}

#[test]
fn a_shrinking_node_gives_free_cores_first_and_drains_holders_of_the_rest() {
    let mut book = LeaseBook::new(0..4, 0);
    granted(&mut book, 1, request(2, 1), Duration::ZERO);
    let young = granted(&mut book, 2, request(1, 1), SECOND);
    let step = book.step(offer(OfferedCores::Count(3), 5 * SECOND), 2 * SECOND);
    assert_eq!((step.refusal, step.actions.len()), (None, 0));
    assert_eq!((book.free_cores(), book.offered_cores()), (0, 3), "the free one went");
    assert_eq!(book.lease(id(2)).expect("there").cut, None, "no lease is disturbed");
    let step = book.step(offer(OfferedCores::Count(2), 5 * SECOND), 2 * SECOND);
    assert_eq!((step.refusal, step.actions.len()), (None, 0));
    assert_eq!(book.lease(id(1)).expect("there").cut, None);
    assert_eq!(
        book.lease(id(2)).expect("there").cut,
        Some(5 * SECOND),
        "the youngest goes"
    );
    assert_eq!(book.step(BookEvent::Resume, 3 * SECOND).refusal, None);
    for renewed in [1, 2] {
        assert_eq!(
            book.step(BookEvent::Renew { lease: id(renewed) }, 3 * SECOND).refusal,
            None
        );
    }
    let step = book.step(BookEvent::Tick, 5 * SECOND);
    assert_eq!(step.actions.len(), 1, "cut at the deadline, resumed or not: {step:?}");
    assert_eq!(book.step(gone(id(2), 0, young), 5 * SECOND).refusal, None);
    assert_eq!(
        (book.free_cores(), book.offered_cores()),
        (0, 2),
        "its core is not ours any more"
    );
    assert_eq!(book.availability(), Availability::Serving);
}

#[test]
fn a_node_that_grows_again_keeps_the_lease_that_was_to_go() {
    let mut book = LeaseBook::new(0..2, 0).with_usable(0..3);
    granted(&mut book, 1, request(2, 1), Duration::ZERO);
    let standby = OfferedCores::These([].into());
    assert_eq!(book.step(offer(standby, 5 * SECOND), SECOND).refusal, None);
    assert_eq!(book.availability(), Availability::Standby);
    assert_eq!(book.lease(id(1)).expect("there").cut, Some(5 * SECOND));
    let refusal = book.step(grant(2, request(1, 1)), SECOND).refusal;
    assert!(matches!(refusal, Some(Rejection::Unavailable { .. })), "{refusal:?}");
    assert_eq!(book.step(offer(OfferedCores::Count(3), SECOND), SECOND).refusal, None);
    assert_eq!(book.lease(id(1)).expect("there").cut, None);
    assert_eq!((book.free_cores(), book.offered_cores()), (1, 3));
    granted(&mut book, 3, request(1, 1), SECOND);
}

#[test]
fn only_cores_of_the_machine_are_offered() {
    let mut book = LeaseBook::new(0..2, 0);
    for cores in [OfferedCores::Count(3), OfferedCores::These([1, 7].into())] {
        let refusal = book.step(offer(cores, SECOND), SECOND).refusal;
        assert!(matches!(refusal, Some(Rejection::BadRequest { .. })), "{refusal:?}");
        assert_eq!(book.free_cores(), 2, "a refused order changed nothing");
    }
}

#[test]
fn memory_that_is_taken_away_costs_the_youngest_leases() {
    let mut book = LeaseBook::new(0..3, 100);
    for number in 1..=3_u64 {
        let spec = LeaseSpec {
            memory_bytes: 30,
            ..LeaseSpec::exclusive(1, 1)
        };
        let asked = LeaseRequest { spec, ..request(1, 1) };
        granted(&mut book, number, asked, SECOND * number as u32);
    }
    let less = BookEvent::Offer(NodeOffer {
        cores: OfferedCores::Unchanged,
        memory_bytes: Some(40),
        gpus: None,
        until: 9 * SECOND,
    });
    assert_eq!(book.step(less, 4 * SECOND).refusal, None);
    let cuts: Vec<_> = book.leases().map(|lease| lease.cut.is_some()).collect();
    assert_eq!(cuts, [false, true, true]);
}
