//! `hotlease env run`: a command in an environment.

use super::CacheArgs;
use anyhow::Context;
use clap::Args;
use hotlease_image::{ImageId, MountedImage};
use hotlease_terminal::exit::CommandError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// Run a command in an environment: fetch it if it is not on this node, mount it, unmount it afterwards
///
/// The environment's `bin` comes first in PATH, so that `python` is its Python. Programs whose first line names the
/// Python at the place where the environment was packed need that place: run them as `python -m NAME`. The exit status
/// is the command's (128 plus the signal's number, if it was killed).
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Name of the environment, as `hotlease env pack` printed it
    #[arg(value_name = "HASH")]
    image: ImageId,
    #[command(flatten)]
    cache: CacheArgs,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn carry_out(args: &RunArgs) -> anyhow::Result<()> {
    let mounted = args.cache.open()?.mount(&args.image)?;
    mounted.check_interpreter()?;
    // If this process is killed, its command keeps the mounted files.
    mounted.share_with_children()?;
    let recorder = mounted.record();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime
        .context("cannot start a runtime")?
        .block_on(run(&args.command, &mounted));
    drop(recorder);
    drop(mounted);
    ended
}

async fn run(command: &[OsString], mounted: &MountedImage) -> anyhow::Result<()> {
    // From here on, SIGTERM and SIGHUP are passed on to the command. SIGINT and SIGQUIT are only caught: a terminal
    // sends them to the command itself.
    let listen = |kind| signal(kind).context("cannot handle signals");
    let mut term = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let _ours = [listen(SignalKind::interrupt())?, listen(SignalKind::quit())?];

    let (program, arguments) = command.split_first().expect("clap requires one");
    let mut child = Command::new(program)
        .args(arguments)
        .envs(mounted.environment(std::env::var_os("PATH")))
        .env_remove("PYTHONHOME")
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let tell = |child: &Child, signal| {
        if let Some(pid) = child.id() {
            // Fails if the command has ended just now.
            let _ = kill(Pid::from_raw(pid as i32), signal);
        }
    };
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.context("cannot wait for the command")?,
            _ = term.recv() => tell(&child, Signal::SIGTERM),
            _ = hangup.recv() => tell(&child, Signal::SIGHUP),
        }
    };
    let (how, status) = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(()),
        (Some(code), _) => (format!("exited with status {code}"), code as u8),
        (None, number) => {
            let number = number.unwrap_or_default();
            let name = Signal::try_from(number).map_or_else(|_| number.to_string(), |signal| signal.to_string());
            (format!("was killed by {name}"), 128 + number as u8)
        }
    };
    let program = program.display().to_string();
    Err(CommandError::Program { program, how, status }.into())
}
