//! `hotlease state`: saved states of workers.

use clap::{Args, Subcommand};
use hotlease_agent::{remove_state, saved_states};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use nix::unistd::geteuid;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Manage saved states of workers that no lease has restored yet
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    #[command(subcommand)]
    command: StateCommand,
}

#[derive(Debug, Subcommand)]
enum StateCommand {
    Ls(LsArgs),
    Rm(RmArgs),
}

/// List the states in a swap directory that agents of this user have saved
///
/// With `--json`, prints an object for each state: tenant, name, bytes (of the file), age_seconds, host (on which it
/// was saved), path, error (why it cannot be restored, else null).
#[derive(Debug, Args)]
struct LsArgs {
    /// Directory, as in the agents' `--swap-directory`
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Remove a state, so that the next lease with its name begins without a state
#[derive(Debug, Args)]
struct RmArgs {
    /// Directory, as in the agents' `--swap-directory`
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of the state in leases
    #[arg(value_name = "NAME")]
    name: String,
    /// Tenant of the state [default: this user, as `uid:N`]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

#[derive(Serialize)]
struct StateRow {
    tenant: String,
    name: String,
    bytes: u64,
    age_seconds: u64,
    host: Option<String>,
    path: PathBuf,
    error: Option<String>,
}

#[derive(Serialize)]
struct RemovedState {
    tenant: String,
    name: String,
}

pub(crate) fn carry_out(args: StateArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        StateCommand::Ls(args) => list(&args.directory, output),
        StateCommand::Rm(args) => remove(args, output),
    }
}

fn list(directory: &Path, output: &mut Printer) -> anyhow::Result<()> {
    let states = saved_states(directory).map_err(|error| anyhow::anyhow!("{}: {error}", directory.display()))?;
    let rows: Vec<StateRow> = states
        .into_iter()
        .map(|state| StateRow {
            host: state.head.as_ref().ok().map(|head| head.host.clone()),
            error: state.head.err(),
            tenant: state.tenant,
            name: state.name,
            bytes: state.bytes,
            age_seconds: state.age.as_secs(),
            path: state.path,
        })
        .collect();
    let columns = "TENANT, NAME, >SIZE, >AGE, FROM";
    output.list(
        &rows,
        columns,
        "no state was saved there by agents of this user",
        |row| {
            vec![
                row.tenant.clone(),
                row.name.clone(),
                quantity::bytes(row.bytes),
                format!("{} s", row.age_seconds),
                match (&row.host, &row.error) {
                    (_, Some(error)) => error.clone(),
                    (host, None) => host.clone().unwrap_or_default(),
                },
            ]
        },
    )
}

fn remove(args: RmArgs, output: &mut Printer) -> anyhow::Result<()> {
    let tenant = args.tenant.unwrap_or_else(|| format!("uid:{}", geteuid()));
    let removed = remove_state(&args.directory, &tenant, &args.name);
    match removed.map_err(|error| anyhow::anyhow!("state `{}` of {tenant}: {error}", args.name))? {
        false => anyhow::bail!(
            "no state `{}` of {tenant} is in {}; see `hotlease state ls`",
            args.name,
            args.directory.display()
        ),
        true if output.is_json() => output.object(&RemovedState {
            tenant,
            name: args.name,
        }),
        true => output.line(&format!("removed the state `{}` of {tenant}", args.name)),
    }
}
