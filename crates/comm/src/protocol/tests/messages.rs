use super::*;
use std::collections::HashMap;

#[test]
fn small_and_large_messages_arrive_as_they_were_sent_before_and_after_they_are_asked_for() {
    let (small, eager) = (SMALL as usize, EAGER as usize);
    for length in [0, 1, small, small + 1, eager, eager + 1, 3 << 20] {
        for is_asked_first in [true, false] {
            let mut net = Net::new(2, seed());
            let memory = TransferMemory::zeroed(length + 3);
            let mut asked = is_asked_first.then(|| net.receive(1, Pattern::ANY, &memory));
            let sent = net.send(0, 1, 5, text(0, 0, length));
            net.run();
            let receive = *asked.get_or_insert_with(|| net.receive(1, Pattern::ANY, &memory));
            net.run();
            assert!(net.at(0).take_result(sent).expect("sent").is_ok());
            let status = net.at(1).take_result(receive).expect("received").expect("no error");
            assert_eq!(
                status,
                MessageStatus {
                    source: 0,
                    tag: 5,
                    bytes: length as u64
                }
            );
            let bytes = memory.into_bytes();
            assert!(bytes[..length] == text(0, 0, length), "{length} bytes");
            assert_eq!(bytes[length..], [0; 3], "nothing is written behind a message");
        }
    }
}

#[test]
fn a_message_that_does_not_fit_is_told_with_both_sizes_and_stays() {
    for (length, is_asked_first) in [(12, true), (12, false), (5000, true), (5000, false)] {
        let mut net = Net::new(2, seed());
        let small = TransferMemory::zeroed(8);
        let mut asked = is_asked_first.then(|| net.receive(1, Pattern::of(0, 1), &small));
        net.send(0, 1, 1, text(0, 0, length));
        net.run();
        let receive = *asked.get_or_insert_with(|| net.receive(1, Pattern::of(0, 1), &small));
        net.run();
        let error = net.at(1).take_result(receive).expect("an end").expect_err("too large");
        assert_eq!(
            error,
            Error::Truncated {
                source_rank: 0,
                tag: 1,
                sent: length as u64,
                room: 8
            }
        );
        assert_eq!(small.into_bytes(), [0; 8], "nothing of it was written");
        let large = TransferMemory::zeroed(length);
        let receive = net.receive(1, Pattern::of(0, 1), &large);
        net.run();
        assert!(net.at(1).take_result(receive).expect("an end").is_ok());
        assert!(large.into_bytes() == text(0, 0, length), "it was not lost");
    }
}

#[test]
fn members_that_all_send_first_go_on() {
    for size in [2, 3, 5] {
        let mut net = Net::new(size, seed());
        let length = EARLY as usize;
        let sends: Vec<Key> = (0..size)
            .map(|rank| net.send(rank, (rank + 1) % size, 0, text(rank, 0, length)))
            .collect();
        net.run();
        for rank in 0..size {
            assert!(net.at(rank).take_result(sends[rank as usize]).is_none(), "it waits");
            net.at(rank).accept_early();
        }
        net.run();
        for rank in 0..size {
            assert!(net.at(rank).take_result(sends[rank as usize]).expect("sent").is_ok());
            let before = (rank + size - 1) % size;
            let memory = TransferMemory::zeroed(length);
            let receive = net.receive(rank, Pattern::of(before, 0), &memory);
            net.run();
            let status = net.at(rank).take_result(receive).expect("here").expect("no error");
            assert_eq!((status.source, status.tag), (before, 0));
            assert!(memory.into_bytes() == text(before, 0, length));
            assert_eq!(net.at(rank).early_bytes, 0, "the memory is given back");
        }
    }
}

#[test]
fn early_memory_is_bounded() {
    let mut net = Net::new(2, seed());
    let first = net.send(0, 1, 1, vec![1; EARLY as usize - 1]);
    let second = net.send(0, 1, 2, vec![2; EARLY as usize]);
    net.run();
    net.at(1).accept_early();
    net.run();
    assert!(net.at(0).take_result(first).is_some(), "there is memory for one");
    assert!(net.at(0).take_result(second).is_none(), "and for no more");
    let memory = TransferMemory::zeroed(EARLY as usize);
    for tag in [1, 2] {
        let receive = net.receive(1, Pattern::of(0, tag), &memory);
        net.run();
        assert!(net.at(1).take_result(receive).expect("here").is_ok());
    }
}

#[test]
fn unexpected_messages_are_kept_as_far_as_credit_goes_and_then_wait_at_their_sender() {
    let mut net = Net::new(2, seed());
    let many = 40_000;
    let sends: Vec<Key> = (0..many)
        .map(|number| net.send(0, 1, number, number.to_le_bytes().to_vec()))
        .collect();
    net.run();
    let kept = net.at(1).landings.len() as u64;
    assert!(kept * 132 <= credit_of(2), "{kept} messages are kept");
    assert!(kept * 132 > credit_of(2) - 132, "as many as may be: {kept}");
    // Another class has a credit of its own.
    let memory = TransferMemory::zeroed(4);
    for number in 0..many {
        let receive = net.receive(
            1,
            Pattern {
                source: None,
                tag: None,
            },
            &memory,
        );
        net.run();
        let status = net.at(1).take_result(receive).expect("here").expect("no error");
        assert_eq!(status.tag, number, "in the order in which they were sent");
    }
    for send in sends {
        assert!(net.at(0).take_result(send).expect("sent").is_ok());
    }
    assert_eq!(net.at(1).landings.len(), 0);
}

#[test]
fn larger_messages_go_unasked_as_far_as_credit_goes_and_are_then_announced() {
    let mut net = Net::new(2, seed());
    let many = (2 * credit_of(2) / EAGER) as u32;
    let sends: Vec<Key> = (0..many)
        .map(|number| net.send(0, 1, number, text(0, number, EAGER as usize)))
        .collect();
    net.run();
    let kept = net.at(1).landings.len() as u64;
    assert!(kept * EAGER <= credit_of(2), "{kept} are kept");
    assert!(2 * kept * EAGER > credit_of(2), "as many as may be: {kept}");
    assert_eq!(
        net.at(0).sends.len() as u64,
        u64::from(many) - kept,
        "the others are announced"
    );
    let small = net.send(0, 1, many, vec![1]);
    assert!(net.at(0).take_result(small).is_some(), "there is credit for small ones");
    for number in 0..many {
        let memory = TransferMemory::zeroed(EAGER as usize);
        let receive = net.receive(1, Pattern::of(0, number), &memory);
        net.run();
        assert!(net.at(1).take_result(receive).expect("here").is_ok());
        assert!(memory.into_bytes() == text(0, number, EAGER as usize));
    }
    for send in sends {
        assert!(net.at(0).take_result(send).expect("sent").is_ok());
    }
    let receive = net.receive(1, Pattern::of(0, many), &TransferMemory::zeroed(1));
    assert!(net.at(1).take_result(receive).expect("here").is_ok());
    assert_eq!((net.at(1).landings.len(), net.at(0).sends.len()), (0, 0));
}

#[test]
fn a_member_that_takes_more_than_its_credit_is_noticed() {
    let mut net = Net::new(2, 0);
    let eager = |length| MemberFrame::Eager { to: message(0), length };
    let mut result = Ok(None);
    for _ in 0..credit_of(2) / 128 + 1 {
        assert!(result.is_ok());
        result = net.at(1).frame(0, eager(0));
        net.at(1).body(0, 0);
    }
    assert_eq!(result.err(), Some(Loss::Protocol));
}

#[test]
fn frames_that_no_request_explains_are_a_breach_of_the_protocol() {
    let mut net = Net::new(3, 0);
    let data = |landing, length| MemberFrame::Data { landing, length };
    assert_eq!(net.at(1).frame(0, data(0, 1)).err(), Some(Loss::Protocol));
    let memory = TransferMemory::zeroed(5000);
    net.receive(1, Pattern::of(0, 0), &memory);
    net.send(0, 1, 0, vec![7; 5000]);
    while net.at(1).landings.len() == 0 {
        assert!(net.step());
    }
    let landing = net.at(1).landings.keys(|_| true)[0];
    // Data from a member that did not announce it, and more data than was announced.
    assert_eq!(net.at(1).frame(2, data(landing, 1)).err(), Some(Loss::Protocol));
    assert_eq!(net.at(1).frame(0, data(landing, 5001)).err(), Some(Loss::Protocol));
    // Answers to nothing are ignored, and do no harm.
    assert!(net.at(1).frame(0, MemberFrame::Grant { id: 99, landing: 1 }).is_ok());
    assert!(net.at(1).frame(0, MemberFrame::Farewell).is_ok());
    net.run();
}

#[test]
fn members_send_to_themselves() {
    for length in [10, 5000] {
        let mut net = Net::new(1, 0);
        let memory = TransferMemory::zeroed(length);
        let early = net.receive(0, Pattern::of(0, 1), &memory);
        let first = net.send(0, 0, 1, text(0, 1, length));
        assert!(net.at(0).take_result(first).expect("sent").is_ok());
        assert!(net.at(0).take_result(early).expect("received").is_ok());
        assert!(memory.into_bytes() == text(0, 1, length));
        let second = net.send(0, 0, 2, text(0, 2, length));
        assert_eq!(
            net.at(0).take_result(second).is_some(),
            length == 10,
            "small ones are kept"
        );
        net.at(0).accept_early();
        let memory = TransferMemory::zeroed(length);
        let late = net.receive(0, Pattern::of(0, 2), &memory);
        assert!(net.at(0).take_result(late).expect("received").is_ok());
        assert!(memory.into_bytes() == text(0, 2, length));
    }
}

#[test]
fn a_receive_is_cancelled_until_something_comes_for_it() {
    let mut net = Net::new(2, 0);
    let memory = TransferMemory::zeroed(10);
    let receive = net.receive(1, Pattern::ANY, &memory);
    assert!(net.at(1).cancel(receive));
    let error = net.at(1).take_result(receive).expect("an end").expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    net.send(0, 1, 3, vec![1; 10]);
    net.run();
    assert_eq!(
        net.at(1).probe(MessageClass::Message, 0, Pattern::ANY),
        Some((MessageEnvelope { source: 0, tag: 3 }, 10)),
        "the message waits for another receive"
    );
    let receive = net.receive(1, Pattern::ANY, &memory);
    assert!(!net.at(1).cancel(receive), "it has ended");
    assert!(net.at(1).take_result(receive).expect("an end").is_ok());
    // Forgotten requests leave nothing behind.
    let receive = net.receive(1, Pattern::ANY, &memory);
    net.at(1).forget(receive);
    assert_eq!(net.at(1).requests.len(), 0);
}

/// Sends everything at once, in any order: each message arrives once, complete, and in the order of its sender and tag.
#[test]
fn random_traffic_arrives_whole_and_in_order() {
    let seed = seed();
    for round in 0..30 {
        let mut random = StdRng::seed_from_u64(seed + round);
        let size = random.random_range(1..6);
        let mut net = Net::new(size, seed + round);
        let mut sent = HashMap::<(Rank, Rank, u32), VecDeque<Vec<u8>>>::new();
        let mut asked: Vec<Vec<(Key, TransferMemory)>> = (0..size).map(|_| Vec::new()).collect();
        let mut pending = vec![0; size as usize];
        for number in 0..400 {
            let (from, to) = (random.random_range(0..size), random.random_range(0..size));
            let tag = random.random_range(0..3);
            let length = *[0, 3, 1000, 1025, 4096, 70_000, 1_100_000]
                .get(random.random_range(0..if number % 20 == 0 { 7 } else { 6 }))
                .expect("a length");
            let bytes = text(from, number, length);
            net.send(from, to, tag, bytes.clone());
            sent.entry((from, to, tag)).or_default().push_back(bytes);
            pending[to as usize] += 1;
            for _ in 0..random.random_range(0..20) {
                net.step();
            }
            // One receive of any rank and tag for each message, some before and some after the messages.
            let at = random.random_range(0..size);
            if pending[at as usize] > 0 && random.random_bool(0.8) {
                pending[at as usize] -= 1;
                let memory = TransferMemory::zeroed(1_100_000);
                let key = net.receive(at, Pattern::ANY, &memory);
                asked[at as usize].push((key, memory));
            }
        }
        for at in 0..size {
            for _ in 0..pending[at as usize] {
                let memory = TransferMemory::zeroed(1_100_000);
                let key = net.receive(at, Pattern::ANY, &memory);
                asked[at as usize].push((key, memory));
            }
        }
        net.run();
        for (at, asked) in asked.into_iter().enumerate() {
            for (key, memory) in asked {
                let status = net.members[at]
                    .take_result(key)
                    .expect("all have come")
                    .expect("no error");
                let of = (status.source, at as Rank, status.tag);
                let expected = sent.get_mut(&of).and_then(VecDeque::pop_front).expect("it was sent");
                let bytes = memory.into_bytes();
                assert!(
                    bytes[..status.bytes as usize] == expected,
                    "a message of rank {} to {at}, tag {}: {} bytes, {} sent",
                    status.source,
                    status.tag,
                    status.bytes,
                    expected.len()
                );
            }
        }
        assert!(sent.values().all(VecDeque::is_empty));
        assert!(
            net.members
                .iter()
                .all(|member| member.landings.len() == 0 && !member.is_sending())
        );
    }
}

#[test]
fn a_receive_that_is_not_posted_takes_what_no_other_one_is_for_and_gives_its_credit_back() {
    let mut net = Net::new(2, seed());
    let to = MessageAddress {
        class: MessageClass::Message,
        context: 0,
        tag: 7,
    };
    let take = |net: &mut Net, length| net.at(0).take_direct(1, &to, length, Pattern::of(1, 7), 8);
    assert_eq!(take(&mut net, 9), Ok(false), "it is too long");
    let into = net.at(0).frame(1, MemberFrame::Eager { to, length: 3 });
    assert!(into.is_ok_and(|into| into.is_some()));
    net.at(0).body(1, 3);
    assert_eq!(take(&mut net, 3), Ok(false), "another one came before");
    let memory = TransferMemory::zeroed(8);
    let kept = net.receive(0, Pattern::ANY, &memory);
    assert!(net.at(0).take_result(kept).is_some_and(|result| result.is_ok()));
    let posted = net.receive(0, Pattern::ANY, &memory);
    assert_eq!(take(&mut net, 3), Ok(false), "another receive waits for it");
    assert!(net.at(0).cancel(posted));
    const MESSAGES: u64 = 100_000;
    let mut given_back = 0;
    for _ in 0..MESSAGES {
        assert_eq!(take(&mut net, 3), Ok(true), "it has credit");
        while let Some(action) = net.at(0).next_action() {
            if let Action::Frame {
                to: 1,
                frame: MemberFrame::Credit { amount, .. },
            } = action
            {
                given_back += amount;
            }
        }
    }
    let spent = MESSAGES * (hotlease_wire::comm::frame::ENTRY_COST + 3);
    assert!(
        given_back <= spent + 200 && spent - given_back < credit_of(2) / 2,
        "{given_back} of {spent}"
    );
}

#[test]
fn a_synchronous_send_ends_when_a_receive_asks_for_it_and_not_before() {
    for to in [0, 1] {
        for length in [0, 1, SMALL as usize + 1, EAGER as usize + 1, 3 << 20] {
            let mut net = Net::new(2, seed());
            let member = net.at(0);
            let sent = member.request(Activity::Send { to, tag: 5 }).expect("room");
            let body = TransferMemory::of(text(0, 0, length)).whole();
            member.send_synchronously(to, message(5), body, Owner::Request(sent));
            net.run();
            // The receiver calls this when it waits in a send.
            net.at(to).accept_early();
            net.run();
            assert!(!net.at(0).has_ended(sent), "{length} bytes to {to}");
            let memory = TransferMemory::zeroed(length);
            let receive = net.receive(to, Pattern::ANY, &memory);
            net.run();
            assert!(net.at(0).take_result(sent).expect("sent").is_ok());
            assert!(net.at(to).take_result(receive).expect("received").is_ok());
            assert!(memory.into_bytes() == text(0, 0, length), "{length} bytes to {to}");
        }
    }
}

#[test]
fn a_long_message_to_oneself_is_copied_without_the_lock() {
    let mut net = Net::new(1, seed());
    let memory = TransferMemory::zeroed(2 << 20);
    let receive = net.receive(0, Pattern::ANY, &memory);
    let sent = net.send(0, 0, 5, text(0, 0, 2 << 20));
    let member = net.at(0);
    assert!(member.has_job() && !member.has_ended(receive) && !member.has_ended(sent));
    net.run();
    assert!(net.at(0).take_result(sent).expect("sent").is_ok());
    assert!(net.at(0).take_result(receive).expect("received").is_ok());
    assert!(memory.into_bytes() == text(0, 0, 2 << 20));
}
