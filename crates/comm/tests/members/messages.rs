//! Tests of messages between members, over shared memory and over TCP.

use crate::group::{self, PATIENCE, each, pattern, seal};
use hotlease_comm::{Communicator, Error, Options, Pattern, ReceiveRequest, wait_all, wait_any};
use std::time::{Duration, Instant};

fn as_they_are(_: &mut Options) {}

#[test]
fn messages_of_all_sizes_arrive_whole_plain_and_sealed() {
    for is_sealed in [false, true] {
        each(
            2,
            |options| seal(options, is_sealed),
            |all| {
                let other = 1 - all.rank();
                let lengths = [
                    0, 1, 7, 481, 16_384, 16_385, 65_536, 262_144, 262_145, 300_000, 5_000_000,
                ];
                for (tag, length) in lengths.into_iter().enumerate() {
                    let mine = pattern(u64::from(all.rank()) + tag as u64, length);
                    let mut theirs = vec![0; length];
                    let of = Pattern::of(other, tag as u32);
                    let status = all
                        .sendrecv(&mine, other, tag as u32, &mut theirs, of)
                        .expect("both are well");
                    assert_eq!(status.bytes, length as u64);
                    assert!(
                        theirs == pattern(u64::from(other) + tag as u64, length),
                        "{length} bytes, sealed: {is_sealed}"
                    );
                }
                all.finish().expect("everything is read");
            },
        );
    }
}

#[test]
fn messages_that_go_at_once_land_where_their_receiver_asks_in_time_or_late() {
    const MESSAGES: u32 = 60;
    let length = |number: u32| [300, 20_000, 100_000, 262_144][number as usize % 4];
    for is_sealed in [false, true] {
        each(
            2,
            |options| seal(options, is_sealed),
            |all| {
                let mut bytes = vec![0; 300_000];
                for number in 0..MESSAGES {
                    // Half of the messages wait for their answer; the others arrive before their receive.
                    let (tag, length) = (number / 4, length(number));
                    if all.rank() == 0 {
                        all.send(&pattern(u64::from(number), length), 1, tag).expect("sent");
                        if number % 8 < 4 {
                            all.receive(&mut [], Pattern::of(1, number)).expect("here");
                        }
                    } else {
                        let status = all.receive(&mut bytes, Pattern::of(0, tag)).expect("here");
                        let got = &bytes[..status.bytes as usize];
                        assert!(
                            got == pattern(u64::from(number), length),
                            "message {number}, sealed: {is_sealed}"
                        );
                        if number % 8 < 4 {
                            all.send(&[], 0, number).expect("sent");
                        }
                    }
                }
                all.finish().expect("everything is read");
            },
        );
    }
}

#[test]
fn a_member_that_waits_for_any_hears_of_the_one_that_ends_first() {
    each(3, as_they_are, |all| {
        let part = all.dup().expect("all are here");
        if all.rank() > 0 {
            // Rank 0 tells this member when to send.
            all.receive(&mut [], Pattern::of(0, 7)).expect("asked");
            part.send(&[all.rank() as u8], 0, 1).expect("taken");
        } else {
            let mut receives = vec![
                part.irecv(1, Pattern::of(1, 1)).expect("begun"),
                part.irecv(1, Pattern::of(2, 1)).expect("begun"),
            ];
            let watches = |receives: &[ReceiveRequest]| receives.iter().map(ReceiveRequest::watch).collect::<Vec<_>>();
            assert_eq!(wait_any(&watches(&receives), Duration::from_millis(5)), None);
            all.send(&[], 2, 7).expect("asked");
            let both = watches(&receives);
            assert_eq!(wait_any(&both, PATIENCE), Some(1), "the second ends first");
            assert_eq!(receives.remove(1).wait().expect("ended").bytes, [2]);
            assert_eq!(
                wait_any(&both, PATIENCE),
                Some(1),
                "it has ended, and its result was taken"
            );
            all.send(&[], 1, 7).expect("asked");
            assert_eq!(wait_any(&both[..1], PATIENCE), Some(0));
            assert_eq!(receives.remove(0).wait().expect("ended").bytes, [1]);
            assert_eq!(wait_any(&[], PATIENCE), None, "nothing to wait for");
        }
        all.finish().expect("everything is read");
    });
}

#[test]
fn any_may_be_of_members_that_were_joined_separately() {
    let server = group::rendezvous();
    let (first, second) = (
        group::options(&server, "first", 2),
        group::options(&server, "second", 2),
    );
    let join = |options: &Options| Communicator::join(options).expect("both come");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (first, second) = (join(&first), join(&second));
            first.receive(&mut [], Pattern::ANY).expect("asked");
            second.send(b"here", 1 - second.rank(), 1).expect("taken");
            // The communicator is not finished earlier, because that would end the other receive.
            first.receive(&mut [], Pattern::ANY).expect("done");
            first.finish().expect("everything is read");
            second.finish().expect("everything is read");
        });
        let (first, second) = (join(&first), join(&second));
        let receives = [&first, &second].map(|all| all.irecv(4, Pattern::ANY).expect("begun"));
        let watches = receives.each_ref().map(ReceiveRequest::watch);
        assert_eq!(wait_any(&watches, Duration::from_millis(5)), None);
        first.send(&[], 1 - first.rank(), 0).expect("asked");
        assert_eq!(wait_any(&watches, PATIENCE), Some(1));
        let [never, here] = receives;
        drop(never);
        assert_eq!(here.wait().expect("ended").bytes, b"here");
        first.send(&[], 1 - first.rank(), 0).expect("taken");
        first.finish().expect("everything is read");
        second.finish().expect("everything is read");
    });
}

#[test]
fn two_that_both_send_first_go_on() {
    const BYTES: usize = 64 << 20;
    each(2, as_they_are, |all| {
        let other = 1 - all.rank();
        all.send(&pattern(u64::from(all.rank()), BYTES), other, 1)
            .expect("it goes on");
        let mut theirs = vec![0; BYTES];
        let status = all.receive(&mut theirs, Pattern::of(other, 1)).expect("here");
        assert_eq!(status.bytes, BYTES as u64);
        assert!(theirs == pattern(u64::from(other), BYTES));
    });
}

#[test]
fn all_in_a_ring_that_send_first_go_on() {
    const BYTES: usize = 3 << 20;
    each(5, as_they_are, |all| {
        let (rank, size) = (all.rank(), all.size());
        all.send(&pattern(u64::from(rank), BYTES), (rank + 1) % size, 0)
            .expect("it goes on");
        let mut theirs = vec![0; BYTES];
        let before = (rank + size - 1) % size;
        all.receive(&mut theirs, Pattern::of(before, 0)).expect("here");
        assert!(theirs == pattern(u64::from(before), BYTES));
    });
}

#[test]
fn members_that_both_send_first_go_on_while_another_thread_of_theirs_waits_for_something_else() {
    const BYTES: usize = 3 << 20;
    each(2, as_they_are, |all| {
        let other = 1 - all.rank();
        std::thread::scope(|scope| {
            let last = scope.spawn(|| all.receive(&mut [0; 1], Pattern::of(other, 9)).expect("the last"));
            // The other thread now sleeps for both threads.
            std::thread::sleep(std::time::Duration::from_millis(50));
            all.send(&pattern(u64::from(all.rank()), BYTES), other, 1)
                .expect("it goes on");
            let mut theirs = vec![0; BYTES];
            all.receive(&mut theirs, Pattern::of(other, 1)).expect("here");
            assert!(theirs == pattern(u64::from(other), BYTES));
            all.send(&[1], other, 9).expect("sent");
            last.join().unwrap();
        });
    });
}

#[test]
fn three_elements_are_never_read_as_two_and_two() {
    each(2, as_they_are, |all| {
        if all.rank() == 0 {
            all.send(&[1, 2, 3], 1, 4).expect("sent");
            all.send(&[4], 1, 4).expect("sent");
            return;
        }
        let mut two = [0; 2];
        let of = Pattern::of(0, 4);
        let error = all.receive(&mut two, of).expect_err("three do not fit");
        let expected = Error::Truncated {
            source_rank: 0,
            tag: 4,
            sent: 3,
            room: 2,
        };
        assert_eq!((error, two), (expected, [0, 0]));
        // Nothing is lost, and the order is kept.
        let status = all.probe(of).expect("it is still there");
        let mut three = vec![0; status.bytes as usize];
        all.receive(&mut three, of).expect("they fit");
        assert_eq!(three, [1, 2, 3]);
        assert_eq!(all.receive(&mut two, of).expect("one").bytes, 1);
        assert_eq!(two, [4, 0]);
    });
}

#[test]
fn operations_go_on_while_the_program_does_something_else() {
    each(3, as_they_are, |all| {
        let (rank, size) = (all.rank(), all.size());
        let receives: Vec<_> = (0..size)
            .filter(|from| *from != rank)
            .flat_map(|from| [(from, 0), (from, 1)])
            .map(|(from, tag)| all.irecv(200_000, Pattern::of(from, tag)).expect("begun"))
            .collect();
        let sends: Vec<_> = (0..size)
            .filter(|to| *to != rank)
            .flat_map(|to| [(to, 1, 10), (to, 0, 200_000)])
            .map(|(to, tag, length)| all.isend(pattern(u64::from(rank), length), to, tag).expect("begun"))
            .collect();
        for receive in receives {
            let received = receive.wait().expect("received");
            let expected = pattern(u64::from(received.status.source), received.bytes.len());
            assert!(received.bytes == expected && [10, 200_000].contains(&received.bytes.len()));
        }
        wait_all(sends).expect("sent");
        assert_eq!(all.iprobe(Pattern::ANY), Ok(None));
    });
}

#[test]
fn a_missing_message_blocks_recv_and_not_iprobe_or_test() {
    each(2, as_they_are, |all| {
        let any = Pattern::ANY;
        if all.rank() == 1 {
            assert_eq!(all.iprobe(any), Ok(None));
            let mut receive = all.irecv(8, any).expect("begun");
            assert!(receive.test().is_none());
            assert!(receive.cancel(), "nothing has come");
            assert!(matches!(receive.wait(), Err(Error::Cancelled { .. })));
            all.send(b"now", 0, 0).expect("sent");
            let status = all.probe(any).expect("it comes");
            assert_eq!((status.source, status.tag, status.bytes), (0, 3, 5));
            let mut receive = all.irecv(8, any).expect("begun");
            let received = loop {
                if let Some(received) = receive.test() {
                    break received.expect("it has come");
                }
            };
            assert_eq!(received.bytes, b"hello");
        } else {
            let mut now = [0; 3];
            all.receive(&mut now, any).expect("here");
            all.send(b"hello", 1, 3).expect("sent");
        }
        let error = all.send(b"", 2, 0).expect_err("there are two");
        assert_eq!(error, Error::NoSuchRank { rank: 2, size: 2 });
    });
}

#[test]
fn a_message_that_has_arrived_is_received_without_waiting_and_after_those_before_it() {
    each(2, as_they_are, |all| {
        let mut bytes = [0; 8];
        let any = Pattern::ANY;
        if all.rank() == 1 {
            assert_eq!(all.try_receive(&mut bytes, any), Ok(None));
            let posted = all.irecv(8, Pattern::of(0, 5)).expect("begun");
            all.barrier().expect("both are well");
            all.barrier().expect("both are well");
            // The receive that was begun before gets the first message of its tag, and this receive the second.
            let mut received = Vec::new();
            while received.len() < 2 {
                if let Some(status) = all.try_receive(&mut bytes, Pattern::of(0, 5)).expect("both are well") {
                    assert_eq!((status.source, status.tag), (0, 5));
                    received.push(bytes[..status.bytes as usize].to_vec());
                }
            }
            assert_eq!(received, [b"second".to_vec(), b"third".to_vec()]);
            assert_eq!(posted.wait().expect("it has come").bytes, b"first");
            // The message is too long, so it is kept for a receive with enough memory.
            assert_eq!(all.try_receive(&mut bytes, Pattern::of(0, 6)), Ok(None));
            let error = all.receive(&mut bytes, Pattern::of(0, 6)).expect_err("no room");
            assert!(matches!(error, Error::Truncated { sent: 9, .. }), "{error}");
            let mut long = [0; 9];
            all.receive(&mut long, Pattern::of(0, 6)).expect("it has stayed");
            assert_eq!(&long, b"too  long");
        } else {
            all.barrier().expect("both are well");
            for text in [&b"first"[..], b"second", b"third"] {
                all.send(text, 1, 5).expect("sent");
            }
            all.send(b"too  long", 1, 6).expect("sent");
            all.barrier().expect("both are well");
        }
        let error = all
            .try_receive(&mut bytes, Pattern::of(2, 0))
            .expect_err("there are two");
        assert_eq!(error, Error::NoSuchRank { rank: 2, size: 2 });
    });
}

#[test]
fn threads_of_one_member_share_its_connections() {
    const THREADS: u32 = 4;
    each(2, as_they_are, |all| {
        let other = 1 - all.rank();
        std::thread::scope(|scope| {
            for tag in 0..THREADS {
                let all = &all;
                scope.spawn(move || {
                    for number in 0..200_usize {
                        let length = (number * 977) % 40_000;
                        let seed = u64::from(tag) << 32 | number as u64;
                        let mut theirs = vec![0; length];
                        all.sendrecv(&pattern(seed, length), other, tag, &mut theirs, Pattern::of(other, tag))
                            .expect("both are well");
                        assert!(theirs == pattern(seed, length), "thread {tag}, message {number}");
                    }
                });
            }
        });
    });
}

/// Lengths have 64 bits everywhere. A message of 3 GiB needs 9 GiB of memory here, so this test does not run by
/// default.
#[test]
#[ignore = "9 GiB of memory and some seconds"]
fn a_message_of_three_gibibytes_arrives() {
    const BYTES: usize = 3 << 30;
    let began = Instant::now();
    each(2, as_they_are, |all| {
        let check = |bytes: &[u8]| {
            let places = (0..BYTES).step_by(1 << 20).chain([BYTES - 1]);
            places.for_each(|place| assert_eq!(bytes[place], (place >> 20) as u8 | 1, "at {place}"));
        };
        if all.rank() == 0 {
            let mut bytes = vec![0; BYTES];
            let places = (0..BYTES).step_by(1 << 20).chain([BYTES - 1]);
            places.for_each(|place| bytes[place] = (place >> 20) as u8 | 1);
            all.send(&bytes, 1, 0).expect("sent");
        } else {
            let mut bytes = vec![0; BYTES];
            let status = all.receive(&mut bytes, Pattern::of(0, 0)).expect("here");
            assert_eq!(status.bytes, BYTES as u64);
            check(&bytes);
        }
    });
    eprintln!("3 GiB in {:?}", began.elapsed());
}

#[test]
fn a_slow_reader_gets_the_messages_of_a_member_that_has_finished() {
    each(2, as_they_are, |all: Communicator| {
        if all.rank() == 0 {
            for number in 0..1000_u32 {
                all.send(&number.to_le_bytes(), 1, 0).expect("sent");
            }
            all.finish().expect("everything is read");
        } else {
            // The member is busy for some time.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            let mut word = [0; 4];
            for number in 0..1000_u32 {
                all.receive(&mut word, Pattern::of(0, 0)).expect("it was sent");
                assert_eq!(u32::from_le_bytes(word), number);
            }
            let error = all.receive(&mut word, Pattern::of(0, 0)).expect_err("no more");
            assert!(matches!(error, Error::MemberLeft { rank: 0, .. }), "{error}");
        }
    });
}
