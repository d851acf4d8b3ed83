//! Tests of messages through stores, with one test for each error of FMI's mediated channels.

use crate::each;
use crate::group::{self, pattern, rendezvous};
use crate::options;
use crate::redis::Redis;
use hotlease_comm::{Area, Options};
use hotlease_comm::{AreaSpan, Communicator, Error, LinkChoice, Pattern, Rank, Round, Schedule, Step, wait_all};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Barrier: each member publishes an object, and reads the objects of all others.
pub fn barrier(all: &Communicator) -> Result<(), Error> {
    let byte = |offset| AreaSpan {
        area: Area::Scratch,
        offset,
        count: 1,
    };
    let others = (0..all.size()).filter(|rank| *rank != all.rank());
    let fetches = others.map(|of| Step::Fetch {
        of,
        key: 0,
        into: byte(of as usize),
    });
    let publish = Step::Publish {
        key: 0,
        from: byte(all.rank() as usize),
        readers: all.size() - 1,
    };
    let transfers = std::iter::once(publish).chain(fetches).collect();
    let schedule = Schedule {
        scratch: all.size() as usize,
        rounds: vec![Round {
            transfers,
            local: Vec::new(),
        }],
    };
    all.run(Arc::new(schedule), 1, &[], &mut [], None)
}

/// Runs a member on each of two ranks over this store.
fn two(link: &LinkChoice, member: impl Fn(&Communicator, Rank) + Sync) {
    each(2, link, |all| member(all, 1 - all.rank()));
}

/// Both members send first. The lengths are near the lengths at which an object is divided.
pub fn sizes(link: &LinkChoice, sizes: &[usize]) {
    two(link, |all, other| {
        for (tag, length) in (0..).zip(sizes) {
            let mine = pattern(u64::from(all.rank()) + u64::from(tag), *length);
            all.send(&mine, other, tag).expect("it goes on");
            let mut theirs = vec![0; *length];
            let status = all.receive(&mut theirs, Pattern::of(other, tag)).expect("it came");
            assert_eq!((status.bytes, status.source, status.tag), (*length as u64, other, tag));
            assert!(
                theirs == pattern(u64::from(other) + u64::from(tag), *length),
                "{length} bytes"
            );
        }
    });
}

/// Messages that are received with too little memory, out of order, or by another pattern.
pub fn rules(link: &LinkChoice) {
    two(link, |all, other| {
        let of = Pattern::of(other, 4);
        if all.rank() == 0 {
            all.send(&[1, 2, 3], 1, 4).expect("sent");
            all.send(&[4], 1, 4).expect("sent");
            all.send(&pattern(3, 100), 1, 9).expect("sent");
            all.receive(&mut [0; 1], Pattern::ANY).expect("it knows");
            return;
        }
        let mut two = [0; 2];
        let error = all.receive(&mut two, of).expect_err("three are not two");
        assert!(matches!(error, Error::Truncated { sent: 3, room: 2, .. }), "{error}");
        let last = all.probe(Pattern::of(other, 9)).expect("it comes");
        assert_eq!(last.bytes, 100);
        let mut three = [0; 3];
        assert_eq!(all.probe(of).expect("it is still there").bytes, 3);
        all.receive(&mut three, of).expect("they fit");
        assert_eq!(three, [1, 2, 3]);
        assert_eq!(all.receive(&mut two, of).expect("one").bytes, 1);
        assert_eq!(two, [4, 0]);
        let mut long = vec![0; 100];
        all.receive(&mut long, Pattern::ANY).expect("it is here");
        assert!(long == pattern(3, 100));
        all.send(&[0], 0, 0).expect("sent");
    });
}

/// Non-blocking messages from any rank; the messages of each sender keep their order.
pub fn many(link: &LinkChoice, messages: u32) {
    each(3, link, |all| {
        let me = all.rank();
        let others = || (0..3).filter(|rank| *rank != me);
        let sends: Vec<_> = (0..messages)
            .flat_map(|number| others().map(move |to| (to, number)))
            .map(|(to, number)| all.isend(number.to_le_bytes().to_vec(), to, 1).expect("begun"))
            .collect();
        let receives: Vec<_> = (0..2 * messages)
            .map(|_| all.irecv(4, Pattern::ANY).expect("begun"))
            .collect();
        let mut next = [0_u32; 3];
        for receive in receives {
            let received = receive.wait().expect("it comes");
            let expected = &mut next[received.status.source as usize];
            assert_eq!(received.bytes, expected.to_le_bytes(), "of {}", received.status.source);
            *expected += 1;
        }
        wait_all(sends).expect("sent");
        assert_eq!(all.iprobe(Pattern::ANY), Ok(None));
    });
}

/// A root that finishes early loses nothing that a slow reader has not yet read.
pub fn early_end(link: &LinkChoice, messages: u32) {
    each(3, link, |all| {
        let long = pattern(7, 300_000);
        let shared = |all: &Communicator, output: &mut [u8]| {
            let span = |area| AreaSpan::first(area, long.len());
            let transfer = match all.rank() {
                0 => Step::Publish {
                    key: 0,
                    from: span(Area::Input),
                    readers: 2,
                },
                _ => Step::Fetch {
                    of: 0,
                    key: 0,
                    into: span(Area::Output),
                },
            };
            let round = Round {
                transfers: vec![transfer],
                local: Vec::new(),
            };
            let schedule = Schedule {
                scratch: 0,
                rounds: vec![round],
            };
            let input: &[u8] = if all.rank() == 0 { &long } else { &[] };
            all.run(Arc::new(schedule), 1, input, output, None)
        };
        if all.rank() == 0 {
            for number in 0..messages {
                all.send(&number.to_le_bytes(), 1, 0).expect("sent");
            }
            return shared(all, &mut []).expect("published");
        }
        // The member is busy for some time.
        std::thread::sleep(Duration::from_millis(700));
        let mut word = [0; 4];
        if all.rank() == 1 {
            for number in 0..messages {
                all.receive(&mut word, Pattern::of(0, 0)).expect("it was sent");
                assert_eq!(u32::from_le_bytes(word), number);
            }
        }
        let mut output = vec![0; long.len()];
        shared(all, &mut output).expect("it was published");
        assert!(output == long);
        let error = all.receive(&mut word, Pattern::of(0, 0)).expect_err("no more");
        assert!(matches!(error, Error::MemberLeft { rank: 0, .. }), "{error}");
        // A failed collective ends all collectives of the communicator, so both members must have reached this line.
        let other = 3 - all.rank();
        let met = all.sendrecv(&[], other, 1, &mut [], Pattern::of(other, 1));
        met.expect("both are well");
        let error = barrier(all).expect_err("rank 0 has left");
        assert!(
            matches!(
                error,
                Error::MemberLeft { rank: 0, .. } | Error::CollectiveFailed { .. }
            ),
            "{error}"
        );
    });
}

/// Messages that are never received are removed when their receiver leaves.
pub fn unread(link: &LinkChoice) {
    let are_written = Barrier::new(2);
    two(link, |all, other| {
        if all.rank() == 0 {
            for length in [10, 3_000_000] {
                let send = all.isend(vec![1; length], other, 0).expect("begun");
                send.wait().expect("it is in the store");
            }
        }
        are_written.wait();
    });
}

/// Two groups in one store; each member is late at the barrier of another group.
pub fn two_communicators(link: &LinkChoice) {
    let server = rendezvous();
    let with_link = |name: &str, rank| Options {
        link: link.clone(),
        rank: Some(rank),
        ..options(&server, name, 2)
    };
    let is_there = AtomicBool::new(false);
    let member = |rank: Rank| {
        let one = Communicator::join(&with_link("one", rank)).expect("both come");
        let other = Communicator::join(&with_link("other", rank)).expect("both come");
        if rank == 0 {
            barrier(&one).expect("both are well");
            assert!(
                is_there.load(Ordering::SeqCst),
                "the other's barrier was taken for this one"
            );
            barrier(&other).expect("both are well");
        } else {
            std::thread::scope(|scope| {
                let second = scope.spawn(|| barrier(&other));
                std::thread::sleep(Duration::from_millis(300));
                is_there.store(true, Ordering::SeqCst);
                barrier(&one).expect("both are well");
                second.join().expect("no panic").expect("both are well");
            });
        }
        one.finish().expect("everything is read");
        other.finish().expect("everything is read");
    };
    std::thread::scope(|scope| {
        let members = [0, 1].map(|rank| scope.spawn(move || member(rank)));
        members.into_iter().for_each(|member| member.join().expect("no panic"));
    });
}

#[test]
fn messages_of_all_sizes_go_through_redis_whole_also_where_both_send_first() {
    let Some(redis) = Redis::start() else { return };
    sizes(&redis.link(), &[0, 1, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 13 << 20]);
    assert_eq!(redis.keys(), 0);
}

#[test]
fn three_elements_are_never_read_as_two_and_two_over_redis() {
    let Some(redis) = Redis::start() else { return };
    rules(&redis.link());
    assert_eq!(redis.keys(), 0);
}

#[test]
fn messages_through_redis_keep_their_order_between_two_ranks() {
    let Some(redis) = Redis::start() else { return };
    many(&redis.link(), 1000);
    assert_eq!(redis.keys(), 0);
}

#[test]
fn a_root_that_finishes_early_loses_nothing_of_a_slow_reader_over_redis() {
    let Some(redis) = Redis::start() else { return };
    early_end(&redis.link(), 200);
    assert_eq!(redis.keys(), 0);
}

#[test]
fn messages_that_no_member_receives_are_removed_from_redis() {
    let Some(redis) = Redis::start() else { return };
    unread(&redis.link());
    assert_eq!(redis.keys(), 0);
}

#[test]
fn barriers_of_two_communicators_in_one_redis_do_not_match() {
    let Some(redis) = Redis::start() else { return };
    two_communicators(&redis.link());
    assert_eq!(redis.keys(), 0);
}

/// Messages without a receive stay in the store, so they do not increase the receiver's memory.
#[test]
fn messages_that_no_member_receives_yet_stay_in_redis() {
    const MESSAGES: u64 = 5000;
    let Some(redis) = Redis::start() else { return };
    two(&redis.link(), |all, other| {
        if all.rank() == 0 {
            let sends = (0..MESSAGES).map(|_| all.isend(vec![7; 1000], other, 7).expect("begun"));
            wait_all(sends.collect::<Vec<_>>()).expect("sent");
            all.receive(&mut [], Pattern::of(1, 0)).expect("it has looked");
        } else {
            all.probe(Pattern::of(0, 7)).expect("they come");
            group::until("all are written", || redis.keys() >= MESSAGES);
            assert!(
                redis.keys() <= MESSAGES + 4,
                "one was looked at, two boards and a bell are there"
            );
            all.send(&[], 0, 0).expect("sent");
            let mut bytes = [0; 1000];
            for _ in 0..MESSAGES {
                all.receive(&mut bytes, Pattern::of(0, 7)).expect("here");
            }
        }
    });
    assert_eq!(redis.keys(), 0);
}
