//! Tests of the control plane's promises under faults. The crate's documentation lists the promises.

use hotlease_sim::run;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SEEDS: u64 = 2000;

#[test]
fn no_promise_is_broken_in_two_thousand_seeds() {
    let next = AtomicU64::new(0);
    let broken = thread::scope(|scope| {
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS {
                    return None;
                }
                if let Some(violation) = run(seed, false).violation {
                    // The other threads stop.
                    next.store(SEEDS, Ordering::Relaxed);
                    return Some((seed, violation));
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let done = workers
            .into_iter()
            .filter_map(|worker| worker.join().expect("a seed panicked"));
        done.min()
    });
    if let Some((seed, violation)) = broken {
        panic!(
            "seed {seed}: {violation}\n  see it again: cargo run --release -p hotlease-sim -- --seed {seed} --trace"
        );
    }
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    for seed in [3, 17, 1023] {
        let (first, second) = (run(seed, true), run(seed, true));
        assert_eq!(first.events, second.events, "seed {seed}");
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
        // A trace slows the run down but does not change it.
        assert_eq!(run(seed, false).events, first.events, "seed {seed}");
    }
}

/// A site without faults would prove nothing, so each kind of fault must really occur.
#[test]
fn the_seeds_see_every_kind_of_fault() {
    let mut seen: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
    let marks = [
        ("agent crashes", "CRASHES"),
        ("lost messages", "(lost:"),
        ("cut links", "(cut:"),
        ("messages that never get through", "(never gets through"),
        ("expiries", "reason: Expired"),
        ("silent clients", "reason: ClientGone"),
        ("drains", "reason: Reclaimed"),
        ("failed writes", "the disk is full"),
        ("dead workers", "WorkerDied"),
        ("moved workers", "moved: true"),
        ("workers that stay", "moved: false"),
        ("lost leases", "has lost lease"),
        ("refused renewals", "NotRenewed"),
        ("results", "resolves: Result"),
        ("unknown outcomes", "resolves: Error(Unknown)"),
    ];
    for seed in 0..60 {
        let run = run(seed, true);
        for (name, mark) in marks {
            let found = run.trace.iter().any(|line| line.contains(mark));
            *seen.entry(name).or_default() += u32::from(found);
        }
    }
    for (name, _) in marks {
        assert!(
            seen.get(name).is_some_and(|runs| *runs > 0),
            "{name} never happened in 60 seeds: {seen:?}"
        );
    }
}
