//! Runs seeds; for a seed that breaks a promise, prints the promise and the command to repeat the run. Replays idle
//! nodes.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program for a terminal

use clap::{Parser, Subcommand};
use hotlease_sim::{Scenario, World, replay};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between reports of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Largest number of failing seeds that are shown.
const SHOWN_MAX: usize = 10;

/// Simulates manager, agents and clients under faults, in virtual time.
#[derive(Parser)]
#[command(name = "hotlease-sim", args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Run this seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print the events.
    #[arg(long)]
    trace: bool,
    /// Run this many seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// First of these seeds.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Shows how much of the time of a site's idle nodes each policy gets for tasks of 1 ms to 10 min.
    ///
    /// The policies: an agent beside the batch system, which yields in the prolog; and pilots of 2, 10 and 60 minutes.
    /// docs/replay.md describes the model.
    Replay {
        /// Samples of idle nodes: a CSV file with the columns date, idle_nodes and total_nodes, or such a file
        /// compressed by gzip. Without it, a generated site is replayed.
        samples: Option<PathBuf>,
        /// Draw the moments, costs and jobs from this seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Print one JSON object per line; scripts/plot-replay draws them.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Command::Replay { samples, seed, json }) = options.command {
        return match replay::print(samples.as_deref(), seed, json, &mut std::io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hotlease-sim: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match options.seed {
        Some(seed) => one(seed, options.trace),
        None => many(options.from, options.seeds),
    }
}

fn one(seed: u64, tracing: bool) -> ExitCode {
    let scenario = Scenario::new(seed);
    let plan = format!("{scenario:#?}");
    let run = World::new(scenario, tracing).run();
    if tracing {
        // A pager may stop reading before the end.
        let mut out = std::io::stdout().lock();
        let told = std::iter::once(&plan)
            .chain(&run.trace)
            .try_for_each(|line| writeln!(out, "{line}"));
        if told.is_err() {
            return ExitCode::FAILURE;
        }
    }
    println!(
        "seed {seed}: {} events, {} of {} invocations gave a result",
        run.events, run.tasks.1, run.tasks.0
    );
    match run.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("seed {seed}: BROKEN {violation}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, seeds: u64) -> ExitCode {
    let begun = Instant::now();
    let next = AtomicU64::new(from);
    let events = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    let end = from.saturating_add(seeds);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let run = hotlease_sim::run(seed, false);
            events.fetch_add(run.events, Ordering::Relaxed);
            if let Some(violation) = run.violation
                && let Ok(mut failed) = failed.lock()
            {
                failed.push((seed, violation));
            }
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut shown = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(20));
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                let done = next.load(Ordering::Relaxed).min(end) - from;
                println!("{done} of {seeds} seeds");
            }
        }
    });
    let mut failed = failed.into_inner().unwrap_or_default();
    failed.sort_unstable();
    for (seed, violation) in failed.iter().take(SHOWN_MAX) {
        println!("seed {seed}: BROKEN {violation}");
        println!("   see it again: cargo run --release -p hotlease-sim -- --seed {seed} --trace");
    }
    let events = events.into_inner();
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {events} events, {seconds:.1} s: {} failed",
        failed.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
