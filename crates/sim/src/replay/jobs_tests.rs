use super::*;
use crate::replay::parameters::{DAY, HOUR, SITE};

fn job(submitted: Micros, nodes: u32, runtime: Micros, limit: Micros) -> Job {
    Job {
        submitted,
        nodes,
        runtime,
        limit,
    }
}

fn sorted(mut periods: Vec<Period>) -> Vec<(Micros, Micros)> {
    periods.sort_unstable_by_key(|period| (period.begin, period.end));
    periods.into_iter().map(|period| (period.begin, period.end)).collect()
}

#[test]
fn idle_periods_of_three_jobs_are_as_by_hand() {
    // Node 0: job A from 10 to 30, job C from 30 to 50. Node 1: idle until C, which needs both nodes.
    let jobs = [job(10, 1, 20, 20), job(15, 2, 20, 20)];
    assert_eq!(
        sorted(schedule(&jobs, 2, 10, 100)),
        [(0, 10), (0, 30), (50, 100), (50, 100)]
    );
    // B fits on the idle node before C, because it ends by 30.
    let jobs = [job(10, 1, 20, 20), job(15, 2, 20, 20), job(16, 1, 10, 14)];
    assert_eq!(
        sorted(schedule(&jobs, 2, 10, 100)),
        [(0, 10), (0, 16), (26, 30), (50, 100), (50, 100)]
    );
    // By its limit B could delay C, so B waits, although it would in fact end in time.
    let jobs = [job(10, 1, 20, 20), job(15, 2, 20, 20), job(16, 1, 10, 15)];
    assert_eq!(
        sorted(schedule(&jobs, 2, 10, 100)),
        [(0, 10), (0, 30), (50, 100), (60, 100)]
    );
}

#[test]
fn backfill_gives_away_only_nodes_that_the_first_job_does_not_need() {
    // A has two of four nodes until 30, and B waits for three nodes. When B starts, one of the two idle nodes is left
    // over, so C gets one. D, which is submitted together with C and is as long, waits until B ends at 50.
    let jobs = [
        job(10, 2, 20, 20),
        job(15, 3, 20, 20),
        job(16, 1, 50, 90),
        job(16, 1, 50, 90),
    ];
    let expected = [(0, 10), (0, 10), (0, 16), (0, 30), (50, 100), (50, 100), (66, 100)];
    assert_eq!(sorted(schedule(&jobs, 4, 10, 100)), expected);
}

#[test]
fn backfill_looks_no_deeper_than_it_may() {
    let jobs = [job(10, 1, 20, 20), job(15, 2, 20, 20), job(16, 1, 10, 14)];
    assert_eq!(
        sorted(schedule(&jobs, 2, 1, 100)),
        [(0, 10), (0, 30), (50, 100), (60, 100)]
    );
}

#[test]
fn job_wider_than_the_site_never_starts() {
    assert_eq!(sorted(schedule(&[job(1, 3, 5, 5)], 2, 10, 10)), [(0, 10), (0, 10)]);
}

#[test]
fn nodes_are_either_idle_or_have_a_job() {
    // All jobs end before the trace, so all time that is not idle is running time of jobs.
    for seed in 0..20 {
        let site = Site {
            nodes: 64,
            nodes_max: 32,
            runtime_max: HOUR,
            filling: 0,
            length: 2 * DAY,
            ..SITE
        };
        let jobs = generate(&site, seed);
        let end = 40 * DAY;
        let idle: Micros = schedule(&jobs, site.nodes, site.backfill_depth, end)
            .iter()
            .map(Period::length)
            .sum();
        let ran: Micros = jobs.iter().map(|job| job.runtime * u64::from(job.nodes)).sum();
        assert_eq!(idle + ran, u64::from(site.nodes) * end, "seed {seed}");
    }
}

#[test]
fn generated_jobs_have_the_load_that_is_asked_for() {
    let site = Site {
        length: 400 * DAY,
        filling: 0,
        ..SITE
    };
    let work: f64 = generate(&site, 7)
        .iter()
        .map(|job| job.runtime as f64 * f64::from(job.nodes))
        .sum();
    let load = work / site.length as f64 / f64::from(site.nodes);
    assert!((0.85..0.95).contains(&load), "load {load}");
}
