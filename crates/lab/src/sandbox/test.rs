//! `hotlease sandbox test`: attempts to escape from a sandbox.

use super::judgement::{AttemptVerdict, Judgement};
use super::machines::{exclusion_reason, sharing};
use super::pace::{Pace, parse_limit};
use super::stand_in::StandIn;
use super::trial::{FLOOD, PROCESSORS, TestSetup, Trial, policy, processors};
use anyhow::{Context, bail};
use clap::Args;
use hotlease_escape::{Attempt, BINARY, LoopTimes, MustSucceed, effective_capabilities, themes};
use hotlease_sandbox::{Kind, Launcher, WorkerReach};
use hotlease_terminal::arguments::{ContainerArgs, MachineArgs};
use hotlease_terminal::output::Printer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Try to escape from a sandbox, in every known way
///
/// Starts each attempt of the escape corpus in a sandbox of this kind, next to a neighbour with secrets, and prints
/// what stopped it. Looks outside for effects: in the neighbour, in this process, which stands for the agent, and in
/// what is left behind. A successful attempt does no damage. Some attempts are floods, which try to use up a
/// resource, up to a small limit; the neighbour's pace during each flood is printed. With `--pace`, floods are
/// repeated.
///
/// Exits with 1 if an attempt got out or could not be made, or if a flood slowed the neighbour down by more than
/// `--pace`.
///
/// With `--json`, prints an object for each attempt: attempt, what, threat, verdict (contained, escaped,
/// untried, failed), how, outside (what can escape without a sandbox: any process, no process, or one with this
/// capability), needs, neighbour (during a flood, else null: rounds, count, p50_ns, p99_ns, alone_p99_ns,
/// times_p99). The last object has kind, network, lacking (limits that this node cannot enforce), totals, the
/// neighbour's pace without attempts, pace (the limit), and slowing (floods above the limit).
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// Kind of sandbox: process, namespace, container or microvm
    #[arg(long, default_value = "namespace")]
    kind: Kind,
    /// Make only attempts whose names contain this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Make attempts in processes forked from a zygote (kind `namespace` only)
    #[arg(long)]
    zygote: bool,
    /// Grant the sandboxes the host's network; attempts that this allows are not made
    #[arg(long, conflicts_with = "zygote")]
    network: bool,
    /// Largest quotient of the neighbour's 99th percentile during a flood and without it, such as 1.5; needs two
    /// processors [default: the quotient is measured once, and printed]
    #[arg(long, value_name = "TIMES", value_parser = parse_limit)]
    pace: Option<f64>,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Serialize)]
struct AttemptRow {
    attempt: &'static str,
    what: &'static str,
    threat: &'static str,
    verdict: AttemptVerdict,
    how: String,
    outside: String,
    needs: Option<&'static str>,
    neighbour: Option<Pace>,
}

/// Pace of a neighbour while no attempt runs.
#[derive(Serialize)]
struct UndisturbedPace {
    count: usize,
    p50_ns: u64,
    p99_ns: u64,
}

impl From<LoopTimes> for UndisturbedPace {
    fn from(pulse: LoopTimes) -> Self {
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
    /// Whether the sandboxes had the host's network.
    network: bool,
    lacking: Vec<String>,
    contained: usize,
    escaped: usize,
    untried: usize,
    failed: usize,
    neighbour_alone: UndisturbedPace,
    /// Value of `--pace`.
    pace: Option<f64>,
    /// Floods that slowed the neighbour down by more than `pace`.
    slowing: Vec<&'static str>,
}

const COLUMNS: &str = "ATTEMPT, RESULT, WHAT, HOW";

pub(super) fn carry_out(args: &TestArgs, output: &mut Printer) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let (rows, totals) = runtime.block_on(async {
        // If `run` is dropped before its end, it kills the processes that it has started.
        tokio::select! {
            done = run(args) => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing is said of this sandbox"),
        }
    })?;
    output.list(&rows, COLUMNS, "no attempt has such a name", |row| {
        let result = match row.verdict {
            AttemptVerdict::Contained => "contained",
            AttemptVerdict::Escaped => "ESCAPED",
            AttemptVerdict::Untried => "untried",
            AttemptVerdict::Failed => "FAILED",
        };
        vec![row.attempt.into(), result.into(), row.what.into(), row.how.clone()]
    })?;
    let floods = rows
        .iter()
        .filter_map(|row| Some((row.attempt, row.neighbour.as_ref()?)));
    let worst = floods.max_by(|(_, one), (_, other)| one.times_p99().total_cmp(&other.times_p99()));
    output.answer(&totals, || summary_text(&totals, worst))?;
    if totals.escaped + totals.failed > 0 {
        // The results are printed before the error.
        output.flush()?;
        bail!(
            "a sandbox of kind {} does not hold: {} attempts got out, and {} could not be made",
            totals.kind,
            totals.escaped,
            totals.failed
        );
    }
    if !totals.slowing.is_empty() {
        output.flush()?;
        let is_over = |row: &&AttemptRow| totals.slowing.contains(&row.attempt);
        let over = rows.iter().filter(is_over).filter_map(|row| {
            let pace = row.neighbour.as_ref()?;
            Some(format!("{}: {}", row.attempt, pace.text()))
        });
        let over: Vec<String> = over.collect();
        bail!(
            "a sandbox of kind {} lets its neighbour be slowed down by more than {} times: {}",
            totals.kind,
            totals.pace.unwrap_or_default(),
            over.join("; ")
        );
    }
    Ok(())
}

fn summary_text(totals: &Totals, worst: Option<(&str, &Pace)>) -> String {
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
        text += &format!("\nthis host cannot hold a limit: {lacking}");
    }
    if let Some((attempt, pace)) = worst {
        text += &format!("\nneighbour beside {attempt}, the worst: {}", pace.text());
    }
    text
}

async fn run(args: &TestArgs) -> anyhow::Result<(Vec<AttemptRow>, Totals)> {
    if args.zygote && args.kind != Kind::Namespace {
        bail!(
            "only sandboxes of kind namespace have zygotes: leave out --zygote, or --kind {}",
            args.kind
        );
    }
    if args.network && args.kind == Kind::Process {
        bail!("attempts of kind process have the host's network anyway: leave out --network");
    }
    if args.pace.is_some() && processors()?.len() <= PROCESSORS {
        bail!(
            "--pace needs a processor for the neighbour beside that of the sandbox: on one they take turns, and the pace says nothing"
        );
    }
    let secret = Arc::new(format!("{:032x}", rand::random::<u128>()));
    // This is done before the launcher starts any process, because processes may inherit the descriptors that are open
    // here.
    let agent = StandIn::new(Arc::clone(&secret))?;
    let program = find()?;
    let launcher = Launcher::new(&Launcher::find()?)?
        .with_policy(policy(args.network))
        .with_container(args.container.clone().container())
        .with_machine(args.machine.machine());
    let machine_bytes = args.machine.machine().memory_bytes;
    let lacking = match launcher.find_lacking(args.kind) {
        Ok(lacking) => lacking,
        Err(why) => bail!("there are no sandboxes of kind {} here: {why}", args.kind),
    };
    let mut ground = TestSetup {
        launcher,
        program,
        zygote: args.zygote,
        reach: WorkerReach {
            network: args.network,
            ..WorkerReach::default()
        },
        agent,
        secret,
        machine_bytes,
    };
    let alone = ground.neighbour()?.0.pulse(FLOOD)?;
    let is_chosen =
        |attempt: &Attempt| args.only.is_empty() || args.only.iter().any(|only| attempt.name.contains(only));
    let is_granted = |attempt: &Attempt| args.network && attempt.networked;
    let mut judged = match args.kind {
        Kind::MicroVm => try_in_machines(&mut ground, |attempt| is_chosen(attempt) && !is_granted(attempt)).await?,
        _ => BTreeMap::new(),
    };
    let mut rows = Vec::new();
    for theme in themes() {
        for attempt in theme.attempts.iter().filter(|attempt| is_chosen(attempt)) {
            let mut trial = match judged.remove(attempt.name) {
                Some(judgement) => Trial::without_flood(judgement),
                None if is_granted(attempt) => Trial::without_flood(Judgement {
                    verdict: AttemptVerdict::Untried,
                    reason: "the network is granted".into(),
                }),
                None => try_out(&mut ground, attempt, args.kind).await?,
            };
            let neighbour = match trial.beside {
                Some(_) => Some(measure_pace(&mut ground, attempt, args, &mut trial).await?),
                None => None,
            };
            let judgement = trial.judgement;
            rows.push(AttemptRow {
                attempt: attempt.name,
                what: attempt.what,
                threat: theme.threat,
                verdict: judgement.verdict,
                how: judgement.reason,
                outside: attempt.teeth.to_string(),
                needs: attempt.needs,
                neighbour,
            });
        }
    }
    ground.launcher.all_gone().await;
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let totals = Totals {
        kind: args.kind.name(),
        network: args.network,
        lacking,
        contained: count(AttemptVerdict::Contained),
        escaped: count(AttemptVerdict::Escaped),
        untried: count(AttemptVerdict::Untried),
        failed: count(AttemptVerdict::Failed),
        neighbour_alone: alone.into(),
        pace: args.pace,
        slowing: slowing(&rows, args.pace),
    };
    Ok((rows, totals))
}

/// Floods that slow the neighbour down by more than `limit`.
fn slowing(rows: &[AttemptRow], limit: Option<f64>) -> Vec<&'static str> {
    let is_over = |row: &&AttemptRow| {
        let neighbour = row.neighbour.as_ref().zip(limit);
        neighbour.is_some_and(|(pace, limit)| pace.is_over(limit))
    };
    rows.iter().filter(is_over).map(|row| row.attempt).collect()
}

/// Repeats a flood until it is decided whether the flood slows the neighbour down by more than the limit. Sets `trial`
/// to the last repetition.
async fn measure_pace(
    ground: &mut TestSetup,
    attempt: &Attempt,
    args: &TestArgs,
    trial: &mut Trial,
) -> anyhow::Result<Pace> {
    let mut pace = Pace::default();
    while let Some(beside) = &trial.beside {
        pace.add(beside);
        let contained = trial.judgement.verdict == AttemptVerdict::Contained;
        match args.pace {
            Some(limit) if contained && pace.is_open(limit) => {
                *trial = ground.attempt(attempt, args.kind).await?;
            }
            _ => break,
        }
    }
    Ok(pace)
}

/// Makes an attempt, unless this node lacks what it needs.
async fn try_out(ground: &mut TestSetup, attempt: &Attempt, kind: Kind) -> anyhow::Result<Trial> {
    if let (Kind::MicroVm, Some(why)) = (kind, exclusion_reason(attempt)) {
        return Ok(Trial::without_flood(Judgement {
            verdict: AttemptVerdict::Untried,
            reason: why.to_owned(),
        }));
    }
    match try_outside(ground, attempt).await? {
        Some(outside) if outside.judgement.verdict == AttemptVerdict::Untried => Ok(outside),
        Some(outside) if kind == Kind::Process => Ok(outside),
        _ => ground.attempt(attempt, kind).await,
    }
}

/// Makes the attempts that can share virtual machines, in as few machines as possible. Returns their judgements.
async fn try_in_machines(
    ground: &mut TestSetup,
    is_chosen: impl Fn(&Attempt) -> bool,
) -> anyhow::Result<BTreeMap<&'static str, Judgement>> {
    let mut known = BTreeMap::new();
    let mut attempts = Vec::new();
    for attempt in sharing(is_chosen) {
        match try_outside(ground, attempt).await? {
            Some(outside) if outside.judgement.verdict == AttemptVerdict::Untried => {
                known.insert(attempt.name, outside.judgement);
            }
            _ => attempts.push(attempt),
        }
    }
    known.extend(ground.make_several(&attempts).await?);
    Ok(known)
}

/// Makes an attempt outside of sandboxes if it has needs and must succeed there. Returns `None` for other attempts. If
/// the attempt does not succeed outside, it counts as untried: an attempt that the node itself stops proves nothing
/// about the sandbox.
async fn try_outside(ground: &mut TestSetup, attempt: &Attempt) -> anyhow::Result<Option<Trial>> {
    let could = match attempt.teeth {
        MustSucceed::Always => true,
        MustSucceed::WithCapability(capability) => capability.is_in(effective_capabilities()),
        MustSucceed::Never => false,
    };
    let Some(needs) = attempt.needs.filter(|_| could) else {
        return Ok(None);
    };
    let outside = ground.attempt(attempt, Kind::Process).await?;
    if outside.judgement.verdict == AttemptVerdict::Escaped {
        return Ok(Some(outside));
    }
    let reason = format!("needs {needs}; outside sandboxes: {}", outside.judgement.reason);
    let verdict = AttemptVerdict::Untried;
    Ok(Some(Trial::without_flood(Judgement { verdict, reason })))
}

/// Finds the program that makes the attempts: in the folder of this program, or where it is installed.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let ours = std::env::current_exe().context("cannot find the program that runs")?;
    let folder = ours.parent().context("the program that runs is in no folder")?;
    let places = [folder.join(BINARY), folder.join("../libexec/hotlease").join(BINARY)];
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
