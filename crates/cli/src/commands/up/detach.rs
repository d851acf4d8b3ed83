//! `up --detach`: starts this program again as a background process in a session of its own, and waits until it serves.
//!
//! ```text
//! up --detach ──spawn──▶ up --background ──setsid, lock, log, serve──▶ one line on stdout ──▶ serves
//!      ▲                                                                      │
//!      └───────────── waits for the line, or for the end of the pipe ─────────┘
//! ```
//!
//! The line is a [`StartReport`]: a summary of the platform, or the reason why it failed. Nothing is written to stdout
//! after it.

use super::lock::{LockHolder, UP_LOCK, UpLock};
use super::{EndArgs, PlatformSummary};
use crate::commands::agent::OfferArgs;
use crate::state::LedgerArgs;
use anyhow::Context;
use hotlease_fabric::runtime_dir::RuntimeDir;
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::exit::{self, CommandError};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longest time until the background process serves.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// Longest report, bytes.
const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Longest wait for another `up` that is ending; after this time the other `up` counts as running.
const ENDING_GRACE: Duration = Duration::from_millis(300);

/// Report of the background process to the process that started it.
#[derive(Serialize, Deserialize)]
enum StartReport {
    Ready(PlatformSummary),
    Failed { why: String, status: u8 },
}

fn log_path(dir: &RuntimeDir) -> PathBuf {
    dir.join("log").join("up.log")
}

/// Starts the background process and returns when it serves.
pub(super) fn start(
    dir: &RuntimeDir,
    offer: &OfferArgs,
    ledger: &LedgerArgs,
    end: EndArgs,
) -> anyhow::Result<PlatformSummary> {
    if !LockHolder::of(dir, UP_LOCK).wait_until_gone(ENDING_GRACE)? {
        return Err(runs_already(dir));
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command
        .args(["up", "--background"])
        .args(offer.to_args())
        .args(ledger.to_args(dir))
        .args(end.to_args())
        .current_dir("/")
        .env("HOTLEASE_RUNTIME_DIR", absolute(dir.path()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(worker) = std::env::var_os("HOTLEASE_WORKER").filter(|worker| !worker.is_empty()) {
        command.env("HOTLEASE_WORKER", absolute(Path::new(&worker)));
    }
    let mut child = command.spawn().context("cannot start the background process")?;
    let reported = child.stdout.take().and_then(report_of);
    match reported {
        Some(StartReport::Ready(summary)) => Ok(summary),
        // Another `up` took the lock first.
        Some(StartReport::Failed {
            status: exit::RUNS_ALREADY,
            ..
        }) => Err(runs_already(dir)),
        Some(StartReport::Failed { why, status }) => {
            let log = log_path(dir).display().to_string();
            Err(CommandError::NotStarted { status, why, log }.into())
        }
        None => Err(ended(&mut child, dir)),
    }
}

fn runs_already(dir: &RuntimeDir) -> anyhow::Error {
    let pid = LockHolder::of(dir, UP_LOCK).pid();
    let dir = dir.path().display().to_string();
    CommandError::RunsAlready { dir, pid }.into()
}

/// Reads the report from the pipe; `None` if it does not arrive in time, or cannot be read.
fn report_of(pipe: ChildStdout) -> Option<StartReport> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(pipe.take(REPORT_BYTES_MAX)).read_line(&mut line);
        let report = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        // Fails after the time limit, when the receiver is gone.
        let _ = sender.send(report);
    });
    receiver.recv_timeout(SERVES_WITHIN).ok().flatten()
}

/// Makes the error for a process without a report, which has died or hangs. Kills a process that hangs.
fn ended(child: &mut Child, dir: &RuntimeDir) -> anyhow::Error {
    let log = log_path(dir);
    let how = match child.try_wait() {
        Ok(Some(status)) => format!("the background process ended: {status}"),
        _ => {
            // Its workers end when it does, and the kernel releases its locks.
            let _ = child.kill();
            let _ = child.wait();
            format!(
                "the background process did not serve within {} s and was killed",
                SERVES_WITHIN.as_secs()
            )
        }
    };
    anyhow::anyhow!("{how}; its log is {}", log.display())
}

/// Runs the background process: `run` gets a function to call when it serves.
pub(super) fn in_background(
    dir: &RuntimeDir,
    run: impl FnOnce(UpLock, &mut dyn FnMut(PlatformSummary)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Fails only if this process leads a process group: then it was started in a session of its own already.
    let _ = nix::unistd::setsid();
    let mut reported = false;
    let serve = || {
        let lock = UpLock::take(dir)?;
        // After the lock is taken: the log of another running `up` must not be moved away.
        let log = redirect_log(dir)?;
        run(lock, &mut |mut summary| {
            summary.log = Some(log.clone());
            reported = true;
            report(&StartReport::Ready(summary));
        })
    };
    let result = serve();
    if let Err(error) = &result
        && !reported
    {
        report(&StartReport::Failed {
            why: exit::text(error),
            status: exit::status(error),
        });
    }
    result
}

/// Writes one line to stdout, and then closes it for good.
fn report(report: &StartReport) {
    let told = serde_json::to_string(report).map_err(io::Error::from).and_then(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    });
    let closed = File::options()
        .write(true)
        .open("/dev/null")
        .and_then(|null| nix::unistd::dup2_stdout(null).map_err(io::Error::from));
    if let Err(error) = told.and(closed) {
        tracing::warn!(%error, "the report could not be written, or its pipe could not be closed");
    }
}

/// Redirects stderr, and with it the log, to a file; keeps the previous log.
fn redirect_log(dir: &RuntimeDir) -> anyhow::Result<PathBuf> {
    let path = log_path(dir);
    let folder = path.parent().unwrap_or(dir.path());
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", folder.display()));
        }
        _ => {}
    }
    // Fails at the first start, when there is no previous log.
    let _ = fs::rename(&path, path.with_extension("log.1"));
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    nix::unistd::dup2_stderr(file).with_context(|| format!("cannot write to {}", path.display()))?;
    Ok(path)
}
