//! L4: the program `hotlease`. Each command is a file of [`commands`]; `--help` is its manual. `bench` and `sandbox`
//! are commands of the program `hotlease-lab`, which [`lab`] runs.
//!
//! Results go to stdout, as text for people or with `--json` as one JSON object per line for programs. Errors go to
//! stderr and say what to do next. [`exit`] explains the exit status.

#![forbid(unsafe_code)]

mod commands;
mod config_file;
mod lab;
mod service;
mod state;

use clap::{CommandFactory, Parser, Subcommand};
use commands::{
    admin, agent, agents, alloc, bill, comm, doctor, env, explain, functions, identity, leases, manager, node, ps, run,
    top, up, version,
};
use hotlease_terminal::output::Printer;
use hotlease_terminal::{exit, log};
use std::ffi::OsString;
use std::process::ExitCode;

/// Call functions on leased cores with microsecond overhead.
///
/// Start the platform with `hotlease up`, then call a function of a shared library with
/// `hotlease run LIB.so FUNCTION < input > output`.
#[derive(Debug, Parser)]
#[command(name = "hotlease", version, after_help = exit::TABLE, max_term_width = 100)]
struct Cli {
    /// Print JSON: one object per line for lists, one object otherwise; also errors, on stderr
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// Commands. The documentation of a command's arguments is the text of its `--help`.
#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<up::UpArgs>),
    Down(up::down::DownArgs),
    Manager(manager::ManagerArgs),
    Agent(Box<agent::AgentArgs>),
    Run(run::RunArgs),
    Ps(ps::PsArgs),
    Top(top::TopArgs),
    Leases(leases::LeasesArgs),
    Explain(explain::ExplainArgs),
    Alloc(alloc::AllocArgs),
    Agents(agents::AgentsArgs),
    Bill(bill::BillArgs),
    Functions(functions::FunctionsArgs),
    Env(env::EnvArgs),
    Identity(identity::IdentityArgs),
    Admin(admin::AdminArgs),
    Node(node::BatchNodeArgs),
    Doctor(doctor::DoctorArgs),
    Comm(comm::CommArgs),
    /// Test how functions are isolated from the host and from each other
    Sandbox,
    State(commands::state::StateArgs),
    /// Measure how fast the platform is on this host, next to baselines in the same run
    Bench,
    Version(version::VersionArgs),
}

impl Command {
    /// Default log level: daemons log their work, commands only problems.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Up(_) | Self::Manager(_) | Self::Agent(_) | Self::Comm(_) => "info",
            _ => "warn",
        }
    }

    fn carry_out(self, output: &mut Printer) -> anyhow::Result<()> {
        match self {
            Self::Up(args) => up::carry_out(*args, output),
            Self::Down(args) => up::down::carry_out(args, output),
            Self::Manager(args) => manager::carry_out(args, output),
            Self::Agent(args) => agent::carry_out(*args, output),
            Self::Run(args) => run::carry_out(args, output),
            Self::Ps(args) => ps::carry_out(args, output),
            Self::Top(args) => top::carry_out(args, output),
            Self::Leases(args) => leases::carry_out(args, output),
            Self::Explain(args) => explain::carry_out(args, output),
            Self::Alloc(args) => alloc::carry_out(args, output),
            Self::Agents(args) => agents::carry_out(args, output),
            Self::Bill(args) => bill::carry_out(args, output),
            Self::Functions(args) => functions::carry_out(args, output),
            Self::Env(args) => env::carry_out(args, output),
            Self::Identity(args) => identity::carry_out(args, output),
            Self::Admin(args) => admin::carry_out(args, output),
            Self::Node(args) => node::carry_out(args, output),
            Self::Doctor(args) => doctor::carry_out(args, output),
            Self::Comm(args) => comm::carry_out(args, output),
            Self::State(args) => commands::state::carry_out(args, output),
            Self::Version(args) => version::carry_out(args, output),
            // `main` has handed these over before the command line was parsed.
            Self::Bench | Self::Sandbox => Err(lab::hand_over(std::env::args_os().collect())),
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let json = args.iter().any(|arg| arg == "--json");
    if lab::is_meant(&args) {
        return exit::report(&lab::hand_over(args), json);
    }
    let args = match config_file::expand(&Cli::command(), args) {
        Ok(args) => args,
        Err(error) => return exit::report(&error, json),
    };
    let Cli { json, command } = Cli::parse_from(args);
    log::start(command.log_level());
    let mut output = Printer::new(json);
    let result = command.carry_out(&mut output);
    match result.and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_arguments_of_a_command_have_the_same_name() {
        let repeated = hotlease_terminal::arguments::repeated_names(&Cli::command());
        assert!(repeated.is_empty(), "{repeated:?}");
    }
}
