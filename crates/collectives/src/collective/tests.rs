use super::*;
use crate::algorithm::Recipe;
use crate::operation::Algorithm;

fn each<'a>(counts: &'a [usize], displacements: &'a [usize]) -> Blocks<'a> {
    Blocks::Each { counts, displacements }
}

#[test]
fn arguments_that_contradict_each_other_are_refused_in_words() {
    let root = 0;
    const FAR: usize = usize::MAX - 1;
    let three = each(&[1, 2, 3], &[0, 1, 3]);
    let overlapping = each(&[1, 2, 3], &[0, 1, 2]);
    let cases = [
        (
            Collective::Reduce {
                root: 3,
                count: 1,
                operator: &Operator::Sum,
            },
            "the root is rank 3, but there are 3 ranks",
        ),
        (
            Collective::Allreduce {
                count: usize::MAX,
                operator: &Operator::Sum,
            },
            "more than any memory has",
        ),
        (
            Collective::Alltoall { count: usize::MAX / 2 },
            "more than any memory has",
        ),
        (
            Collective::Allgather {
                blocks: each(&[1, 2], &[0, 1]),
            },
            "2 counts and 2 displacements are given for 3 ranks",
        ),
        (
            Collective::Allgather {
                blocks: each(&[1, FAR, FAR], &[0, 1, 2]),
            },
            "more than any memory has",
        ),
        (
            Collective::Allgather {
                blocks: each(&[1, 2, 3], &[0, FAR, 1]),
            },
            "the block of rank 1 begins at",
        ),
        (
            Collective::Allgather { blocks: overlapping },
            "the blocks of ranks 1 and 2 overlap in the output",
        ),
        (
            Collective::Gather {
                root,
                blocks: overlapping,
            },
            "the blocks of ranks 1 and 2 overlap in the output",
        ),
        (
            Collective::Gatherv {
                root,
                mine: 2,
                blocks: three,
            },
            "its own block has 2 elements, but 1 in the list of all blocks",
        ),
        (
            Collective::Scatterv {
                root,
                mine: 0,
                blocks: three,
            },
            "its own block has 0 elements, but 1 in the list of all blocks",
        ),
        (
            Collective::ReduceScatter {
                blocks: each(&[1, 2, 3], &[0, 1, 4]),
                operator: &Operator::Sum,
            },
            "the block of rank 2 does not follow the one before it",
        ),
        (
            Collective::Alltoallv {
                sent: three,
                received: each(&[2, 0, 0], &[0, 0, 0]),
            },
            "it sends itself 1 elements and expects 2",
        ),
    ];
    for (collective, expected) in cases {
        let call = CollectiveCall::new(collective, Datatype::U64, 0, 3);
        let refused = call.check().expect_err(expected);
        assert!(refused.to_string().contains(expected), "{refused}");
        let operation = collective.operation();
        assert!(
            refused.to_string().starts_with(&format!("{operation} at rank 0: ")),
            "{refused}"
        );
        let recipe = Recipe::from(operation.algorithms()[0]);
        assert_eq!(recipe.build(&call), Err(refused), "nothing is built of it");
    }
    let no_such = CollectiveCall::new(Collective::Barrier, Datatype::U64, 3, 3)
        .check()
        .expect_err("ranks are 0 to 2");
    assert!(no_such.to_string().contains("has no such rank"), "{no_such}");
    let nodes = CollectiveCall {
        nodes: Some(&[0, 0]),
        ..CollectiveCall::new(Collective::Barrier, Datatype::U64, 0, 3)
    };
    assert!(
        nodes
            .check()
            .expect_err("two nodes for three")
            .to_string()
            .contains("of 2 ranks are given, but there are 3 ranks")
    );
}

#[test]
fn blocks_that_only_the_root_uses_are_not_checked_elsewhere() {
    let unknown = Blocks::Equal(usize::MAX);
    let nonsense = each(&[7], &[]);
    for collective in [
        Collective::Gatherv {
            root: 0,
            mine: 5,
            blocks: unknown,
        },
        Collective::Scatterv {
            root: 0,
            mine: 5,
            blocks: nonsense,
        },
        // Source blocks may overlap, and the positions at other ranks are not checked.
        Collective::Scatter {
            root: 1,
            blocks: each(&[2, 2, 2], &[0, 1, 1]),
        },
        Collective::Gather {
            root: 0,
            blocks: each(&[2, 2, 2], &[0, 0, 0]),
        },
    ] {
        let call = CollectiveCall::new(collective, Datatype::U64, 1, 3);
        call.check().unwrap_or_else(|error| panic!("{error}"));
        Recipe::from(Algorithm::Linear)
            .build(&call)
            .unwrap_or_else(|error| panic!("{error}"));
    }
    // The position of an empty block has no meaning.
    let empty = each(&[0, 3, 0], &[usize::MAX, 0, 1]);
    let call = CollectiveCall::new(Collective::Allgather { blocks: empty }, Datatype::U64, 0, 3);
    call.check().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(call.output(), 3);
}

#[test]
fn buffers_are_as_long_as_the_schedule_needs() {
    let blocks = each(&[1, 0, 4], &[6, 0, 1]);
    let long = |collective, rank, in_place| {
        let call = CollectiveCall {
            in_place,
            ..CollectiveCall::new(collective, Datatype::U64, rank, 3)
        };
        (call.input(), call.output())
    };
    assert_eq!(long(Collective::Broadcast { root: 1, count: 9 }, 1, false), (9, 0));
    assert_eq!(long(Collective::Broadcast { root: 1, count: 9 }, 0, false), (0, 9));
    assert_eq!(long(Collective::Gather { root: 2, blocks }, 2, false), (4, 7));
    assert_eq!(long(Collective::Gather { root: 2, blocks }, 2, true), (0, 7));
    assert_eq!(
        long(Collective::Gather { root: 2, blocks }, 0, true),
        (1, 0),
        "in place counts at the root"
    );
    assert_eq!(long(Collective::Scatter { root: 2, blocks }, 2, true), (7, 0));
    assert_eq!(long(Collective::Allgather { blocks }, 2, true), (0, 7));
    assert_eq!(
        long(
            Collective::Reduce {
                root: 0,
                count: 5,
                operator: &Operator::Sum
            },
            1,
            true
        ),
        (5, 0)
    );
    assert_eq!(
        long(
            Collective::ReduceScatter {
                blocks: Blocks::Equal(2),
                operator: &Operator::Sum
            },
            1,
            false
        ),
        (6, 2)
    );
    assert_eq!(
        long(
            Collective::ReduceScatter {
                blocks: Blocks::Equal(2),
                operator: &Operator::Sum
            },
            1,
            true
        ),
        (0, 6)
    );
    assert_eq!(long(Collective::Alltoall { count: 2 }, 1, false), (6, 6));
}
