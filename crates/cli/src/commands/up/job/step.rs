//! `hotlease up --nodes-of-this-job`: the step of `srun` that runs `hotlease up` on each node of the job.

use super::folder::serves;
use crate::commands::up::UpArgs;
use anyhow::{Context, bail};
use hotlease_net::job::{JOB_VARIABLE, JobFolder};
use hotlease_terminal::exit::CommandError;
use hotlease_terminal::output::Printer;
use hotlease_terminal::platform::Platform;
use hotlease_wire::grpc::{AgentInfo, ListRequest};
use serde::Serialize;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time until all nodes serve.
const SERVES_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two looks whether all nodes serve.
const LOOK: Duration = Duration::from_millis(20);

/// Description of the platform that was started in the background.
#[derive(Debug, Serialize)]
struct StepSummary {
    job: String,
    managers: String,
    nodes: usize,
    cores: usize,
}

impl StepSummary {
    fn text(&self) -> String {
        format!(
            "hotlease serves job {}: {} nodes, {} cores, manager {}",
            self.job, self.nodes, self.cores, self.managers
        )
    }
}

/// Number and nodes of the job that this process runs in.
fn job() -> Result<(String, usize), CommandError> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let nodes = variable("SLURM_JOB_NUM_NODES").or_else(|| variable("SLURM_NNODES"));
    match (variable(JOB_VARIABLE), nodes.and_then(|nodes| nodes.parse().ok())) {
        (Some(job), Some(nodes)) => Ok((job, nodes)),
        _ => Err(CommandError::Usage(format!(
            "--nodes-of-this-job: this is no batch job of Slurm, which sets {JOB_VARIABLE} and SLURM_JOB_NUM_NODES; get one with \
             `salloc` or `sbatch`"
        ))),
    }
}

/// Starts the step; with `--detach`, returns when all nodes serve.
pub(in crate::commands::up) fn start(args: &UpArgs, output: &mut Printer) -> anyhow::Result<()> {
    let (job, nodes) = job()?;
    let mut command = command(args, nodes, output.is_json())?;
    if !args.detach {
        // `srun` passes signals on, and ends with the step.
        return Err(command.exec()).context("cannot start srun");
    }
    let Some(folder) = JobFolder::of_environment() else {
        bail!(
            "there is no place for the folder of the job; set HOTLEASE_JOBS_DIR to a folder on a file system that all nodes share"
        );
    };
    if agents(&folder).is_some() {
        return Err(serves(&folder, &job));
    }
    // A separate process group, because Ctrl-C in the shell of an allocation is for other programs.
    let child = command.stdout(Stdio::null()).process_group(0).spawn();
    let mut child = child.context("cannot start srun")?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("the platform of the job did not start: srun ended with {status}; its messages are above");
        }
        if let Some((managers, agents)) = agents(&folder).filter(|(_, agents)| agents.len() >= nodes) {
            let summary = StepSummary {
                job,
                managers,
                nodes: agents.len(),
                cores: agents.iter().map(|agent| agent.cores.len()).sum(),
            };
            return output.answer(&summary, || summary.text());
        }
        if begin.elapsed() >= SERVES_WITHIN {
            end(&mut child);
            bail!(
                "not all {nodes} nodes of the job served within {} s, so it was stopped",
                SERVES_WITHIN.as_secs()
            );
        }
        thread::sleep(LOOK);
    }
}

/// Ends the step.
fn end(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // `srun` ends its step at SIGTERM.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
    }
    let _ = child.wait();
}

/// The job's managers, and the agents that are registered with them; `None` if no manager serves.
fn agents(folder: &JobFolder) -> Option<(String, Vec<AgentInfo>)> {
    let site = folder.site().ok()??;
    let mut platform = Platform::of_site(&site).ok()?;
    let list = platform.request(async |client| client.list_agents(ListRequest::default()).await);
    Some((site.to_string(), list.ok()?.agents))
}

fn command(args: &UpArgs, nodes: usize, json: bool) -> anyhow::Result<Command> {
    let program = env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("srun");
    command
        // The step runs beside the other steps of the job, which keep their cores. It is not bound to cores, so that it
        // may use all cores of the job.
        .args(["--overlap", "--cpu-bind=none", "--mpi=none", "--input=none"])
        // When one task fails, the others end.
        .arg("--kill-on-bad-exit=1")
        .args([format!("--nodes={nodes}"), format!("--ntasks={nodes}")])
        .arg("--ntasks-per-node=1")
        .arg(program);
    if json {
        command.arg("--json");
    }
    command
        .arg("up")
        .arg(format!("--first-within={}us", args.first_within.as_micros()))
        .args(args.offer.to_args())
        .args(args.ledger.to_args_of_job())
        .args(args.end.to_args());
    if env::var_os("HOTLEASE_LOG").is_none() {
        // The output of a job is no place for the log of each node.
        command.env("HOTLEASE_LOG", "warn");
    }
    Ok(command)
}
