//! `hotlease ps`: a list of workers.

use clap::Args;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::{Platform, SiteArgs};
use hotlease_terminal::quantity;
use hotlease_wire::grpc::{ListRequest, WorkerInfo};
use hotlease_wire::mirror;
use hotlease_wire::session::UsageTotals;
use serde::Serialize;

/// List workers
///
/// Workers that wait for leases borrow idle memory; the last line shows how much. No lease is charged for it.
///
/// With `--json`, prints an object for each worker: agent, lease (empty: the worker waits for a lease), index, pid,
/// epoch, cores, state (pooled, spare, zygote, starting, serving, dead), sandbox (its kind), rss_bytes, usage
/// {allocated_ns, hot_ns, compute_ns, invocations}, shared (whether its slots take turns on one core), refused
/// (invocations that found no core), preempted (how many times something else had the core of a slot), contended
/// (whether a slot does not poll now because something else wants its core).
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// List only workers that serve a lease, not workers that wait for a lease
    #[arg(long)]
    leased: bool,
    #[command(flatten)]
    site: SiteArgs,
}

mirror! {
    #[derive(Serialize)]
    struct WorkerRow from(info: WorkerInfo) {
        agent: String,
        lease: String,
        index: u32,
        pid: u32,
        epoch: u32,
        cores: Vec<u32>,
        state: String,
        sandbox: String,
        rss_bytes: u64,
        usage: UsageTotals = info.usage.into(),
        shared: bool,
        refused: u64,
        preempted: u64,
        contended: bool,
    }
}

pub(crate) fn carry_out(args: PsArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut platform = Platform::of(&args.site)?;
    let list = platform.request(async |client| client.list_workers(ListRequest::default()).await)?;
    let mut rows: Vec<WorkerRow> = list.workers.into_iter().map(WorkerRow::from).collect();
    rows.retain(|row| !args.leased || !row.lease.is_empty());
    let columns = ">PID, STATE, SANDBOX, LEASE, >WORKER, CORES, >MEMORY, >CALLS, >COMPUTE, AGENT";
    output.list(&rows, columns, "no workers", |row| {
        let of_lease = |text: String| {
            if row.lease.is_empty() { "-".to_owned() } else { text }
        };
        vec![
            row.pid.to_string(),
            row.state.clone(),
            row.sandbox.clone(),
            of_lease(row.lease.clone()),
            of_lease(row.index.to_string()),
            of_lease(if row.shared {
                format!("{} shared", quantity::cores(&row.cores[..1.min(row.cores.len())]))
            } else {
                quantity::cores(&row.cores)
            }),
            quantity::bytes(row.rss_bytes),
            row.usage.invocations.to_string(),
            quantity::nanoseconds(row.usage.compute_ns),
            row.agent.clone(),
        ]
    })?;
    match borrowed_memory_text(&rows) {
        Some(text) if !output.is_json() => output.line(&text),
        _ => Ok(()),
    }
}

/// Sentence about the memory of workers that wait for leases.
fn borrowed_memory_text(rows: &[WorkerRow]) -> Option<String> {
    let waiting = rows.iter().filter(|row| row.lease.is_empty());
    let (count, bytes) = waiting.fold((0, 0), |(count, bytes), row| (count + 1, bytes + row.rss_bytes));
    let those = match count {
        0 => return None,
        1 => "1 waits for leases, in".to_owned(),
        count => format!("{count} wait for leases, in"),
    };
    Some(format!(
        "\n{those} {} of idle memory: no lease is charged for it, and it is given back when others need it",
        quantity::bytes(bytes)
    ))
}
