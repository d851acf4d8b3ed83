//! Tests of communicators of some members, over the connections of all: messages in one do not affect another.

use crate::group::{each, until};
use hotlease_comm::{Communicator, Error, Operator, Pattern};
use std::sync::atomic::{AtomicBool, Ordering};

fn sum(all: &Communicator, mine: u64) -> Result<u64, Error> {
    let mut total = [0];
    all.allreduce(&[mine], &mut total, &Operator::Sum)?;
    Ok(total[0])
}

#[test]
fn members_of_one_color_are_together_in_the_order_of_their_keys() {
    each(
        6,
        |_| (),
        |all| {
            let rank = all.rank();
            // Ranks 0, 2, 4 in reverse order; ranks 1, 3 in rank order, with equal keys; rank 5 in no communicator.
            let color = (rank != 5).then_some(rank % 2);
            let key = if rank % 2 == 0 { -i64::from(rank) } else { 4 };
            let part = all.split(color, key).expect("all are well");
            let Some(part) = part else {
                assert_eq!(rank, 5);
                return;
            };
            let expected = [(2, 3), (0, 2), (1, 3), (1, 2), (0, 3)][rank as usize];
            assert_eq!((part.rank(), part.size()), expected);
            let total = sum(&part, u64::from(rank)).expect("all are well");
            assert_eq!(total, [6, 4][rank as usize % 2]);
            // Ranks are ranks in the part: in messages, in probes, and in errors.
            let (next, last) = (
                (part.rank() + 1) % part.size(),
                (part.rank() + part.size() - 1) % part.size(),
            );
            part.send(&[rank as u8], next, 3).expect("it takes it");
            let probed = part.probe(Pattern::ANY).expect("it comes");
            assert_eq!((probed.source, probed.tag, probed.bytes), (last, 3, 1));
            let mut byte = [0];
            let status = part.receive(&mut byte, Pattern::of(last, 3)).expect("it is here");
            assert_eq!(status.source, last);
            let error = part.send(&[], part.size(), 0).expect_err("there is no such rank");
            assert_eq!(
                error,
                Error::NoSuchRank {
                    rank: part.size(),
                    size: part.size()
                }
            );
        },
    );
}

#[test]
fn messages_and_barriers_of_two_communicators_never_meet() {
    let have_tried = std::sync::Barrier::new(4);
    each(
        4,
        |_| (),
        |all| {
            let twin = all.dup().expect("all are well");
            assert_eq!((twin.rank(), twin.size()), (all.rank(), all.size()));
            // The same messages in both communicators: each is received where it was sent.
            let other = all.rank() ^ 1;
            twin.send(b"two", other, 1).expect("it takes it");
            all.send(b"all", other, 1).expect("it takes it");
            let mut text = [0; 3];
            // This message is received first, although the other message arrived before it.
            all.receive(&mut text, Pattern::ANY).expect("it comes");
            assert_eq!(&text, b"all");
            assert_eq!(all.iprobe(Pattern::ANY), Ok(None));
            twin.receive(&mut text, Pattern::ANY).expect("it comes");
            assert_eq!(&text, b"two");
            // Half of the members are in the barrier of one communicator, half in the barrier of the other: neither
            // barrier may end.
            let (first, second) = if all.rank() < 2 { (&all, &twin) } else { (&twin, &all) };
            let mut begun = first.ibarrier().expect("begun");
            for _ in 0..1000 {
                assert!(begun.test().is_none(), "two barriers have met");
            }
            have_tried.wait();
            let then = second.ibarrier().expect("begun");
            begun.wait().expect("all are there now");
            then.wait().expect("all are there now");
        },
    );
}

#[test]
fn splits_of_two_communicators_go_on_at_the_same_time_and_in_any_order() {
    each(
        4,
        |_| (),
        |all| {
            let twin = all.dup().expect("all are well");
            let split = |of: &Communicator| of.split(Some(of.rank() % 2), 0).expect("all are well").expect("a part");
            let (first, second) = std::thread::scope(|scope| {
                let first = scope.spawn(|| split(&all));
                let second = scope.spawn(|| split(&twin));
                (first.join().expect("no panic"), second.join().expect("no panic"))
            });
            let results = [&first, &second].map(|part| sum(part, u64::from(all.rank())).expect("all are well"));
            assert_eq!(results, [[2, 4][all.rank() as usize % 2]; 2]);
            // Splits a part, and then drops the part.
            let alone = first
                .split(Some(first.rank()), 0)
                .expect("all are well")
                .expect("a part");
            drop((first, second, twin, all));
            assert_eq!((alone.size(), sum(&alone, 5)), (1, Ok(5)));
        },
    );
}

#[test]
fn a_member_that_leaves_a_communicator_is_missed_there_only() {
    each(
        3,
        |_| (),
        |all| {
            let twin = all.dup().expect("all are well");
            if all.rank() == 2 {
                // Messages that this member sent before it left can still be received, also a large message.
                twin.send(b"last", 0, 1).expect("it takes it");
                let large = twin.isend(vec![7; 100_000], 0, 2).expect("begun");
                twin.finish().expect("it waits for no member");
                large.wait().expect("it is taken");
                assert_eq!(sum(&all, 1), Ok(3), "the others are not concerned");
                return;
            } else if all.rank() == 0 {
                let mut text = [0; 4];
                twin.receive(&mut text, Pattern::of(2, 1)).expect("it was sent");
                assert_eq!(&text, b"last");
                let mut large = vec![0; 100_000];
                twin.receive(&mut large, Pattern::of(2, 2)).expect("it was sent");
                assert!(large.iter().all(|byte| *byte == 7));
                let error = twin.receive(&mut text, Pattern::of(2, 3)).expect_err("it has left");
                assert!(matches!(error, Error::MemberLeft { rank: 2, .. }), "{error}");
                let error = twin.send(&vec![0; 100_000], 2, 4).expect_err("it has left");
                assert!(matches!(error, Error::MemberLeft { rank: 2, .. }), "{error}");
            }
            // A collective that needs the missing member fails at the remaining members, with the rank that is to
            // blame.
            let error = sum(&twin, 1).expect_err("one has left");
            assert!(error.rank().is_some(), "{error}");
            assert_eq!(sum(&all, 1), Ok(3), "the others are not concerned");
        },
    );
}

#[test]
fn messages_for_a_communicator_that_a_member_has_left_cost_it_nothing() {
    each(
        2,
        |_| (),
        |all| {
            let twin = all.dup().expect("all are well");
            if all.rank() == 0 {
                all.barrier().expect("all are well");
                drop(twin);
                all.barrier().expect("all are well");
            } else {
                // More messages than there is credit for; some arrive before the other member has left, some after.
                let sends = (0..10_000).map(|_| twin.isend(vec![1; 1000], 0, 9).expect("begun"));
                let sends: Vec<_> = sends.collect();
                all.barrier().expect("all are well");
                all.barrier().expect("all are well");
                let ends = sends.into_iter().map(|send| send.wait());
                let ends: Vec<_> = ends.collect();
                for end in &ends {
                    let is_right = matches!(end, Ok(_) | Err(Error::MemberLeft { rank: 0, .. }));
                    assert!(is_right, "{end:?}");
                }
                assert!(ends.iter().any(Result::is_err), "there was credit for all");
            }
            // Credit is available again: as many messages as before, in the other communicator.
            let other = 1 - all.rank();
            for _ in 0..20 {
                let sends = (0..500).map(|_| all.isend(vec![1; 1000], other, 9).expect("begun"));
                let sends: Vec<_> = sends.collect();
                for _ in 0..500 {
                    all.receive(&mut [0; 1000], Pattern::of(other, 9)).expect("it comes");
                }
                hotlease_comm::wait_all(sends).expect("taken");
            }
        },
    );
}

#[test]
fn communicators_can_be_replaced_and_their_limit_is_an_error() {
    each(
        2,
        |_| (),
        |all| {
            let mut twins = Vec::new();
            let error = loop {
                match all.dup() {
                    Ok(twin) => twins.push(twin),
                    Err(error) => break error,
                }
                assert!(twins.len() <= 4096, "there is a bound");
            };
            assert!(
                matches!(error, Error::TooManyCommunicators { most: 4096, .. }),
                "{error}"
            );
            assert_eq!(sum(&all, 1), Ok(2), "nothing is broken");
            let last = twins.last().expect("many");
            assert_eq!(sum(last, 2), Ok(4));
            twins.truncate(10);
            // After the barrier, both members have dropped their communicators, and each was told that the other has.
            all.barrier().expect("all are well");
            for _ in 0..20 {
                let more: Vec<_> = (0..10).map(|_| all.dup().expect("there is room again")).collect();
                assert_eq!(sum(more.last().expect("ten"), 3), Ok(6));
            }
        },
    );
}

#[test]
fn the_last_communicator_of_a_member_parts_from_the_others() {
    let has_sent = AtomicBool::new(false);
    each(
        2,
        |_| (),
        |all| {
            let twin = all.dup().expect("all are well");
            drop(all);
            if twin.rank() == 0 {
                twin.send(b"read me", 1, 1).expect("it takes it");
                has_sent.store(true, Ordering::SeqCst);
                twin.finish().expect("the other one has read it");
            } else {
                until("it is sent", || has_sent.load(Ordering::SeqCst));
                let mut text = [0; 7];
                twin.receive(&mut text, Pattern::of(0, 1)).expect("it was sent");
                assert_eq!(&text, b"read me");
            }
        },
    );
}

#[test]
fn the_end_of_a_member_ends_what_it_takes_part_in_and_nothing_else() {
    let have_parts = std::sync::Barrier::new(4);
    each(
        4,
        |_| (),
        |all| {
            let rank = all.rank();
            let with = all
                .split((rank != 0).then_some(1), -i64::from(rank))
                .expect("all are well");
            let without = all.split((rank != 3).then_some(1), 0).expect("all are well");
            have_parts.wait();
            if rank == 3 {
                // Drops all communicators, the last one in a panic: this aborts.
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _all = (with, without, all);
                    std::panic::resume_unwind(Box::new("on purpose"));
                }));
                assert!(result.is_err());
                return;
            }
            let without = without.expect("a part");
            if let Some(with) = with {
                // Rank 3 is rank 0 in that communicator.
                let error = with.receive(&mut [0; 1], Pattern::of(0, 1)).expect_err("it is gone");
                let is_told = matches!(
                    error,
                    Error::MemberLost { rank: 0, .. } | Error::MemberLeft { rank: 0, .. }
                );
                assert!(is_told, "{error}");
                sum(&with, 1).expect_err("it is gone");
            }
            let error = all.receive(&mut [0; 1], Pattern::of(3, 1)).expect_err("it is gone");
            assert_eq!(error.rank(), Some(3), "{error}");
            for _ in 0..100 {
                assert_eq!(sum(&without, 1), Ok(3), "it was no member");
            }
        },
    );
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_the_collective_can_be_called_again() {
    each(
        2,
        |_| (),
        |all| {
            let mut few = [0u32; 3];
            let error = all.allgather(&[1u32, 2], &mut few).expect_err("too short");
            assert!(matches!(error, Error::Arguments { .. }), "{error}");
            let error = all.broadcast(&mut few, 2).expect_err("no such rank");
            assert!(
                error.to_string().contains("the root is rank 2, but there are 2 ranks"),
                "{error}"
            );
            let error = all
                .allreduce(&[true], &mut [false], &Operator::Sum)
                .expect_err("of truth values");
            assert!(matches!(error, Error::Operator { .. }), "{error}");
            let mut all_of_it = [0u32; 4];
            all.allgather(&[1u32, 2], &mut all_of_it).expect("all are well");
            assert_eq!(all_of_it, [1, 2, 1, 2]);
        },
    );
}

#[test]
fn members_of_a_group_make_a_communicator_without_the_others() {
    each(
        4,
        |_| (),
        |all| {
            let rank = all.rank();
            let wrong = |ranks: &[u32]| all.create_group(ranks, 7).expect_err("no such group");
            assert!(
                matches!(wrong(&[(rank + 1) % 4]), Error::Options { .. }),
                "it is not in it"
            );
            assert!(matches!(wrong(&[rank, rank]), Error::Options { .. }));
            assert!(matches!(wrong(&[rank, 9]), Error::NoSuchRank { rank: 9, .. }));
            let group = [3, 0, 2];
            // Each communicator of this group is made while the previous one still exists.
            let mut earlier = None;
            for _ in 0..3 {
                let Some(place) = group.iter().position(|member| *member == rank) else {
                    break;
                };
                let part = all.create_group(&group, 7).expect("a member of it");
                assert_eq!((part.rank() as usize, part.size()), (place, 3));
                assert_eq!(sum(&part, u64::from(rank)), Ok(5));
                earlier = Some(part);
            }
            drop(earlier);
            assert_eq!(sum(&all, u64::from(rank)), Ok(6), "the one it was made of goes on");
        },
    );
}
