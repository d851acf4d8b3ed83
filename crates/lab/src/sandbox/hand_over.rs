//! `hotlease sandbox hand-over`: residue from tenant to tenant.

use super::leftover_processes::kill_outlived;
use super::machines::BOOT;
use super::test::find;
use super::trial::{policy, token};
use anyhow::{Context, bail, ensure};
use clap::Args;
use hotlease_escape::{DONE, PREFIX, Residue, names_for};
use hotlease_sandbox::{KeepAlive, Kind, Launcher, Mount, ProcessEnd, Program, WorkerReach};
use hotlease_terminal::arguments::{ContainerArgs, MachineArgs};
use hotlease_terminal::output::Printer;
use serde::Serialize;
use std::ffi::OsString;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Hand a node from tenant to tenant, and look for what each could find of earlier tenants
///
/// Starts one tenant after the other in sandboxes of this kind. Each looks for residue of earlier tenants: files,
/// shared memory, queues, keys, sockets, processes, open descriptors, memory that is not zero. Then it leaves all
/// of these itself, and ends. Finally, the same search is done outside the sandboxes.
///
/// Exits with 1 if anything was found. With `--json`, prints an object: kind, times, found (a list of findings,
/// which may be long), seconds.
#[derive(Debug, Args)]
pub(super) struct HandOverArgs {
    /// Kind of sandbox: process, namespace, container or microvm
    #[arg(long, default_value = "namespace")]
    kind: Kind,
    /// Number of tenants
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    times: u32,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Serialize)]
struct HandOverSummary {
    kind: &'static str,
    times: u32,
    found: Vec<String>,
    seconds: f64,
}

/// Time limit of one tenant, far longer than a tenant needs.
const DEADLINE: Duration = Duration::from_secs(20);
/// Largest number of findings that are printed in words.
const TOLD_MAX: usize = 10;

pub(super) fn carry_out(args: &HandOverArgs, output: &mut Printer) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let handed = runtime.block_on(async {
        // If `run` is dropped before its end, it kills the processes that it has started.
        tokio::select! {
            done = run(args) => done,
            _ = tokio::signal::ctrl_c() => bail!("interrupted: nothing is said of this sandbox"),
        }
    })?;
    output.answer(&handed, || summary_text(&handed))?;
    if !handed.found.is_empty() {
        // The findings are printed before the error.
        output.flush()?;
        let (kind, count) = (handed.kind, handed.found.len());
        bail!("a sandbox of kind {kind} leaves something behind: {count} things were found");
    }
    Ok(())
}

fn summary_text(handed: &HandOverSummary) -> String {
    let HandOverSummary {
        kind,
        times,
        found,
        seconds,
    } = handed;
    let mut text: String = found.iter().take(TOLD_MAX).map(|found| format!("{found}\n")).collect();
    if found.len() > TOLD_MAX {
        text += &format!("and {} more\n", found.len() - TOLD_MAX);
    }
    let what = match found.len() {
        0 => "nothing of others was found".to_owned(),
        count => format!("{count} things of others were found"),
    };
    text + &format!("kind {kind}, {times} tenants one after the other, {seconds:.1} s: {what}")
}

async fn run(args: &HandOverArgs) -> anyhow::Result<HandOverSummary> {
    let launcher = Launcher::new(&Launcher::find()?)?
        .with_policy(policy(false))
        .with_container(args.container.clone().container())
        .with_machine(args.machine.machine());
    if let Err(why) = launcher.check_available(args.kind) {
        bail!("there are no sandboxes of kind {} here: {why}", args.kind);
    }
    let run = token();
    let program = find()?;
    let variable = |(name, value): (String, String)| (format!("{PREFIX}{name}").into(), OsString::from(value));
    let program = Program {
        mounts: vec![Mount::read_only(&program)],
        path: program,
        arguments: ["tenant", &run].map(OsString::from).into(),
        environment: names_for(&run).into_iter().map(variable).collect(),
        directory: "/".into(),
        held: KeepAlive::default(),
    };
    let begin = std::time::Instant::now();
    let mut found = Vec::new();
    for tenant in 1..=args.times {
        let seen = run_tenant(&launcher, args.kind, &program).await;
        let seen = seen.with_context(|| format!("tenant {tenant} of {}", args.times))?;
        found.extend(seen.into_iter().map(|what| format!("tenant {tenant} found {what}")));
    }
    launcher.all_gone().await;
    let seconds = begin.elapsed().as_secs_f64();
    match kill_outlived(&run).await {
        0 => {}
        count => found.push(format!("{count} processes were left at the end")),
    }
    for left in Residue::of_attempt(&run) {
        found.push(format!("{left} was left at the end"));
        left.remove();
    }
    Ok(HandOverSummary {
        kind: args.kind.name(),
        times: args.times,
        found,
        seconds,
    })
}

/// Runs one tenant. Returns its findings.
async fn run_tenant(launcher: &Launcher, kind: Kind, program: &Program) -> anyhow::Result<Vec<String>> {
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
    ours.shutdown(Shutdown::Write)?;
    let process = launcher
        .start(kind, Some(program), &WorkerReach::default(), OwnedFd::from(theirs))
        .context("cannot be started")?;
    let boot = if kind == Kind::MicroVm { BOOT } else { Duration::ZERO };
    let exit = tokio::time::timeout(boot + DEADLINE, process.exited()).await;
    let exit = exit.context("it does not end")?;
    ensure!(
        exit.end == ProcessEnd::Exited(0),
        "it ended by {:?}: {}",
        exit.end,
        exit.output
    );
    let mut found = Vec::new();
    let mut is_done = false;
    for line in exit.output.lines() {
        match line.strip_prefix("found ") {
            Some(what) => found.push(what.to_owned()),
            None => is_done = line == DONE,
        }
    }
    ensure!(is_done, "it did not come to its end: {}", exit.output);
    Ok(found)
}
