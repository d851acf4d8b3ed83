//! Faults of SIGSTOP: a process that exists and does nothing, for a tenth of a second to half a minute.

use crate::scene::Scene;
use hotlease_tests::faults::caller::{Client, Steady};
use hotlease_tests::faults::ledger;
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, mostly_short, random, seed, times};
use hotlease_tests::manager::ManagerClient;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::process::Process;
use hotlease_tests::wait::{until, until_true};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time to live of all leases here.
const TTL: Duration = Duration::from_secs(2);
/// Time after which an agent that says nothing is suspected.
const SUSPECTED: Duration = Duration::from_millis(1500);
/// Time beyond its time to live after which a silent lease is given up.
const FENCED: Duration = Duration::from_secs(1);
/// Time within which calls go on after the process was continued.
const AGAIN: Duration = Duration::from_secs(5);
/// Delay that a busy machine adds.
const GRACE: Duration = Duration::from_millis(500);

/// Waits until a moment, and calls `look` meanwhile.
fn meanwhile(until: Instant, mut look: impl FnMut()) {
    while Instant::now() < until {
        look();
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(10)));
    }
}

fn manager_stops(scene: &Scene, stop: Duration, row: &mut Row) {
    let manager = scene.parts.process(Part::Manager);
    let lease = scene.caller().invoker().lease();
    let stopped = Instant::now();
    manager.signal(Signal::SIGSTOP);
    meanwhile(stopped + stop, || ());
    let continued = Instant::now();
    manager.signal(Signal::SIGCONT);
    assert_eq!(
        scene.caller().told().failure_after(stopped),
        None,
        "calls need no manager"
    );
    row.took(
        "manager: longest pause of calls",
        None,
        scene.caller().told().longest_gap_after(stopped),
    );
    let invoker = until("a lease", LIMIT, || scene.parts.invoker().ok()).0;
    row.took("manager: leases again in", Some(AGAIN), continued.elapsed());
    drop(invoker);
    assert_eq!(scene.caller().invoker().lease(), lease, "leases need no manager");
}

fn agent_stops(scene: &Scene, stop: Duration, row: &mut Row) {
    let agent = scene.parts.process(Part::Agent);
    let stopped = Instant::now();
    agent.signal(Signal::SIGSTOP);
    let mut suspected = None;
    meanwhile(stopped + stop, || {
        if suspected.is_some() {
            return;
        }
        let agents = ManagerClient::connect(scene.parts.directory())
            .ok()
            .and_then(|manager| manager.agents().ok());
        if agents.is_some_and(|agents| agents.iter().all(|agent| agent.state != "serving")) {
            suspected = Some(stopped.elapsed());
        }
    });
    let continued = Instant::now();
    agent.signal(Signal::SIGCONT);
    if let Some(suspected) = suspected {
        // A listing waits for two seconds for an agent that does not answer.
        row.took("agent: listed as suspected in", Some(SUSPECTED + 2 * GRACE), suspected);
    } else {
        assert!(
            stop < SUSPECTED + 4 * GRACE,
            "an agent that was silent for {stop:?} was not suspected"
        );
    }
    if let Some(last) = scene.caller().told().last_success_before(continued) {
        let since = last.saturating_duration_since(stopped);
        row.took(
            "agent: last call on its leases after",
            Some(TTL + FENCED + GRACE),
            since,
        );
    }
    row.took(
        "agent: calls again in",
        Some(AGAIN),
        scene.caller().told().until_success_after(continued, LIMIT),
    );
}

fn worker_stops(scene: &Scene, stop: Duration, row: &mut Row) {
    let lease = scene.caller().invoker().lease().to_string();
    let workers = scene.parts.manager().workers().expect("listed");
    let of_lease = workers.iter().filter(|worker| worker.lease == lease);
    let own: Vec<Process> = of_lease.filter_map(|worker| Process::of(worker.pid as i32)).collect();
    assert!(!own.is_empty(), "the lease has a worker");
    let stopped = Instant::now();
    own.iter().for_each(|worker| worker.signal(Signal::SIGSTOP));
    meanwhile(stopped + stop, || ());
    let continued = Instant::now();
    own.iter().for_each(|worker| worker.signal(Signal::SIGCONT));
    let again = scene.caller().told().until_success_after(continued, LIMIT);
    row.took("worker: calls again in", Some(AGAIN), again);
    row.took(
        "worker: beyond the deadline a call was told after",
        Some(BEYOND + GRACE),
        scene
            .caller()
            .told()
            .longest_call_after(stopped)
            .saturating_sub(TIMEOUT),
    );
}

/// Time after a call's deadline within which its client is told that the deadline has passed.
const BEYOND: Duration = Duration::from_millis(400);
/// Time that each call has.
const TIMEOUT: Duration = Duration::from_secs(2);

fn client_stops(scene: &Scene, stop: Duration, seed: u64, row: &mut Row) {
    let manager = scene.parts.manager();
    until_true("a core is free", LIMIT, || manager.free_cores() == 1);
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_hotlease-test-tally")));
    command.env("HOTLEASE_RUNTIME_DIR", scene.parts.directory());
    let client = Client::start(command, &scene.tally, &slow(seed));
    let begun = Instant::now();
    client.told().until_success_after(begun, LIMIT);
    assert_eq!(manager.free_cores(), 0, "both clients have a core");
    let stopped = Instant::now();
    client.process().signal(Signal::SIGSTOP);
    let mut free = None;
    meanwhile(stopped + stop, || {
        if free.is_none() && manager.free_cores() == 1 {
            free = Some(stopped.elapsed());
        }
    });
    let continued = Instant::now();
    client.process().signal(Signal::SIGCONT);
    match free {
        Some(free) => row.took("client: its core free in", Some(TTL + FENCED), free),
        None => assert!(
            stop < TTL + 3 * FENCED,
            "a client that was silent for {stop:?} kept its core"
        ),
    }
    row.took(
        "client: calls again in",
        Some(AGAIN),
        client.told().until_success_after(continued, LIMIT),
    );
    let (_, told) = client.finish();
    ledger::until_billed(&scene.parts, &told);
}

fn slow(seed: u64) -> Steady {
    Steady {
        seed,
        pause: Duration::from_millis(40),
        ..Steady::default()
    }
}

#[test]
fn party_that_stops_is_given_up_in_time_and_goes_on_without_harm() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "SIGSTOP of manager, agent, worker, client for 0.1 to 30 s",
            "manager: calls go on; agent: suspected in 1.5 s, fenced by TTL + 1 s; worker: deadlines hold; \
             client: cores free by TTL + 1 s; all go on afterwards, nothing runs twice",
            "stops::party_that_stops_is_given_up_in_time_and_goes_on_without_harm",
            seed,
        )
    };
    let runs = Runs {
        lanes: 8,
        runs: times(COUNTS.stops),
        seed,
    };
    let row = runs.make(
        new_row,
        |lane| {
            let how = Steady {
                timeout: Some(TIMEOUT),
                ..slow(seed.wrapping_add(lane.into()))
            };
            Scene::with(Parts::start(), &how)
        },
        |scene, run, row| {
            let mut random = random(seed, run);
            let stop = mostly_short(&mut random, Duration::from_millis(100), Duration::from_secs(30));
            let begun = Instant::now();
            scene.caller().told().until_success_after(begun, LIMIT);
            match run % 4 {
                0 => manager_stops(scene, stop, row),
                1 => agent_stops(scene, stop, row),
                2 => worker_stops(scene, stop, row),
                _ => client_stops(scene, stop, seed.wrapping_add(run.into()), row),
            }
        },
        |scene, _| scene.end(),
    );
    row.finish();
}
