use super::*;
use crate::algorithm::{Blocks, Recipe, SchedulePart};
use crate::collective::{Collective, CollectiveCall};
use crate::datatype::Datatype;
use crate::operation::Algorithm;
use crate::operator::Operator;
use crate::schedule::{Area, AreaSpan, Schedule};

const ALPHA: f64 = 10e-6;
const BETA: f64 = 1e-9;
const GAMMA: f64 = 0.25e-9;

fn costs<'a>(link: &'a dyn Fn(Rank, Rank) -> LinkCost) -> Costs<'a> {
    let store = StoreCost {
        write_s: 20e-3,
        read_s: 10e-3,
        byte_s: 5e-9,
        ..StoreCost::default()
    };
    Costs {
        link,
        store,
        reduce_byte_s: GAMMA,
        copy_byte_s: 0.0,
    }
}

fn seconds(ranks: Rank, collective: Collective, recipe: Recipe) -> f64 {
    let link = |_, _| LinkCost {
        latency_s: ALPHA,
        message_s: ALPHA,
        byte_s: BETA,
    };
    simulate(ranks, 8, &costs(&link), |rank, rounds| {
        recipe.build_part(&CollectiveCall::new(collective, Datatype::U64, rank, ranks), rounds)
    })
    .expect("it ends")
    .seconds
}

fn close(measured: f64, expected: f64, what: &str) {
    assert!(
        (measured / expected - 1.0).abs() < 1e-6,
        "{what}: {measured} s, by the formula {expected} s"
    );
}

/// Formulas of Thakur, Rabenseifner and Gropp, for 64 ranks and 64 KiB.
#[test]
fn collectives_take_what_formulas_say() {
    let (count, bytes, p) = (8192, 65536.0, 64.0);
    let share = (p - 1.0) / p * bytes;
    let allreduce = Collective::Allreduce {
        count,
        operator: &Operator::Sum,
    };
    let time = |collective, algorithm: Algorithm| seconds(64, collective, algorithm.into());
    close(
        time(allreduce, Algorithm::RecursiveDoubling),
        6.0 * (ALPHA + bytes * BETA + bytes * GAMMA),
        "allreduce by recursive doubling",
    );
    close(
        time(allreduce, Algorithm::Rabenseifner),
        12.0 * ALPHA + 2.0 * share * BETA + share * GAMMA,
        "allreduce by Rabenseifner's algorithm",
    );
    close(
        time(allreduce, Algorithm::Ring),
        126.0 * ALPHA + 2.0 * share * BETA + share * GAMMA,
        "allreduce around a ring",
    );
    let allgather = Collective::Allgather {
        blocks: Blocks::Equal(128),
    };
    close(
        time(allgather, Algorithm::Bruck),
        6.0 * ALPHA + share * BETA,
        "allgather by Bruck's algorithm",
    );
    close(
        time(allgather, Algorithm::Ring),
        63.0 * ALPHA + share * BETA,
        "allgather around a ring",
    );
    let chain = Recipe {
        segment: 1024,
        ..Algorithm::Chain.into()
    };
    close(
        seconds(64, Collective::Broadcast { root: 5, count }, chain),
        (62.0 + 8.0) * (ALPHA + bytes / 8.0 * BETA),
        "broadcast along a chain in 8 segments",
    );
}

#[test]
fn a_store_is_waited_for_once_and_its_bytes_pass_one_port() {
    let bytes = 1000.0 * 8.0 * 5e-9;
    close(
        seconds(
            10,
            Collective::Broadcast { root: 0, count: 1000 },
            Algorithm::Objects.into(),
        ),
        bytes + 20e-3 + 10e-3 + bytes,
        "broadcast of one object",
    );
    close(
        seconds(
            10,
            Collective::Gather {
                root: 0,
                blocks: Blocks::Equal(1000),
            },
            Algorithm::Objects.into(),
        ),
        bytes + 20e-3 + 10e-3 + 9.0 * bytes,
        "gather of 9 objects",
    );
}

#[test]
fn a_store_of_one_server_carries_all_bytes_and_readers_ask_again() {
    let link = |_, _| panic!("nothing is sent");
    let run = |store| {
        let costs = Costs { store, ..costs(&link) };
        simulate(10, 8, &costs, |rank, rounds| {
            let call = CollectiveCall::new(Collective::Broadcast { root: 0, count: 1000 }, Datatype::U64, rank, 10);
            Recipe::from(Algorithm::Objects).build_part(&call, rounds)
        })
        .expect("it ends")
    };
    let store = StoreCost {
        write_s: 20e-3,
        read_s: 10e-3,
        ..StoreCost::default()
    };
    let alone = run(store);
    close(alone.seconds, 30e-3, "one write, and reads at once");
    assert_eq!((alone.reads, alone.bytes_read, alone.polls), (9, 72_000, 0));
    let shared = run(StoreCost {
        shared_write_byte_s: 1e-6,
        shared_read_byte_s: 1e-6,
        ..store
    });
    close(shared.seconds, 30e-3 + 72e-3, "nine reads through one port");
    let slow = run(StoreCost {
        shared_write_s: 1.0,
        shared_read_s: 0.5,
        ..store
    });
    close(slow.seconds, 30e-3 + 4.5, "two reads a second");
    // Reads at 0, 11 and 23 ms; the object exists from 20 ms on.
    let polled = run(StoreCost {
        poll_first_s: 1e-3,
        poll_most_s: 4e-3,
        ..store
    });
    close(polled.seconds, 23e-3 + 10e-3, "the object is there at the third read");
    assert_eq!(polled.polls, 9 * 2);
}

#[test]
fn readers_sleep_twice_as_long_each_time_up_to_a_bound() {
    let store = StoreCost {
        read_s: 1.0,
        poll_first_s: 1.0,
        poll_most_s: 4.0,
        ..StoreCost::default()
    };
    // Reads at 0, 2, 5, 10, 15, 20...
    for (wait, polls, at) in [
        (0.0, 0, 0.0),
        (0.1, 1, 2.0),
        (2.5, 2, 5.0),
        (5.5, 3, 10.0),
        (18.0, 5, 20.0),
    ] {
        assert_eq!(store.polls(wait), (polls, at), "after {wait} s");
    }
    assert_eq!(store.polls(-3.0), (0, 0.0), "it is there");
    assert!(
        store.polls(1e12).0 > 1e11 as u64,
        "the count is computed, not looped to"
    );
}

#[test]
fn links_differ() {
    // There are two nodes. A message between nodes takes a thousand times as long as a message inside a node.
    let nodes = [0, 0, 0, 0, 1, 1, 1, 1];
    let link = |from: Rank, to: Rank| {
        let far = nodes[from as usize] != nodes[to as usize];
        LinkCost {
            latency_s: if far { 1e-3 } else { 1e-6 },
            message_s: 0.0,
            byte_s: 0.0,
        }
    };
    let time = |recipe: Recipe| {
        simulate(8, 8, &costs(&link), |rank, rounds| {
            let call = CollectiveCall {
                nodes: Some(&nodes),
                ..CollectiveCall::new(Collective::Barrier, Datatype::U64, rank, 8)
            };
            recipe.build_part(&call, rounds)
        })
        .expect("it ends")
        .seconds
    };
    close(
        time(Recipe {
            by_nodes: true,
            ..Algorithm::Dissemination.into()
        }),
        1e-3 + 4e-6,
        "a barrier between nodes",
    );
    assert!(
        time(Algorithm::Dissemination.into()) > 2e-3,
        "without groups by node, two messages between nodes follow each other"
    );
}

#[test]
fn rounds_that_are_built_one_at_a_time_take_as_long() {
    let link = |from: Rank, to: Rank| LinkCost {
        latency_s: ALPHA + f64::from(from * 7 + to) * 1e-7,
        message_s: ALPHA / 3.0,
        byte_s: BETA,
    };
    let costs = costs(&link);
    for (algorithm, collective) in [
        (
            Algorithm::Ring,
            Collective::Allreduce {
                count: 1001,
                operator: &Operator::Sum,
            },
        ),
        (
            Algorithm::Rabenseifner,
            Collective::Reduce {
                root: 3,
                count: 1001,
                operator: &Operator::Sum,
            },
        ),
        (Algorithm::Bruck, Collective::Alltoall { count: 5 }),
        (
            Algorithm::ObjectsScattered,
            Collective::Allreduce {
                count: 1001,
                operator: &Operator::Sum,
            },
        ),
    ] {
        let run = |window| {
            let build = |rank, rounds| {
                Recipe::from(algorithm).build_part(&CollectiveCall::new(collective, Datatype::U64, rank, 23), rounds)
            };
            Simulation::new(23, 8, &costs, build, window).run().expect("it ends")
        };
        let whole = run(1_000_000);
        for window in [1, 2, 7] {
            assert_eq!(run(window), whole, "{algorithm}, {window} rounds at a time");
        }
    }
}

#[test]
fn schedules_that_do_not_fit_together_are_told_and_do_not_hang() {
    let link = |_, _| LinkCost {
        latency_s: 1.0,
        message_s: 1.0,
        byte_s: 0.0,
    };
    let run = |schedule: &dyn Fn(Rank) -> Vec<Step>| {
        simulate(2, 1, &costs(&link), |rank, rounds| {
            let round = Round {
                transfers: schedule(rank),
                local: Vec::new(),
            };
            let rounds = if rounds.contains(&0) { vec![round] } else { Vec::new() };
            Ok(SchedulePart {
                schedule: Schedule { scratch: 0, rounds },
                has_more: false,
            })
        })
        .expect_err("it cannot end")
        .to_string()
    };
    let span = AreaSpan::first(Area::Output, 1);
    let text = run(&|rank| {
        vec![Step::Receive {
            from: 1 - rank,
            into: span,
        }]
    });
    assert!(text.contains("rank 0 waits for a message of rank 1"), "{text}");
    let text = run(&|rank| {
        vec![Step::Fetch {
            of: 1 - rank,
            key: 4,
            into: span,
        }]
    });
    assert!(text.contains("rank 0 waits for object 4 of rank 1"), "{text}");
    let text = run(&|rank| {
        vec![Step::Send {
            to: 1 - rank,
            from: span,
        }]
    });
    assert!(text.contains("is not received by any rank"), "{text}");
}
