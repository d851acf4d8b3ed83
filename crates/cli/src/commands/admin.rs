//! `hotlease admin`: nodes, tenants, keys, and the ledger's file.

mod key;
mod node;
mod tenant;

use crate::state::StateArgs;
use clap::{Args, Subcommand};
use hotlease_store::{BackupSummary, LEDGER_FILE, backup, restore};
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;
use std::path::PathBuf;

/// Manage nodes, tenants, keys, and the ledger's file (for operators)
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    /// Give nodes to the site, drain them, take them back
    Node(node::NodeArgs),
    Tenant(tenant::TenantArgs),
    Key(key::KeyArgs),
}

/// Copy the ledger into a new file, also while the manager runs
///
/// The copy shows the ledger at one moment. It is checked and durable when the command returns. With `--json`: file,
/// bytes, rows, schema.
#[derive(Debug, Args)]
struct BackupArgs {
    /// The file to make; refused if it exists
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
}

/// Replace the ledger by a copy; the manager must not run
///
/// The replaced ledger is kept in a folder next to it. Leases that were granted after the copy was made are
/// reported by their agents and listed by `hotlease bill verify`, but not billed. With `--json`: file, bytes, rows,
/// schema, replaced (path of the replaced ledger, or null).
#[derive(Debug, Args)]
struct RestoreArgs {
    /// A file of `hotlease admin backup`
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
}

#[derive(Serialize)]
struct CopySummary {
    file: PathBuf,
    bytes: u64,
    rows: u64,
    schema: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<PathBuf>,
}

impl CopySummary {
    fn of(file: PathBuf, summary: BackupSummary) -> Self {
        Self {
            file,
            bytes: summary.bytes,
            rows: summary.rows,
            schema: summary.schema,
            replaced: summary.replaced,
        }
    }
}

pub(crate) fn carry_out(args: AdminArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        AdminCommand::Node(args) => node::carry_out(args, output),
        AdminCommand::Tenant(args) => tenant::carry_out(args, output),
        AdminCommand::Key(args) => key::carry_out(args, output),
        AdminCommand::Backup(args) => {
            let ledger = args.state.ledger()?;
            let done = CopySummary::of(args.file.clone(), backup(&ledger, &args.file)?);
            output.answer(&done, || {
                format!(
                    "{} holds {} rows of {} ({})",
                    done.file.display(),
                    done.rows,
                    ledger.join(LEDGER_FILE).display(),
                    quantity::bytes(done.bytes)
                )
            })
        }
        AdminCommand::Restore(args) => {
            let ledger = args.state.ledger()?;
            let done = CopySummary::of(args.file.clone(), restore(&ledger, &args.file)?);
            output.answer(&done, || {
                let kept = done
                    .replaced
                    .as_ref()
                    .map(|at| format!("; what was there is in {}", at.display()));
                format!(
                    "restored {} rows into {}{}",
                    done.rows,
                    ledger.join(LEDGER_FILE).display(),
                    kept.unwrap_or_default()
                )
            })
        }
    }
}
