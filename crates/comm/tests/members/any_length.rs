//! Tests of messages of any length, waits with a time limit, and communicators of one process.

use crate::group::{self, each, pattern, until};
use hotlease_comm::{Communicator, Error, Loss, Operator, Options, Pattern};
use std::time::Duration;

const A_MOMENT: Duration = Duration::from_millis(1);
const LENGTHS: [usize; 5] = [0, 1, 16_384, 16_385, 3_000_000];

fn as_they_are(_: &mut Options) {}

#[test]
fn messages_of_any_length_are_received_whole_before_and_after_they_come() {
    each(2, as_they_are, |all| {
        let other = 1 - all.rank();
        for (tag, length) in (0..).zip(LENGTHS) {
            let mine = pattern(tag.into(), length);
            let posted = all.irecv_any_length(Pattern::of(other, tag)).expect("it is posted");
            all.send(&mine, other, tag).expect("it goes");
            let received = posted.wait().expect("it comes");
            assert!(received.bytes == mine, "{length} bytes, posted first");
            assert_eq!((received.status.source, received.status.bytes), (other, length as u64));
        }
        // Messages that arrive before the receive; but the last message is still at its sender.
        let sends = (100..).zip(LENGTHS).map(|(tag, length)| {
            let bytes = pattern(tag.into(), length);
            all.isend(bytes, other, tag).expect("it goes")
        });
        let sends: Vec<_> = sends.collect();
        for (tag, length) in (100..).zip(LENGTHS) {
            let mut found = None;
            until("a message comes", || {
                found = all.try_recv_any_length(Pattern::of(other, tag)).expect("a rank");
                found.is_some()
            });
            let received = found.expect("as just seen").wait().expect("it comes");
            assert!(
                received.bytes == pattern(tag.into(), length),
                "{length} bytes, sent first"
            );
        }
        hotlease_comm::wait_all(sends).expect("all are taken");
        all.finish().expect("everything is read");
    });
}

#[test]
fn waits_with_an_end_end() {
    each(2, as_they_are, |all| {
        let other = 1 - all.rank();
        assert_eq!(all.probe_for(Pattern::of(other, 7), A_MOMENT), Ok(None));
        assert!(
            all.try_recv_any_length(Pattern::of(other, 7))
                .expect("a rank")
                .is_none()
        );
        let mut receive = all.irecv_any_length(Pattern::of(other, 7)).expect("it is posted");
        assert!(
            receive.wait_for(A_MOMENT).is_none(),
            "neither sends before both have looked"
        );
        all.barrier().expect("both are here");
        assert_eq!(all.try_send(b"small", other, 7), Ok(true));
        let received = receive.wait_for(group::PATIENCE).expect("in time").expect("it comes");
        assert_eq!(received.bytes, b"small");
        all.finish().expect("everything is read");
    });
}

#[test]
fn one_process_is_a_communicator_without_a_rendezvous() {
    let alone = Communicator::alone("alone").expect("no other member is needed");
    assert_eq!((alone.rank(), alone.size(), alone.name()), (0, 1, "alone"));
    let mut sum = [0.0];
    alone
        .allreduce(&[2.5], &mut sum, &Operator::Sum)
        .expect("there is no other member");
    assert_eq!(sum, [2.5]);
    alone.send(b"to myself", 0, 1).expect("it is kept");
    let received = alone.irecv_any_length(Pattern::ANY).expect("it is posted").wait();
    assert_eq!(received.expect("it is here").bytes, b"to myself");
    alone.dup().expect("another one").finish().expect("nothing waits");
    alone.finish().expect("nothing waits");
}

#[test]
fn a_member_that_gives_up_is_reported_to_the_others() {
    each(2, as_they_are, |all| {
        if all.rank() == 1 {
            return all.abort();
        }
        let error = all.probe(Pattern::ANY).expect_err("no member is left");
        assert!(
            matches!(
                error,
                Error::MemberLost {
                    rank: 1,
                    loss: Loss::GaveUp,
                    ..
                }
            ),
            "{error}"
        );
    });
}
