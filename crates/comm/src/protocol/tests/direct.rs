//! Tests of collectives that a thread begins itself, and hands over to the protocol in the middle.

use super::collectives::{allreduce, numbers, sums};
use super::*;

const COUNT: usize = 4;

/// Collective that rank 0 runs itself, with the transfers that are done of its only round.
struct RunByHand {
    started: StartedCollective,
    schedule: Schedule,
    input: Vec<u8>,
    scratch: Vec<u8>,
    done: u64,
}

impl RunByHand {
    fn begin(net: &mut Net, size: Rank) -> Self {
        let schedule = allreduce(0, size, COUNT);
        Self {
            started: net.at(0).start_directly(0).expect("nothing is wrong"),
            input: numbers([0; COUNT]),
            scratch: vec![0; 8 * schedule.scratch],
            schedule,
            done: 0,
        }
    }

    /// Sends the first messages of the round, at most `sends`, and takes the first messages for rank 0, at most
    /// `receives`.
    fn transfer(&mut self, net: &mut Net, mut sends: Rank, mut receives: Rank) {
        let (class, tag) = (MessageClass::Collective, self.started.number);
        let address = MessageAddress { class, context: 0, tag };
        for (place, step) in self.schedule.rounds[0].transfers.iter().enumerate() {
            match *step {
                Step::Send { to, .. } if sends > 0 => {
                    sends -= 1;
                    let length = self.input.len() as u64;
                    assert_eq!(net.at(0).admit(to, &address, length), Ok(true));
                    net.wires[0][to as usize].push_back(SentFrame {
                        frame: MemberFrame::Eager { to: address, length },
                        body: self.input.clone(),
                        send: None,
                    });
                }
                Step::Receive { from, into } if receives > 0 => {
                    receives -= 1;
                    let range = into.offset * 8..into.end() * 8;
                    let length = range.len() as u64;
                    let pattern = Pattern::of(from, tag);
                    let copy = |bytes: &[u8]| self.scratch[range].copy_from_slice(bytes);
                    let taken = net.at(0).take_kept_now(class, 0, pattern, length..=length, copy);
                    assert!(matches!(taken, KeptNow::Taken(status) if status.source == from && status.bytes == length));
                }
                _ => continue,
            }
            self.done |= 1 << place;
        }
    }

    fn hand_over(self, net: &mut Net, output: &TransferMemory) -> Key {
        let rest = CollectiveWork {
            schedule: Arc::new(self.schedule),
            element: 8,
            input: TransferMemory::of(self.input),
            output: output.clone(),
            reduction: sums(),
        };
        let scratch = TransferMemory::of(self.scratch);
        net.at(0).hand_over(self.started, rest, scratch, 0, self.done)
    }
}

#[test]
fn a_collective_that_is_handed_over_in_the_middle_ends_like_any_other() {
    let seed = seed();
    for size in 2..=5 {
        for (sends, receives) in (0..size).flat_map(|sends| (0..size).map(move |receives| (sends, receives))) {
            let mut net = Net::new(size, seed);
            let mut started = Vec::new();
            for rank in 1..size {
                let (input, output) = (numbers([u64::from(rank); COUNT]), TransferMemory::zeroed(8 * COUNT));
                started.push((
                    rank,
                    net.start(rank, allreduce(rank, size, COUNT), &input, &output),
                    output,
                ));
            }
            net.run();
            let mut by_hand = RunByHand::begin(&mut net, size);
            by_hand.transfer(&mut net, sends, receives);
            let output = TransferMemory::zeroed(8 * COUNT);
            started.push((0, by_hand.hand_over(&mut net, &output), output));
            net.run();
            let sum = u64::from(size * (size - 1) / 2);
            for (rank, key, output) in started {
                let what = format!("rank {rank} of {size}, {sends} sends and {receives} receives before");
                assert!(net.at(rank).take_result(key).expect("an end").is_ok(), "{what}");
                assert_eq!(output.into_bytes(), numbers([sum; COUNT]), "{what}");
            }
        }
    }
}

#[test]
fn a_failure_before_the_hand_over_is_that_of_the_collective() {
    type Failure = fn(&mut Protocol);
    let broken: Failure = |member| {
        let (context, rank, number) = (0, 1, 0);
        let frame = MemberFrame::Broken { context, rank, number };
        assert!(member.frame(1, frame).is_ok());
    };
    let lost: Failure = |member| member.handle_loss(1, Loss::Closed);
    // Rank 0 has sent its message to rank 1, and has received none.
    for (fail, is_broken) in [(broken, true), (lost, false)] {
        let mut net = Net::new(3, 1);
        let mut by_hand = RunByHand::begin(&mut net, 3);
        by_hand.transfer(&mut net, 1, 0);
        fail(net.at(0));
        assert!(net.at(0).is_broken(&by_hand.started));
        let key = by_hand.hand_over(&mut net, &TransferMemory::zeroed(8 * COUNT));
        net.run();
        let error = net.at(0).take_result(key).expect("an end").expect_err("it failed");
        match is_broken {
            true => assert!(matches!(error, Error::CollectiveFailed { rank: 1, .. }), "{error}"),
            false => assert!(matches!(error, Error::MemberLost { rank: 1, .. }), "{error}"),
        }
        assert!(net.at(0).start_directly(0).is_none(), "no later one can go well");
    }
}

#[test]
fn a_member_leaves_a_communicator_after_the_collective_that_a_thread_runs() {
    let mut net = Net::new(2, 1);
    let by_hand = RunByHand::begin(&mut net, 2);
    let has_told = |member: &mut Protocol| {
        member.settle();
        std::iter::from_fn(|| member.next_action()).any(|action| {
            matches!(
                action,
                Action::Frame {
                    frame: MemberFrame::Leave { .. },
                    ..
                }
            )
        })
    };
    net.at(0).leave(0, false);
    assert!(!has_told(net.at(0)), "it has something to do there");
    net.at(0).end_directly(&by_hand.started);
    assert!(has_told(net.at(0)));
}
