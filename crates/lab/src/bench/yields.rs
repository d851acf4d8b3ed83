//! `hotlease bench yields`: batch jobs that take a node from leases, and the first call of a new lease afterwards. The
//! agent gets the requests that `hotlease-node` would send.
//!
//! The requests go to the agent's node socket directly. The time that a batch system needs before and after these
//! requests is not measured, because it depends on the batch system.

use super::bench_platform::BenchPlatform;
use super::host_info::HostInfo;
use super::measured_lease::lease_options_on;
use super::pin::Cores;
use super::record::{Figures, Record, Target, params, print_targets};
use super::samples::Samples;
use anyhow::{Context, bail, ensure};
use clap::Args;
use hotlease_client::{EndReason, Error, Invoker, LeaseOptions, RunCertainty, Spread};
use hotlease_fabric::socket::Socket;
use hotlease_terminal::functions::functions;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};

/// Measure how soon a batch job has the node, and leases afterwards
///
/// Starts a private platform. In each round a job takes the node while all leased cores compute, and ends; then a new lease
/// makes its first call; then a job takes the idle node.
#[derive(Debug, Args)]
pub(super) struct YieldArgs {
    /// Rounds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,
    /// Cores that compute [default: all that are free]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: Option<u16>,
}

/// Time for which the interrupted functions would run.
const RUNNING: Duration = Duration::from_secs(600);
/// Time for which the first call after a job waits for a lease.
const PATIENCE: Duration = Duration::from_secs(30);
/// Limits of times, milliseconds: of 99 of 100 yields of a node whose cores are all busy; of an idle node; until a
/// caller is told; of the first call afterwards.
const BUSY_MS_MAX: f64 = 100.0;
const IDLE_MS_MAX: f64 = 5.0;
const TOLD_MS_MAX: f64 = 250.0;
const FIRST_CALL_MS_MAX: f64 = 1000.0;

/// Durations of one kind, over all rounds.
struct Series {
    what: &'static str,
    samples: Samples,
    /// Fraction of the samples that must be within the limit, and the limit.
    limit: (f64, f64),
}

impl Series {
    fn new(what: &'static str, limit: (f64, f64)) -> anyhow::Result<Self> {
        let samples = Samples::new()?;
        Ok(Self { what, samples, limit })
    }

    fn add(&mut self, took: Duration) {
        self.samples.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn record(&self, cores: usize, machine: &HostInfo) -> Record {
        let params = params! { "what": self.what, "cores": cores };
        let mut record = Record::new("yields", params, "ns", Figures::of(&self.samples), machine);
        record.samples = self.samples.len();
        record.details.insert("max".into(), self.samples.quantile(1.0).into());
        let (fraction, limit_ms) = self.limit;
        let value = self.samples.quantile(fraction) as f64 / 1e6;
        let which = if fraction < 1.0 { "p99" } else { "max" };
        let what = format!("{}, {which}, ms", self.what);
        record.targets.push(Target::at_most(what, value, limit_ms));
        record
    }
}

/// The node, and the number of the last job.
struct Node {
    host: BenchPlatform,
    cores: Option<u16>,
    job: u64,
}

impl Node {
    fn ask(&self, request: &NodeRequest) -> anyhow::Result<NodeAnswer> {
        let path = self.host.runtime_dir().join("node.sock");
        let socket = Socket::connect(&path).with_context(|| format!("cannot reach {}", path.display()))?;
        socket.send(request, &[])?;
        let (answer, _) = socket.receive()?.context("the agent closed the node socket")?;
        Ok(answer)
    }

    /// Lets a job take the node. Returns the time until the job had the node.
    fn begin_job(&mut self) -> anyhow::Result<Duration> {
        self.job += 1;
        let job = BatchJob {
            user: "bench".into(),
            ..BatchJob::unknown(JobId(self.job))
        };
        let begin = Instant::now();
        match self.ask(&NodeRequest::Yield(Box::new(job)))? {
            NodeAnswer::Free { .. } => Ok(begin.elapsed()),
            other => bail!("the agent does not yield: {other:?}"),
        }
    }

    fn end_job(&self) -> anyhow::Result<()> {
        match self.ask(&NodeRequest::Retake(JobId(self.job)))? {
            NodeAnswer::Retaken => Ok(()),
            other => bail!("the agent does not take the node again: {other:?}"),
        }
    }

    fn lease(&self) -> anyhow::Result<Invoker> {
        let free = thread::available_parallelism().map_or(1, usize::from);
        let options = LeaseOptions {
            workers: self.cores.unwrap_or(u16::try_from(free)?),
            spread: Spread::AllOrNothing,
            patience: PATIENCE,
            ..lease_options_on(&self.host, LeaseOptions::default())
        };
        Ok(Invoker::allocate(&functions()?, options)?)
    }
}

pub(super) fn carry_out(args: &YieldArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut node = Node {
        host: BenchPlatform::private(None, &[])?,
        cores: args.cores,
        job: 0,
    };
    let mut busy = Series::new("yield, all cores busy", (0.99, BUSY_MS_MAX))?;
    let mut told = Series::new("caller told, from the yield's request", (1.0, TOLD_MS_MAX))?;
    let mut first = Series::new("first call, from the retake's request", (0.99, FIRST_CALL_MS_MAX))?;
    let mut idle = Series::new("yield, idle node", (0.99, IDLE_MS_MAX))?;
    let mut lease = node.lease()?;
    let cores = lease.slots();
    for _ in 0..args.rounds {
        interrupt(&mut node, &lease, &mut busy, &mut told)?;
        drop(lease);
        let retake = Instant::now();
        node.end_job()?;
        lease = node.lease()?;
        lease.function("echo")?.call(&[1])?;
        first.add(retake.elapsed());
        lease.deallocate()?;
        idle.add(node.begin_job()?);
        node.end_job()?;
        lease = node.lease()?;
    }
    lease.deallocate()?;
    let machine = HostInfo::here(Cores::default());
    let series = [&busy, &idle, &told, &first];
    let records: Vec<Record> = series.iter().map(|series| series.record(cores, &machine)).collect();
    if output.is_json() {
        return records.iter().try_for_each(|record| output.object(record));
    }
    output.line(&format!("batch jobs that take a node of {cores} leased cores"))?;
    let columns = ", >number, >p50, >p99, >max";
    output.list(&records, columns, "nothing was measured", |record| {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let max = record.details.get("max").and_then(Value::as_u64);
        let (p50, p99) = match record.measured {
            Figures::Times { p50, p99 } => (p50, p99),
            Figures::Rate { .. } | Figures::Change { .. } => (0, 0),
        };
        let shown = [Some(p50), Some(p99), max].map(|ns| ns.map(quantity::nanoseconds).unwrap_or_default());
        [text(record.params.get("what")), record.samples.to_string()]
            .into_iter()
            .chain(shown)
            .collect()
    })?;
    print_targets(output, &records)?;
    output.flush()
}

/// Lets a job take the node while a function runs on each leased core.
fn interrupt(node: &mut Node, lease: &Invoker, busy: &mut Series, told: &mut Series) -> anyhow::Result<()> {
    let spin = lease.function("spin")?;
    let input = u64::try_from(RUNNING.as_millis())?.to_le_bytes();
    let mut calls = Vec::with_capacity(lease.slots());
    for slot in 0..lease.slots() {
        calls.push(spin.clone().on_slot(slot)?.submit(&input)?);
    }
    // After this pause all calls have begun, which is checked below.
    thread::sleep(Duration::from_millis(20));
    let begin = Instant::now();
    let (took, ends) = thread::scope(|scope| {
        let waiting: Vec<_> = calls
            .into_iter()
            .map(|call| scope.spawn(move || (call.wait(), begin.elapsed())))
            .collect();
        let took = node.begin_job();
        let ends: Vec<_> = waiting.into_iter().map(|waiting| waiting.join()).collect();
        (took, ends)
    });
    let took = took?;
    let mut is_busy = true;
    for end in ends {
        let (result, after) = end.map_err(|_| anyhow::anyhow!("a waiting thread panicked"))?;
        match result {
            Err(Error::LeaseEnded {
                reason: EndReason::BatchJob(_),
                ran,
            }) => {
                is_busy &= ran != RunCertainty::No;
                told.add(after);
            }
            other => bail!("a call was not told of the job: {other:?}"),
        }
    }
    ensure!(
        is_busy,
        "a function had not begun when the job came: this host is too busy"
    );
    busy.add(took);
    Ok(())
}
