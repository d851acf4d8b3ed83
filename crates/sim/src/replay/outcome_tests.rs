use super::*;
use crate::replay::parameters::{Cost, MILLISECOND, MINUTE, POLICIES, PROLOG, SECOND, VARIANTS};
use rand::RngExt;

/// A policy whose costs are always the same.
fn fixed(wait: Micros, start: Micros, walltime: Option<Micros>, give_back: Micros) -> Policy {
    Policy {
        name: "fixed",
        wait: Cost::always(wait),
        start: Cost::always(start),
        walltime,
        give_back: Cost::always(give_back),
    }
}

fn period(begin: Micros, end: Micros) -> Period {
    Period { begin, end }
}

/// Periods of up to an hour, most of them much shorter. For each task length and each walltime, some periods have about
/// that length.
fn random_periods(seed: u64) -> Vec<Period> {
    let random = &mut SmallRng::seed_from_u64(seed);
    let mut periods = Vec::new();
    for _ in 0..200 {
        let longest = 10_u64.pow(random.random_range(1..=10)).min(60 * MINUTE);
        let begin = random.random_range(0..MINUTE);
        periods.push(period(begin, begin + random.random_range(1..=longest)));
    }
    periods
}

#[test]
fn time_of_an_agent_beside_the_batch_system_is_as_computed_by_hand() {
    // 100 s idle, the first call after 1 s: 99 s offered. Tasks of 10 s and 1 s for each call: 9 tasks.
    let outcome = play_loads(
        &[period(5, 5 + 100 * SECOND)],
        &fixed(0, SECOND, None, 7),
        &[10 * SECOND],
        SECOND,
        0,
    );
    let load = Load {
        task: 10 * SECOND,
        used: 90 * SECOND,
        calls: 9 * SECOND,
        interrupted: 0,
        not_begun: 0,
        tasks: 9,
        tasks_interrupted: 0,
    };
    let expected = Outcome {
        idle: 100 * SECOND,
        starts: SECOND,
        grants: 1,
        preemptions: 1,
        delay: 7,
        loads: vec![load],
    };
    assert_eq!(outcome, expected, "99 s hold nine calls and tasks");

    // With one second more, a tenth task is interrupted.
    let outcome = play_loads(
        &[period(0, 101 * SECOND)],
        &fixed(0, SECOND, None, 7),
        &[10 * SECOND],
        SECOND,
        0,
    );
    let load = &outcome.loads[0];
    assert_eq!((load.interrupted, load.tasks_interrupted), (SECOND, 1), "{outcome:?}");
}

#[test]
fn time_of_pilots_is_as_computed_by_hand() {
    // Wait 2 s, start 1 s, walltime 20 s: pilots have the node from 2 to 22 s and from 24 to 44 s. A job arrives at 40
    // s. So the node is offered from 3 to 22 s and from 25 to 40 s, for 19 s and 15 s. With tasks of 4 s, the first
    // pilot runs four tasks, and 3 s are left, too short for a task. The second pilot runs three tasks, and a fourth is
    // interrupted after 3 s.
    let policy = fixed(2 * SECOND, SECOND, Some(20 * SECOND), 3 * SECOND);
    let outcome = play_loads(&[period(0, 40 * SECOND)], &policy, &[4 * SECOND, 20 * SECOND], 0, 0);
    assert_eq!((outcome.idle, outcome.starts), (40 * SECOND, 6 * SECOND), "{outcome:?}");
    assert_eq!(
        (outcome.grants, outcome.preemptions, outcome.delay),
        (2, 1, 3 * SECOND),
        "{outcome:?}"
    );
    let [four, twenty] = &outcome.loads[..] else {
        panic!("two loads: {outcome:?}");
    };
    assert_eq!((four.tasks, four.used), (7, 28 * SECOND), "{four:?}");
    assert_eq!(
        (four.not_begun, four.interrupted, four.tasks_interrupted),
        (3 * SECOND, 3 * SECOND, 1),
        "{four:?}"
    );
    // A pilot of 20 s needs 1 s to start, so tasks of 20 s do not fit.
    assert_eq!(
        (twenty.tasks, twenty.not_begun, twenty.interrupted),
        (0, 34 * SECOND, 0),
        "{twenty:?}"
    );
}

#[test]
fn job_that_comes_before_the_pilot_does_not_wait_for_it() {
    let outcome = play_loads(
        &[period(0, SECOND)],
        &fixed(2 * SECOND, 0, Some(MINUTE), SECOND),
        &[1],
        0,
        0,
    );
    assert_eq!(
        (outcome.starts, outcome.grants, outcome.preemptions, outcome.delay),
        (SECOND, 0, 0, 0)
    );
    // A job that arrives while the pilot starts waits, too, and no time was offered.
    let outcome = play_loads(
        &[period(0, SECOND)],
        &fixed(0, 2 * SECOND, Some(MINUTE), SECOND),
        &[1],
        0,
        0,
    );
    assert_eq!(
        (outcome.starts, outcome.grants, outcome.preemptions, outcome.delay),
        (SECOND, 1, 1, SECOND)
    );
}

#[test]
fn no_microsecond_is_lost_or_counted_twice() {
    for seed in 0..50 {
        let periods = random_periods(seed);
        let idle: Micros = periods.iter().map(Period::length).sum();
        for policy in POLICIES.iter().chain(&VARIANTS) {
            let outcome = play(&periods, policy, seed);
            assert_eq!(outcome.idle, idle, "seed {seed}, {}", policy.name);
            for load in &outcome.loads {
                let sum = load.used + load.calls + load.interrupted + load.not_begun;
                assert_eq!(outcome.offered(), sum, "seed {seed}, {}: {load:?}", policy.name);
                assert_eq!(
                    load.used,
                    load.tasks * load.task,
                    "seed {seed}, {}: {load:?}",
                    policy.name
                );
            }
            assert!(outcome.preemptions <= outcome.grants, "seed {seed}, {}", policy.name);
        }
    }
}

#[test]
fn higher_costs_never_raise_the_offer() {
    for seed in 0..50 {
        let periods = random_periods(seed);
        let offered =
            |wait, start, walltime| play_loads(&periods, &fixed(wait, start, walltime, 0), &[], 0, 0).offered();
        let costs = [0, 1, 30 * MILLISECOND, SECOND, 3 * SECOND, 30 * SECOND];
        for pair in costs.windows(2) {
            assert!(
                offered(0, pair[0], None) >= offered(0, pair[1], None),
                "seed {seed}: start {pair:?}"
            );
            assert!(
                offered(pair[0], 0, None) >= offered(pair[1], 0, None),
                "seed {seed}: wait {pair:?}"
            );
        }
        // With the same costs, longer pilots start no more often if one length divides the other.
        let walltimes = [Some(2 * MINUTE), Some(10 * MINUTE), Some(60 * MINUTE), None];
        for pair in walltimes.windows(2) {
            let [short, long] = [offered(0, SECOND, pair[0]), offered(0, SECOND, pair[1])];
            assert!(
                short <= long,
                "seed {seed}: walltimes {pair:?} offer {short} and {long}"
            );
        }
    }
}

#[test]
fn shorter_tasks_use_no_less_if_calls_cost_nothing() {
    for seed in 0..50 {
        let periods = random_periods(seed);
        for policy in POLICIES.iter().chain(&VARIANTS) {
            let outcome = play_loads(&periods, policy, &TASKS, 0, seed);
            for pair in outcome.loads.windows(2) {
                assert!(pair[0].used >= pair[1].used, "seed {seed}, {}: {pair:?}", policy.name);
            }
        }
    }
}

#[test]
fn draws_of_a_cost_have_its_percentiles() {
    let random = &mut SmallRng::seed_from_u64(1);
    let cost = PROLOG.start;
    let mut draws: Vec<_> = (0..100_000).map(|_| cost.draw(random)).collect();
    draws.sort_unstable();
    assert!(
        draws[0] >= cost.least && draws[99_999] <= cost.most,
        "{} to {}",
        draws[0],
        draws[99_999]
    );
    assert_eq!(draws[40_000], cost.median, "least and median are the same");
    let p99 = draws[99_000];
    assert!(p99.abs_diff(cost.p99) < cost.p99 / 50, "p99 {p99}, wanted {}", cost.p99);
}
