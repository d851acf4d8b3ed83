//! Faults of clocks: the time of day of a daemon or of a client jumps an hour forth or back.

use crate::scene::Scene;
use hotlease_tests::faults::caller::Steady;
use hotlease_tests::faults::ledger;
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, random, seed, times};
use hotlease_tests::faults::system::System;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use rand::RngExt;
use std::time::{Duration, Instant};

const HOUR_S: i64 = 3600;

#[test]
fn clock_that_jumps_an_hour_ends_no_lease_and_bills_no_hour() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "the clock jumps an hour forth or back: manager's, agent's, both; half the time the manager is started again meanwhile",
            "no lease ends or stays for it; calls go on; no hour is billed, and none is lost",
            "clocks::clock_that_jumps_an_hour_ends_no_lease_and_bills_no_hour",
            seed,
        )
    };
    let row = Runs {
        lanes: 4,
        runs: times(COUNTS.clocks),
        seed,
    }
    .make(
        new_row,
        |_| (),
        |(), run, row| {
            let mut random = random(seed, run);
            let mut parts = Parts::new();
            let orders = |name: &str| System::new(&parts.directory().join(name), &parts.directory().join("nowhere"));
            let (of_manager, of_agent) = (orders("manager.orders"), orders("agent.orders"));
            parts.start_part(Part::Manager, Some(&of_manager));
            parts.start_part(Part::Agent, Some(&of_agent));
            parts.until_serving(LIMIT);
            let how = Steady {
                seed: seed.wrapping_add(run.into()),
                ..Steady::default()
            };
            let mut scene = Scene::with(parts, &how);
            let lease = scene.caller().invoker().lease();
            let start = Instant::now();
            for _ in 0..2 {
                let jump = if random.random_bool(0.5) { HOUR_S } else { -HOUR_S };
                let whose = random.random_range(0..3);
                if whose != 1 {
                    of_manager.set_clock(jump);
                }
                if whose != 0 {
                    of_agent.set_clock(jump);
                }
                std::thread::sleep(Duration::from_millis(random.random_range(50..600)));
                if random.random_bool(0.5) {
                    scene.parts.kill(Part::Manager);
                    scene.parts.spawn(Part::Manager, Some(&of_manager));
                    scene.parts.until_serving(LIMIT);
                }
                // A lease that begins under the changed clock, and may end under the right one.
                let asked = Instant::now();
                let other = scene.parts.invoker().expect("a lease");
                row.took("lease granted in", None, asked.elapsed());
                if random.random_bool(0.5) {
                    of_manager.set_clock(0);
                    of_agent.set_clock(0);
                }
                other.deallocate().expect("its usage");
            }
            row.took(
                "longest pause of calls",
                None,
                scene.caller().told().longest_gap_after(start),
            );
            assert_eq!(
                scene.caller().invoker().lease(),
                lease,
                "the lease went on all the time"
            );
            let tally = scene.tally.clone();
            // A manager that is started with its clock set back continues from the latest recorded time: the time that
            // passed since is not billed, at each such start.
            let bill = scene.end_with_time_lost(Duration::from_secs(6));
            assert_eq!(
                ledger::total(&bill).invocations,
                tally.total(),
                "every call is billed, none twice"
            );
        },
        |(), _| (),
    );
    row.finish();
}
