//! kill -9 of manager, agent and workers.

use crate::scene::{Scene, long_call};
use hotlease_client::Invoker;
use hotlease_tests::faults::caller::{Caller, Outcome, Steady, check, make};
use hotlease_tests::faults::ledger::{self, Bill};
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, random, seed, times};
use hotlease_tests::faults::system::{Strike, System};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::process::{Process, cores};
use hotlease_tests::wait::until_true;
use hotlease_wire::RunCertainty;
use nix::sys::signal::Signal;
use rand::RngExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time within which a client is told of a worker's death.
const TOLD: Duration = Duration::from_millis(250);
/// Time within which a restarted manager serves.
const SERVING: Duration = Duration::from_secs(5);

/// Facts that a manager or an agent acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Leases that were granted.
    granted: Vec<String>,
    /// Usage at the end of a lease, as its agent reported it.
    told: Bill,
}

impl Acknowledged {
    fn take(&mut self, parts: &Parts) -> Option<Invoker> {
        let invoker = parts.invoker().ok()?;
        self.granted.push(invoker.lease().to_string());
        Some(invoker)
    }

    fn give_back(&mut self, invoker: Invoker) {
        let lease = invoker.lease().to_string();
        if let Ok(usage) = invoker.deallocate() {
            self.told.insert(lease, usage);
        }
    }
}

/// Kills the manager at operation `number` of its disk; what was acknowledged is there when it is back.
fn manager_dies_at(number: u64, how: Strike, seed: u64, row: &mut Row) -> u64 {
    let mut parts = Parts::new();
    let system = System::new(&parts.directory().join("orders"), &parts.state(Part::Manager));
    system.strike(number, 1, how, seed);
    let start = Instant::now();
    let tally = Arc::new(Tally::new());
    let mut sure = Acknowledged::default();
    parts.spawn(Part::Manager, Some(&system));
    parts.start_part(Part::Agent, None);

    // Leases are granted, used and released; one lease outlives the manager's death. Requests that the manager refuses
    // after that are not counted.
    let mut steady = None;
    let mut rounds = 0;
    let begin = Instant::now();
    while parts.ended(Part::Manager).is_none() && rounds < 4 && begin.elapsed() < LIMIT {
        if steady.is_none() {
            let how = Steady {
                seed,
                ..Steady::default()
            };
            let invoker = sure.take(&parts);
            steady = invoker.map(|invoker| Caller::start(invoker, &tally, &how));
            continue;
        }
        let Some(invoker) = sure.take(&parts) else {
            continue;
        };
        let function = invoker.function("tally").expect("it is there").idempotent(false);
        for _ in 0..3 {
            let call = tally.call(100);
            let outcome = make(&function, &call);
            check(&tally, &outcome);
            assert!(
                outcome.failed.is_none(),
                "the manager has no part in a call: {outcome:?}"
            );
        }
        drop(function);
        sure.give_back(invoker);
        rounds += 1;
    }
    let operations = system.operations();
    // If there were fewer operations, the manager is killed now.
    parts.kill(Part::Manager);
    let died = Instant::now();
    system.heal();
    parts.spawn(Part::Manager, None);
    let serving = parts.until_serving(SERVING * 4);
    row.took("serving in", Some(SERVING), serving);
    if let Some(steady) = steady {
        steady.told().until_success_after(died, LIMIT);
        row.took(
            "longest pause of calls",
            None,
            steady.told().longest_gap_after(died - Duration::from_millis(20)),
        );
        let (outcomes, invoker) = steady.finish();
        let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.failed.is_some()).collect();
        assert!(failed.is_empty(), "calls go on without a manager: {failed:?}");
        sure.give_back(invoker);
    }
    let invoker = sure.take(&parts).expect("a lease of the manager that is back");
    sure.give_back(invoker);
    let bill = ledger::until_billed(&parts, &sure.told);
    ledger::not_over_billed(&bill, tally.total(), cores().len() as u32, start);
    for lease in &sure.granted {
        assert!(
            bill.contains_key(lease),
            "lease {lease} was granted, and no row of it is left"
        );
    }
    assert_eq!(ledger::total(&bill).invocations, tally.total(), "every call is billed");
    operations
}

#[test]
fn manager_killed_at_every_durable_write_loses_nothing_that_was_acknowledged() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "kill -9 of the manager, before, in the middle of and after each durable write, and loss of power there",
            "calls go on; serving again in 5 s; no acknowledged row lost",
            "kills::manager_killed_at_every_durable_write_loses_nothing_that_was_acknowledged",
            seed,
        )
    };
    let operations = manager_dies_at(u64::MAX, Strike::KillBefore, seed, &mut new_row());
    assert!(
        operations > 20,
        "only {operations} durable operations: they are not seen"
    );
    let runs = times(operations as u32);
    let row = Runs { lanes: 6, runs, seed }.make(
        new_row,
        |_| (),
        |(), run, row| {
            let ways = [Strike::Power, Strike::KillBefore, Strike::Tear, Strike::KillAfter];
            let number = 1 + u64::from(run) % operations;
            let round = u64::from(run) / operations;
            let how = ways[((number + round + seed) % 4) as usize];
            manager_dies_at(number, how, seed.wrapping_add(run.into()), row);
        },
        |(), _| (),
    );
    row.finish();
}

/// Kills the agent at operation `number` of its journal; its next run bills what clients were told.
fn agent_dies_at(number: u64, how: Strike, seed: u64, row: &mut Row) -> u64 {
    let mut parts = Parts::new();
    let system = System::new(&parts.directory().join("orders"), &parts.state(Part::Agent));
    system.strike(number, 1, how, seed);
    let start = Instant::now();
    let tally = Tally::new();
    let mut sure = Acknowledged::default();
    parts.start_part(Part::Manager, None);
    parts.spawn(Part::Agent, Some(&system));
    let mut rounds = 0;
    while parts.ended(Part::Agent).is_none() && rounds < 8 && start.elapsed() < LIMIT {
        let Some(invoker) = sure.take(&parts) else {
            continue;
        };
        let function = invoker.function("tally").expect("it is there").idempotent(false);
        for _ in 0..3 {
            let outcome = make(&function, &tally.call(100));
            check(&tally, &outcome);
        }
        drop(function);
        sure.give_back(invoker);
        rounds += 1;
    }
    let operations = system.operations();
    parts.kill(Part::Agent);
    system.heal();
    parts.spawn(Part::Agent, None);
    let started = Instant::now();
    let bill = ledger::until_billed(&parts, &sure.told);
    row.took("all billed in", Some(SERVING), started.elapsed());
    ledger::not_over_billed(&bill, tally.total(), cores().len() as u32, start);
    operations
}

#[test]
fn agent_that_loses_power_at_any_write_of_its_journal_bills_all_that_was_told() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "loss of power of the agent's machine, and kill -9, at each durable write of its journal",
            "what clients were told of their usage is billed by its next run",
            "kills::agent_that_loses_power_at_any_write_of_its_journal_bills_all_that_was_told",
            seed,
        )
    };
    let operations = agent_dies_at(u64::MAX, Strike::KillBefore, seed, &mut new_row());
    assert!(
        operations > 10,
        "only {operations} durable operations: they are not seen"
    );
    let runs = Runs {
        lanes: 6,
        runs: times(2 * operations as u32),
        seed,
    };
    let row = runs.make(
        new_row,
        |_| (),
        |(), run, row| {
            let ways = [Strike::Power, Strike::Tear, Strike::Power, Strike::KillAfter];
            let how = ways[((u64::from(run) + u64::from(run) / operations) % 4) as usize];
            agent_dies_at(1 + u64::from(run) % operations, how, seed.wrapping_add(run.into()), row);
        },
        |(), _| (),
    );
    row.finish();
}

#[test]
fn killed_agent_takes_its_workers_along_and_bills_what_it_wrote_down() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "kill -9 of the agent",
            "no worker outlives it; client told in 250 ms; the next run bills from the journal",
            "kills::killed_agent_takes_its_workers_along_and_bills_what_it_wrote_down",
            seed,
        )
    };
    let row = Runs {
        lanes: 5,
        runs: times(COUNTS.kills),
        seed,
    }
    .make(
        new_row,
        |lane| Scene::new(seed.wrapping_add(lane.into())),
        |scene, run, row| {
            let mut random = random(seed, run);
            scene.caller().told().until_success_after(Instant::now(), LIMIT);
            // In every other run a lease is being taken at the same time.
            let long = match run % 2 {
                0 => long_call(&scene.parts, &scene.tally),
                _ => {
                    let (options, delay) = (scene.parts.lease_options(), random.random_range(0..8_000));
                    std::thread::spawn(move || {
                        let code = hotlease_client::Code::open(hotlease_tests::library::library("tally"));
                        // The attempt ends with a lease or with an error; it must end.
                        drop(Invoker::allocate(&code.expect("a library"), options));
                    });
                    std::thread::sleep(Duration::from_micros(delay));
                    None
                }
            };
            std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
            let agent = scene.parts.process(Part::Agent);
            // The agent is stopped so that it starts no worker between this listing and the kill.
            agent.signal(Signal::SIGSTOP);
            let workers = agent.descendants();
            let killed = Instant::now();
            scene.parts.kill(Part::Agent);
            if let Some(long) = long {
                let (outcome, number) = long.join().expect("no panic");
                let failed = outcome.failed.clone().expect("its worker is gone");
                assert!(
                    failed.1 != RunCertainty::No && scene.tally.runs(number) == 1,
                    "it ran once, and was told {failed:?}"
                );
                row.took("told in", Some(TOLD), outcome.ended - killed);
            }
            let gone = until_true("no worker is left", LIMIT, || !workers.iter().any(Process::is_alive));
            row.took("workers gone in", Some(TOLD), gone);
            scene.parts.spawn(Part::Agent, None);
            let started = Instant::now();
            scene.caller().told().until_success_after(started, LIMIT);
            row.took(
                "calls answered again after its start in",
                Some(SERVING),
                scene.caller().told().until_success_after(started, LIMIT),
            );
        },
        |scene, _| scene.end(),
    );
    row.finish();
}

/// Workers of a lease.
fn workers_of(parts: &Parts, lease: &str) -> Vec<Process> {
    let workers = parts.manager().workers().unwrap_or_default();
    let of_lease = workers.iter().filter(|worker| worker.lease == lease);
    of_lease.filter_map(|worker| Process::of(worker.pid as i32)).collect()
}

#[test]
fn death_of_a_worker_is_told_and_another_takes_its_place() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "kill -9 of a worker: starting, loading, computing, replying, polling, asleep",
            "client told in 250 ms; no call runs twice; another worker takes its place",
            "kills::death_of_a_worker_is_told_and_another_takes_its_place",
            seed,
        )
    };
    let row = Runs {
        lanes: 5,
        runs: times(COUNTS.kills),
        seed,
    }
    .make(
        new_row,
        |lane| Scene::new(seed.wrapping_add(lane.into())),
        |scene, run, row| {
            let mut random = random(seed, run);
            match run % 4 {
                // The worker dies while it starts, and loads.
                0 => {
                    let agent = scene.parts.process(Part::Agent);
                    let known = agent.descendants();
                    let options = scene.parts.lease_options();
                    let taking = std::thread::spawn(move || {
                        let code = hotlease_client::Code::open(hotlease_tests::library::library("tally"));
                        let start = Instant::now();
                        let taken = Invoker::allocate(&code.expect("a library"), options);
                        (start.elapsed(), taken.map(drop).map_err(|error| error.to_string()))
                    });
                    std::thread::sleep(Duration::from_micros(random.random_range(0..6_000)));
                    // Taking a lease uses the pool's worker, and another worker is started for the pool: either may be
                    // killed.
                    let held = workers_of(&scene.parts, &scene.caller().invoker().lease().to_string());
                    let killed: Vec<Process> = agent
                        .descendants()
                        .into_iter()
                        .filter(|worker| !held.contains(worker) && (!known.contains(worker) || random.random_bool(0.5)))
                        .collect();
                    killed.iter().for_each(|worker| worker.signal(Signal::SIGKILL));
                    let (took, taken) = taking.join().expect("no panic");
                    assert!(took < LIMIT, "a lease came to {taken:?} after {took:?}");
                    row.took("a lease taken meanwhile resolved in", None, took);
                }
                // The worker dies while it computes.
                1 => {
                    // The agent may still grant a worker of the pool that an earlier run killed, before it notices that
                    // death.
                    let mut long = None;
                    until_true("a lease for a long call", LIMIT, || {
                        long = long_call(&scene.parts, &scene.tally);
                        long.is_some()
                    });
                    let long = long.expect("just seen");
                    let held = workers_of(&scene.parts, &scene.caller().invoker().lease().to_string());
                    let computing: Vec<Process> = scene
                        .parts
                        .manager()
                        .workers()
                        .expect("listed")
                        .iter()
                        .filter(|worker| !worker.lease.is_empty())
                        .filter_map(|worker| Process::of(worker.pid as i32))
                        .filter(|worker| !held.contains(worker))
                        .collect();
                    assert!(!computing.is_empty(), "no worker computes");
                    let killed = Instant::now();
                    computing.iter().for_each(|worker| worker.signal(Signal::SIGKILL));
                    let (outcome, number) = long.join().expect("no panic");
                    let (words, ran) = outcome.failed.clone().expect("its worker is gone");
                    assert!(
                        ran == RunCertainty::Unknown && words.contains("signal 9") && scene.tally.runs(number) == 1,
                        "it ran once, and was told {ran:?}: {words}"
                    );
                    row.took("told in", Some(TOLD), outcome.ended - killed);
                }
                // The worker dies between any two instructions of a slot that is called all the time, or sleeps for a
                // moment.
                _ => {
                    std::thread::sleep(Duration::from_micros(random.random_range(0..5_000)));
                    let lease = scene.caller().invoker().lease().to_string();
                    let workers = workers_of(&scene.parts, &lease);
                    let killed = Instant::now();
                    workers.iter().for_each(|worker| worker.signal(Signal::SIGKILL));
                    let again = scene.caller().told().until_success_after(killed, LIMIT);
                    row.took("calls answered again in", Some(TOLD), again);
                }
            }
        },
        |scene, _| scene.end(),
    );
    row.finish();
}
