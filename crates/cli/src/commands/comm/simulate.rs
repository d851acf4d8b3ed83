//! `hotlease comm simulate`: the fastest algorithms by the model.

use super::model_args::{ModelFileArgs, SizedCollective, TimesArgs, algorithm, time};
use clap::Args;
use hotlease_collectives::model::{Estimate, RANKS_MAX, RecipeCandidate, candidates};
use hotlease_collectives::{LinkKind, Operation};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;

/// Show which algorithm is the fastest for each operation, number of ranks and size, by the model
///
/// Also shows the algorithm that the table of algorithms chooses, and its time as a multiple of the fastest time.
/// Thousands of ranks take seconds to minutes. With `--json`, prints one object per row: operation, ranks, size,
/// algorithm, seconds, chosen, chosen_seconds (absent if it has too many messages to be simulated), factor,
/// not_simulated (algorithms with too many messages).
#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    /// Numbers of members
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,10000",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(RANKS_MAX))
    )]
    ranks: Vec<u32>,
    /// Bytes of a broadcast, a reduction or a scan, or of all blocks together that one rank sends or receives
    #[arg(long, value_delimiter = ',', default_value = "8,8K,1M,64M", value_parser = quantity::parse_bytes)]
    size: Vec<usize>,
    /// Operations
    #[arg(
        long = "op",
        value_name = "OPERATION",
        value_delimiter = ',',
        default_value = "barrier,broadcast,gather,allgather,reduce,allreduce,reduce_scatter,scan,alltoall"
    )]
    operations: Vec<Operation>,
    /// Link between the ranks: shm, ofi, tcp, redis, s3 or dynamodb
    #[arg(long, default_value = "tcp")]
    link: LinkKind,
    #[command(flatten)]
    times: TimesArgs,
    #[command(flatten)]
    files: ModelFileArgs,
}

#[derive(Serialize)]
struct SimulationRow {
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

pub(super) fn carry_out(args: &SimulateArgs, output: &mut Printer) -> anyhow::Result<()> {
    let prices = args.times.apply(args.files.prices()?)?;
    let table = args.files.table()?;
    let mut rows = Vec::new();
    for &operation in &args.operations {
        for &ranks in &args.ranks {
            for &size in args.sizes(operation) {
                let case = SizedCollective {
                    operation,
                    ranks,
                    size,
                    root: 0,
                    commutes: true,
                };
                let scenario = case.scenario(None);
                let candidates = candidates(&scenario, args.link, &table, &prices)?;
                rows.push(row(&case, scenario.element(), &candidates));
            }
        }
    }
    let columns = "OPERATION, >RANKS, >SIZE, FASTEST, >TIME, THE TABLE'S CHOICE, >TIME, >FACTOR, NOT SIMULATED";
    output.list(&rows, columns, "nothing was asked for", |row| {
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
    /// Sizes for an operation; a barrier has no size.
    fn sizes(&self, operation: Operation) -> &[usize] {
        match operation {
            Operation::Barrier => &[0],
            _ => &self.size,
        }
    }
}

fn row(case: &SizedCollective, element: usize, candidates: &[RecipeCandidate]) -> SimulationRow {
    let seconds = |candidate: &RecipeCandidate| candidate.estimate.as_ref().ok().map(Estimate::seconds);
    let name = |candidate: &RecipeCandidate| algorithm(&candidate.recipe, element);
    // The fastest comes first, and algorithms that were not simulated come last.
    let best = candidates.first().filter(|best| best.estimate.is_ok());
    let chosen = candidates.iter().find(|candidate| candidate.chosen);
    let (least, taken) = (best.and_then(seconds), chosen.and_then(seconds));
    let unknown = candidates.iter().filter(|candidate| candidate.estimate.is_err());
    SimulationRow {
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
