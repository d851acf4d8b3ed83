//! `hotlease sandbox test`

use super::judging::{Judgement, Verdict};
use super::stand_in::StandIn;
use super::trial::{FLOOD, Ground, policy};
use crate::commands::agent::{ContainerArgs, MachineArgs};
use crate::output::{Align, Column, Output};
use anyhow::{Context, bail};
use clap::Args;
use hotlease_escape::{Attempt, BINARY, Pulse, Teeth, effective_capabilities, themes};
use hotlease_sandbox::{Kind, Launcher};
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Try to get out of a sandbox, in every way that we know
///
/// Starts each attempt of the escape corpus in a sandbox of this kind, beside a neighbour with secrets, and says what
/// stopped it. What it may have done is looked for outside: in the neighbour, in this process that stands for the agent,
/// and in what is left. Nothing is broken where an attempt succeeds. Floods are made with small limits, and the neighbour's pace
/// beside them is told.
///
/// Exit status 1 if an attempt got out or could not be made. With `--json`, an object for each attempt: attempt, what,
/// threat, verdict (contained, escaped, untried, failed), how, outside (who gets out without a sandbox: anybody, nobody,
/// or who has a capability), needs, neighbour (count, p50_ns, p99_ns beside a flood, or null); then one with kind, lacking
/// (what of its limits this machine cannot hold), totals, and the neighbour's pace alone.
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// process, namespace, container or microvm
    #[arg(long, default_value = "namespace")]
    kind: Kind,
    /// Only attempts whose names contain this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// In processes forked from a zygote (kind `namespace` only)
    #[arg(long)]
    zygote: bool,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Serialize)]
struct Row {
    attempt: &'static str,
    what: &'static str,
    threat: &'static str,
    verdict: Verdict,
    how: String,
    outside: String,
    needs: Option<&'static str>,
    neighbour: Option<Pace>,
}

#[derive(Serialize)]
struct Pace {
    count: usize,
    p50_ns: u64,
    p99_ns: u64,
}

impl From<Pulse> for Pace {
    fn from(pulse: Pulse) -> Self {
        Self {
            count: pulse.count,
            p50_ns: pulse.p50_ns,
            p99_ns: pulse.p99_ns,
        }
    }
}

#[derive(Serialize)]
struct Totals {
    kind: &'static str,
    lacking: Vec<String>,
    contained: usize,
    escaped: usize,
    untried: usize,
    failed: usize,
    neighbour_alone: Pace,
}

const COLUMNS: [Column; 4] = [
    Column("ATTEMPT", Align::Left),
    Column("RESULT", Align::Left),
    Column("WHAT", Align::Left),
    Column("HOW", Align::Left),
];

pub(super) fn carry_out(args: &TestArgs, output: &mut Output) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let (rows, totals) = runtime.block_on(async {
        // Dropped in its middle, it kills what it has started.
        tokio::select! {
            done = run(args) => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing is said of this sandbox"),
        }
    })?;
    output.list(&rows, &COLUMNS, "no attempt has such a name", |row| {
        let result = match row.verdict {
            Verdict::Contained => "contained",
            Verdict::Escaped => "ESCAPED",
            Verdict::Untried => "untried",
            Verdict::Failed => "FAILED",
        };
        vec![
            row.attempt.into(),
            result.into(),
            row.what.into(),
            row.how.clone(),
        ]
    })?;
    let floods = rows
        .iter()
        .filter_map(|row| Some((row.attempt, row.neighbour.as_ref()?)));
    let worst = floods.max_by_key(|(_, pace)| pace.p99_ns);
    output.answer(&totals, || told(&totals, worst))?;
    if totals.escaped + totals.failed > 0 {
        // What was found is said before why that is no success.
        output.flush()?;
        bail!(
            "a sandbox of kind {} does not hold: {} attempts got out, and {} could not be made",
            totals.kind,
            totals.escaped,
            totals.failed
        );
    }
    Ok(())
}

fn told(totals: &Totals, worst: Option<(&str, &Pace)>) -> String {
    let micros = |ns: u64| ns as f64 / 1000.0;
    let alone = &totals.neighbour_alone;
    let mut text = format!(
        "\nkind {}: {} contained, {} escaped, {} untried, {} failed\nneighbour alone: p50 {:.1} us, p99 {:.1} us",
        totals.kind,
        totals.contained,
        totals.escaped,
        totals.untried,
        totals.failed,
        micros(alone.p50_ns),
        micros(alone.p99_ns),
    );
    for lacking in &totals.lacking {
        text += &format!("\nthis machine cannot hold a limit: {lacking}");
    }
    if let Some((attempt, pace)) = worst {
        text += &format!(
            "\nneighbour beside {attempt}, the worst: p50 {:.1} us, p99 {:.1} us",
            micros(pace.p50_ns),
            micros(pace.p99_ns)
        );
    }
    text
}

async fn run(args: &TestArgs) -> anyhow::Result<(Vec<Row>, Totals)> {
    if args.zygote && args.kind != Kind::Namespace {
        bail!(
            "only sandboxes of kind namespace have zygotes: leave out --zygote, or --kind {}",
            args.kind
        );
    }
    let secret = Arc::new(format!("{:032x}", rand::random::<u128>()));
    // Before the launcher starts anything: what is open here, others may inherit.
    let agent = StandIn::new(Arc::clone(&secret))?;
    let program = find()?;
    let launcher = Launcher::new(&Launcher::find()?)?
        .with_policy(policy())
        .with_container(args.container.clone().container())
        .with_machine(args.machine.clone().machine());
    let lacking = match launcher.lacking(args.kind) {
        Ok(lacking) => lacking,
        Err(why) => bail!("there are no sandboxes of kind {} here: {why}", args.kind),
    };
    let mut ground = Ground {
        launcher,
        program,
        zygote: args.zygote,
        agent,
        secret,
    };
    let alone = ground.neighbour()?.0.pulse(FLOOD)?;
    let mut rows = Vec::new();
    for theme in themes() {
        for attempt in theme.attempts {
            if !args.only.is_empty() && !args.only.iter().any(|only| attempt.name.contains(only)) {
                continue;
            }
            let (judgement, pulse) = try_out(&mut ground, attempt, args.kind).await?;
            rows.push(Row {
                attempt: attempt.name,
                what: attempt.what,
                threat: theme.threat,
                verdict: judgement.verdict,
                how: judgement.how,
                outside: attempt.teeth.to_string(),
                needs: attempt.needs,
                neighbour: pulse.map(Pace::from),
            });
        }
    }
    ground.launcher.all_gone().await;
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let totals = Totals {
        kind: args.kind.name(),
        lacking,
        contained: count(Verdict::Contained),
        escaped: count(Verdict::Escaped),
        untried: count(Verdict::Untried),
        failed: count(Verdict::Failed),
        neighbour_alone: alone.into(),
    };
    Ok((rows, totals))
}

/// Makes an attempt. One that needs something of the machine is made outside sandboxes first: what the machine stops
/// there proves nothing about the sandbox.
async fn try_out(
    ground: &mut Ground,
    attempt: &Attempt,
    kind: Kind,
) -> anyhow::Result<(Judgement, Option<Pulse>)> {
    let could = match attempt.teeth {
        Teeth::Anybody => true,
        Teeth::With(capability) => capability.is_in(effective_capabilities()),
        Teeth::Nobody => false,
    };
    if let (Some(needs), true) = (attempt.needs, could) {
        let outside = ground.attempt(attempt, Kind::Process).await?;
        if outside.judgement.verdict != Verdict::Escaped {
            let judgement = Judgement {
                verdict: Verdict::Untried,
                how: format!("needs {needs}; outside sandboxes: {}", outside.judgement.how),
            };
            return Ok((judgement, None));
        }
        if kind == Kind::Process {
            return Ok((outside.judgement, outside.pulse));
        }
    }
    let trial = ground.attempt(attempt, kind).await?;
    Ok((trial.judgement, trial.pulse))
}

/// The program that makes the attempts: beside this one, or where it is installed.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let ours = std::env::current_exe().context("cannot find the program that runs")?;
    let folder = ours.parent().context("the program that runs is in no folder")?;
    let places = [
        folder.join(BINARY),
        folder.join("../libexec/hotlease").join(BINARY),
    ];
    for place in &places {
        if place.is_file() {
            return Ok(place.canonicalize()?);
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound)).with_context(|| {
        format!(
            "cannot find {}, which makes the attempts; build it with `make build`",
            places[0].display()
        )
    })
}
