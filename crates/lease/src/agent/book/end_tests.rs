//! Nodes whose own time ends.

use super::tests::{SECOND, gone, grant, granted, id, request};
use super::*;

#[test]
fn no_lease_outlasts_the_time_of_its_node() {
    let mut book = LeaseBook::new(0..3, 0).with_end(Some(8 * SECOND));
    let first = granted(&mut book, 1, request(1, 1), Duration::ZERO);
    // By its time to live alone, lease 2 would last until 11.
    assert_eq!(book.step(BookEvent::Renew { lease: id(1) }, 4 * SECOND).refusal, None);
    granted(&mut book, 2, request(1, 1), 6 * SECOND);
    assert_eq!(book.lease(id(2)).expect("there").time_left(6 * SECOND), 2 * SECOND);
    // Neither a renewal nor an operator's order extends a lease beyond that time.
    assert_eq!(
        book.step(BookEvent::Drain { until: 20 * SECOND }, 6 * SECOND).refusal,
        None
    );
    assert_eq!(book.step(BookEvent::Resume, 6 * SECOND).refusal, None);
    for at in [6, 7] {
        for lease in [1, 2] {
            assert_eq!(
                book.step(BookEvent::Renew { lease: id(lease) }, at * SECOND).refusal,
                None
            );
            assert_eq!(book.lease(id(lease)).expect("there").ends_at(), 8 * SECOND);
        }
    }
    assert_eq!(book.next_expiry(), Some(8 * SECOND));
    // The node is drained because its own time ends, and its refusals say so.
    assert_eq!(
        book.step(BookEvent::Drain { until: 8 * SECOND }, 7 * SECOND).refusal,
        None
    );
    let refused = book.step(grant(3, request(1, 1)), 7 * SECOND).refusal.expect("refused");
    assert!(refused.to_string().contains("time is nearly over"), "{refused}");
    let step = book.step(BookEvent::Tick, 8 * SECOND);
    let reasons = step.actions.iter().filter_map(|action| match action {
        BookAction::KillWorker { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [EndReason::Reclaimed; 2]);
    let renewed = book.step(BookEvent::Renew { lease: id(1) }, 8 * SECOND).refusal;
    assert_eq!(renewed, Some(Rejection::LeaseEnded(EndReason::Reclaimed)));
    assert_eq!(book.step(gone(id(1), 0, first), 8 * SECOND).refusal, None);
}
