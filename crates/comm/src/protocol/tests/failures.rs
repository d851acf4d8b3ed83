use super::collectives::{allreduce, broadcast, numbers};
use super::*;

impl Net {
    /// Ends a member's process. Frames on their way to or from the member are lost, and one link notices the end.
    fn kill(&mut self, rank: Rank, noticed_by: Rank) {
        self.dead.push(rank);
        for wires in &mut self.wires {
            wires[rank as usize].clear();
        }
        self.wires[rank as usize].iter_mut().for_each(VecDeque::clear);
        let (size, bounds) = (self.members.len() as Rank, self.at(rank).bounds);
        *self.at(rank) = Protocol::new(rank, size, bounds);
        self.at(noticed_by).handle_loss(rank, Loss::Closed);
    }

    fn error(&mut self, rank: Rank, key: Key) -> Error {
        let result = self.at(rank).take_result(key).expect("it has ended");
        result.expect_err("with an error")
    }
}

#[test]
fn operations_with_a_failed_member_end_everywhere_and_others_go_on() {
    let mut net = Net::new(4, seed());
    let memory = || TransferMemory::zeroed(100);
    let large = vec![1; 5000];
    let from_it = net.receive(0, Pattern::of(3, 1), &memory());
    let from_any = net.receive(1, Pattern::ANY, &memory());
    let to_it = net.send(2, 3, 1, large.clone());
    let collectives: Vec<Key> = (0..3)
        .map(|rank| {
            let output = TransferMemory::zeroed(8);
            net.start(rank, allreduce(rank, 4, 1), &numbers([1]), &output)
        })
        .collect();
    let unconcerned = net.receive(0, Pattern::of(2, 9), &memory());
    net.run();
    net.kill(3, 0);
    net.run();
    let loss = Loss::Closed;
    let lost = |during| Error::MemberLost { during, rank: 3, loss };
    let receive = |from, tag| Activity::Receive { from, tag };
    assert_eq!(net.error(0, from_it), lost(receive(Some(3), Some(1))));
    assert_eq!(net.error(1, from_any), lost(receive(None, None)));
    assert_eq!(net.error(2, to_it), lost(Activity::Send { to: 3, tag: 1 }));
    for (rank, key) in collectives.into_iter().enumerate() {
        let during = Activity::Collective { number: 0 };
        assert_eq!(net.error(rank as Rank, key), lost(during), "rank {rank}");
    }
    // Later operations end with the error at once.
    let late = net.send(1, 3, 2, large.clone());
    assert_eq!(net.error(1, late), lost(Activity::Send { to: 3, tag: 2 }));
    let late = net.receive(2, Pattern::ANY, &memory());
    assert_eq!(net.error(2, late), lost(receive(None, None)));
    let output = TransferMemory::zeroed(8);
    let late = net.start(1, broadcast(1, 4, 1), &[], &output);
    net.run();
    assert_eq!(net.error(1, late), lost(Activity::Collective { number: 1 }));
    // Members that have not failed talk as before.
    let sent = net.send(2, 0, 9, vec![5; 100]);
    net.run();
    assert!(net.at(2).take_result(sent).expect("sent").is_ok());
    assert!(net.at(0).take_result(unconcerned).expect("received").is_ok());
    assert_eq!(net.at(0).collectives.len(), 0);
}

#[test]
fn messages_that_arrived_before_their_sender_failed_are_received() {
    let mut net = Net::new(2, seed());
    net.send(0, 1, 1, vec![1; 10]);
    net.send(0, 1, 2, vec![2; 5000]);
    net.run();
    net.kill(0, 1);
    let memory = TransferMemory::zeroed(5000);
    let came = net.receive(1, Pattern::of(0, 1), &memory);
    assert!(net.at(1).take_result(came).expect("here").is_ok());
    let only_announced = net.receive(1, Pattern::of(0, 2), &memory);
    assert!(matches!(
        net.error(1, only_announced),
        Error::MemberLost { rank: 0, .. }
    ));
}

#[test]
fn a_member_that_fails_in_the_middle_of_a_message_ends_its_receive() {
    let mut net = Net::new(2, seed());
    let memory = TransferMemory::zeroed(3 << 20);
    let receive = net.receive(1, Pattern::of(0, 0), &memory);
    net.send(0, 1, 0, vec![1; 3 << 20]);
    // Delivers the announcement, the grant, and the first of three pieces.
    for _ in 0..3 {
        assert!(net.step());
    }
    assert_eq!(net.at(1).landings.len(), 1);
    net.kill(0, 1);
    assert!(matches!(net.error(1, receive), Error::MemberLost { rank: 0, .. }));
    assert_eq!(net.at(1).landings.len(), 0);
}

/// Rank 1 has granted a message of a collective, and rank 0 gives the collective up before the grant arrives.
fn granted_in_vain() -> (Net, Key, Key) {
    let mut net = Net::new(2, seed());
    let count = 2 * EAGER as usize / 8;
    let output = TransferMemory::zeroed(8 * count);
    let receiver = net.start(1, broadcast(1, 2, count), &[], &output);
    let sender = net.start(0, broadcast(0, 2, count), &[], &output);
    while net.at(1).landings.len() == 0 {
        assert!(net.step());
    }
    (net, sender, receiver)
}

#[test]
fn a_grant_to_a_member_that_gave_up_leaves_no_state() {
    let (mut net, sender, receiver) = granted_in_vain();
    net.at(0).leave(0, true);
    net.run();
    for (rank, key) in [(0, sender), (1, receiver)] {
        assert!(matches!(net.error(rank, key), Error::CollectiveFailed { rank: 0, .. }));
        let member = net.at(rank);
        assert_eq!((member.sends.len(), member.landings.len()), (0, 0), "rank {rank}");
    }
    // The result is the same if the withdrawal of the message arrives first. A second withdrawal breaks the protocol.
    let (mut net, _, receiver) = granted_in_vain();
    let landing = net.at(1).landings.keys(|_| true)[0];
    let withdraw = MemberFrame::Withdraw { landing };
    assert!(net.at(1).frame(0, withdraw).is_ok());
    assert_eq!(net.at(1).landings.len(), 1, "a receive waits for it");
    assert_eq!(net.at(1).frame(0, withdraw).err(), Some(Loss::Protocol));
    let word = MemberFrame::Broken {
        context: 0,
        rank: 0,
        number: 0,
    };
    assert!(net.at(1).frame(0, word).is_ok());
    net.at(1).settle();
    assert!(matches!(net.error(1, receiver), Error::CollectiveFailed { .. }));
    assert_eq!(net.at(1).landings.len(), 0);
}

#[test]
fn a_member_that_finishes_early_loses_no_message_of_its_own() {
    let mut net = Net::new(3, seed());
    net.send(0, 1, 1, vec![1; 10]);
    net.send(0, 1, 2, vec![2; 20]);
    net.run();
    assert!(!net.at(0).is_sending());
    let pending = net.receive(1, Pattern::of(0, 7), &TransferMemory::zeroed(1));
    let of_any = net.receive(
        1,
        Pattern {
            source: None,
            tag: Some(7),
        },
        &TransferMemory::zeroed(1),
    );
    net.at(0).finish();
    net.run();
    assert!(net.at(0).has_parted());
    // Then the connections of rank 0 close, which no member takes for a failure.
    net.at(1).handle_loss(0, Loss::Closed);
    let memory = TransferMemory::zeroed(20);
    for tag in [2, 1] {
        let receive = net.receive(1, Pattern::of(0, tag), &memory);
        let status = net.at(1).take_result(receive).expect("here").expect("no error");
        assert_eq!(status.tag, tag);
    }
    assert!(matches!(net.error(1, pending), Error::MemberLeft { rank: 0, .. }));
    let send = net.send(1, 0, 1, vec![1]);
    assert!(matches!(net.error(1, send), Error::MemberLeft { rank: 0, .. }));
    assert!(net.at(1).take_result(of_any).is_none(), "rank 2 is still there");
    net.at(2).finish();
    net.run();
    assert!(matches!(net.error(1, of_any), Error::MemberLeft { rank: 2, .. }));
    let own = net.receive(0, Pattern::of(1, 1), &TransferMemory::zeroed(1));
    assert_eq!(net.error(0, own), Error::Finished);
}

#[test]
fn a_member_that_finishes_because_another_one_failed_reports_the_failure_first() {
    let mut net = Net::new(4, seed());
    let started: Vec<Key> = (0..3)
        .map(|rank| {
            let output = TransferMemory::zeroed(8);
            net.start(rank, allreduce(rank, 4, 1), &numbers([1]), &output)
        })
        .collect();
    net.run();
    // Rank 2 tells rank 1 of the failure, and rank 1 finishes before rank 0 was told anything.
    net.at(2).handle_loss(3, Loss::Closed);
    let word = MemberFrame::Lost {
        rank: 3,
        loss: Loss::Closed,
    };
    assert!(net.at(1).frame(2, word).is_ok());
    net.at(1).finish();
    net.collect(1);
    while let Some(sent) = net.wires[1][0].pop_front() {
        assert!(net.at(0).frame(1, sent.frame).is_ok());
    }
    net.at(0).settle();
    let error = net.error(0, started[0]);
    assert!(matches!(error, Error::MemberLost { rank: 3, .. }), "{error}");
}

#[test]
fn a_member_that_others_consider_failed_learns_it() {
    let mut net = Net::new(3, seed());
    let receive = net.receive(2, Pattern::of(1, 0), &TransferMemory::zeroed(1));
    let to_self = net.send(2, 2, 0, vec![0; 5000]);
    // Only one of the other members cannot reach rank 2.
    net.at(0).handle_loss(2, Loss::Silent);
    net.run();
    // Rank 0 has closed its link with rank 2, so its report to rank 2 is lost. Rank 0 has told rank 1, which has also
    // closed its link, without a report to rank 2.
    assert!(matches!(
        net.at(1).departure(2, Activity::Collective { number: 0 }),
        Some(Error::MemberLost { loss: Loss::Silent, .. })
    ));
    let word = MemberFrame::Lost {
        rank: 2,
        loss: Loss::Silent,
    };
    assert!(net.at(2).frame(1, word).is_ok());
    for key in [receive, to_self] {
        let error = net.error(2, key);
        assert!(
            matches!(
                error,
                Error::Outcast {
                    rank: 2,
                    reporter: Some(1),
                    loss: Loss::Silent,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn a_member_that_gives_up_announces_it() {
    let mut net = Net::new(3, seed());
    let receive = net.receive(2, Pattern::of(0, 0), &TransferMemory::zeroed(1));
    net.at(0).give_up();
    net.run();
    let error = net.error(2, receive);
    assert!(
        matches!(
            error,
            Error::MemberLost {
                rank: 0,
                loss: Loss::GaveUp,
                ..
            }
        ),
        "{error}"
    );
}

/// When a member fails in a run of collectives and messages, the operations of all members end.
#[test]
fn a_failure_at_any_moment_leaves_no_member_waiting() {
    let seed = seed();
    for round in 0..300 {
        let mut random = StdRng::seed_from_u64(seed + round);
        let size = random.random_range(2..6);
        let mut net = Net::new(size, seed + round);
        let mut pending: Vec<Vec<Key>> = vec![Vec::new(); size as usize];
        let length = *[8, 200, 200_000].get(random.random_range(0..3)).expect("one");
        for _ in 0..3 {
            for rank in 0..size {
                let (count, output) = (length / 8, TransferMemory::zeroed(length));
                let schedule = match round % 2 {
                    0 => allreduce(rank, size, count),
                    _ => broadcast(rank, size, count),
                };
                let input = match round % 2 {
                    0 => vec![1; length],
                    _ => Vec::new(),
                };
                let key = net.start(rank, schedule, &input, &output);
                pending[rank as usize].push(key);
                let next = (rank + 1) % size;
                pending[rank as usize].push(net.send(rank, next, 0, vec![0; length]));
                let before = Pattern::of((rank + size - 1) % size, 0);
                pending[rank as usize].push(net.receive(rank, before, &TransferMemory::zeroed(length)));
            }
        }
        for _ in 0..random.random_range(0..60) {
            net.step();
        }
        let dead = random.random_range(0..size);
        let noticed_by = (dead + random.random_range(1..size)) % size;
        net.kill(dead, noticed_by);
        net.run();
        for rank in (0..size).filter(|rank| *rank != dead) {
            for key in &pending[rank as usize] {
                let result = net.at(rank).take_result(*key);
                let result = result.unwrap_or_else(|| {
                    panic!("rank {rank} of {size} waits for ever after rank {dead} failed (round {round})")
                });
                if let Err(error) = result {
                    assert_eq!(error.rank(), Some(dead), "{error}");
                }
            }
            let member = net.at(rank);
            assert_eq!(member.collectives.len(), 0);
            assert!(!member.is_sending());
        }
    }
}

#[test]
fn a_receive_ends_with_an_error_if_its_message_is_taken_back_while_it_is_copied() {
    let mut net = Net::new(2, seed());
    let frame = MemberFrame::Eager {
        to: message(1),
        length: 100,
    };
    let posted = net.receive(0, Pattern::of(1, 1), &TransferMemory::zeroed(100));
    let taken_back: &mut dyn FnMut(&mut [u8]) -> Result<(), Loss> = &mut |_| Err(Loss::GaveUp);
    assert_eq!(net.at(0).whole(1, frame, taken_back), Err(Loss::GaveUp));
    // As the engine does when the link has lost the member.
    net.at(0).handle_loss(1, Loss::GaveUp);
    net.run();
    let lost = |from, tag| Error::MemberLost {
        during: Activity::Receive { from, tag },
        rank: 1,
        loss: Loss::GaveUp,
    };
    assert_eq!(net.error(0, posted), lost(Some(1), Some(1)));
    // The same for a message that no receive has asked for: it is not delivered later.
    let mut net = Net::new(2, seed());
    assert_eq!(net.at(0).whole(1, frame, taken_back), Err(Loss::GaveUp));
    net.at(0).handle_loss(1, Loss::GaveUp);
    let late = net.receive(0, Pattern::of(1, 1), &TransferMemory::zeroed(100));
    net.run();
    assert_eq!(net.error(0, late), lost(Some(1), Some(1)));
}
