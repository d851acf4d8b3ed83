//! Maximum steps of each algorithm, and maximum elements that a rank sends, as published.
//!
//! A step is a message of one rank to another: no rank sends or receives two messages at a time. Each bound is also
//! reached.

use super::cases::{nodes, ranks, recipes};
use crate::algorithm::Recipe;
use crate::collective::{Collective, CollectiveCall};
use crate::cost::{Costs, LinkCost, SimulationResult, StoreCost, simulate};
use crate::datatype::Datatype;
use crate::model::collective_of_size;
use crate::operation::{Algorithm, Operation};
use crate::operator::Operator;
use crate::schedule::{Rank, Step};

const BLOCK: usize = 64;

const OPERATIONS: [Operation; 11] = [
    Operation::Barrier,
    Operation::Broadcast,
    Operation::Gather,
    Operation::Scatter,
    Operation::Allgather,
    Operation::Reduce,
    Operation::Allreduce,
    Operation::ReduceScatter,
    Operation::Scan,
    Operation::Exscan,
    Operation::Alltoall,
];

/// Makes a collective with a block of 64 elements for each rank. A collective without blocks has the same total number
/// of elements, so that all shares are equal.
fn collective(operation: Operation, ranks: Rank, root: Rank) -> Collective<'static> {
    collective_of_size(operation, root, ranks, BLOCK * ranks as usize)
}

/// Measures the steps of an algorithm, or the waits for the store if the algorithm uses objects.
fn measure(operation: Operation, recipe: Recipe, ranks: Rank, root: Rank, commutes: bool) -> SimulationResult {
    let link = LinkCost {
        latency_s: 1.0,
        message_s: 1.0,
        byte_s: 0.0,
    };
    let store = StoreCost {
        write_s: 1.0,
        read_s: 0.0,
        byte_s: 0.0,
        ..StoreCost::default()
    };
    let costs = Costs {
        link: &|_, _| link,
        store,
        reduce_byte_s: 0.0,
        copy_byte_s: 0.0,
    };
    let collective = collective(operation, ranks, root).with_operator(Operator::in_order(commutes));
    simulate(ranks, 1, &costs, |rank, rounds| {
        recipe.build_part(&CollectiveCall::new(collective, Datatype::U8, rank, ranks), rounds)
    })
    .unwrap_or_else(|error| panic!("{operation} by {recipe:?}, {ranks} ranks: {error}"))
}

/// Maximum steps, and maximum elements that one rank sends.
fn bound(operation: Operation, algorithm: Algorithm, ranks: Rank, ordered_elsewhere: bool) -> (usize, usize) {
    use Algorithm::*;
    use Operation::*;
    let p = ranks as usize;
    let (n, b) = (BLOCK * p, BLOCK);
    let log = p.next_power_of_two().ilog2() as usize;
    // The ranks beyond a power of two hand in their part first, and get the result last.
    let (active, folded) = (1 << p.ilog2(), usize::from(!p.is_power_of_two()));
    let log_active = p.ilog2() as usize;
    let all_but_one = (p - 1) * b;
    let halved = n - n / active;
    // A rank that stands in for its neighbour has two blocks. These ranks are adjacent, so a group may consist of them.
    let doubled: usize = (0..log_active)
        .map(|step| (1 << step) + (p - active).min(1 << step))
        .sum();
    // An exclusive scan is a scan of all ranks except the last, and one step more.
    let log_but_one = (p - 1).next_power_of_two().ilog2() as usize;
    match (operation, algorithm) {
        (Barrier, Dissemination) => (log, log),
        (Barrier, Binomial) => (2 * log, log.max(2)),
        (Barrier, Linear) => (2 * (p - 1), p - 1),
        (Broadcast, Binomial) => (log, log * n),
        (Broadcast, Linear) => (p - 1, (p - 1) * n),
        (Broadcast, ScatterAllgather) => (log + p - 1, 2 * all_but_one),
        (Broadcast, Chain) => (p - 1, n),
        (Gather, Binomial) => (log, p.next_power_of_two() / 2 * b),
        (Gather, Linear) => (p - 1, b),
        (Scatter, Binomial | Linear) => (if algorithm == Linear { p - 1 } else { log }, all_but_one),
        (Allgather, Bruck) => (log, all_but_one),
        (Allgather, Ring | Linear) => (p - 1, all_but_one),
        (Allgather, RecursiveDoubling) => (log_active + 2 * folded, doubled * b + folded * n),
        (Allgather, GatherBroadcast) => (2 * log, log * n),
        (Reduce, Binomial) => (log + usize::from(ordered_elsewhere), n),
        (Reduce, Linear) => (p - 1, n),
        (Reduce, Rabenseifner) => (2 * log_active + folded, halved + n / 2),
        (Allreduce, RecursiveDoubling) => (log_active + 2 * folded, (log_active + folded) * n),
        (Allreduce, Rabenseifner) => (2 * log_active + 2 * folded, 2 * halved + folded * n),
        (Allreduce, Ring) => (2 * (p - 1), 2 * all_but_one),
        (Allreduce, ReduceBroadcast) => (2 * log, log * n),
        (Allreduce, Linear) => (2 * (p - 1), (p - 1) * n),
        (ReduceScatter, RecursiveHalving) => (log_active + 2 * folded, halved.max(folded * n) + folded * b),
        (ReduceScatter, Pairwise | Ring) => (p - 1, all_but_one),
        (Scan | Exscan, RecursiveDoubling) => (log, log * n),
        (Scan, TwoPhase) => ((2 * log).saturating_sub(1), log * n),
        (Exscan, TwoPhase) => ((2 * log_but_one).max(1), (log_but_one + 1) * n),
        (Scan | Exscan, Linear) => (p - 1, n),
        (Alltoall, Pairwise | Linear) => (p - 1, all_but_one),
        (Alltoall, Bruck) => (log, log * (p / 2) * b),
        _ => panic!("there is no bound for {operation} by {algorithm}"),
    }
}

#[test]
fn algorithms_take_no_more_steps_and_elements_than_published() {
    for operation in OPERATIONS {
        for &algorithm in operation
            .algorithms()
            .iter()
            .filter(|algorithm| !algorithm.is_mediated())
        {
            let (mut steps_reached, mut sent_reached) = (false, false);
            for ranks in ranks().filter(|ranks| *ranks > 1) {
                for (root, commutes) in [(0, true), (ranks - 1, true), (0, false), (ranks / 2, false)] {
                    let recipe = Recipe::from(algorithm);
                    if !commutes && algorithm == Algorithm::Ring && operation.is_reduction() {
                        continue;
                    }
                    let outcome = measure(operation, recipe, ranks, root, commutes);
                    let (steps, sent) = bound(operation, algorithm, ranks, !commutes && root > 0);
                    let measured = (outcome.seconds as usize, outcome.bytes_of_one_max as usize);
                    let what = format!("{operation} by {algorithm}, {ranks} ranks, root {root}");
                    assert!(measured.0 <= steps, "{what}: {} steps, at most {steps}", measured.0);
                    assert!(
                        measured.1 <= sent,
                        "{what}: a rank sends {} elements, at most {sent}",
                        measured.1
                    );
                    steps_reached |= measured.0 == steps;
                    sent_reached |= measured.1 == sent;
                }
            }
            assert!(
                steps_reached,
                "{operation} by {algorithm} never takes as many steps as its bound"
            );
            assert!(
                sent_reached,
                "{operation} by {algorithm} never sends as many elements as its bound"
            );
        }
    }
}

#[test]
fn a_chain_takes_one_step_for_each_segment_and_for_each_rank_between() {
    for (ranks, segment) in [(2, 16), (5, 16), (9, 7), (33, 100)] {
        let recipe = Recipe {
            segment,
            ..Algorithm::Chain.into()
        };
        let outcome = measure(Operation::Broadcast, recipe, ranks, 1, true);
        let segments = (BLOCK * ranks as usize).div_ceil(segment);
        assert_eq!(
            outcome.seconds as usize,
            ranks as usize - 2 + segments,
            "{ranks} ranks, {segments} segments"
        );
    }
}

/// Expected waits for the store, objects written, and objects read; a store charges for the requests.
fn requests(operation: Operation, algorithm: Algorithm, p: u64) -> (u64, u64, u64) {
    use Algorithm::*;
    use Operation::*;
    let log = u64::from(p.next_power_of_two().ilog2());
    let doubling: u64 = (0..log).map(|step| p - (1 << step)).sum();
    match (operation, algorithm) {
        (Barrier | Allgather | Allreduce, Objects) => (1, p, p * (p - 1)),
        (Barrier | Allgather | Allreduce, ObjectsRoot) => (2, p, 2 * (p - 1)),
        (Barrier, ObjectsDoubling) => (log, p * log, p * log),
        (Broadcast, Objects) => (1, 1, p - 1),
        (Gather | Gatherv | Scatter | Scatterv | Reduce, Objects) => (1, p - 1, p - 1),
        (Allreduce, ObjectsScattered) => (2, p * p, 2 * p * (p - 1)),
        (ReduceScatter | Alltoall | Alltoallv, Objects) => (1, p * (p - 1), p * (p - 1)),
        (Scan | Exscan, Objects) => (1, p - 1, p * (p - 1) / 2),
        (Scan | Exscan, ObjectsDoubling) => (log, doubling, doubling),
        _ => panic!("no numbers are given for {operation} by {algorithm}"),
    }
}

#[test]
fn stores_get_exactly_the_expected_requests() {
    for (operation, _) in Operation::NAMES {
        for &algorithm in operation
            .algorithms()
            .iter()
            .filter(|algorithm| algorithm.is_mediated())
        {
            for ranks in ranks().filter(|ranks| *ranks > 1) {
                let outcome = measure(operation, algorithm.into(), ranks, ranks / 2, false);
                let measured = (outcome.seconds as u64, outcome.writes, outcome.reads);
                let expected = requests(operation, algorithm, ranks.into());
                assert_eq!(
                    measured, expected,
                    "{operation} by {algorithm}, {ranks} ranks: (waits, writes, reads)"
                );
            }
        }
    }
}

#[test]
fn between_nodes_only_their_leaders_speak() {
    for ranks in ranks() {
        for map in nodes(ranks) {
            for operation in OPERATIONS.into_iter().filter(|operation| operation.has_levels()) {
                let root = ranks / 2;
                let collective = collective(operation, ranks, root);
                for recipe in recipes(operation).into_iter().filter(|recipe| recipe.by_nodes) {
                    let mut speakers = vec![None; 100];
                    for rank in 0..ranks {
                        let call = CollectiveCall {
                            nodes: Some(&map),
                            ..CollectiveCall::new(collective, Datatype::U64, rank, ranks)
                        };
                        let schedule = recipe.build(&call).expect("it commutes");
                        for step in schedule.rounds.iter().flat_map(|round| &round.transfers) {
                            let (Step::Send { to: peer, .. } | Step::Receive { from: peer, .. }) = *step else {
                                panic!("{step:?} is for stores");
                            };
                            let node = map[rank as usize];
                            if map[peer as usize] != node {
                                let speaker = *speakers[node as usize].get_or_insert(rank);
                                assert_eq!(
                                    speaker, rank,
                                    "{operation} by {recipe:?}: two ranks of node {node} speak"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
