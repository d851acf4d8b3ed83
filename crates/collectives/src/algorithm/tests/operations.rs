//! Tests of each operation, by each algorithm, for many numbers of ranks, roots, counts and positions.

use super::Case;
use super::cases::{COUNTS, Elements, base_seed, block_counts, mixed, nodes, places, ranks, recipes, roots, uneven};
use crate::algorithm::{Blocks, Recipe};
use crate::collective::{Collective, CollectiveCall};
use crate::datatype::Datatype;
use crate::operation::{Algorithm, Operation};
use crate::operator::Operator;
use crate::schedule::Rank;

/// Runs one collective by all recipes that can do it: in place at no rank, at all ranks, and at some ranks.
fn try_all<'a>(collective_of: &dyn Fn(Rank) -> Collective<'a>, ranks: Rank, elements: &[Elements]) -> usize {
    let maps = nodes(ranks);
    let mut tried = 0;
    for recipe in recipes(collective_of(0).operation()) {
        let maps: Vec<Option<&[u32]>> = if recipe.by_nodes {
            maps.iter().map(|map| Some(&map[..])).collect()
        } else {
            vec![None]
        };
        for nodes in maps {
            for &elements in elements {
                for in_place in [|_| false, |_| true, |rank: Rank| mixed(rank.into()).is_multiple_of(2)] {
                    let call = |rank| CollectiveCall {
                        in_place: in_place(rank),
                        nodes,
                        ..CollectiveCall::new(
                            collective_of(rank).with_operator(elements.operator()),
                            elements.datatype(),
                            rank,
                            ranks,
                        )
                    };
                    let calls: Vec<CollectiveCall> = (0..ranks).map(call).collect();
                    let serves: Vec<bool> = calls.iter().map(|call| recipe.check(call).is_ok()).collect();
                    assert!(
                        serves.windows(2).all(|pair| pair[0] == pair[1]),
                        "{recipe:?}: ranks do not agree"
                    );
                    if serves[0] {
                        tried += 1;
                        Case {
                            calls,
                            recipe,
                            elements,
                        }
                        .run(mixed(base_seed() ^ (tried as u64) << 32));
                    }
                }
            }
        }
    }
    tried
}

/// Tries all numbers of ranks and elements, and all roots if there are any.
fn try_counts(rooted: bool, elements: &[Elements], collective_of: fn(Rank, usize) -> Collective<'static>) {
    for ranks in ranks() {
        for root in if rooted { roots(ranks) } else { vec![0] } {
            for count in COUNTS {
                let tried = try_all(&|_| collective_of(root, count), ranks, elements);
                assert!(tried > 8, "{tried} cases only");
            }
        }
    }
}

/// Blocks, with their positions at each rank.
enum Shape {
    Equal(usize),
    Each {
        counts: Vec<usize>,
        displacements: Vec<Vec<usize>>,
    },
}

impl Shape {
    fn at(&self, rank: Rank) -> Blocks<'_> {
        match self {
            Shape::Equal(count) => Blocks::Equal(*count),
            Shape::Each { counts, displacements } => Blocks::Each {
                counts,
                displacements: &displacements[rank as usize],
            },
        }
    }

    fn count(&self, rank: Rank) -> usize {
        self.at(rank).count(rank as usize)
    }
}

/// Equal blocks; dense uneven blocks; uneven blocks in any order and with gaps, at different positions on each rank.
fn shapes(ranks: Rank, count: usize) -> [Shape; 3] {
    let (counts, dense) = uneven(ranks, count, 0);
    let elsewhere = (0..ranks).map(|rank| places(&counts, 1 + u64::from(rank))).collect();
    [
        Shape::Equal(count),
        Shape::Each {
            counts: counts.clone(),
            displacements: vec![dense; ranks as usize],
        },
        Shape::Each {
            counts,
            displacements: elsewhere,
        },
    ]
}

fn try_blocks(rooted: bool, collective_of: for<'a> fn(Rank, &'a Shape, Rank) -> Collective<'a>) {
    for ranks in ranks() {
        for root in if rooted { roots(ranks) } else { vec![0] } {
            for count in block_counts(ranks) {
                for shape in shapes(ranks, count) {
                    let tried = try_all(&|rank| collective_of(root, &shape, rank), ranks, &[Elements::Numbers]);
                    assert!(tried > 5, "{tried} cases only");
                }
            }
        }
    }
}

#[test]
fn no_rank_leaves_a_barrier_before_all_are_there() {
    for ranks in ranks() {
        try_all(&|_| Collective::Barrier, ranks, &[Elements::Numbers]);
        for recipe in recipes(Operation::Barrier) {
            for map in nodes(ranks) {
                let call = |rank| CollectiveCall {
                    nodes: Some(&map),
                    ..CollectiveCall::new(Collective::Barrier, Datatype::U64, rank, ranks)
                };
                let case = Case {
                    calls: (0..ranks).map(call).collect(),
                    recipe,
                    elements: Elements::Numbers,
                };
                for late in 0..ranks as usize {
                    case.run_late(late);
                }
            }
        }
    }
}

#[test]
fn a_broadcast_gives_everyone_what_the_root_has() {
    try_counts(true, &[Elements::Numbers], |root, count| Collective::Broadcast {
        root,
        count,
    });
}

#[test]
fn a_gather_puts_each_block_in_its_place() {
    try_blocks(true, |root, shape, rank| Collective::Gather {
        root,
        blocks: shape.at(rank),
    });
}

#[test]
fn a_gatherv_needs_the_counts_at_the_root_only() {
    try_blocks(true, |root, shape, rank| {
        let blocks = if rank == root {
            shape.at(rank)
        } else {
            Blocks::Equal(usize::MAX)
        };
        Collective::Gatherv {
            root,
            mine: shape.count(rank),
            blocks,
        }
    });
}

#[test]
fn a_scatter_gives_each_its_block() {
    // Blocks that are only read may overlap, but the blocks of this test do not.
    try_blocks(true, |root, shape, rank| Collective::Scatter {
        root,
        blocks: shape.at(rank),
    });
}

#[test]
fn a_scatterv_needs_the_counts_at_the_root_only() {
    try_blocks(true, |root, shape, rank| {
        let blocks = if rank == root {
            shape.at(rank)
        } else {
            Blocks::Equal(usize::MAX)
        };
        Collective::Scatterv {
            root,
            mine: shape.count(rank),
            blocks,
        }
    });
}

#[test]
fn an_allgather_puts_each_block_in_its_place_everywhere() {
    try_blocks(false, |_, shape, rank| Collective::Allgather { blocks: shape.at(rank) });
}

#[test]
fn a_reduction_keeps_rank_order_for_any_root() {
    try_counts(true, &Elements::REDUCED, |root, count| Collective::Reduce {
        root,
        count,
        operator: &Operator::Sum,
    });
}

#[test]
fn an_allreduce_keeps_rank_order() {
    try_counts(false, &Elements::REDUCED, |_, count| Collective::Allreduce {
        count,
        operator: &Operator::Sum,
    });
}

#[test]
fn an_allreduce_gives_everyone_the_same_bits() {
    for ranks in ranks() {
        for map in nodes(ranks) {
            for recipe in recipes(Operation::Allreduce) {
                let collective = Collective::Allreduce {
                    count: 37,
                    operator: &Operator::Sum,
                };
                let call = |rank| CollectiveCall {
                    in_place: rank % 3 == 1,
                    nodes: Some(&map),
                    ..CollectiveCall::new(collective, Datatype::U64, rank, ranks)
                };
                let calls = (0..ranks).map(call).collect();
                Case {
                    calls,
                    recipe,
                    elements: Elements::Floats,
                }
                .run_alike(mixed(base_seed() + u64::from(ranks)));
            }
        }
    }
}

#[test]
fn a_reduce_scatter_keeps_rank_order() {
    for ranks in ranks() {
        for count in block_counts(ranks) {
            // The blocks of a reduce-scatter must follow each other, so the third shape is left out.
            for shape in &shapes(ranks, count)[..2] {
                try_all(
                    &|rank| Collective::ReduceScatter {
                        blocks: shape.at(rank),
                        operator: &Operator::Sum,
                    },
                    ranks,
                    &Elements::REDUCED,
                );
            }
        }
    }
}

#[test]
fn scans_keep_rank_order() {
    try_counts(false, &Elements::REDUCED, |_, count| Collective::Scan {
        count,
        operator: &Operator::Sum,
    });
}

#[test]
fn exclusive_scans_keep_rank_order_and_leave_rank_0_alone() {
    try_counts(false, &Elements::REDUCED, |_, count| Collective::Exscan {
        count,
        operator: &Operator::Sum,
    });
}

#[test]
fn an_alltoall_exchanges_all_blocks() {
    for ranks in ranks() {
        for count in block_counts(ranks) {
            try_all(&|_| Collective::Alltoall { count }, ranks, &[Elements::Numbers]);
        }
    }
}

#[test]
fn an_alltoallv_exchanges_all_blocks_of_any_length() {
    for ranks in ranks() {
        for count in [0, 1, 7, 60] {
            // Length of the block from one rank to another; it depends on both ranks.
            let length = |from: Rank, to: Rank| {
                mixed(u64::from(from) * 100 + u64::from(to)) as usize % (count + 1)
                    * usize::from(!(from + to).is_multiple_of(5))
            };
            let alike = |from: Rank, to: Rank| length(from.min(to), from.max(to));
            for (length, in_place) in [(&length as &dyn Fn(Rank, Rank) -> usize, false), (&alike, true)] {
                let counts = |of: &dyn Fn(Rank) -> usize| (0..ranks).map(of).collect::<Vec<usize>>();
                let sent: Vec<_> = (0..ranks).map(|rank| counts(&|to| length(rank, to))).collect();
                let received: Vec<_> = (0..ranks).map(|rank| counts(&|from| length(from, rank))).collect();
                let sent_places: Vec<_> = sent.iter().map(|counts| places(counts, 2)).collect();
                let received_places: Vec<_> = received.iter().map(|counts| places(counts, 1)).collect();
                let call = |rank: Rank| {
                    let place = rank as usize;
                    let blocks = |counts, displacements| Blocks::Each { counts, displacements };
                    let collective = Collective::Alltoallv {
                        sent: blocks(&sent[place], &sent_places[place]),
                        received: blocks(&received[place], &received_places[place]),
                    };
                    CollectiveCall {
                        in_place,
                        ..CollectiveCall::new(collective, Datatype::U64, rank, ranks)
                    }
                };
                for recipe in recipes(Operation::Alltoallv) {
                    let calls = (0..ranks).map(call).collect();
                    Case {
                        calls,
                        recipe,
                        elements: Elements::Numbers,
                    }
                    .run(mixed(base_seed() ^ count as u64));
                }
            }
        }
    }
}

/// In an alltoallv each rank has only the sizes of its own blocks, so ranks may choose different algorithms. They still
/// exchange everything.
#[test]
fn linear_and_pairwise_exchanges_understand_each_other() {
    let blocks = Blocks::Equal(3);
    let call = |rank| {
        CollectiveCall::new(
            Collective::Alltoallv {
                sent: blocks,
                received: blocks,
            },
            Datatype::U64,
            rank,
            7,
        )
    };
    let case = Case {
        calls: (0..7).map(call).collect(),
        recipe: Algorithm::Linear.into(),
        elements: Elements::Numbers,
    };
    let algorithm = |rank: Rank| {
        if rank.is_multiple_of(3) {
            Algorithm::Linear
        } else {
            Algorithm::Pairwise
        }
    };
    let schedules: Vec<_> = case
        .calls
        .iter()
        .map(|call| {
            Recipe::from(algorithm(call.rank))
                .build(call)
                .expect("both are offered")
        })
        .collect();
    case.run_schedules(&schedules, base_seed())
        .expect("the messages are the same");
}

#[test]
fn more_than_a_hundred_ranks_do_what_few_do() {
    let ranks = 129;
    let (blocks, operator) = (Blocks::Equal(2), &Operator::Sum);
    for collective in [
        Collective::Broadcast { root: 100, count: 300 },
        Collective::Gather { root: 100, blocks },
        Collective::Scatter { root: 100, blocks },
        Collective::Allgather { blocks },
        Collective::Reduce {
            root: 100,
            count: 300,
            operator,
        },
        Collective::Allreduce { count: 300, operator },
        Collective::ReduceScatter { blocks, operator },
        Collective::Scan { count: 3, operator },
        Collective::Exscan { count: 3, operator },
        Collective::Alltoall { count: 1 },
    ] {
        for recipe in recipes(collective.operation())
            .into_iter()
            .filter(|recipe| !recipe.by_nodes)
        {
            let elements = if recipe.algorithm == Algorithm::Ring {
                Elements::Numbers
            } else {
                Elements::Maps
            };
            let collective = collective.with_operator(elements.operator());
            let call = |rank| CollectiveCall::new(collective, elements.datatype(), rank, ranks);
            Case {
                calls: (0..ranks).map(call).collect(),
                recipe,
                elements,
            }
            .run(base_seed());
        }
    }
}

#[test]
fn parts_of_a_schedule_make_up_the_whole() {
    let (counts, displacements) = uneven(9, 4, 5);
    let dense = places(&counts, 0);
    let blocks = Blocks::Each {
        counts: &counts,
        displacements: &displacements,
    };
    for (operation, _) in Operation::NAMES {
        let collective = match operation {
            Operation::Barrier => Collective::Barrier,
            Operation::Broadcast => Collective::Broadcast { root: 4, count: 50 },
            Operation::Gather => Collective::Gather { root: 4, blocks },
            Operation::Scatter => Collective::Scatter { root: 4, blocks },
            Operation::Allgather => Collective::Allgather { blocks },
            Operation::Reduce => Collective::Reduce {
                root: 4,
                count: 50,
                operator: &Operator::Sum,
            },
            Operation::Allreduce => Collective::Allreduce {
                count: 50,
                operator: &Operator::Sum,
            },
            Operation::ReduceScatter => Collective::ReduceScatter {
                blocks: Blocks::Each {
                    counts: &counts,
                    displacements: &dense,
                },
                operator: &Operator::Sum,
            },
            Operation::Scan => Collective::Scan {
                count: 50,
                operator: &Operator::Sum,
            },
            Operation::Exscan => Collective::Exscan {
                count: 50,
                operator: &Operator::Sum,
            },
            Operation::Alltoall => Collective::Alltoall { count: 3 },
            // These operations have no builders of their own.
            Operation::Gatherv | Operation::Scatterv | Operation::Alltoallv => continue,
        };
        let map = &nodes(9)[1];
        for recipe in recipes(operation) {
            for rank in 0..9 {
                let call = CollectiveCall {
                    nodes: Some(map),
                    ..CollectiveCall::new(collective, Datatype::U64, rank, 9)
                };
                let whole = recipe.build(&call).expect("it is offered");
                for length in [1, 2, 5] {
                    let (mut rounds, mut begin, mut more) = (Vec::new(), 0, true);
                    while more {
                        let part = recipe.build_part(&call, begin..begin + length).expect("it is offered");
                        assert!(
                            part.schedule.rounds.len() <= length,
                            "{recipe:?}: more than was asked for"
                        );
                        assert_eq!(part.schedule.scratch, whole.scratch, "{recipe:?}: other scratch memory");
                        rounds.extend(part.schedule.rounds);
                        (begin, more) = (begin + length, part.has_more);
                    }
                    assert_eq!(
                        rounds, whole.rounds,
                        "{operation} by {recipe:?}, {length} rounds at a time"
                    );
                }
            }
        }
    }
}
