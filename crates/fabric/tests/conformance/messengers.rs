//! Promises of messengers.

use crate::transport::{Fabric, LONG};
use hotlease_fabric::ofi::Messenger;
use std::time::Instant;

const CONTENT_BYTES: usize = 40_000;

fn open(fabric: &Fabric, peers: u32) -> Messenger {
    Messenger::open(&fabric.provider, peers, CONTENT_BYTES).unwrap()
}

/// Makes messengers, each of which has the inboxes of all others. A messenger's number is its index.
fn together(fabric: &Fabric, count: u32) -> Vec<Messenger> {
    let mut all: Vec<Messenger> = (0..count).map(|_| open(fabric, count)).collect();
    for one in 0..count {
        for other in (0..count).filter(|other| *other != one) {
            let inbox = all[other as usize].inbox(one);
            all[one as usize].add_inbox(other, &inbox).unwrap();
        }
    }
    all
}

/// Content of message `number` from one messenger to another.
fn message(from: u32, to: u32, number: usize) -> Vec<u8> {
    let length = [0, 1, 7, 64, 100, 1000, 8192, 16_384, 20_000, CONTENT_BYTES][number % 10];
    let seed = from as usize * 31 + to as usize * 7 + number;
    (0..length).map(|at| (at * 13 + seed) as u8).collect()
}

fn sent(messenger: &mut Messenger, to: u32, content: &[u8]) -> bool {
    messenger.send(to, |room| {
        room[..content.len()].copy_from_slice(content);
        content.len()
    })
}

pub fn messages_come_whole_and_in_order_from_many(fabric: &Fabric) {
    const EACH: usize = 60;
    let mut all = together(fabric, 4);
    let (mut given, mut got) = ([[0; 4]; 4], [[0; 4]; 4]);
    let began = Instant::now();
    let missing = |got: &[[usize; 4]; 4]| 12 * EACH - got.iter().flatten().sum::<usize>();
    while missing(&got) > 0 {
        assert!(began.elapsed() < LONG, "{} messages are missing", missing(&got));
        for me in 0..4 {
            for to in (0..4).filter(|to| *to != me) {
                let number = &mut given[me][to];
                while *number < EACH && sent(&mut all[me], to as u32, &message(me as u32, to as u32, *number)) {
                    *number += 1;
                }
            }
            all[me].poll(&mut |from, content| {
                let number = &mut got[me][from as usize];
                let expected = message(from, me as u32, *number);
                assert!(content == expected, "message {number} of {from} to {me}");
                *number += 1;
            });
        }
    }
    for (number, messenger) in all.iter_mut().enumerate() {
        assert!(
            messenger.next_failure().is_none() && messenger.refused_messages() == 0,
            "{number}"
        );
    }
    while (0..16).any(|pair| all[pair / 4].is_sending(pair as u32 % 4)) {
        assert!(began.elapsed() < LONG, "sends do not end");
        for messenger in &mut all {
            messenger.poll(&mut |_, _| panic!("nothing else was sent"));
        }
    }
}

pub fn messages_of_strangers_change_nothing(fabric: &Fabric) {
    let (mut here, mut member, mut stranger) = (open(fabric, 2), open(fabric, 2), open(fabric, 2));
    here.add_inbox(1, &member.inbox(0)).unwrap();
    member.add_inbox(0, &here.inbox(1)).unwrap();
    let mut guessed = here.inbox(1);
    guessed.key ^= 1;
    stranger.add_inbox(0, &guessed).unwrap();
    // This end has no inbox of that peer, but the peer has a correct inbox of this end.
    guessed = here.inbox(0);
    stranger.add_inbox(1, &guessed).unwrap();
    let began = Instant::now();
    let mut given = [false; 2];
    while here.refused_messages() < 2 {
        assert!(began.elapsed() < LONG, "they do not arrive");
        for (to, given) in (0..).zip(&mut given) {
            *given = *given || sent(&mut stranger, to, b"let me in");
        }
        stranger.poll(&mut |_, _| panic!("no peer answers"));
        here.poll(&mut |from, _| panic!("taken for a message of {from}"));
    }
    assert!(sent(&mut member, 0, b"hello"));
    let mut came = Vec::new();
    while came.is_empty() {
        assert!(began.elapsed() < LONG, "the member's message does not arrive");
        member.poll(&mut |_, _| panic!("no peer answers"));
        here.poll(&mut |from, content| came.push((from, content.to_vec())));
    }
    assert_eq!(came, [(1, b"hello".to_vec())]);
    assert!(here.next_failure().is_none());
}

pub fn addresses_that_are_none_are_refused_by_messengers(fabric: &Fabric) {
    let (mut here, there) = (open(fabric, 2), open(fabric, 2));
    let mut inbox = there.inbox(0);
    inbox.address.address = vec![0xff; 7];
    assert!(here.add_inbox(1, &inbox).is_err(), "a wrong address");
    assert!(here.add_inbox(2, &there.inbox(0)).is_err(), "no such peer");
    here.add_inbox(1, &there.inbox(0)).unwrap();
    assert!(here.add_inbox(1, &there.inbox(0)).is_err(), "met twice");
    assert!(!sent(&mut here, 0, b""), "who was not met is sent nothing");
}

pub fn messages_wake_who_sleeps(fabric: &Fabric) {
    let mut all = together(fabric, 2);
    let (mut there, mut here) = (all.remove(1), all.remove(0));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Answers each message, and sleeps in between if the messenger can.
            let (mut answers, began) = (0, Instant::now());
            while answers < 50 || there.is_sending(0) {
                assert!(began.elapsed() < LONG, "{answers} messages came");
                let mut come = 0;
                let any = there.poll(&mut |_, _| come += 1);
                for _ in 0..come {
                    assert!(sent(&mut there, 0, b"answer"));
                    answers += 1;
                }
                if !any && there.prepare_sleep() {
                    let descriptor = there.wait_fd().expect("it said that it may sleep");
                    let mut descriptors = [nix::poll::PollFd::new(descriptor, nix::poll::PollFlags::POLLIN)];
                    nix::poll::poll(&mut descriptors, 5000_u16).unwrap();
                }
            }
        });
        for number in 0..50 {
            assert!(sent(&mut here, 1, b"question"));
            let (mut come, began) = (0, Instant::now());
            while come == 0 {
                assert!(began.elapsed() < LONG, "no answer to message {number}");
                here.poll(&mut |_, _| come += 1);
                std::thread::yield_now();
            }
        }
    });
}

pub fn a_peer_that_is_gone_does_not_block_the_others(fabric: &Fabric) {
    let mut all = together(fabric, 3);
    let (gone, mut here, mut other) = (all.remove(2), all.remove(1), all.remove(0));
    let content = [1; CONTENT_BYTES];
    // The gone peer reads nothing: messages to it wait, or are refused, or fail.
    for _ in 0..100 {
        sent(&mut here, 2, &content);
        here.poll(&mut |_, _| panic!("no peer sends"));
        other.poll(&mut |_, _| panic!("no peer sends"));
    }
    if fabric.provider.quirks().survives_peer {
        drop(gone);
    }
    let (mut given, mut come, began) = (0, 0, Instant::now());
    while come < 100 {
        assert!(began.elapsed() < LONG, "{come} messages came");
        if given < 100 && sent(&mut here, 0, &content) {
            given += 1;
        }
        here.poll(&mut |_, _| panic!("no peer sends"));
        other.poll(&mut |_, _| come += 1);
    }
    here.drop_peer(2);
    assert!(!here.is_sending(2) && !sent(&mut here, 2, b""), "it was parted with");
}
