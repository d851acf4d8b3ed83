//! Tests of every operation, by every algorithm for stores, for several numbers of ranks and sizes, against the plain
//! reference.

use crate::redis::Redis;
use crate::{each, reference};
use hotlease_comm::{Blocks, Collective, CollectiveCall, Communicator, Datatype, LinkChoice, LinkKind, Question, Rank};
use std::sync::Arc;

/// Counts of elements of 8 bytes.
const COUNTS: [usize; 3] = [0, 1, 1001];
/// Counts with bodies too large to be stored together with their heads.
const LARGE: [usize; 2] = [20_000, 131_073];

/// Runs a collective by each algorithm; returns the number of algorithms.
fn run(all: &Communicator, collective: &Collective, kind: LinkKind) -> usize {
    let call = CollectiveCall::new(*collective, Datatype::U64, all.rank(), all.size());
    // Each rank's call has the length of its own block.
    let of_rank = |rank: Rank| match *collective {
        Collective::Gatherv { root, blocks, .. } => Collective::Gatherv {
            root,
            mine: blocks.count(rank as usize),
            blocks,
        },
        other => other,
    };
    let calls = (0..all.size()).map(|rank| CollectiveCall {
        rank,
        collective: of_rank(rank),
        ..call
    });
    let inputs: Vec<_> = calls.map(|call| reference::input(call.rank, call.input())).collect();
    let me = all.rank() as usize;
    let given: Vec<u8> = inputs[me].iter().flat_map(|number| number.to_ne_bytes()).collect();
    let before: Vec<u64> = (0..call.output() as u64).map(|place| !place).collect();
    let expected = reference::output(collective, me, &inputs, &before);
    let recipes = Question::new(&call, kind).candidates();
    for recipe in &recipes {
        let schedule = Arc::new(recipe.build(&call).expect("it serves"));
        let mut output: Vec<u8> = before.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let operator = collective.operator();
        let reduction = operator.map(|operator| operator.of(Datatype::U64).expect("there is such a reduction"));
        all.run(schedule, 8, &given, &mut output, reduction)
            .expect("all are well");
        let words = output.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let is_right = words.eq(expected.iter().copied());
        assert!(
            is_right,
            "{collective:?} by {} at rank {me} of {}",
            recipe.algorithm,
            all.size()
        );
    }
    recipes.len()
}

fn all_operations(all: &Communicator, kind: LinkKind, counts: &[usize]) -> usize {
    let ranks = all.size() as usize;
    let mut tried = run(all, &Collective::Barrier, kind);
    for &count in counts {
        let root = (count % ranks) as Rank;
        let each = Blocks::Equal(count.min(5000));
        let lengths: Vec<usize> = (0..ranks).map(|rank| (rank * 7 + count) % 13).collect();
        let starts = lengths
            .iter()
            .scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length)));
        let starts: Vec<usize> = starts.collect();
        let uneven = Blocks::Each {
            counts: &lengths,
            displacements: &starts,
        };
        let mine = lengths[all.rank() as usize];
        let from_each = vec![mine; ranks];
        let from_starts: Vec<usize> = (0..ranks).map(|rank| rank * mine).collect();
        let received = Blocks::Each {
            counts: &from_each,
            displacements: &from_starts,
        };
        let plain = [
            Collective::Broadcast { root, count },
            Collective::Gather { root, blocks: each },
            Collective::Scatter { root, blocks: each },
            Collective::Allgather { blocks: each },
            Collective::Alltoall { count: count.min(2000) },
            Collective::Gatherv {
                root,
                mine,
                blocks: uneven,
            },
            Collective::Scatterv {
                root,
                mine,
                blocks: uneven,
            },
            Collective::Allgather { blocks: uneven },
            Collective::Alltoallv { sent: uneven, received },
        ];
        tried += plain.iter().map(|collective| run(all, collective, kind)).sum::<usize>();
        for operator in &reference::operators() {
            let sums = [
                Collective::Reduce { root, count, operator },
                Collective::Allreduce { count, operator },
                Collective::ReduceScatter { blocks: each, operator },
                Collective::ReduceScatter {
                    blocks: uneven,
                    operator,
                },
                Collective::Scan { count, operator },
                Collective::Exscan { count, operator },
            ];
            tried += sums.iter().map(|collective| run(all, collective, kind)).sum::<usize>();
        }
    }
    tried
}

pub fn hold(link: &LinkChoice, kind: LinkKind, ranks: impl IntoIterator<Item = Rank>, counts: &[usize]) {
    for size in ranks {
        let tried = each(size, link, |all| all_operations(all, kind, counts));
        assert!(tried[0] > 20 * counts.len(), "{tried:?}");
    }
}

#[test]
fn every_operation_over_redis_is_as_the_reference_says_and_leaves_nothing() {
    let Some(redis) = Redis::start() else { return };
    hold(&redis.link(), LinkKind::Redis, 1..=9, &COUNTS);
    hold(&redis.link(), LinkKind::Redis, [2, 5], &LARGE);
    assert_eq!(redis.keys(), 0);
}
