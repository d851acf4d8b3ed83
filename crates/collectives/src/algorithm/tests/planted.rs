//! Tests that the tests of schedules detect errors: schedules with a planted mistake.

use super::Case;
use super::cases::{Elements, base_seed, mixed, recipes};
use super::executor::World;
use crate::algorithm::{Blocks, Recipe};
use crate::collective::{Collective, CollectiveCall};
use crate::datatype::Datatype;
use crate::error::Error;
use crate::operation::Algorithm;
use crate::operator::Operator;
use crate::schedule::{Area, AreaSpan, Rank, Round, Schedule, Step};

fn run(schedules: &[Schedule], elements: usize) -> Result<(), String> {
    let inputs = vec![vec![1; elements]; schedules.len()];
    let mut outputs = vec![vec![2; elements]; schedules.len()];
    let world = World {
        schedules,
        inputs: &inputs,
        outputs: &mut outputs,
        element: 1,
        reduction: None,
    };
    world.run(base_seed(), None)
}

fn round(transfers: &[Step]) -> Round {
    Round {
        transfers: transfers.to_vec(),
        local: Vec::new(),
    }
}

const IN: AreaSpan = AreaSpan::first(Area::Input, 2);
const OUT: AreaSpan = AreaSpan::first(Area::Output, 2);

#[test]
fn a_deadlock_names_the_ranks_that_wait_for_each_other() {
    // Each rank receives before it sends, around a ring.
    let schedule = |rank: Rank| {
        let receive = round(&[Step::Receive {
            from: (rank + 2) % 3,
            into: OUT,
        }]);
        let send = round(&[Step::Send {
            to: (rank + 1) % 3,
            from: IN,
        }]);
        Schedule {
            scratch: 0,
            rounds: vec![receive, send],
        }
    };
    let why = run(&[schedule(0), schedule(1), schedule(2)], 2).expect_err("a deadlock");
    assert_eq!(
        why,
        "deadlock: rank 0 in round 0 waits for a message of rank 2; rank 1 in round 0 waits for a message of rank 0; \
         rank 2 in round 0 waits for a message of rank 1"
    );
}

#[test]
fn a_symmetric_exchange_is_no_deadlock() {
    let schedule = |rank: Rank| {
        let peer = 1 - rank;
        let both = round(&[
            Step::Send { to: peer, from: IN },
            Step::Receive { from: peer, into: OUT },
        ]);
        Schedule {
            scratch: 0,
            rounds: vec![both],
        }
    };
    for _ in 0..100 {
        run(&[schedule(0), schedule(1)], 2).expect("what a round sends and receives goes on at once");
    }
}

#[test]
fn a_message_that_no_rank_receives_or_of_another_length_is_noticed() {
    let send = |span| Schedule {
        scratch: 0,
        rounds: vec![round(&[Step::Send { to: 1, from: span }])],
    };
    let nothing = Schedule::default();
    let why = run(&[send(IN), nothing], 2).expect_err("no rank receives it");
    // If the message was copied at once, it is left over; otherwise its sender waits forever.
    assert!(why.contains("was not taken") || why.contains("1 takers"), "{why}");
    let receive = Schedule {
        scratch: 0,
        rounds: vec![round(&[Step::Receive { from: 0, into: OUT }])],
    };
    let why = run(&[send(AreaSpan { count: 1, ..IN }), receive], 2).expect_err("one element is sent, two are expected");
    assert_eq!(why, "rank 0 sends rank 1 1 bytes for output[0..2]");
}

#[test]
fn rules_of_schedules_are_checked() {
    let local = |step: Step| Round {
        transfers: Vec::new(),
        local: vec![step],
    };
    let scratch = |offset, count| AreaSpan {
        area: Area::Scratch,
        offset,
        count,
    };
    let broken = [
        (round(&[Step::Receive { from: 1, into: IN }]), "the input is written"),
        (
            round(&[Step::Send { to: 0, from: IN }]),
            "a message between it and rank 0",
        ),
        (
            round(&[Step::Send { to: 9, from: IN }]),
            "a message between it and rank 9",
        ),
        (
            round(&[Step::Send {
                to: 1,
                from: scratch(3, 2),
            }]),
            "of an area of 4 elements",
        ),
        (
            round(&[Step::Send {
                to: 1,
                from: scratch(usize::MAX, 2),
            }]),
            "of an area of 4 elements",
        ),
        (
            round(&[Step::Send {
                to: 1,
                from: scratch(0, 0),
            }]),
            "is empty",
        ),
        (
            round(&[
                Step::Send { to: 1, from: OUT },
                Step::Receive {
                    from: 1,
                    into: AreaSpan {
                        offset: 1,
                        count: 1,
                        ..OUT
                    },
                },
            ]),
            "is sent while",
        ),
        (
            round(&[
                Step::Receive { from: 1, into: OUT },
                Step::Receive { from: 2, into: OUT },
            ]),
            "received at once",
        ),
        (
            local(Step::Copy {
                from: scratch(0, 2),
                into: scratch(1, 2),
            }),
            "copied into itself",
        ),
        (
            local(Step::Copy {
                from: IN,
                into: scratch(0, 1),
            }),
            "is copied to",
        ),
        (
            local(Step::Reduce {
                left: IN,
                right: scratch(0, 2),
                into: scratch(1, 2),
            }),
            "overlap",
        ),
        (local(Step::Send { to: 1, from: IN }), "a transfer among the local work"),
        (
            round(&[Step::Publish {
                key: 0,
                from: IN,
                readers: 3,
            }]),
            "for 3 readers of 3 ranks",
        ),
        (Round::default(), "the round is empty"),
    ];
    for (round, expected) in broken {
        let schedule = Schedule {
            scratch: 4,
            rounds: vec![round],
        };
        let why = schedule.check(0, 3, 2, 2).expect_err(expected);
        assert!(
            why.contains(expected) && why.starts_with("round 0 of rank 0: "),
            "{why}"
        );
    }
}

#[test]
fn a_ring_is_refused_to_operators_that_do_not_commute_and_would_be_wrong() {
    let call = |commutes, rank| {
        let operator = Operator::in_order(commutes);
        CollectiveCall::new(Collective::Allreduce { count: 9, operator }, Datatype::U64, rank, 3)
    };
    let refused = Recipe::from(Algorithm::Ring)
        .build(&call(false, 0))
        .expect_err("it does not commute");
    assert!(matches!(refused, Error::UnsupportedAlgorithm { .. }), "{refused}");

    let calls: Vec<CollectiveCall> = (0..3).map(|rank| call(true, rank)).collect();
    let case = Case {
        calls,
        recipe: Algorithm::Ring.into(),
        elements: Elements::Maps,
    };
    let why = case
        .run_schedules(&case.schedules(), base_seed())
        .expect_err("another order");
    assert!(why.contains("and should be"), "{why}");
}

/// Makes one mistake in a step. Returns the wrong step, or `Some(None)` if the step is left out, or `None` if this
/// mistake is not possible in this step.
fn mistake(step: Step, which: u64) -> Option<Option<Step>> {
    let moved = |span: AreaSpan| AreaSpan {
        offset: span.offset + 1,
        ..span
    };
    let shorter = |span: AreaSpan| AreaSpan {
        count: span.count - 1,
        ..span
    };
    let wrong = match (which % 4, step) {
        (0, _) => None,
        (1, Step::Send { to, from }) => Some(Step::Send { to, from: moved(from) }),
        (1, Step::Receive { from, into }) => Some(Step::Receive {
            from,
            into: moved(into),
        }),
        (1, Step::Fetch { of, key, into }) => Some(Step::Fetch {
            of,
            key,
            into: moved(into),
        }),
        (1, Step::Copy { from, into }) => Some(Step::Copy {
            from: moved(from),
            into,
        }),
        (1, Step::Reduce { left, right, into }) => Some(Step::Reduce {
            left: right,
            right: left,
            into,
        }),
        (2, Step::Send { to, from }) => Some(Step::Send {
            to,
            from: shorter(from),
        }),
        (2, Step::Copy { from, into }) => Some(Step::Copy {
            from: shorter(from),
            into: shorter(into),
        }),
        (2, Step::Publish { key, from, readers }) => Some(Step::Publish {
            key,
            from,
            readers: readers + 1,
        }),
        (3, Step::Send { to, from }) => Some(Step::Send { to: to + 1, from }),
        (3, Step::Receive { from, into }) => Some(Step::Receive { from: from + 1, into }),
        (3, Step::Fetch { of, key, into }) => Some(Step::Fetch { of, key: key + 1, into }),
        _ => return None,
    };
    Some(wrong)
}

#[test]
fn any_mistake_in_any_schedule_is_noticed() {
    let blocks = Blocks::Equal(3);
    let collectives = [
        Collective::Broadcast { root: 1, count: 40 },
        Collective::Gather { root: 1, blocks },
        Collective::Gatherv {
            root: 1,
            mine: 3,
            blocks,
        },
        Collective::Scatter { root: 1, blocks },
        Collective::Scatterv {
            root: 1,
            mine: 3,
            blocks,
        },
        Collective::Allgather { blocks },
        Collective::Reduce {
            root: 1,
            count: 40,
            operator: &Operator::Sum,
        },
        Collective::Allreduce {
            count: 40,
            operator: &Operator::Sum,
        },
        Collective::ReduceScatter {
            blocks,
            operator: &Operator::Sum,
        },
        Collective::Scan {
            count: 40,
            operator: &Operator::Sum,
        },
        Collective::Exscan {
            count: 40,
            operator: &Operator::Sum,
        },
        Collective::Alltoall { count: 3 },
        Collective::Alltoallv {
            sent: blocks,
            received: blocks,
        },
    ];
    let mut planted = 0;
    for ranks in [4, 7] {
        for collective in collectives {
            for recipe in recipes(collective.operation())
                .into_iter()
                .filter(|recipe| !recipe.by_nodes)
            {
                let elements = Elements::Maps;
                let collective = collective.with_operator(elements.operator());
                let call = |rank| CollectiveCall::new(collective, elements.datatype(), rank, ranks);
                let case = Case {
                    calls: (0..ranks).map(call).collect(),
                    recipe,
                    elements,
                };
                if recipe.check(&case.calls[0]).is_err() {
                    continue;
                }
                let schedules = case.schedules();
                for number in 0..60 {
                    let random = mixed(base_seed() ^ mixed(planted + number));
                    let rank = random as usize % ranks as usize;
                    let rounds = schedules[rank].rounds.len();
                    if rounds == 0 {
                        continue;
                    }
                    let place = (random >> 8) as usize % rounds;
                    let mut wrong = schedules.clone();
                    let round = &mut wrong[rank].rounds[place];
                    let steps = if (random >> 16) & 1 == 0 {
                        &mut round.transfers
                    } else {
                        &mut round.local
                    };
                    if steps.is_empty() {
                        continue;
                    }
                    let step = (random >> 24) as usize % steps.len();
                    let before = steps[step];
                    match mistake(before, random >> 40) {
                        None => continue,
                        Some(None) => drop(steps.remove(step)),
                        Some(Some(other)) => steps[step] = other,
                    }
                    planted += 1;
                    assert!(
                        case.run_schedules(&wrong, random).is_err(),
                        "{case}: no rank notices a mistake in round {place} of rank {rank}, at {before:?}; HOTLEASE_SEED={}",
                        base_seed()
                    );
                }
            }
        }
    }
    assert!(planted > 1000, "{planted} mistakes only");
}
