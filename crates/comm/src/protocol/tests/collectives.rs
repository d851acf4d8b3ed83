use super::*;
use hotlease_collectives::{Datatype, Operator, Reduction};

/// Sums of 64-bit numbers.
pub(super) fn sums() -> Option<Reduction> {
    Some(Operator::Sum.of(Datatype::U64).expect("there are sums of these"))
}

/// Allreduce in which every rank sends everything to every other rank, at once, and adds it up in the order of ranks.
pub(super) fn allreduce(me: Rank, size: Rank, count: usize) -> Schedule {
    let others = || (0..size).filter(|rank| *rank != me);
    let slot = |rank: Rank| AreaSpan {
        area: Area::Scratch,
        offset: rank as usize * count,
        count,
    };
    let input = AreaSpan::first(Area::Input, count);
    let output = AreaSpan::first(Area::Output, count);
    let mut transfers = Vec::new();
    for rank in others() {
        transfers.push(Step::Send { to: rank, from: input });
        transfers.push(Step::Receive {
            from: rank,
            into: slot(rank),
        });
    }
    let mut local = vec![Step::Copy {
        from: input,
        into: slot(me),
    }];
    local.push(Step::Copy {
        from: slot(0),
        into: output,
    });
    local.extend((1..size).map(|rank| Step::Reduce {
        left: output,
        right: slot(rank),
        into: output,
    }));
    Schedule {
        scratch: size as usize * count,
        rounds: vec![Round { transfers, local }],
    }
}

/// Broadcast in which each rank sends to the next rank.
pub(super) fn broadcast(me: Rank, size: Rank, count: usize) -> Schedule {
    let output = AreaSpan::first(Area::Output, count);
    let mut rounds = Vec::new();
    if me > 0 {
        rounds.push(Round {
            transfers: vec![Step::Receive {
                from: me - 1,
                into: output,
            }],
            local: vec![],
        });
    }
    if me + 1 < size {
        rounds.push(Round {
            transfers: vec![Step::Send {
                to: me + 1,
                from: output,
            }],
            local: vec![],
        });
    }
    Schedule { scratch: 0, rounds }
}

pub(super) fn numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

impl Net {
    pub(super) fn start(&mut self, rank: Rank, schedule: Schedule, input: &[u8], output: &TransferMemory) -> Key {
        let start = CollectiveStart::Given(CollectiveWork {
            schedule: Arc::new(schedule),
            element: 8,
            input: TransferMemory::of(input.to_vec()),
            output: output.clone(),
            reduction: sums(),
        });
        self.at(rank).collective(0, start).expect("room")
    }
}

#[test]
fn schedules_run_for_any_number_of_ranks_and_sizes() {
    let seed = seed();
    for size in (1..=9).chain([16, 33]) {
        for count in [1, 100, 300] {
            let mut net = Net::new(size, seed);
            let inputs = |rank: Rank| numbers((0..count as u64).map(|n| n * 1000 + u64::from(rank)));
            let mut started = Vec::new();
            for rank in 0..size {
                let output = TransferMemory::zeroed(8 * count);
                let key = net.start(rank, allreduce(rank, size, count), &inputs(rank), &output);
                started.push((key, output));
            }
            net.run();
            let ranks = u64::from(size);
            let sums = (0..count as u64).map(|n| ranks * n * 1000 + ranks * (ranks - 1) / 2);
            let expected = numbers(sums);
            for (rank, (key, output)) in started.into_iter().enumerate() {
                assert!(net.members[rank].take_result(key).expect("an end").is_ok());
                assert!(
                    output.into_bytes() == expected,
                    "rank {rank} of {size}, {count} numbers"
                );
            }
        }
    }
}

#[test]
fn a_round_sends_and_receives_at_once() {
    // A message of this length is sent only after its receiver has answered the announcement. If a member took the
    // other's message only after its own was taken, each round would take twice as long.
    let mut net = Net::new(2, seed());
    for rank in 0..2 {
        let output = TransferMemory::zeroed(8 * 600);
        net.start(rank, allreduce(rank, 2, 600), &numbers(0..600), &output);
        net.collect(rank as usize);
    }
    let announced = net.wires[1][0].pop_front().expect("what rank 1 sends");
    assert!(
        matches!(announced.frame, MemberFrame::Announce { .. }),
        "{:?}",
        announced.frame
    );
    net.at(0).frame(1, announced.frame).expect("rank 0 waits for it");
    net.collect(0);
    let sent: Vec<_> = net.wires[0][1].iter().map(|sent| &sent.frame).collect();
    assert!(
        matches!(sent[..], [MemberFrame::Announce { .. }, MemberFrame::Grant { .. }]),
        "no rank has answered rank 0, and it takes: {sent:?}"
    );
}

#[test]
fn ranks_may_be_collectives_apart_and_their_messages_do_not_mix() {
    let size = 4;
    let mut net = Net::new(size, seed());
    let mut outputs: Vec<Vec<(Key, TransferMemory)>> = Vec::new();
    // Each rank begins ten broadcasts before the next rank begins any; user messages are sent between the broadcasts.
    for rank in 0..size {
        let of_rank = (0..10_u64).map(|number| {
            let output = match rank {
                0 => TransferMemory::of(numbers([number, 7])),
                _ => TransferMemory::zeroed(16),
            };
            if rank > 0 {
                net.send(rank, rank - 1, number as u32, vec![9; 16]);
            }
            let key = net.start(rank, broadcast(rank, size, 2), &[], &output);
            for _ in 0..5 {
                net.step();
            }
            (key, output)
        });
        outputs.push(of_rank.collect());
    }
    net.run();
    for (rank, of_rank) in outputs.into_iter().enumerate() {
        for (number, (key, output)) in of_rank.into_iter().enumerate() {
            assert!(net.members[rank].take_result(key).expect("an end").is_ok());
            assert_eq!(output.into_bytes(), numbers([number as u64, 7]), "rank {rank}");
        }
    }
}

#[test]
fn counts_that_do_not_match_are_told_and_end_the_collective_everywhere() {
    let mut net = Net::new(3, seed());
    let counts = [2, 3, 2];
    let started: Vec<Key> = (0..3)
        .map(|rank| {
            let count = counts[rank as usize];
            let output = TransferMemory::of(vec![1; 8 * count]);
            net.start(rank, broadcast(rank, 3, count), &[], &output)
        })
        .collect();
    net.run();
    assert!(
        net.at(0).take_result(started[0]).expect("an end").is_ok(),
        "it had sent its part"
    );
    let error = net
        .at(1)
        .take_result(started[1])
        .expect("an end")
        .expect_err("a mismatch");
    let during = Activity::Collective { number: 0 };
    assert_eq!(
        error,
        Error::Mismatch {
            during,
            source_rank: 0,
            sent: 16,
            expected: 24
        }
    );
    let error = net
        .at(2)
        .take_result(started[2])
        .expect("an end")
        .expect_err("it hears of it");
    assert_eq!(error, Error::CollectiveFailed { during, rank: 1 });
    // No later collective hangs.
    for rank in 0..3 {
        let output = TransferMemory::zeroed(8);
        let key = net.start(rank, broadcast(rank, 3, 1), &[], &output);
        net.run();
        let error = net.at(rank).take_result(key).expect("an end").expect_err("broken");
        assert!(matches!(error, Error::CollectiveFailed { rank: 1, .. }), "{error}");
    }
}

fn panics() -> Option<Reduction> {
    let operator = Operator::User {
        function: Arc::new(|_, _, _| panic!("this operator does not like it")),
        commutes: true,
    };
    Some(operator.of(Datatype::U64).expect("any type will do"))
}

#[test]
fn an_operator_that_panics_is_told_with_what_it_said() {
    let mut net = Net::new(2, seed());
    let mut keys = Vec::new();
    for rank in 0..2 {
        let start = CollectiveStart::Given(CollectiveWork {
            schedule: Arc::new(allreduce(rank, 2, 4)),
            element: 8,
            input: TransferMemory::zeroed(32),
            output: TransferMemory::zeroed(32),
            reduction: if rank == 0 { panics() } else { sums() },
        });
        keys.push(net.at(rank).collective(0, start).expect("room"));
    }
    net.run();
    let error = net.at(0).take_result(keys[0]).expect("an end").expect_err("a panic");
    assert!(error.to_string().contains("this operator does not like it"), "{error}");
    assert!(net.at(1).take_result(keys[1]).is_some(), "the other one has an end too");
}

#[test]
fn an_error_of_a_member_that_is_ahead_leaves_the_collectives_before_it_to_the_others() {
    for round in 0..50 {
        let mut net = Net::new(3, seed() + round);
        let outputs: Vec<TransferMemory> = (0..3).map(|rank| TransferMemory::of(vec![3 - rank; 8])).collect();
        let first: Vec<Key> = (0..3)
            .map(|rank| net.start(rank, broadcast(rank, 3, 1), &[], &outputs[rank as usize]))
            .collect();
        // Rank 0 has sent its part, and begins the next broadcast wrongly, while the others may not have received
        // anything of the first.
        let wrong = net.start(0, broadcast(0, 3, 2), &[], &TransferMemory::zeroed(8));
        net.run();
        assert!(matches!(
            net.at(0).take_result(wrong),
            Some(Err(Error::Schedule { .. }))
        ));
        for rank in 0..3 {
            let result = net.at(rank).take_result(first[rank as usize]).expect("an end");
            assert!(result.is_ok(), "rank {rank}, round {round}: {result:?}");
            assert_eq!(outputs[rank as usize].clone().into_bytes(), [3; 8]);
            let second = net.start(rank, broadcast(rank, 3, 1), &[], &outputs[rank as usize]);
            net.run();
            let error = net.at(rank).take_result(second).expect("an end").expect_err("broken");
            assert!(matches!(error, Error::CollectiveFailed { rank: 0, .. }), "{error}");
        }
    }
}

#[test]
fn a_schedule_that_reduces_is_refused_without_an_operator() {
    let mut net = Net::new(2, 0);
    let start = CollectiveStart::Given(CollectiveWork {
        schedule: Arc::new(allreduce(0, 2, 4)),
        element: 8,
        input: TransferMemory::zeroed(32),
        output: TransferMemory::zeroed(32),
        reduction: None,
    });
    let key = net.at(0).collective(0, start).expect("room");
    net.at(0).settle();
    let error = net.at(0).take_result(key).expect("an end").expect_err("no reduction");
    assert!(error.to_string().contains("no reduction was given"), "{error}");
}

#[test]
fn a_schedule_that_breaks_its_rules_is_refused_before_anything_is_sent() {
    let mut net = Net::new(2, 0);
    let output = TransferMemory::zeroed(8);
    let key = net.start(0, broadcast(0, 2, 2), &[], &output);
    net.at(0).settle();
    let error = net
        .at(0)
        .take_result(key)
        .expect("an end")
        .expect_err("beyond the output");
    assert!(matches!(error, Error::Schedule { .. }), "{error}");
}
