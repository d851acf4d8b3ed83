//! `hotlease comm explain`: the choice of an algorithm, and the steps of a rank.

use super::model_args::{CollectiveArgs, ModelFileArgs, TimesArgs, algorithm, time};
use clap::Args;
use hotlease_collectives::model::{RecipeCandidate, candidates};
use hotlease_collectives::{CollectiveCall, LinkKind, Question, Step};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use serde::Serialize;

/// Largest number of rounds that are shown.
const ROUNDS_MAX: usize = 10_000;

/// Show which algorithm a collective uses and why, the modelled times of all algorithms, and the steps of a rank
///
/// With `--json`, prints an object: summary, rules (up to the rule that applies, with the reasons why earlier rules do
/// not), algorithms (algorithm, chosen, seconds, messages, writes, reads; or the reason why it was not simulated),
/// rank, element_bytes, rounds (transfers, which run at the same time, and local, the steps after them), more (whether
/// there are rounds after these 10,000).
#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    collective: CollectiveArgs,
    /// Link between the ranks: shm, ofi, tcp, redis, s3 or dynamodb
    #[arg(long, default_value = "tcp")]
    link: LinkKind,
    /// Node of each rank, such as 0,0,1,1; messages inside a node go through its memory
    #[arg(long, value_delimiter = ',', conflicts_with = "ranks_per_node")]
    nodes: Option<Vec<u32>>,
    /// Number of consecutive ranks that share a node
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_node: Option<u32>,
    /// Show the steps of this rank, round by round; spans are in elements, whose size is in the first line
    #[arg(long)]
    rank: Option<u32>,
    #[command(flatten)]
    times: TimesArgs,
    #[command(flatten)]
    files: ModelFileArgs,
}

#[derive(Serialize)]
struct ExplainOutput {
    summary: String,
    rules: Vec<String>,
    algorithms: Vec<AlgorithmRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    element_bytes: usize,
    rounds: Vec<RoundText>,
    more: bool,
}

#[derive(Serialize)]
struct AlgorithmRow {
    algorithm: String,
    chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    messages: u64,
    writes: u64,
    reads: u64,
}

#[derive(Serialize)]
struct RoundText {
    transfers: Vec<String>,
    local: Vec<String>,
}

pub(super) fn carry_out(args: &ExplainArgs, output: &mut Printer) -> anyhow::Result<()> {
    let prices = args.times.apply(args.files.prices()?)?;
    let table = args.files.table()?;
    let case = args.collective.case()?;
    if args.rank.is_some_and(|rank| rank >= case.ranks) {
        let what = format!("ranks are from 0 to {}", case.ranks.saturating_sub(1));
        return Err(CommandError::Usage(what).into());
    }
    let per_node = |ranks: u32| (0..case.ranks).map(|rank| rank / ranks).collect();
    let nodes: Option<Vec<u32>> = args.nodes.clone().or(args.ranks_per_node.map(per_node));
    let scenario = case.scenario(nodes.as_deref());
    // Reports errors of the call itself before the table is consulted.
    let candidates = candidates(&scenario, args.link, &table, &prices)?;
    let explanation = table.explain(&Question::new(&scenario.call, args.link));
    let (mut rounds, mut more) = (Vec::new(), false);
    if let Some(rank) = args.rank {
        let call = CollectiveCall { rank, ..scenario.call };
        let part = explanation.recipe.build_part(&call, 0..ROUNDS_MAX)?;
        (rounds, more) = (part.schedule.rounds, part.has_more);
    }
    let words = |steps: &[Step]| steps.iter().map(Step::to_string).collect();
    let answer = ExplainOutput {
        summary: explanation.summary,
        rules: explanation.lines,
        algorithms: candidates
            .iter()
            .map(|candidate| row(candidate, scenario.element()))
            .collect(),
        rank: args.rank,
        element_bytes: scenario.element(),
        rounds: rounds
            .iter()
            .map(|round| RoundText {
                transfers: words(&round.transfers),
                local: words(&round.local),
            })
            .collect(),
        more,
    };
    if output.is_json() {
        return output.object(&answer);
    }
    show(&answer, output)
}

fn row(candidate: &RecipeCandidate, element: usize) -> AlgorithmRow {
    let known = candidate.estimate.as_ref();
    let outcome = known.map(|estimate| estimate.outcome).unwrap_or_default();
    AlgorithmRow {
        algorithm: algorithm(&candidate.recipe, element),
        chosen: candidate.chosen,
        seconds: known.ok().map(|estimate| estimate.seconds()),
        why_not: known.err().map(ToString::to_string),
        messages: outcome.messages,
        writes: outcome.writes,
        reads: outcome.reads,
    }
}

fn show(answer: &ExplainOutput, output: &mut Printer) -> anyhow::Result<()> {
    output.line(&answer.summary)?;
    for rule in &answer.rules {
        output.line(&format!("  {rule}"))?;
    }
    output.line("\nby the model:")?;
    let columns = "ALGORITHM, >TIME, >MESSAGES, >WRITES, >READS, ";
    output.list(&answer.algorithms, columns, "", |row| {
        let note = row.why_not.as_deref().unwrap_or(if row.chosen { "chosen" } else { "" });
        let known = |text: String| if row.seconds.is_some() { text } else { "-".into() };
        vec![
            row.algorithm.clone(),
            known(time(row.seconds.unwrap_or_default())),
            known(row.messages.to_string()),
            known(row.writes.to_string()),
            known(row.reads.to_string()),
            note.to_owned(),
        ]
    })?;
    let Some(rank) = answer.rank else {
        return Ok(());
    };
    let bytes = answer.element_bytes;
    output.line(&format!("\nrank {rank}, in elements of {bytes} bytes:"))?;
    for (number, round) in (1..).zip(&answer.rounds) {
        output.line(&format!("  round {number}"))?;
        for transfer in &round.transfers {
            output.line(&format!("    {transfer}"))?;
        }
        for local in &round.local {
            output.line(&format!("    then {local}"))?;
        }
    }
    match (answer.rounds.is_empty(), answer.more) {
        (_, true) => output.line("  and more"),
        (true, false) => output.line("  nothing"),
        (false, false) => Ok(()),
    }?;
    Ok(())
}
