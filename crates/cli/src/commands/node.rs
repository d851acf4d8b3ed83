//! `hotlease node`: batch jobs on this node, and the site's policy for them.

mod policy;
mod queue;
mod status;

use clap::{Args, Subcommand};
use hotlease_terminal::output::Printer;

/// See the batch jobs of this node, and try the site's policy for them (for operators)
#[derive(Debug, Args)]
pub(crate) struct BatchNodeArgs {
    #[command(subcommand)]
    command: BatchNodeCommand,
}

#[derive(Debug, Subcommand)]
enum BatchNodeCommand {
    Status(status::StatusArgs),
    /// The site's policy: which batch jobs have company
    Policy(PolicyArgs),
}

#[derive(Debug, Args)]
struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Check(policy::CheckArgs),
}

pub(crate) fn carry_out(args: BatchNodeArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        BatchNodeCommand::Status(args) => status::carry_out(args, output),
        BatchNodeCommand::Policy(PolicyArgs {
            command: PolicyCommand::Check(args),
        }) => policy::carry_out(args, output),
    }
}
