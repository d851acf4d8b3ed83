//! Records of an allocator: queues of a batch system, and the jobs of agents that were submitted to them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// State of an allocator; kept in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AllocatorState {
    /// Queues by name.
    pub queues: BTreeMap<String, Queue>,
    /// Jobs, oldest first.
    pub jobs: Vec<PilotJob>,
}

/// A way to get nodes: where jobs of agents are submitted, and how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queue {
    /// Name of the batch system's description.
    pub system: String,
    /// The description itself, if it is not part of the program.
    #[serde(default)]
    pub description: Option<String>,
    /// Queues of a higher priority are used first.
    pub priority: i32,
    /// Largest number of nodes of its jobs, running or not.
    pub max_nodes: u32,
    /// Nodes that it keeps although no client waits.
    #[serde(default)]
    pub min_nodes: u32,
    /// Nodes of each job.
    pub nodes_per_job: u32,
    /// Largest number of jobs that wait at the batch system.
    pub backlog: u32,
    /// Time limit of a job, seconds.
    pub time_s: u64,
    /// Time without a lease after which an agent ends, seconds.
    pub idle_s: u64,
    /// Cores of each node; `None` for whole nodes.
    pub cores: Option<u32>,
    /// GPUs of each node.
    pub gpus: u32,
    /// Settings of the agents.
    pub agents: AgentSetup,
    /// Further arguments of the command that submits a job.
    pub submit_args: Vec<String>,
    /// Reason why nothing is submitted at present, if there is one.
    pub trouble: Option<Trouble>,
    /// Time since which no client has waited, milliseconds since 1970.
    pub unneeded_since_ms: Option<u64>,
}

/// Settings of the agents of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentSetup {
    /// The program `hotlease`.
    pub program: String,
    /// Addresses of the manager.
    pub manager: String,
    /// Folder of the authority that issues an identity for each agent.
    pub authority: String,
    /// Tenants whose functions may run on the agents.
    pub tenants: Vec<String>,
    /// Further arguments of `hotlease agent`.
    pub args: Vec<String>,
    /// Lines for bash that run on each node before the agent starts.
    #[serde(default)]
    pub prologue: Vec<String>,
}

/// Pause of a queue after a rejection or a failed job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trouble {
    /// The batch system's words.
    pub why: String,
    /// Whether the job was rejected; else it was accepted, and failed.
    pub rejected: bool,
    /// Number of failures in a row.
    pub failures: u32,
    /// End of the pause, milliseconds since 1970.
    pub until_ms: u64,
}

/// A job of agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PilotJob {
    /// Name of the job at the batch system, which no other job has.
    pub name: String,
    /// Queue to which it was submitted.
    pub queue: String,
    /// Number of the job, once the batch system has assigned it.
    pub number: Option<String>,
    /// Number of the job's nodes.
    pub nodes: u32,
    /// When it was submitted, milliseconds since 1970.
    pub submitted_ms: u64,
    /// Progress of the job.
    pub phase: JobPhase,
    /// Reason for the phase, in the batch system's words; may be empty.
    pub reason: String,
    /// When it was first seen running, milliseconds since 1970.
    pub running_ms: Option<u64>,
    /// When it was seen to have ended, milliseconds since 1970.
    pub ended_ms: Option<u64>,
    /// How often the batch system has put it back into the queue after it had run.
    pub requeues: u32,
    /// Whether the queue keeps the job although no client waits: its agents do not end when they are idle.
    #[serde(default)]
    pub stays: bool,
    /// Whether the allocator has cancelled the job.
    #[serde(default)]
    pub dismissed: bool,
}

/// Progress of a job at the batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum JobPhase {
    /// The command that submits the job has not answered, or was interrupted.
    Submitting,
    /// The job waits for nodes.
    Pending,
    /// The job does not start until its user or an administrator releases it.
    Held,
    /// The job has its nodes.
    Running,
    /// The job ended by itself.
    Completed,
    /// The job ended at its time limit.
    OutOfTime,
    /// The job was ended for a job of a higher priority.
    Preempted,
    /// The job was cancelled.
    Cancelled,
    /// The job, or its node, failed.
    Failed,
    /// The batch system no longer lists the job.
    Lost,
}

impl JobPhase {
    /// Whether the job has ended.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Self::Submitting | Self::Pending | Self::Held | Self::Running)
    }
}

impl fmt::Display for JobPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Submitting => "submitting",
            Self::Pending => "pending",
            Self::Held => "held",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::OutOfTime => "out of time",
            Self::Preempted => "preempted",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Lost => "lost",
        })
    }
}

/// A job as the batch system lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedJob {
    /// Number of the job.
    pub number: String,
    /// Name of the job.
    pub name: String,
    /// Progress of the job; `None` if the batch system's word for it is unknown.
    pub phase: Option<JobPhase>,
    /// Reason for the phase.
    pub reason: String,
}

impl ListedJob {
    /// Whether it has ended for certain.
    pub(super) fn is_over(&self) -> bool {
        self.phase.is_some_and(JobPhase::is_over)
    }
}
