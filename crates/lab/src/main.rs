//! L4: the program `hotlease-lab`: measurements of the platform, and tests of its sandboxes. `hotlease bench` and
//! `hotlease sandbox` start it with their own command line, so that `hotlease` does not contain this code.
//!
//! Output, errors and exit status have the same format as those of `hotlease`.

#![forbid(unsafe_code)]

mod bench;
mod sandbox;

use clap::{Parser, Subcommand};
use hotlease_terminal::output::Printer;
use hotlease_terminal::{exit, log};
use std::process::ExitCode;

/// Measure the platform, and test its sandboxes: the commands `hotlease bench` and `hotlease sandbox`
#[derive(Debug, Parser)]
#[command(name = "hotlease-lab", bin_name = "hotlease", version, max_term_width = 100)]
struct Cli {
    /// Print JSON: one object per line for lists, one object otherwise; also errors, on stderr
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sandbox(sandbox::SandboxArgs),
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    let Cli { json, command } = Cli::parse();
    log::start("warn");
    let mut output = Printer::new(json);
    let result = match command {
        Command::Sandbox(args) => sandbox::carry_out(args, &mut output),
        Command::Bench(args) => bench::carry_out(args, &mut output),
    };
    match result.and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn no_two_arguments_of_a_command_have_the_same_name() {
        let repeated = hotlease_terminal::arguments::repeated_names(&Cli::command());
        assert!(repeated.is_empty(), "{repeated:?}");
    }
}
