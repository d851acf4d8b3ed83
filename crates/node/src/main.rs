//! Program that a batch system runs on a node before and after each job: `hotlease-node yield` in its prolog,
//! `hotlease-node retake` in its epilog.
//!
//! The program talks only to the agent of this node, through the node socket: it asks no batch system and uses no
//! network. It kills an agent that has not answered within [`LIMIT`], unless the agent is alive and waits for the end
//! of its workers. Their end takes the kernel longer if they used much memory. The exit status is always 0, because a
//! prolog that fails drains the node. The system's log (syslog, facility daemon) records what was done.
//!
//! The program keeps a file for each running job (`--jobs`), which an agent that starts meanwhile reads.

#![forbid(unsafe_code)]

mod force;
mod job;
mod request;
mod system_log;

use clap::{Parser, Subcommand};
use request::Places;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit for the agent to free the resources that a job may use.
const LIMIT: Duration = Duration::from_millis(200);

/// Name of the agent's socket in its runtime directory.
const NODE_SOCKET: &str = "node.sock";
/// Name of the agent's socket for sessions of clients in its runtime directory.
const SESSION_SOCKET: &str = "session.sock";

/// Tells the agent of this node which batch jobs begin and end. The job is the one that the environment describes
/// (SLURM_JOB_ID and so on). Exits with status 0 in each case.
#[derive(Parser)]
#[command(name = "hotlease-node", version)]
struct Arguments {
    /// Runtime directory of the agent.
    #[arg(long, default_value = "/run/hotlease-agent", value_name = "DIR", global = true)]
    runtime_dir: PathBuf,
    /// Folder for a file of each job that runs: what the agent has as --batch-jobs.
    #[arg(long, default_value = "/run/hotlease-jobs", value_name = "DIR", global = true)]
    jobs: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Copy)]
enum Action {
    /// Frees what a job may use, before it begins.
    Yield,
    /// Offers again what a job had, after it has ended.
    Retake,
}

fn main() {
    let begin = Instant::now();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version are printed for people, and not logged.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return system_log::error(&format!("did nothing: {error}")),
    };
    let job = match job::of_environment() {
        Ok(job) => job,
        Err(why) => return system_log::error(&format!("did nothing: {why}")),
    };
    let places = Places {
        socket: arguments.runtime_dir.join(NODE_SOCKET),
        session_socket: arguments.runtime_dir.join(SESSION_SOCKET),
        jobs: arguments.jobs,
    };
    match arguments.action {
        Action::Yield => request::yield_to(&places, job, begin + LIMIT),
        Action::Retake => request::retake(&places, job.id, begin + LIMIT),
    }
}
