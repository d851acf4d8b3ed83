//! `hotlease down`: the end of the platform, of this node or of the batch job in which it runs.

use crate::commands::up::job;
use crate::commands::up::lock::{LockHolder, UP_LOCK};
use anyhow::{Context, bail};
use clap::Args;
use hotlease_agent::AGENT_LOCK;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_manager::MANAGER_LOCK;
use hotlease_net::job::JobFolder;
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::Platform;
use hotlease_wire::grpc::{ListRequest, ShutdownRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two looks whether the platform of a job has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Stop the platform that `up` (or `manager`) started
///
/// Leases end, workers are stopped, sockets are removed. In a batch job whose nodes `up` serves, that step of the job
/// ends. With `--json`: stopped (true), how (asked, signal, waited; step: the step of a job), agent_runs (true if a
/// separate `hotlease agent` goes on) and ended (labels of the leases that were active).
#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Longest wait for the end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    wait: u64,
}

#[derive(Serialize)]
struct DownSummary {
    stopped: bool,
    how: &'static str,
    agent_runs: bool,
    ended: Vec<String>,
}

pub(crate) fn carry_out(args: DownArgs, output: &mut Printer) -> anyhow::Result<()> {
    if let Some(folder) = JobFolder::in_use()
        && folder.is_there()?
    {
        return end_step(&folder, args, output);
    }
    let dir = RuntimeDir::resolve()?;
    // `up` holds its lock until all its parts are gone; a manager in a process of its own holds only the manager's
    // lock.
    let up_runs = !LockHolder::of(&dir, UP_LOCK).wait_until_gone(Duration::ZERO)?;
    let holder = LockHolder::of(&dir, if up_runs { UP_LOCK } else { MANAGER_LOCK });
    let mut ended = Vec::new();
    let how = match request_stop(&dir, &mut ended) {
        Ok(()) => "asked",
        Err(error) => signal_up(&dir, error)?,
    };
    if !holder.wait_until_gone(Duration::from_secs(args.wait))? {
        let pid = holder.pid().filter(|_| up_runs);
        let kill = pid.map(|pid| format!("; `kill -9 {pid}` ends it, and the next `hotlease up` cleans up"));
        bail!(
            "it was told to stop, but still runs after {} s{}",
            args.wait,
            kill.unwrap_or_default()
        );
    }
    // Only an agent with a process of its own can be left; its workers and leases end with it.
    let agent_runs = !LockHolder::of(&dir, AGENT_LOCK).wait_until_gone(Duration::ZERO)?;
    let summary = DownSummary {
        stopped: true,
        how,
        agent_runs,
        ended,
    };
    output.answer(&summary, || match agent_runs {
        false => format!("hotlease is down{}", ended_text(&summary.ended)),
        true => {
            "the manager is down; `hotlease agent` still runs and waits for another (stop it with Ctrl-C or SIGTERM)"
                .to_owned()
        }
    })
}

/// The leases that ended, as a part of a sentence.
fn ended_text(labels: &[String]) -> String {
    match labels.len() {
        0 => String::new(),
        1 => format!("; it ended a lease: {}", labels[0]),
        count => format!("; it ended {count} leases: {}", labels.join(", ")),
    }
}

/// Ends the platform of a batch job.
fn end_step(folder: &JobFolder, args: DownArgs, output: &mut Printer) -> anyhow::Result<()> {
    let ended = match folder.site() {
        Ok(Some(site)) => Platform::of_site(&site)
            .map(|mut platform| active_leases(&mut platform))
            .unwrap_or_default(),
        // The platform is starting, or was killed. Its step is cancelled in both cases.
        Ok(None) | Err(_) => Vec::new(),
    };
    let step = job::step_of(folder).with_context(|| {
        format!(
            "{} does not say which step of the job serves; `scancel --signal=TERM` ends a step that `squeue --steps` lists",
            folder.path().display()
        )
    })?;
    // Without a signal, Slurm kills a step at once.
    let cancelled = Command::new("scancel").args(["--signal=TERM", &step]).output();
    let cancelled = cancelled.context("cannot start scancel")?;
    if !cancelled.status.success() {
        let said = String::from_utf8_lossy(&cancelled.stderr);
        bail!(
            "`scancel --signal=TERM {step}` ended with {}: {}",
            cancelled.status,
            said.trim()
        );
    }
    let begin = Instant::now();
    while folder.is_there()? {
        if begin.elapsed() >= Duration::from_secs(args.wait) {
            bail!(
                "step {step} was told to end, but its folder {} is still there after {} s: if no such step is left (`squeue --steps`), \
                 the platform was killed, and the next `hotlease up` of the job replaces the folder",
                folder.path().display(),
                args.wait
            );
        }
        thread::sleep(LOOK);
    }
    let summary = DownSummary {
        stopped: true,
        how: "step",
        agent_runs: false,
        ended,
    };
    output.answer(&summary, || {
        format!(
            "the platform of the job, step {step}, is down{}",
            ended_text(&summary.ended)
        )
    })
}

/// Labels of the active leases. The list is only shown, so it is empty if it cannot be read.
fn active_leases(platform: &mut Platform) -> Vec<String> {
    let list = platform.request(async |client| client.list_leases(ListRequest::default()).await);
    let leases = list.map(|list| list.leases).unwrap_or_default();
    let active = leases.into_iter().filter(|lease| lease.state == "active");
    active.map(|lease| lease.label).collect()
}

/// Asks the manager to stop, which is the ordinary way. Puts the labels of the leases that are active then into
/// `active`.
fn request_stop(dir: &RuntimeDir, active: &mut Vec<String>) -> anyhow::Result<()> {
    let mut platform = Platform::connect(dir)?;
    *active = active_leases(&mut platform);
    platform.request(async |client| client.shutdown(ShutdownRequest {}).await)?;
    Ok(())
}

/// Sends SIGTERM to `up`, if it holds its lock although the manager did not accept the request.
fn signal_up(dir: &RuntimeDir, error: anyhow::Error) -> anyhow::Result<&'static str> {
    let holder = LockHolder::of(dir, UP_LOCK);
    if holder.wait_until_gone(Duration::ZERO)? {
        return Err(match error.downcast_ref() {
            Some(CommandError::NotRunning { socket }) => CommandError::NothingToStop { socket: socket.clone() }.into(),
            _ => error.context("the manager did not take the request to stop"),
        });
    }
    let Some(pid) = holder.pid() else {
        return Ok("waited"); // It is stopping already: the pid file is removed just before the lock.
    };
    let target = i32::try_from(pid).context("the pid file holds no pid")?;
    kill(Pid::from_raw(target), Signal::SIGTERM)
        .with_context(|| format!("cannot signal `up` (pid {pid}), whose manager does not answer"))?;
    tracing::warn!(pid, %error, "the manager does not answer; sent SIGTERM");
    Ok("signal")
}
