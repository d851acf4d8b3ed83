//! `hotlease bench comm`: duration of each algorithm of each collective between processes of this host, over
//! TCP.
//!
//! All algorithms of a collective are measured alternately, sample by sample, because the host's speed changes over
//! time. A sample begins after a barrier and ends when the last rank has finished.

use super::record::round;
use anyhow::{Context, ensure};
use clap::Args;
use hotlease_comm::model::collective_of_size;
use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_comm::{
    Algorithm, Collective, CollectiveCall, Communicator, Datatype, LinkKind, Measurement, Operation, Operator, Options,
    Question, Recipe, Schedule, Secret, Table,
};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Options of the measurement.
#[derive(Debug, Clone, Args)]
struct MeasureArgs {
    /// Bytes of a broadcast, a reduction or a scan, or of all blocks together that one rank sends or receives
    #[arg(long, value_delimiter = ',', default_value = "8,1K,8K,64K,512K,4M", value_parser = quantity::parse_bytes)]
    size: Vec<usize>,
    /// Operations to measure
    #[arg(
        long = "op",
        value_name = "OPERATION",
        value_delimiter = ',',
        default_value = "barrier,broadcast,gather,scatter,allgather,reduce,allreduce,reduce_scatter,scan,exscan,alltoall"
    )]
    operations: Vec<Operation>,
    /// Samples of each; the median is shown
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
}

/// Measure the duration of each algorithm of each collective between processes of this host, over TCP
///
/// Starts the processes, measures all algorithms in turn, and shows medians. `--tune FILE` writes a table of
/// algorithms: the fastest one for everything that was measured, and the built-in rules for the rest. `hotlease
/// comm explain --table FILE` shows the effect of the table. With `--json`, prints one object per row: operation,
/// ranks, size, algorithm, segment_bytes, median_ns, factor (relative to the fastest).
#[derive(Debug, Args)]
pub(super) struct CommArgs {
    /// Numbers of processes, measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u32).range(2..=128))]
    ranks: Vec<u32>,
    #[command(flatten)]
    plan: MeasureArgs,
    /// File to write the table of the fastest algorithms to
    #[arg(long, value_name = "FILE")]
    tune: Option<PathBuf>,
}

/// Arguments of a member of `bench comm`. Its secret is in the environment.
#[derive(Debug, Args)]
pub(super) struct MemberArgs {
    #[arg(long)]
    rendezvous: String,
    #[arg(long)]
    ranks: u32,
    #[command(flatten)]
    plan: MeasureArgs,
}

const NAME: &str = "bench";
/// Size of an element: all numbers here are F64.
const ELEMENT: usize = 8;

#[derive(Serialize)]
struct AlgorithmTimeRow {
    operation: String,
    ranks: u32,
    size: usize,
    algorithm: String,
    segment_bytes: usize,
    median_ns: u64,
    factor: f64,
}

pub(super) fn carry_out(args: &CommArgs, output: &mut Printer) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for &ranks in &args.ranks {
        measured.extend(measure_ranks(ranks, &args.plan)?);
    }
    show(&measured, output)?;
    if let Some(file) = &args.tune {
        let table = Table::tuned(LinkKind::Tcp, &measured)?;
        let text = format!("# Measured by `hotlease bench comm --tune`, over TCP on one host.\n{table}");
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    output.flush()
}

/// Runs the other ranks as processes, and takes part as rank 0.
fn measure_ranks(ranks: u32, plan: &MeasureArgs) -> anyhow::Result<Vec<Measurement>> {
    let secret: String = (0..4).map(|_| format!("{:016x}", rand::random::<u64>())).collect();
    let key = Secret::new(secret.as_bytes())?;
    let server = Server::start("127.0.0.1:0", vec![key.clone()], Limits::default())?;
    let rendezvous = server.address().to_string();
    let mut members = ChildMembers(Vec::new());
    for _ in 1..ranks {
        members.0.push(plan.member(&rendezvous, ranks, &secret)?);
    }
    let options = Options {
        rank: Some(0),
        stores: hotlease_stores::openers(),
        ..Options::new(NAME, ranks, rendezvous, key)
    };
    let measured = measure(Communicator::join(&options)?, plan)?;
    for member in &mut members.0 {
        let status = member.wait().context("cannot wait for a member")?;
        ensure!(status.success(), "a member of the benchmark failed: {status}");
    }
    Ok(measured)
}

impl MeasureArgs {
    fn member(&self, rendezvous: &str, ranks: u32, secret: &str) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let list = |texts: Vec<String>| texts.join(",");
        let sizes = list(self.size.iter().map(usize::to_string).collect());
        let operations = list(self.operations.iter().map(Operation::to_string).collect());
        Command::new(program)
            .args(["bench", "comm-member", "--rendezvous", rendezvous])
            .args(["--ranks", &ranks.to_string(), "--size", &sizes, "--op", &operations])
            .args(["--samples", &self.samples.to_string()])
            .env("HOTLEASE_COMM_SECRET", secret)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a member of the benchmark")
    }
}

/// Processes that are killed when this value is dropped.
struct ChildMembers(Vec<Child>);

impl Drop for ChildMembers {
    fn drop(&mut self) {
        for member in &mut self.0 {
            // Fails if the process has ended already.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// Takes part as a rank other than 0.
pub(super) fn take_part(args: &MemberArgs) -> anyhow::Result<()> {
    let mut options = Options::new(NAME, args.ranks, &args.rendezvous, Secret::from_environment()?);
    options.stores = hotlease_stores::openers();
    measure(Communicator::join(&options)?, &args.plan).map(drop)
}

/// Measures all operations. All members call this function together, and all get the result.
fn measure(all: Communicator, plan: &MeasureArgs) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    for &operation in &plan.operations {
        let sizes = if operation == Operation::Barrier {
            &[0][..]
        } else {
            &plan.size
        };
        for &size in sizes {
            measured.extend(measure_one(&all, operation, size, plan.samples)?);
        }
    }
    all.finish()?;
    Ok(measured)
}

fn measure_one(
    all: &Communicator,
    operation: Operation,
    size: usize,
    samples: u32,
) -> anyhow::Result<Vec<Measurement>> {
    let (rank, ranks) = (all.rank(), all.size());
    let collective = collective_of_size(operation, 0, ranks, size.div_ceil(ELEMENT));
    let call = CollectiveCall::new(collective, Datatype::F64, rank, ranks);
    call.check().map_err(|error| CommandError::Usage(error.to_string()))?;
    let recipes = Question::new(&call, LinkKind::Tcp).candidates();
    let build = |recipe: &Recipe| recipe.build(&call).map(Arc::new);
    let schedules: Vec<Arc<Schedule>> = recipes.iter().map(build).collect::<Result<_, _>>()?;
    let (input, mut output) = (vec![0; call.input() * ELEMENT], vec![0; call.output() * ELEMENT]);
    let reduction = collective.operator().map(|sum| sum.of(Datatype::F64)).transpose()?;
    let mut clock = CollectiveClock::new(rank, ranks)?;
    let mut times = vec![Vec::new(); recipes.len()];
    // The first turn warms up caches and connections, and is not counted.
    for turn in 0..=samples {
        for (schedule, times) in schedules.iter().zip(&mut times) {
            let reduction = reduction.clone();
            let seconds = clock.time(all, || {
                all.run(schedule.clone(), ELEMENT, &input, &mut output, reduction)
            })?;
            if turn > 0 {
                times.push(seconds);
            }
        }
    }
    let of = |(recipe, times): (Recipe, Vec<f64>)| Measurement {
        operation,
        ranks,
        bytes: call.bytes(),
        recipe,
        element: ELEMENT,
        seconds: hotlease_fabric::clock::median(&times),
    };
    Ok(recipes.into_iter().zip(times).map(of).collect())
}

/// Times an operation of all ranks, from a barrier until the last rank has finished.
struct CollectiveClock {
    barrier: Arc<Schedule>,
    longest: Arc<Schedule>,
    max: hotlease_comm::Reduction,
}

impl CollectiveClock {
    fn new(rank: u32, ranks: u32) -> anyhow::Result<Self> {
        let operator = &Operator::Max;
        let build = |collective, algorithm: Algorithm| {
            Recipe::from(algorithm)
                .build(&CollectiveCall::new(collective, Datatype::F64, rank, ranks))
                .map(Arc::new)
        };
        Ok(Self {
            barrier: build(Collective::Barrier, Algorithm::Dissemination)?,
            longest: build(
                Collective::Allreduce { count: 1, operator },
                Algorithm::RecursiveDoubling,
            )?,
            max: operator.of(Datatype::F64)?,
        })
    }

    fn time(
        &mut self,
        all: &Communicator,
        run: impl FnOnce() -> Result<(), hotlease_comm::Error>,
    ) -> anyhow::Result<f64> {
        all.run(self.barrier.clone(), ELEMENT, &[], &mut [], None)?;
        let begun = Instant::now();
        run()?;
        let mine = begun.elapsed().as_secs_f64().to_ne_bytes();
        let mut longest = [0; ELEMENT];
        all.run(
            self.longest.clone(),
            ELEMENT,
            &mine,
            &mut longest,
            Some(self.max.clone()),
        )?;
        Ok(f64::from_ne_bytes(longest))
    }
}

fn show(measured: &[Measurement], output: &mut Printer) -> anyhow::Result<()> {
    let mut fastest = BTreeMap::new();
    for one in measured {
        let least = fastest
            .entry((one.operation, one.ranks, one.bytes))
            .or_insert(f64::INFINITY);
        *least = one.seconds.min(*least);
    }
    let row = |one: &Measurement| AlgorithmTimeRow {
        operation: one.operation.to_string(),
        ranks: one.ranks,
        size: one.bytes,
        algorithm: one.recipe.algorithm.to_string(),
        segment_bytes: one.recipe.segment * one.element,
        median_ns: (one.seconds * 1e9) as u64,
        factor: round(one.seconds / fastest[&(one.operation, one.ranks, one.bytes)]),
    };
    let rows: Vec<AlgorithmTimeRow> = measured.iter().map(row).collect();
    let columns = "OPERATION, >RANKS, >SIZE, ALGORITHM, >SEGMENTS, >MEDIAN, >FACTOR";
    output.list(&rows, columns, "nothing was measured", |row| {
        let segments = match row.segment_bytes {
            0 => String::new(),
            bytes => quantity::bytes(bytes as u64),
        };
        vec![
            row.operation.clone(),
            row.ranks.to_string(),
            quantity::bytes(row.size as u64),
            row.algorithm.clone(),
            segments,
            quantity::nanoseconds(row.median_ns),
            format!("{:.2}", row.factor),
        ]
    })
}
