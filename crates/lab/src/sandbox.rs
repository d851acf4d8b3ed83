//! `hotlease sandbox`: tests of the isolation of functions.

mod hand_over;
mod judgement;
mod leftover_processes;
mod machines;
mod pace;
mod stand_in;
mod test;
mod trial;

use clap::{Args, Subcommand};
use hotlease_terminal::output::Printer;

/// Test how functions are isolated from the host and from each other
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Test(test::TestArgs),
    HandOver(hand_over::HandOverArgs),
}

pub(crate) fn carry_out(args: SandboxArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Test(args) => test::carry_out(&args, output),
        Command::HandOver(args) => hand_over::carry_out(&args, output),
    }
}
