//! Tests of communicators of some members, of the remaining members, and with newcomers, through a store.

use crate::redis::Redis;
use crate::typed::{LENGTHS, all_operations};
use crate::{each, group};
use hotlease_comm::{Collective, Communicator, Datatype, Error, LinkChoice, Operator, Pattern, Rank, Route};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread::scope;
use std::time::Duration;

/// Longer than a body that is stored together with the head of an object.
const LARGE: usize = 9 << 20;

fn sum(all: &Communicator, mine: u64) -> Result<u64, Error> {
    let mut total = [0];
    all.allreduce(&[mine], &mut total, &Operator::Sum)?;
    Ok(total[0])
}

/// Tests splits and duplicates of a communicator, and that messages in them never meet.
pub fn parts(link: &LinkChoice) {
    each(4, link, |all| {
        let rank = all.rank();
        let routes: Vec<Route> = (0..4)
            .map(|of| if of == rank { Route::Itself } else { Route::Stored })
            .collect();
        assert_eq!(all.routes(), routes);
        // Ranks 0 and 2 in reverse order; rank 1 alone; rank 3 in no communicator.
        let color = (rank != 3).then_some(rank % 2);
        let part = all.split(color, -i64::from(rank)).expect("all are well");
        let twin = all.dup().expect("all are well");
        assert_eq!((twin.rank(), twin.size()), (rank, 4));
        match &part {
            None => assert_eq!(rank, 3),
            Some(part) if rank == 1 => assert_eq!((part.size(), sum(part, 5)), (1, Ok(5))),
            Some(part) => {
                assert_eq!((part.rank(), part.size()), (1 - rank / 2, 2));
                assert_eq!(sum(part, u64::from(rank)), Ok(2));
                part.send(&[rank as u8], 1 - part.rank(), 3).expect("it takes it");
                let mut byte = [0];
                let status = part.receive(&mut byte, Pattern::ANY).expect("it comes");
                assert_eq!((status.source, byte), (1 - part.rank(), [2 - rank as u8]));
            }
        }
        let other = rank ^ 1;
        all.send(b"all", other, 1).expect("it takes it");
        twin.send(b"two", other, 1).expect("it takes it");
        let mut text = [0; 3];
        twin.receive(&mut text, Pattern::ANY).expect("it comes");
        assert_eq!(&text, b"two");
        assert_eq!(twin.iprobe(Pattern::ANY), Ok(None));
        all.receive(&mut text, Pattern::ANY).expect("it comes");
        assert_eq!(&text, b"all");
        // Communicators are made and dropped.
        for _ in 0..5 {
            let more = twin.dup().expect("all are well");
            assert_eq!(sum(&more, 3), Ok(12));
        }
    });
}

/// A member that leaves a communicator is missing only in this communicator. Messages that it sent before can still be
/// received; messages that were sent to it have no effect.
pub fn leaving(link: &LinkChoice) {
    each(3, link, |all| {
        let twin = all.dup().expect("all are well");
        if all.rank() == 2 {
            twin.send(b"last", 0, 1).expect("it takes it");
            twin.send(&vec![7; LARGE], 0, 2).expect("it takes it");
            twin.finish().expect("it waits for no member");
            assert_eq!(sum(all, 1), Ok(3), "the others are not concerned");
            return;
        }
        if all.rank() == 1 {
            twin.send(b"unread", 2, 9).expect("it takes it, or has left");
        } else {
            let mut text = [0; 4];
            // Messages can be received even after the receiver was told that the sender has left.
            let error = twin.receive(&mut text, Pattern::of(2, 3));
            let error = error.expect_err("it has left");
            assert!(matches!(error, Error::MemberLeft { rank: 2, .. }), "{error}");
            twin.receive(&mut text, Pattern::of(2, 1)).expect("it was sent");
            assert_eq!(&text, b"last");
            let mut large = vec![0; LARGE];
            twin.receive(&mut large, Pattern::of(2, 2)).expect("it was sent");
            assert!(large.iter().all(|byte| *byte == 7));
            let error = twin.send(&[1], 2, 4).expect_err("it has left");
            assert!(matches!(error, Error::MemberLeft { rank: 2, .. }), "{error}");
        }
        let error = sum(&twin, 1).expect_err("one has left");
        assert!(error.rank().is_some(), "{error}");
        assert_eq!(sum(all, 1), Ok(3), "the others are not concerned");
    });
}

/// One member aborts: the others continue without it, then with a newcomer. A newcomer that uses another store counts
/// as failed.
pub fn rest(link: &LinkChoice, elsewhere: &LinkChoice) {
    let server = group::rendezvous();
    let mut options = crate::options(&server, "rest", 3);
    options.link = link.clone();
    options.failure_bound = Duration::from_secs(4);
    let are_there = Barrier::new(3);
    let member = |rank: Rank| {
        let mut options = options.clone();
        options.rank = Some(rank);
        let all = Communicator::join(&options).expect("all come");
        are_there.wait();
        if rank == 1 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                let _all = all;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert!(result.is_err());
            return;
        }
        let error = all.barrier().expect_err("one gives up");
        assert!(matches!(error, Error::MemberLost { rank: 1, .. }), "{error}");
        let left = all.shrink().expect("two are left");
        assert_eq!((left.rank(), left.size()), (rank / 2, 2));
        assert_eq!(sum(&left, 1), Ok(2));
        for (link, is_well) in [(link, true), (elsewhere, false)] {
            scope(|scope| {
                let newcomer = (rank == 0).then(|| {
                    let mut options = options.clone();
                    (options.rank, options.is_newcomer) = (None, true);
                    options.link = link.clone();
                    scope.spawn(move || {
                        let all = Communicator::join(&options).expect("the others grow");
                        assert_eq!((all.rank(), all.size()), (2, 3));
                        assert_eq!(sum(&all, 1).is_ok(), is_well);
                    })
                });
                let grown = left.grow(1).expect("they meet");
                assert_eq!((grown.rank(), grown.size()), (left.rank(), 3));
                match sum(&grown, 1) {
                    Ok(total) => assert_eq!((total, is_well), (3, true)),
                    Err(Error::MemberLost { rank: 2, .. }) => assert!(!is_well),
                    Err(error) => panic!("{error}"),
                }
                if let Some(newcomer) = newcomer {
                    newcomer.join().expect("it is well");
                }
            });
        }
    };
    scope(|scope| {
        let member = &member;
        let members = [0, 1, 2].map(|rank| scope.spawn(move || member(rank)));
        for member in members {
            member.join().expect("no panic");
        }
    });
}

/// Members are told of calls that do not match; afterwards every operation works, by the table's choice.
pub fn checked(link: &LinkChoice, size: Rank) {
    let change = |options: &mut hotlease_comm::Options| {
        options.is_checked = true;
        options.stores = hotlease_stores::openers();
    };
    group::each_over(link, size, change, |all| {
        let wrong = if all.rank() == 1 {
            all.barrier()
        } else {
            all.broadcast(&mut [0u16; 3], 2)
        };
        let error = wrong.expect_err("they do not belong together");
        assert!(matches!(error, Error::CallMismatch { .. }), "{error}");
        all_operations(&all, &LENGTHS[..4]);
        all.finish().expect("everything is read");
    });
}

/// End of the keys of boards.
const BOARD: &str = "/b/0";

#[test]
fn communicators_that_all_have_left_are_forgotten_in_redis() {
    let Some(redis) = Redis::start() else { return };
    let change = |options: &mut hotlease_comm::Options| {
        options.failure_bound = Duration::from_secs(4);
        options.stores = hotlease_stores::openers();
    };
    group::each_over(&redis.link(), 2, change, |all| {
        for _ in 0..200 {
            let twin = all.dup().expect("all are well");
            twin.send(&[1], 1 - twin.rank(), 0).expect("it takes it");
            twin.receive(&mut [0], Pattern::ANY).expect("it came");
            twin.finish().expect("it waits for no member");
        }
        if all.rank() == 0 {
            let keys = redis.ask_all("KEYS *");
            let key = keys.iter().find(|key| key.ends_with(BOARD)).expect("a board");
            let length = || redis.number(&format!("STRLEN {key}"));
            group::until("the board is as short as before", || length() < 100);
        }
        all.barrier().expect("all are well");
        all.finish().expect("everything is read");
    });
}

#[test]
fn communicators_split_and_end_over_redis_and_leave_nothing() {
    let Some(redis) = Redis::start() else { return };
    parts(&redis.link());
    leaving(&redis.link());
    assert_eq!(redis.keys(), 0);
}

#[test]
fn communicators_over_redis_shrink_and_grow() {
    let Some(redis) = Redis::start() else { return };
    let elsewhere = format!("redis://127.0.0.1:{}?prefix=elsewhere/", redis.port);
    rest(&redis.link(), &elsewhere.parse().expect("a link"));
}

#[test]
fn calls_are_checked_over_redis_and_the_table_chooses_for_it() {
    let Some(redis) = Redis::start() else { return };
    checked(&redis.link(), 3);
    each(3, &redis.link(), |all| {
        let broadcast = all.collective(Collective::Broadcast { root: 0, count: 1 }, Datatype::U64);
        let why = broadcast.explain().expect("a call that makes sense");
        assert!(why.to_string().contains("redis"), "{why}");
    });
    assert_eq!(redis.keys(), 0);
}
