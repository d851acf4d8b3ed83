//! Scale of the tests of faults: number of runs of each fault, their seeds, and how many run at once.

use super::row::Row;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Runs of each fault in `make test-all`. `HOTLEASE_FAULTS_TIMES` multiplies the numbers (default: 0.1, as in `make
/// test`).
pub struct Counts {
    /// kill -9 of an agent, and of a worker.
    pub kills: u32,
    /// SIGSTOP.
    pub stops: u32,
    /// Partitions.
    pub partitions: u32,
    /// Full and failing disks.
    pub disks: u32,
    /// Damaged journals.
    pub journals: u32,
    /// Jumps of the clock.
    pub clocks: u32,
    /// Vanishing clients.
    pub clients: u32,
    /// Drains and removals.
    pub removals: u32,
    /// Batch jobs that take a node.
    pub yields: u32,
    /// Hostile requests at each listener.
    pub requests: u32,
}

/// See [`Counts`].
pub const COUNTS: Counts = Counts {
    kills: 100,
    stops: 50,
    partitions: 30,
    disks: 20,
    journals: 200,
    clocks: 20,
    clients: 10,
    removals: 50,
    yields: 200,
    requests: 10_000,
};

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Number of runs of a fault: `count` times `HOTLEASE_FAULTS_TIMES`, at least one.
pub fn times(count: u32) -> u32 {
    let factor = std::env::var("HOTLEASE_FAULTS_TIMES").unwrap_or_else(|_| "0.1".into());
    let factor: f64 = factor
        .parse()
        .unwrap_or_else(|_| panic!("HOTLEASE_FAULTS_TIMES is no number: {factor}"));
    (f64::from(count) * factor).ceil().max(1.0) as u32
}

/// The seed of this test program's random choices: `HOTLEASE_FAULTS_SEED`, else a new one.
pub fn seed() -> u64 {
    variable("HOTLEASE_FAULTS_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()))
}

/// The generator of one run.
pub fn random(seed: u64, run: u32) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(run)))
}

/// Returns a random duration between two durations; each decade is equally likely, so most are short.
pub fn mostly_short(random: &mut StdRng, shortest: Duration, longest: Duration) -> Duration {
    let (low, high) = (shortest.as_secs_f64().ln(), longest.as_secs_f64().ln());
    Duration::from_secs_f64(random.random_range(low..=high).exp())
}

/// Runs of a fault, several at once.
pub struct Runs {
    /// Number of runs at once.
    pub lanes: u32,
    /// Number of runs in all.
    pub runs: u32,
    /// Seed of the runs' random choices.
    pub seed: u64,
}

impl Runs {
    /// Makes the runs. Each lane sets up its own scene and counts in its own row; the returned row contains all runs. A
    /// run that fails prints its number and seed.
    pub fn make<S>(
        &self,
        new_row: impl Fn() -> Row + Sync,
        scene: impl Fn(u32) -> S + Sync,
        run: impl Fn(&mut S, u32, &mut Row) + Sync,
        end: impl Fn(S, &mut Row) + Sync,
    ) -> Row {
        let next = AtomicU32::new(0);
        let lane = |lane| {
            let mut row = new_row();
            let mut own = scene(lane);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.runs {
                    break;
                }
                let told = RunLabel {
                    seed: self.seed,
                    number,
                };
                run(&mut own, number, &mut row);
                row.ran();
                drop(told);
            }
            end(own, &mut row);
            row
        };
        let rows: Vec<Row> = std::thread::scope(|scope| {
            let lanes = (0..self.lanes.min(self.runs)).map(|number| {
                let lane = &lane;
                scope.spawn(move || lane(number))
            });
            let lanes: Vec<_> = lanes.collect();
            lanes
                .into_iter()
                .map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut row = new_row();
        for one in rows {
            row.add(one);
        }
        row
    }
}

/// Prints which run failed.
struct RunLabel {
    seed: u64,
    number: u32,
}

impl Drop for RunLabel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("run {} failed; HOTLEASE_FAULTS_SEED={}", self.number, self.seed);
        }
    }
}
