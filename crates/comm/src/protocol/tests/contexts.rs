use super::collectives::{allreduce, numbers};
use super::*;
use hotlease_wire::comm::frame::credit_of;

const SIZE: Rank = 3;

impl Net {
    fn open(&mut self, rank: Rank, context: u64) {
        let member = self.at(rank);
        assert!(member.reserve() && member.open(context, (0..SIZE).collect()));
        member.release();
    }

    fn send_in(&mut self, context: u64, from: Rank, to: Rank, bytes: Vec<u8>) -> Key {
        let member = self.at(from);
        let key = member.request(Activity::Send { to, tag: 1 }).expect("room");
        let address = MessageAddress { context, ..message(1) };
        member.send(to, address, TransferMemory::of(bytes).whole(), Owner::Request(key));
        key
    }

    fn receive_in(&mut self, context: u64, at: Rank, source: Option<Rank>) -> Key {
        let member = self.at(at);
        let during = Activity::Receive {
            from: source,
            tag: None,
        };
        let key = member.request(during).expect("room");
        let into = TransferMemory::zeroed(4 * EAGER as usize).whole();
        let pattern = Pattern { source, tag: None };
        member.receive(MessageClass::Message, context, pattern, into, Owner::Request(key));
        key
    }

    fn add_in(&mut self, context: u64, rank: Rank, count: usize) -> Key {
        let start = CollectiveStart::Given(CollectiveWork {
            schedule: Arc::new(allreduce(rank, SIZE, count)),
            element: 8,
            input: TransferMemory::of(numbers(0..count as u64)),
            output: TransferMemory::zeroed(8 * count),
            reduction: super::collectives::sums(),
        });
        self.at(rank).collective(context, start).expect("room")
    }

    /// Checks that nothing is kept, on its way, or owed.
    fn is_at_rest(&self, what: &str) {
        for (rank, member) in self.members.iter().enumerate() {
            assert_eq!(
                member.contexts.len(),
                1,
                "{what}: rank {rank} has forgotten all but the first"
            );
            assert_eq!(
                (member.leaves, member.leaving.len(), member.reserved),
                (0, 0, 0),
                "{what}: rank {rank}"
            );
            assert_eq!(
                (member.landings.len(), member.sends.len()),
                (0, 0),
                "{what}: rank {rank}"
            );
            assert_eq!(
                (member.collectives.len(), member.early_bytes),
                (0, 0),
                "{what}: rank {rank}"
            );
            for (other, peer) in self.members.iter().enumerate() {
                for class in [0, 1] {
                    let left = member.peers[other].spend[class].left();
                    let owed = peer.peers[rank].lend[class].owed();
                    assert_eq!(left + owed, credit_of(SIZE), "{what}: credit of rank {rank} at {other}");
                }
            }
        }
    }
}

/// Checks that a request ended well, or because a member has left.
fn has_ended(net: &mut Net, rank: Rank, key: Key, what: &str) {
    match net.at(rank).take_result(key) {
        Some(Ok(_) | Err(Error::MemberLeft { .. } | Error::Finished | Error::CollectiveFailed { .. })) => {}
        other => panic!("{what}, rank {rank}: {other:?}"),
    }
}

#[test]
fn a_member_that_leaves_a_communicator_at_any_moment_leaves_nothing_behind() {
    let seed = seed();
    let mut net = Net::new(SIZE, seed);
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..300u64 {
        let context = 1 << 63 | round;
        let mut begun: Vec<(Rank, Key)> = Vec::new();
        // Each member has a number of things to do: open, some calls, leave.
        let mut left_to_do = [0; SIZE as usize].map(|_: u32| random.random_range(2..12));
        let mut is_open = [false; SIZE as usize];
        while left_to_do.iter().any(|left| *left > 0) {
            let rank = random.random_range(0..SIZE);
            let place = rank as usize;
            for _ in 0..random.random_range(0..8) {
                net.step();
            }
            if left_to_do[place] == 0 {
                continue;
            }
            left_to_do[place] -= 1;
            if !std::mem::replace(&mut is_open[place], true) {
                net.open(rank, context);
                continue;
            }
            if left_to_do[place] == 0 {
                let gives_up = random.random_bool(0.2);
                net.at(rank).leave(context, gives_up);
                continue;
            }
            let other = random.random_range(0..SIZE);
            let key = match random.random_range(0..8) {
                0..3 => {
                    let length = random.random_range(0..4 * EAGER as usize);
                    net.send_in(context, rank, other, vec![1; length])
                }
                3..5 => net.receive_in(context, rank, Some(other)),
                5 => net.receive_in(context, rank, None),
                _ => net.add_in(context, rank, random.random_range(1..400)),
            };
            begun.push((rank, key));
        }
        net.run();
        let what = format!("round {round} of seed {seed}");
        for (rank, key) in begun {
            // Collectives of different lengths do not match: this error is a valid end, too.
            match net.members[rank as usize].requests.get(key) {
                Some(crate::protocol::RequestState::Done(Err(Error::Mismatch { .. }))) => {
                    net.at(rank).take_result(key);
                }
                _ => has_ended(&mut net, rank, key, &what),
            }
        }
        net.is_at_rest(&what);
    }
}

#[test]
fn a_place_is_kept_for_a_communicator_that_others_open_first() {
    let mut net = Net::new(SIZE, 0);
    let most = crate::protocol::CONTEXTS_MAX as u64 - 1;
    for context in 1..most {
        net.at(0).open(context, [0].into());
    }
    assert!(net.at(0).reserve(), "one more");
    assert!(!net.at(0).reserve(), "it is kept for the other one");
    net.open(1, 1 << 63);
    net.at(1).open(1 << 62, (0..SIZE).collect());
    // Rank 0 has not opened the communicator for which it has reserved a place.
    net.send_in(1 << 63, 1, 0, vec![7]);
    net.run();
    assert!(net.at(0).open(1 << 63, (0..SIZE).collect()));
    net.at(0).release();
    let key = net.receive_in(1 << 63, 0, Some(1));
    assert!(net.at(0).take_result(key).expect("an end").is_ok(), "it was kept");
    // No member may open a communicator for which no place was reserved.
    let frame = MemberFrame::Eager {
        to: MessageAddress {
            context: 1 << 62,
            ..message(1)
        },
        length: 0,
    };
    assert!(matches!(net.at(0).frame(1, frame), Err(Loss::Protocol)));
}
