//! `hotlease alloc`: nodes from a batch system, for leases that wait.

mod batch_system;
mod listing;
mod planner;
mod records;
mod script;
mod serve;
mod store;

use anyhow::{bail, ensure};
use batch_system::{BatchSystem, JobWords, description_file};
use clap::{Args, Subcommand};
use hotlease_net::Address;
use hotlease_terminal::arguments::absolute;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use listing::ListingArgs;
use records::{AgentSetup, ListedJob, Queue};
use script::{quoted, script};
use serde::Serialize;
use serve::ServeArgs;
use std::path::PathBuf;
use std::time::Duration;
use store::DirectoryArgs;

/// Longest name of a queue.
const NAME_MAX: usize = 32;
/// Shortest time limit of a job: batch systems count minutes.
const TIME_MIN: Duration = Duration::from_secs(60);

/// Get nodes from a batch system while leases wait
///
/// `add` describes how jobs of agents are submitted, and `serve` runs the allocator: as soon as clients wait for leases
/// at the manager, it submits jobs, whose agents register with the manager and end when no lease needs them. Needs an
/// account at the batch system, and no administrator. With `--json`, `ls` prints an object for each queue: queue,
/// system, priority, running_nodes, pending_nodes, max_nodes, min_nodes, why, again_in_ms, served, jobs (each with job,
/// state, reason, nodes, requeues, submitted_ms, running_ms, ended_ms).
#[derive(Debug, Args)]
pub(crate) struct AllocArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a queue: how jobs are submitted, and how many
    Add(QueueArgs),
    /// Show what `add` with these arguments would submit, and ask the site whether it would accept it; submits nothing
    DryRun(QueueArgs),
    /// Run the allocator, in the foreground. Jobs go on when it ends
    Serve(ServeArgs),
    /// List queues and jobs, and why nothing is submitted
    Ls(ListingArgs),
    /// Change how many nodes a queue keeps and may have; jobs over the limit are cancelled within seconds
    Scale(ScaleArgs),
    /// Remove a queue, and cancel its jobs
    Rm(NameArgs),
    /// Show what was done for a queue, or for all queues
    Log(LogArgs),
}

/// Arguments of a queue.
#[derive(Debug, Args)]
struct QueueArgs {
    /// Batch system: slurm, pbs, lsf, flux or htcondor; the last four were not tried
    #[arg(required_unless_present = "description", conflicts_with = "description")]
    system: Option<String>,
    /// File that describes another batch system (docs/batch-systems.md)
    #[arg(long = "system", value_name = "FILE")]
    description: Option<PathBuf>,
    /// Name of the queue [default: name of the batch system]
    #[arg(long)]
    name: Option<String>,
    /// Largest number of nodes of its jobs at a time, running or not
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_nodes: u32,
    /// Nodes to keep although no client waits; their agents do not end when they are idle
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    min_nodes: u32,
    /// Time limit of a job, such as 1h; leases that would last longer are not granted
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    time: Duration,
    /// Time without a lease after which an agent ends. If no lease has needed them for this time, jobs that have not
    /// begun are cancelled
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = quantity::parse_time)]
    idle: Duration,
    /// Nodes of each job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Largest number of jobs that wait at the batch system at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    backlog: u32,
    /// Cores of each node, by which the nodes for waiting clients are counted [default: whole nodes, one for each
    /// client]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    cores: Option<u32>,
    /// GPUs of each node; request them from the batch system after `--`, too
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=i64::from(GPUS_PER_AGENT_MAX)))]
    gpus: u32,
    /// Queues of a higher priority are used first
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    priority: i32,
    /// Manager with which the agents register, https://HOST:PORT, or several separated by commas
    #[arg(
        long,
        value_name = "URL",
        env = "HOTLEASE_MANAGER",
        value_delimiter = ',',
        required = true
    )]
    manager: Vec<Address>,
    /// Folder of the authority (`hotlease identity init`), readable on the nodes: each agent gets an identity from it
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Tenant whose functions may run on the nodes; may be given more than once
    #[arg(long = "tenant", value_name = "NAME", required = true)]
    tenants: Vec<String>,
    /// Further argument of `hotlease agent`, such as --agent-arg=--pool=4; may be given more than once
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true)]
    agent_args: Vec<String>,
    /// Line for bash that runs on each node before the agent starts, such as 'module load gcc'; may be given more than once
    #[arg(long = "prologue", value_name = "LINE")]
    prologue: Vec<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
    /// Further arguments of the command that submits a job, such as `--partition low --account x`
    #[arg(last = true, value_name = "ARG")]
    submit_args: Vec<String>,
}

/// Name of a queue.
#[derive(Debug, Args)]
struct NameArgs {
    /// Name of the queue
    name: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Arguments of `hotlease alloc scale`.
#[derive(Debug, Args)]
struct ScaleArgs {
    /// Name of the queue
    name: String,
    /// Nodes to keep although no client waits [default: as before]
    #[arg(long, value_name = "N", required_unless_present = "max_nodes",
          value_parser = clap::value_parser!(u32).range(..=100_000))]
    min_nodes: Option<u32>,
    /// Largest number of nodes of its jobs at a time, running or not [default: as before]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    max_nodes: Option<u32>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Arguments of `hotlease alloc log`.
#[derive(Debug, Args)]
struct LogArgs {
    /// Name of the queue [default: all queues]
    name: Option<String>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

#[derive(Serialize)]
struct AddedQueue {
    queue: String,
}

#[derive(Serialize)]
struct RemovedQueue {
    removed: String,
    /// Jobs that were cancelled.
    cancelled: Vec<String>,
}

#[derive(Serialize)]
struct ScaledQueue {
    queue: String,
    min_nodes: u32,
    max_nodes: u32,
}

#[derive(Serialize)]
struct DryRun {
    /// Command that submits a job.
    command: Vec<String>,
    /// Command that lists the user's jobs.
    list: Vec<String>,
    /// Command that cancels a job.
    cancel: Vec<String>,
    script: String,
    /// The batch system's answer; `None` if it cannot check a job.
    answer: Option<String>,
}

#[derive(Serialize)]
struct LogLine {
    line: String,
}

impl QueueArgs {
    fn queue(&self) -> anyhow::Result<(String, Queue)> {
        let description = self.description.as_deref().map(description_file).transpose()?;
        let system = BatchSystem::of(self.system.as_deref().unwrap_or_default(), description.as_deref())?;
        let name = self.name.clone().unwrap_or_else(|| system.name.clone());
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        ensure!(
            (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_fit),
            "a queue's name has 1 to {NAME_MAX} letters, digits, - and _"
        );
        ensure!(
            self.time >= TIME_MIN,
            "--time must be at least {} s",
            TIME_MIN.as_secs()
        );
        ensure!(self.nodes <= self.max_nodes, "--nodes must be at most --max-nodes");
        ensure!(
            self.min_nodes <= self.max_nodes,
            "--min-nodes must be at most --max-nodes"
        );
        if let Some(most) = system.submit.nodes_max {
            ensure!(
                self.nodes <= most,
                "--nodes must be at most {most} with {}",
                system.name
            );
        }
        let ends_early = |lines: &String| lines.lines().any(|line| line == script::NODE_SCRIPT_END);
        ensure!(
            !self.prologue.iter().any(ends_early),
            "--prologue cannot have the line {}, which ends the node's part of the job's script",
            script::NODE_SCRIPT_END
        );
        let authority = absolute(&self.authority);
        ensure!(
            self.authority.is_dir(),
            "{} is no folder of an authority; `hotlease identity init` makes one",
            self.authority.display()
        );
        let managers: Vec<String> = self.manager.iter().map(ToString::to_string).collect();
        let queue = Queue {
            system: system.name,
            description,
            priority: self.priority,
            max_nodes: self.max_nodes,
            min_nodes: self.min_nodes,
            nodes_per_job: self.nodes,
            backlog: self.backlog,
            time_s: self.time.as_secs(),
            idle_s: self.idle.as_secs().max(1),
            cores: self.cores,
            gpus: self.gpus,
            agents: AgentSetup {
                program: std::env::current_exe()?.display().to_string(),
                manager: managers.join(","),
                authority: authority.to_string_lossy().into_owned(),
                tenants: self.tenants.clone(),
                args: self.agent_args.clone(),
                prologue: self.prologue.clone(),
            },
            submit_args: self.submit_args.clone(),
            trouble: None,
            unneeded_since_ms: None,
        };
        Ok((name, queue))
    }
}

pub(crate) fn carry_out(args: AllocArgs, output: &mut Printer) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => add(&args, output),
        Command::DryRun(args) => dry_run(&args, output),
        Command::Serve(args) => serve::carry_out(args, output),
        Command::Ls(args) => listing::carry_out(&args, output),
        Command::Scale(args) => scale(&args, output),
        Command::Rm(args) => remove(&args, output),
        Command::Log(args) => {
            let lines = args.directory.open()?.log_lines(args.name.as_deref());
            match output.is_json() {
                true => lines.into_iter().try_for_each(|line| output.object(&LogLine { line })),
                false => lines.iter().try_for_each(|line| output.line(line)),
            }
        }
    }
}

fn add(args: &QueueArgs, output: &mut Printer) -> anyhow::Result<()> {
    let (name, queue) = args.queue()?;
    let directory = args.directory.open()?;
    let mut edit = directory.edit()?;
    if edit.state.queues.contains_key(&name) {
        bail!("there is a queue {name} already; name this one with --name, or `hotlease alloc rm {name}` first");
    }
    edit.state.queues.insert(name.clone(), queue);
    edit.save()?;
    directory.log(&name, "added");
    let is_served = directory.is_served()?;
    output.answer(&AddedQueue { queue: name.clone() }, || {
        let next = match is_served {
            true => "",
            false => "; no allocator runs: start `hotlease alloc serve`",
        };
        format!("added queue {name}{next}")
    })
}

fn dry_run(args: &QueueArgs, output: &mut Printer) -> anyhow::Result<()> {
    let (name, queue) = args.queue()?;
    let system = BatchSystem::of_queue(&queue)?;
    let directory = args.directory.open()?;
    let text = script(&name, &queue, &system);
    let path = directory.write_script("dry-run", &text)?;
    let (job, file) = (format!("hotlease-{name}-dry-run"), path.display().to_string());
    let out = directory.output(&job).display().to_string();
    let words = JobWords {
        name: &job,
        nodes: queue.nodes_per_job,
        output: &out,
        script: &file,
    };
    let command = system.submit_line(&queue, words, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(system.check(&queue, words))?;
    let shown = DryRun {
        command,
        list: system.state_line(),
        cancel: system.cancel_line("JOB"),
        script: text,
        answer,
    };
    output.answer(&shown, || {
        let line = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let answer = match &shown.answer {
            Some(answer) => format!("# the site would accept it:\n{answer}"),
            None => format!("# {} does not tell whether the site would accept it", system.name),
        };
        format!(
            "{}# the command:\n{}\n# the jobs:\n{}\n# the end of a job:\n{}\n{answer}",
            shown.script,
            line(&shown.command),
            line(&shown.list),
            line(&shown.cancel),
        )
    })
}

fn scale(args: &ScaleArgs, output: &mut Printer) -> anyhow::Result<()> {
    let directory = args.directory.open()?;
    let mut edit = directory.edit()?;
    let Some(queue) = edit.state.queues.get_mut(&args.name) else {
        bail!("there is no queue {}; see `hotlease alloc ls`", args.name);
    };
    queue.min_nodes = args.min_nodes.unwrap_or(queue.min_nodes);
    queue.max_nodes = args.max_nodes.unwrap_or(queue.max_nodes);
    ensure!(
        queue.min_nodes <= queue.max_nodes,
        "the queue would keep {} nodes, and may have {}: give --min-nodes and --max-nodes",
        queue.min_nodes,
        queue.max_nodes
    );
    let scaled = ScaledQueue {
        queue: args.name.clone(),
        min_nodes: queue.min_nodes,
        max_nodes: queue.max_nodes,
    };
    edit.save()?;
    let what = format!("keeps {} to {} nodes", scaled.min_nodes, scaled.max_nodes);
    directory.log(&args.name, &what);
    output.answer(&scaled, || format!("queue {} {what}", scaled.queue))
}

fn remove(args: &NameArgs, output: &mut Printer) -> anyhow::Result<()> {
    let directory = args.directory.open()?;
    let mut edit = directory.edit()?;
    let Some(queue) = edit.state.queues.get(&args.name) else {
        bail!("there is no queue {}; see `hotlease alloc ls`", args.name);
    };
    let system = BatchSystem::of_queue(queue)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // If the submission of a job was interrupted, only the batch system's list has the job's number.
    let mut listed = match edit.state.live(&args.name).next() {
        Some(_) => runtime.block_on(system.list())?,
        None => Vec::new(),
    };
    let is_own = |listed: &ListedJob| edit.state.live(&args.name).any(|job| job.name == listed.name);
    listed.retain(|listed| is_own(listed) && !listed.is_over());
    let left = runtime.block_on(system.cancel_all(&listed));
    if !left.is_empty() {
        // The queue stays, so that the records of its jobs are not lost.
        bail!(
            "queue {} is not removed: {} of {} jobs are not cancelled; `hotlease alloc rm {}` tries again. {}",
            args.name,
            left.len(),
            listed.len(),
            args.name,
            left.join("; ")
        );
    }
    let cancelled: Vec<String> = listed.into_iter().map(|job| job.number).collect();
    edit.state.queues.remove(&args.name);
    edit.state.jobs.retain(|job| job.queue != args.name);
    edit.save()?;
    directory.log(&args.name, format!("removed; cancelled {} jobs", cancelled.len()));
    let removed = RemovedQueue {
        removed: args.name.clone(),
        cancelled,
    };
    output.answer(&removed, || {
        format!(
            "removed queue {}; cancelled {} jobs",
            removed.removed,
            removed.cancelled.len()
        )
    })
}
