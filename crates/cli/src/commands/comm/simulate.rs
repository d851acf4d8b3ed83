//! `hotlease comm simulate`

use super::given::{Case, FileArgs, TimesArgs, algorithm, time};
use crate::output::{Align::*, Column, Output};
use crate::quantity;
use clap::Args;
use hotlease_comm::model::{Candidate, Estimate, RANKS_MAX, candidates};
use hotlease_comm::{LinkKind, Operation};
use serde::Serialize;

/// Show which algorithm is the fastest for each operation, number of ranks and size, by the model
///
/// Beside it stands what the table of algorithms chooses, and how many times as long that takes. Thousands of ranks take
/// seconds to minutes. With `--json`, an object a row: operation, ranks, size, algorithm, seconds, chosen, chosen_seconds (absent where
/// it has too many messages to be simulated), factor, not_simulated (algorithms of which that holds).
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// How many members take part
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,10000",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(RANKS_MAX))
    )]
    ranks: Vec<u32>,
    /// What broadcasts, reductions and scans are of, or all blocks that one rank sends or gets together
    #[arg(long, value_delimiter = ',', default_value = "8,8K,1M,64M", value_parser = quantity::parse_bytes)]
    size: Vec<usize>,
    /// What they do
    #[arg(
        long = "op",
        value_name = "OPERATION",
        value_delimiter = ',',
        default_value = "barrier,broadcast,gather,allgather,reduce,allreduce,reduce_scatter,scan,alltoall"
    )]
    operations: Vec<Operation>,
    /// What they send over: shm, ofi, tcp, redis, s3 or dynamodb
    #[arg(long, default_value = "tcp")]
    link: LinkKind,
    #[command(flatten)]
    times: TimesArgs,
    #[command(flatten)]
    files: FileArgs,
}

#[derive(Serialize)]
struct Row {
    operation: String,
    ranks: u32,
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    chosen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    factor: Option<f64>,
    not_simulated: Vec<String>,
}

pub(super) fn carry_out(args: &SimulateArgs, output: &mut Output) -> anyhow::Result<()> {
    let prices = args.times.apply(args.files.prices()?)?;
    let table = args.files.table()?;
    let mut rows = Vec::new();
    for &operation in &args.operations {
        for &ranks in &args.ranks {
            for &size in args.sizes(operation) {
                let case = Case {
                    operation,
                    ranks,
                    size,
                    root: 0,
                    commutes: true,
                };
                let candidates = candidates(&case.scenario(None), args.link, &table, &prices)?;
                rows.push(row(&case, &candidates));
            }
        }
    }
    let columns = [
        Column("OPERATION", Left),
        Column("RANKS", Right),
        Column("SIZE", Right),
        Column("FASTEST", Left),
        Column("TIME", Right),
        Column("THE TABLE'S CHOICE", Left),
        Column("TIME", Right),
        Column("FACTOR", Right),
        Column("NOT SIMULATED", Left),
    ];
    output.list(&rows, &columns, "nothing was asked for", |row| {
        vec![
            row.operation.clone(),
            row.ranks.to_string(),
            quantity::bytes(row.size as u64),
            row.algorithm.clone().unwrap_or("-".into()),
            row.seconds.map_or("-".into(), time),
            row.chosen.clone(),
            row.chosen_seconds.map_or("-".into(), time),
            row.factor.map_or("-".into(), |factor| format!("{factor:.2}")),
            row.not_simulated.join(", "),
        ]
    })
}

impl SimulateArgs {
    /// A barrier has no size.
    fn sizes(&self, operation: Operation) -> &[usize] {
        match operation {
            Operation::Barrier => &[0],
            _ => &self.size,
        }
    }
}

fn row(case: &Case, candidates: &[Candidate]) -> Row {
    let element = case.element();
    let seconds = |candidate: &Candidate| candidate.estimate.as_ref().ok().map(Estimate::seconds);
    let name = |candidate: &Candidate| algorithm(&candidate.recipe, element);
    // The best comes first, and what was not simulated last.
    let best = candidates.first().filter(|best| best.estimate.is_ok());
    let chosen = candidates.iter().find(|candidate| candidate.chosen);
    let (least, taken) = (best.and_then(seconds), chosen.and_then(seconds));
    let unknown = candidates.iter().filter(|candidate| candidate.estimate.is_err());
    Row {
        operation: case.operation.to_string(),
        ranks: case.ranks,
        size: case.size,
        algorithm: best.map(name),
        seconds: least,
        chosen: chosen.map(name).unwrap_or_default(),
        chosen_seconds: taken,
        factor: taken.zip(least).map(|(taken, least)| taken / least),
        not_simulated: unknown.map(name).collect(),
    }
}
