//! `hotlease top`: activity of workers.

use clap::Args;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{ListRequest, WorkerInfo};
use serde::Serialize;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Clears a terminal, and moves to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Show the activity of leases' workers, repeatedly
///
/// Busy is the part of the time since the last look that a worker spent in functions. Agents count at the end of a
/// call, so a long call counts when it is over. Preempted is the number of times since the last look that something
/// else had the core of a worker's slot; a star: the slot does not poll now, because something else wants its core.
/// With `--json`, prints an object for each worker and look: agent, lease, index, pid, state, calls_per_second, busy
/// (0 to 1) and preempted (all three null at the first look), contended, rss_bytes, invocations.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Number of looks; 0: go on until Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 0)]
    count: u64,
    #[command(flatten)]
    site: SiteArgs,
}

/// Key of a worker: agent, lease, number in the lease, epoch.
type WorkerKey = (String, String, u32, u32);

/// Invocations, nanoseconds in functions, and preemptions.
type UsageCounts = (u64, u64, u64);

#[derive(Serialize)]
struct ActivityRow {
    agent: String,
    lease: String,
    index: u32,
    pid: u32,
    state: String,
    calls_per_second: Option<f64>,
    busy: Option<f64>,
    preempted: Option<u64>,
    contended: bool,
    rss_bytes: u64,
    invocations: u64,
}

pub(crate) fn carry_out(args: TopArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    let clears = !output.is_json() && std::io::stdout().is_terminal();
    let (mut before, mut looked) = (HashMap::new(), Instant::now());
    for look in 1.. {
        let list = platform.request(async |client| client.list_workers(ListRequest::default()).await)?;
        let now = Instant::now();
        let mut workers = list.workers;
        workers.retain(|worker| !worker.lease.is_empty());
        let rows = rows(&workers, &before, now - looked);
        (before, looked) = (workers.iter().map(used).collect(), now);
        if clears {
            output.line(CLEAR)?;
        }
        show(&rows, output)?;
        if look == args.count {
            return Ok(());
        }
        output.flush()?;
        std::thread::sleep(Duration::from_secs(args.interval));
    }
    Ok(())
}

fn used(worker: &WorkerInfo) -> (WorkerKey, UsageCounts) {
    let key = (worker.agent.clone(), worker.lease.clone(), worker.index, worker.epoch);
    let usage = worker.usage.unwrap_or_default();
    (key, (usage.invocations, usage.compute_ns, worker.preempted))
}

/// Activity of each worker since the last look.
fn rows(workers: &[WorkerInfo], before: &HashMap<WorkerKey, UsageCounts>, between: Duration) -> Vec<ActivityRow> {
    let row = |worker: &WorkerInfo| {
        let (key, (invocations, compute_ns, preempted)) = used(worker);
        let since = before.get(&key).map(|(calls, ns, lost)| {
            let seconds = between.as_secs_f64().max(1e-9);
            let calls = invocations.saturating_sub(*calls) as f64 / seconds;
            let busy = compute_ns.saturating_sub(*ns) as f64 / 1e9 / seconds;
            // A call that began before the last look counts completely in this look.
            (calls, busy.min(1.0), preempted.saturating_sub(*lost))
        });
        ActivityRow {
            agent: worker.agent.clone(),
            lease: worker.lease.clone(),
            index: worker.index,
            pid: worker.pid,
            state: worker.state.clone(),
            calls_per_second: since.map(|(calls, ..)| calls),
            busy: since.map(|(_, busy, _)| busy),
            preempted: since.map(|(.., preempted)| preempted),
            contended: worker.contended,
            rss_bytes: worker.rss_bytes,
            invocations,
        }
    };
    let mut rows: Vec<ActivityRow> = workers.iter().map(row).collect();
    // The busiest first; workers without an earlier look last.
    rows.sort_by(|a, b| b.busy.unwrap_or(-1.0).total_cmp(&a.busy.unwrap_or(-1.0)));
    rows
}

fn show(rows: &[ActivityRow], output: &mut Printer) -> anyhow::Result<()> {
    let columns = ">PID, STATE, LEASE, >WORKER, >BUSY, >CALLS/S, >PREEMPTED, >CALLS, >MEMORY, AGENT";
    let known = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), text);
    output.list(rows, columns, "no workers of leases", |row| {
        vec![
            row.pid.to_string(),
            row.state.clone(),
            row.lease.clone(),
            row.index.to_string(),
            known(row.busy, |busy| format!("{:.0} %", 100.0 * busy)),
            known(row.calls_per_second, |calls| format!("{calls:.0}")),
            preempted(row),
            row.invocations.to_string(),
            quantity::bytes(row.rss_bytes),
            row.agent.clone(),
        ]
    })
}

fn preempted(row: &ActivityRow) -> String {
    let number = row
        .preempted
        .map_or_else(|| "-".to_owned(), |number| number.to_string());
    if row.contended { number + "*" } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::grpc::Usage;

    fn worker(index: u32, invocations: u64, compute_ns: u64) -> WorkerInfo {
        WorkerInfo {
            lease: "lease".into(),
            index,
            preempted: invocations / 10,
            contended: index == 0,
            usage: Some(Usage {
                invocations,
                compute_ns,
                ..Usage::default()
            }),
            ..WorkerInfo::default()
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks_and_the_busiest_is_first() {
        let before: HashMap<_, _> = [worker(0, 100, 1_000_000_000), worker(1, 5, 0)]
            .iter()
            .map(used)
            .collect();
        let now = [
            worker(0, 120, 1_500_000_000),
            worker(1, 6, 9_000_000_000),
            worker(2, 7, 7),
        ];
        let rows = rows(&now, &before, Duration::from_secs(2));
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (row.index, row.busy, row.calls_per_second, preempted(row)))
            .collect();
        let expected = [
            (1, Some(1.0), Some(0.5), "0".to_owned()),
            (0, Some(0.25), Some(10.0), "2*".to_owned()),
            (2, None, None, "-".to_owned()),
        ];
        assert_eq!(seen, expected, "a worker without an earlier look has no rates");
    }
}
