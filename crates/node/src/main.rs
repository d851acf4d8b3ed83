//! Program that a batch system runs on a node before and after each job: `hotlease-node yield` in its prolog,
//! `hotlease-node retake` in its epilog.
//!
//! It speaks to the agent of this node alone, by the node socket: it asks no batch system and uses no network. An
//! agent that has not answered within [`LIMIT`] is killed, unless it lives and waits for workers to die, which takes the
//! kernel longer if they held much memory. The exit status is 0 in each case, because a prolog that fails drains the
//! node. What was done is in the system's log (syslog, facility daemon).
//!
//! It keeps a file for each job that runs (`--jobs`), for an agent that starts meanwhile.

#![forbid(unsafe_code)]

mod force;
mod job;
mod request;
mod system_log;

use clap::{Parser, Subcommand};
use request::Places;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time that the agent has to free what a job may use.
const LIMIT: Duration = Duration::from_millis(200);

/// Name of the agent's socket in its runtime directory.
const NODE_SOCKET: &str = "node.sock";
/// Name of its socket for sessions of clients there.
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
        // Help and version are for people.
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
