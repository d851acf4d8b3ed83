//! `hotlease comm`: message passing.

mod explain;
mod model_args;
mod plan;
mod run;
mod simulate;

use crate::commands::up::signals::Signals;
use crate::service;
use anyhow::Context;
use clap::{Args, Subcommand};
use hotlease_comm::Secret;
use hotlease_comm::rendezvous::{Limits, Server};
use hotlease_terminal::output::Printer;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Pass messages between functions
#[derive(Debug, Args)]
pub(crate) struct CommArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Rendezvous(RendezvousArgs),
    Plan(plan::PlanArgs),
    Explain(explain::ExplainArgs),
    Simulate(simulate::SimulateArgs),
    Run(run::RunArgs),
}

/// Run a rendezvous in the foreground, where members of communicators find each other
///
/// Serves until SIGINT or SIGTERM. Serves any number of communicators; all members of one communicator must have the
/// same secret, of at least 16 bytes: from HOTLEASE_COMM_SECRET, or from the file that HOTLEASE_COMM_SECRET_FILE names.
/// Connected members no longer need the rendezvous, unless they cannot reach each other: then it relays their messages.
/// It also uses the next port, to detect the NATs of members. With `--json`, prints an object when it serves: pid,
/// listen.
#[derive(Debug, Args)]
struct RendezvousArgs {
    /// Address for members, such as 0.0.0.0:7072 or [::]:7072; port 0: any free port
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// Read the secret from this file; may be given more than once, for members with different secrets
    #[arg(long = "secret-file", value_name = "FILE")]
    secret_files: Vec<PathBuf>,
    /// Largest number of pairs of members to relay at a time, if they cannot reach each other; 0: none (default: 1024)
    #[arg(long, value_name = "PAIRS")]
    relays: Option<u32>,
}

#[derive(Serialize)]
struct RendezvousSummary {
    pid: u32,
    listen: SocketAddr,
}

pub(crate) fn carry_out(args: CommArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Rendezvous(args) => rendezvous(&args, output),
        Command::Plan(args) => plan::carry_out(&args, output),
        Command::Explain(args) => explain::carry_out(&args, output),
        Command::Simulate(args) => simulate::carry_out(&args, output),
        Command::Run(args) => run::run(&args),
    }
}

fn rendezvous(args: &RendezvousArgs, output: &mut Printer) -> anyhow::Result<()> {
    let secrets = match args.secret_files.as_slice() {
        [] => vec![Secret::from_environment()?],
        files => files
            .iter()
            .map(|file| Secret::from_file(file))
            .collect::<Result<_, _>>()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start a runtime")?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let mut limits = Limits::default();
        limits.relays = args.relays.unwrap_or(limits.relays);
        let server = Server::start(args.listen, secrets, limits)?;
        let serving = RendezvousSummary {
            pid: std::process::id(),
            listen: server.address(),
        };
        output.answer(&serving, || format!("rendezvous at {}", serving.listen))?;
        output.flush()?;
        service::ready();
        signals.wait_for_stop().await;
        // Waiting members are told that the rendezvous ends.
        drop(server);
        Ok(())
    })
}
