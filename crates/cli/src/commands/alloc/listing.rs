//! `hotlease alloc ls`: queues, their jobs, and why nothing is submitted.

use super::records::{JobPhase, PilotJob, Queue};
use super::store::{DirectoryArgs, job_text, now_ms};
use clap::Args;
use hotlease_terminal::output::Printer;
use hotlease_terminal::quantity;
use serde::Serialize;

/// Arguments of `hotlease alloc ls`.
#[derive(Debug, Args)]
pub(super) struct ListingArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
    /// Also list jobs that have ended, as long as their records are kept
    #[arg(long, short)]
    all: bool,
}

#[derive(Serialize)]
struct QueueRow {
    queue: String,
    system: String,
    priority: i32,
    running_nodes: u32,
    pending_nodes: u32,
    max_nodes: u32,
    min_nodes: u32,
    /// Trouble of the queue, because of which nothing is submitted; empty if there is none.
    why: String,
    /// End of the pause after a rejection or failure, milliseconds from now.
    again_in_ms: u64,
    served: bool,
    jobs: Vec<JobRow>,
}

#[derive(Serialize)]
struct JobRow {
    job: String,
    state: JobPhase,
    reason: String,
    nodes: u32,
    requeues: u32,
    submitted_ms: u64,
    running_ms: Option<u64>,
    ended_ms: Option<u64>,
}

impl JobRow {
    fn of(job: &PilotJob) -> Self {
        Self {
            job: job_text(job),
            state: job.phase,
            reason: job.reason.clone(),
            nodes: job.nodes,
            requeues: job.requeues,
            submitted_ms: job.submitted_ms,
            running_ms: job.running_ms,
            ended_ms: job.ended_ms,
        }
    }

    fn text(&self) -> String {
        let requeued = match self.requeues {
            0 => String::new(),
            times => format!(", requeued {times} times"),
        };
        let reason = match self.reason.is_empty() {
            true => String::new(),
            false => format!(": {}", self.reason),
        };
        format!(
            "  job {}, {}, {}{requeued}{reason}",
            self.job,
            node_count(self.nodes),
            self.state
        )
    }
}

/// A number of nodes in words.
pub(super) fn node_count(nodes: u32) -> String {
    match nodes {
        1 => "1 node".to_owned(),
        nodes => format!("{nodes} nodes"),
    }
}

impl QueueRow {
    fn of(name: &str, queue: &Queue, jobs: &[&PilotJob], served: bool) -> Self {
        let nodes = |is_meant: fn(JobPhase) -> bool| -> u32 {
            let meant = jobs.iter().filter(|job| is_meant(job.phase));
            meant.map(|job| job.nodes).sum()
        };
        let (now, trouble) = (now_ms(), queue.trouble.as_ref());
        Self {
            queue: name.to_owned(),
            system: queue.system.clone(),
            priority: queue.priority,
            running_nodes: nodes(|phase| phase == JobPhase::Running),
            pending_nodes: nodes(|phase| !phase.is_over() && phase != JobPhase::Running),
            max_nodes: queue.max_nodes,
            min_nodes: queue.min_nodes,
            why: trouble.map_or_else(String::new, |trouble| {
                let what = if trouble.rejected { "rejected" } else { "failed" };
                let times = match trouble.failures {
                    1 => "once".to_owned(),
                    times => format!("{times} times in a row"),
                };
                format!("{what} {times}: {}", trouble.why)
            }),
            again_in_ms: trouble.map_or(0, |trouble| trouble.until_ms.saturating_sub(now)),
            served,
            jobs: jobs.iter().copied().map(JobRow::of).collect(),
        }
    }

    /// Reason why nothing is submitted; `-` if there is none.
    fn why_text(&self) -> String {
        match (self.served, self.why.is_empty()) {
            (false, _) => "no allocator runs: start `hotlease alloc serve`".into(),
            (true, true) => "-".into(),
            (true, false) => {
                let left = quantity::nanoseconds(self.again_in_ms.saturating_mul(1_000_000));
                format!("{}; again in {left}", self.why)
            }
        }
    }
}

pub(super) fn carry_out(args: &ListingArgs, output: &mut Printer) -> anyhow::Result<()> {
    let directory = args.directory.open()?;
    let (state, served) = (directory.read()?, directory.is_served()?);
    let rows = state.queues.iter().map(|(name, queue)| {
        let jobs = state.jobs.iter().filter(|job| job.queue == *name);
        let jobs: Vec<_> = jobs.filter(|job| args.all || !job.phase.is_over()).collect();
        QueueRow::of(name, queue, &jobs, served)
    });
    let rows: Vec<QueueRow> = rows.collect();
    let columns = "QUEUE, SYSTEM, >PRIORITY, >RUNNING, >PENDING, >MOST NODES, IN THE WAY";
    output.list(&rows, columns, "no queues; add one with `hotlease alloc add`", |row| {
        vec![
            row.queue.clone(),
            row.system.clone(),
            row.priority.to_string(),
            row.running_nodes.to_string(),
            row.pending_nodes.to_string(),
            row.max_nodes.to_string(),
            row.why_text(),
        ]
    })?;
    if output.is_json() {
        return Ok(());
    }
    for row in rows.iter().filter(|row| !row.jobs.is_empty()) {
        output.line(&format!("{}:", row.queue))?;
        for job in &row.jobs {
            output.line(&job.text())?;
        }
    }
    Ok(())
}
