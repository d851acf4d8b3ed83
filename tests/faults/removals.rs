//! Nodes that are given back while functions run on them: by an operator and by a signal, at once and with a notice.

use crate::scene::{Scene, long_call};
use hotlease_tests::faults::caller::{Outcome, Steady};
use hotlease_tests::faults::ledger::Operator;
use hotlease_tests::faults::parts::{Part, Parts};
use hotlease_tests::faults::row::Row;
use hotlease_tests::faults::scale::{COUNTS, Runs, random, seed, times};
use hotlease_tests::faults::tally::Tally;
use hotlease_tests::platform::LIMIT;
use hotlease_tests::platform::locks::cause_faults_alone;
use hotlease_tests::process::Process;
use hotlease_tests::wait::until_true;
use hotlease_wire::RunCertainty;
use nix::sys::signal::Signal;
use rand::RngExt;
use std::time::{Duration, Instant};

/// Time within which a node that is taken at once is clean.
const CLEAN: Duration = Duration::from_secs(1);
/// Time within which a client is told.
const TOLD: Duration = Duration::from_millis(250);
/// Time within which calls go on after the node is offered again.
const AGAIN: Duration = Duration::from_secs(5);
/// Notice that SIGTERM gives.
const NOTICE: Duration = Duration::from_millis(400);

fn order(parts: &Parts, words: &[&str]) {
    let agent = parts.manager().agents().expect("listed").remove(0).id;
    let line = [&["admin", "node", words[0], &agent], &words[1..]].concat();
    let output = parts.run(&line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "hotlease {line:?}: {errors}");
}

/// How a node is taken, and how it is offered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Remove,
    Drain,
    RemoveSignal,
    DrainSignal,
}

impl Way {
    /// Takes the node; returns the notice that its clients have.
    fn take(self, scene: &mut Scene, notice: Duration) -> Duration {
        let within = format!("{}ms", notice.as_millis());
        match self {
            Self::Remove => order(&scene.parts, &["remove"]),
            Self::Drain => order(&scene.parts, &["drain", "--within", &within]),
            Self::RemoveSignal => scene.parts.process(Part::Agent).signal(Signal::SIGUSR1),
            Self::DrainSignal => scene.parts.process(Part::Agent).signal(Signal::SIGTERM),
        }
        match self {
            Self::Remove | Self::RemoveSignal => Duration::ZERO,
            Self::Drain => notice,
            Self::DrainSignal => NOTICE,
        }
    }

    fn give_again(self, scene: &mut Scene) {
        match self {
            Self::Remove => order(&scene.parts, &["add", "--wait"]),
            Self::Drain => order(&scene.parts, &["resume", "--wait"]),
            Self::RemoveSignal | Self::DrainSignal => {
                let status = scene.parts.take_end(Part::Agent, LIMIT);
                assert!(status.success(), "{self:?} ended the agent with {status}");
                scene.parts.spawn(Part::Agent, None);
            }
        }
    }
}

/// Checks the error that the client of a call gets after the call's node was taken.
fn is_told_rightly(tally: &Tally, outcome: &Outcome, number: u64) {
    let (words, ran) = outcome.failed.clone().expect("it never returns");
    let given_back = words.contains("given back") || words.contains("stopping");
    assert!(
        given_back && ran == RunCertainty::Unknown && tally.runs(number) == 1,
        "it ran once, and was told {ran:?}: {words}"
    );
}

#[test]
fn node_that_is_taken_during_hot_calls_is_clean_in_time_and_every_call_is_told() {
    let _alone = cause_faults_alone();
    let seed = seed();
    let new_row = || {
        Row::new(
            "drain and immediate removal during hot calls, by an operator and by a signal",
            "clean 1 s after the order or the deadline; clients told; last usage billed; goes on when offered again",
            "removals::node_that_is_taken_during_hot_calls_is_clean_in_time_and_every_call_is_told",
            seed,
        )
    };
    let runs = Runs {
        lanes: 4,
        runs: times(COUNTS.removals),
        seed,
    };
    let row = runs.make(
        new_row,
        |lane| {
            let mut parts = Parts::new();
            let notice = format!("{}ms", NOTICE.as_millis());
            parts
                .arguments(Part::Agent)
                .extend(["--drain-within".to_owned(), notice]);
            parts.start_part(Part::Manager, None);
            parts.start_part(Part::Agent, None);
            parts.until_serving(LIMIT);
            let how = Steady {
                seed: seed.wrapping_add(lane.into()),
                pause: Duration::from_micros(300),
                ..Steady::default()
            };
            Scene::with(parts, &how)
        },
        |scene, run, row| {
            let mut random = random(seed, run);
            let ways = [Way::Remove, Way::Drain, Way::RemoveSignal, Way::DrainSignal];
            let way = ways[run as usize % 4];
            scene.caller().told().until_success_after(Instant::now(), LIMIT);
            let long = long_call(&scene.parts, &scene.tally).expect("a lease");
            let workers = scene.parts.process(Part::Agent).descendants();
            std::thread::sleep(Duration::from_micros(random.random_range(0..20_000)));
            let notice = Duration::from_millis(random.random_range(100..800));
            let ordered = Instant::now();
            let due = ordered + way.take(scene, notice);
            let (outcome, number) = long.join().expect("no panic");
            is_told_rightly(&scene.tally, &outcome, number);
            let early = due.saturating_duration_since(outcome.ended);
            assert!(
                early < Duration::from_millis(60),
                "{way:?}: cut {early:?} before its time"
            );
            row.took("told in", Some(TOLD), outcome.ended.saturating_duration_since(due));
            until_true("no worker is left", LIMIT, || !workers.iter().any(Process::is_alive));
            row.took("clean in", Some(CLEAN), due.elapsed());
            way.give_again(scene);
            let again = Instant::now();
            row.took(
                "calls again in",
                Some(AGAIN),
                scene.caller().told().until_success_after(again, LIMIT),
            );
        },
        |scene, _| scene.end(),
    );
    row.finish();
}
