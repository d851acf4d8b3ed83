//! `hotlease bench cold`: from asking for a lease to the first result.

use super::host::{Host, functions};
use super::machine::Machine;
use super::pin::Cores;
use super::process::{Held, children};
use super::record::{Figures, Record, Target, params, print};
use super::samples::{Clock, Pair, Samples, median};
use crate::output::Output;
use crate::quantity;
use anyhow::{Context, ensure};
use clap::Args;
use hotlease_client::{Code, ColdPhases, Invoker, LeaseOptions};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Starts platforms of its own, with and without a warm pool. The baseline is what any start of a process
/// costs: /bin/true, until it has ended.
#[derive(Debug, Args)]
pub(super) struct ColdArgs {
    /// Leases of each kind
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,
}

/// How long the pool may take to be full again.
const REFILL_WITHIN: Duration = Duration::from_secs(2);
const WORKER: &str = "hotlease-worker";
const IDLE_RSS_BYTES_MAX: f64 = 5e6;

pub(super) fn carry_out(args: &ColdArgs, output: &mut Output) -> anyhow::Result<()> {
    let clock = Clock::calibrate();
    let mut records = Vec::new();
    for (pool, limit_ms) in [(2, 2.0), (0, 10.0)] {
        let host = Host::private(Some(pool))?;
        records.push(starts(&host, &clock, pool, limit_ms, args.samples as usize)?);
        if pool > 0 {
            records.push(idle_worker(&host, pool)?);
        }
    }
    print(
        output,
        "cold starts: lease to first result",
        &records,
        |record| match record.params.get("pool").and_then(|pool| pool.as_u64()) {
            _ if record.unit == "bytes" => "memory of an idle worker".into(),
            Some(0) => "worker started".into(),
            _ => "worker from the warm pool".into(),
        },
    )?;
    if !output.is_json() {
        for record in records.iter().filter(|record| !record.details.is_empty()) {
            output.line(&format!(
                "  of it, {}, medians:",
                if record.params["pool"] == 0 {
                    "started"
                } else {
                    "pooled"
                }
            ))?;
            for (phase, us) in &record.details {
                let us = us.as_f64().unwrap_or(0.0);
                output.line(&format!(
                    "    {:16} {}",
                    phase.trim_end_matches("_us"),
                    quantity::nanoseconds((us * 1e3) as u64)
                ))?;
            }
        }
    }
    output.flush()
}

fn starts(host: &Host, clock: &Clock, pool: usize, limit_ms: f64, samples: usize) -> anyhow::Result<Record> {
    let code = functions()?;
    let mut pair = Pair::new()?;
    let mut phases = Vec::new();
    let mut first_calls = Vec::new();
    // The node does not have the code yet: reported apart.
    wait_for_pool(host, pool)?;
    let (first_ever, _, _) = start(host, &code)?;
    for _ in 0..samples {
        wait_for_pool(host, pool)?;
        let baseline = clock.block(0, 1, run_true)?;
        let (total, lease, first_call) = start(host, &code)?;
        let expected = if pool > 0 { "from the pool" } else { "started" };
        ensure!(
            (lease.start.pooled > 0) == (pool > 0),
            "the worker should have been {expected} and was not"
        );
        pair.add(&baseline, &super::samples::Block(vec![total.as_nanos() as u64]));
        phases.push(lease);
        first_calls.push(first_call.as_secs_f64() * 1e6);
    }
    let params = params! { "transport": "shm", "mode": "cold", "size_bytes": 8, "workers": 1, "pool": pool };
    let machine = Machine::here(Cores::default());
    let mut record = Record::of_pair("cold", params, "starting and ending /bin/true", &pair, &machine);
    let of = |phase: fn(&ColdPhases) -> Duration| {
        median(
            &phases
                .iter()
                .map(|phases| phase(phases).as_secs_f64() * 1e6)
                .collect::<Vec<_>>(),
        )
    };
    record.details = params! {
        "acquire_us": of(|phases| phases.acquire),
        "attach_us": of(|phases| phases.attach),
        "load_us": of(|phases| phases.load),
        "worker_load_us": of(|phases| phases.worker_load),
        "open_us": of(|phases| phases.open),
        "first_call_us": median(&first_calls),
        "worker_start_us": of(|phases| Duration::from_micros(phases.start.start_us)),
        "worker_configure_us": of(|phases| Duration::from_micros(phases.start.configure_us)),
        "first_on_node_us": first_ever.as_secs_f64() * 1e6,
    };
    let what = if pool > 0 {
        "with the warm pool"
    } else {
        "without the warm pool"
    };
    let median_ms = pair.measured.quantile(0.5) as f64 / 1e6;
    record.targets.push(Target::at_most(
        format!("cold start {what}, ms"),
        median_ms,
        limit_ms,
    ));
    Ok(record)
}

/// Lease, first call, release: how long until the result, and where the time went.
fn start(host: &Host, code: &Code) -> anyhow::Result<(Duration, ColdPhases, Duration)> {
    let options = LeaseOptions {
        runtime_dir: Some(host.runtime_dir().to_owned()),
        label: "hotlease bench".into(),
        ..LeaseOptions::default()
    };
    let begin = Instant::now();
    let invoker = Invoker::allocate(code, options)?;
    let leased = begin.elapsed();
    let mut output = [0; 8];
    let length = invoker.function("echo")?.invoke(&[5; 8], &mut output)?;
    let total = begin.elapsed();
    ensure!((length, output) == (8, [5; 8]), "the first call does not echo");
    let phases = invoker.phases();
    invoker.deallocate()?;
    Ok((total, phases, total - leased))
}

fn run_true() -> anyhow::Result<()> {
    let status = Command::new("/bin/true")
        .stdin(Stdio::null())
        .status()
        .context("cannot run /bin/true")?;
    ensure!(status.success(), "/bin/true failed");
    Ok(())
}

/// The pool is refilled in the background: no lease finds it empty here.
fn wait_for_pool(host: &Host, pool: usize) -> anyhow::Result<()> {
    if pool == 0 {
        return Ok(());
    }
    let (pid, start) = (host.pid()?, Instant::now());
    while children(pid, WORKER).len() < pool {
        ensure!(start.elapsed() < REFILL_WITHIN, "the warm pool is not refilled");
        thread::sleep(Duration::from_millis(2));
    }
    // Started is not yet ready; how long that takes is what the other series measures.
    thread::sleep(Duration::from_millis(20));
    Ok(())
}

fn idle_worker(host: &Host, pool: usize) -> anyhow::Result<Record> {
    wait_for_pool(host, pool)?;
    let mut resident = Samples::new()?;
    for pid in children(host.pid()?, WORKER) {
        resident.add(Held::by(pid)?.rss_bytes);
    }
    let largest = resident.quantile(1.0);
    let params = params! { "what": "memory of an idle worker", "pool": pool };
    let figures = Figures::Times {
        p50: resident.quantile(0.5),
        p99: largest,
    };
    let mut record = Record::new("cold", params, "bytes", figures, &Machine::here(Cores::default()));
    record.samples = resident.len();
    let what = "memory of an idle worker, bytes";
    record
        .targets
        .push(Target::at_most(what, largest as f64, IDLE_RSS_BYTES_MAX));
    Ok(record)
}
