//! Batch system → agent, over the agent's node socket: jobs that begin and end on the node.
//!
//! The sender is `hotlease-node`, which the batch system runs as root before and after each job. A connection has one
//! request and one answer.

use crate::ids::JobId;
use crate::limits::GPUS_PER_AGENT_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Longest name of a user, a partition or an account, and longest constraint and comment, bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Highest number of a core.
pub const CORE_MAX: u32 = 65_535;

/// Resources of a node that a job may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobShare {
    /// The whole node.
    Node,
    /// Parts of the node.
    Part {
        /// Cores of the job; the agent may use fewer than all of them.
        cores: BTreeSet<u32>,
        /// Numbers of the job's GPUs.
        gpus: BTreeSet<u32>,
        /// Memory of the job, bytes.
        memory_bytes: u64,
    },
}

impl JobShare {
    /// Whether the numbers of its cores and GPUs are possible.
    fn is_sound(&self) -> bool {
        match self {
            Self::Node => true,
            Self::Part { cores, gpus, .. } => {
                cores.iter().all(|core| *core <= CORE_MAX) && gpus.iter().all(|gpu| *gpu < GPUS_PER_AGENT_MAX)
            }
        }
    }
}

/// Whether a job lets others use its nodes, as its user has requested from the batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum JobSharing {
    /// The batch system does not say.
    #[default]
    Unknown,
    /// The job does not share: its nodes are its own (`--exclusive`).
    Exclusive,
    /// The job has requested neither exclusive nor shared nodes.
    Possible,
    /// The job shares its nodes (`--oversubscribe`).
    Requested,
}

impl JobSharing {
    /// The sharing that Slurm names by this word: the value of `OverSubscribe` of a job.
    pub fn of_slurm(word: &str) -> Self {
        match word {
            "NO" | "USER" | "MCS" | "EXCLUSIVE" => Self::Exclusive,
            "OK" => Self::Possible,
            "YES" => Self::Requested,
            _ => Self::Unknown,
        }
    }
}

/// A job, as the batch system describes it. A name is empty if the batch system does not report it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchJob {
    /// Number of the job.
    pub id: JobId,
    /// Name of its user.
    pub user: String,
    /// Partition, or queue, of the job.
    pub partition: String,
    /// Account that pays for the job.
    pub account: String,
    /// Features that its nodes must have, as its user wrote them.
    pub constraint: String,
    /// Comment of the job, or the beginning of the comment.
    pub comment: String,
    /// Number of its nodes; 0: not known.
    pub nodes: u32,
    /// Whether the job lets others use its nodes.
    pub sharing: JobSharing,
    /// Numbers of the GPUs of this node that the batch system assigns to the job; `None` if it reports nothing about
    /// GPUs.
    pub gpus: Option<BTreeSet<u32>>,
    /// Name that its control group may have in place of the job's number.
    pub group: String,
    /// Resources of this node that the job may use.
    pub share: JobShare,
}

impl BatchJob {
    /// Checks lengths and numbers; the error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let names = [
            &self.user,
            &self.partition,
            &self.account,
            &self.constraint,
            &self.comment,
            &self.group,
        ];
        if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err("a name is longer than 256 bytes");
        }
        let mut gpus = self.gpus.iter().flatten();
        match self.share.is_sound() && gpus.all(|gpu| *gpu < GPUS_PER_AGENT_MAX) {
            true => Ok(()),
            false => Err("no machine has a core or a GPU of that number"),
        }
    }
}

impl BatchJob {
    /// A job whose number alone is known; its share is the whole node.
    pub fn unknown(id: JobId) -> Self {
        Self {
            id,
            user: String::new(),
            partition: String::new(),
            account: String::new(),
            constraint: String::new(),
            comment: String::new(),
            nodes: 0,
            sharing: JobSharing::Unknown,
            gpus: None,
            group: String::new(),
            share: JobShare::Node,
        }
    }
}

/// Request to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// A job is about to begin, or its share has changed: free the share. Answered when nothing of the agent runs
    /// there.
    Yield(Box<BatchJob>),
    /// A job has ended: use its resources again.
    Retake(JobId),
    /// Report which jobs are on the node, and the site's policy.
    Show,
}

impl NodeRequest {
    /// Checks lengths and numbers; the error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Yield(job) => job.check(),
            Self::Retake(_) | Self::Show => Ok(()),
        }
    }
}

/// Jobs of a node, and the site's policy for the resources that they leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeJobs {
    /// The policy; `None` if the agent was given no policy, and so offers idle nodes only.
    pub policy: Option<PolicyState>,
    /// Jobs by number, as many as fit into a message.
    pub jobs: Vec<JobOnNode>,
    /// Number of jobs that are missing from `jobs`.
    pub left_out: u32,
}

/// The policy file of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyState {
    /// Path of the file.
    pub file: String,
    /// Time at which the policy in use was read, milliseconds since 1970.
    pub since_ms: u64,
    /// Reason why the present file is not used; the agent keeps the policy that it had read before.
    pub fault: Option<String>,
}

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOnNode {
    /// The job, with its share now.
    pub job: BatchJob,
    /// Reason for its share.
    pub why: String,
}

/// Answer of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// Nothing of the agent runs on the resources that the job may use.
    Free {
        /// Number of leases that ended for the job.
        leases: u32,
    },
    /// The resources of the job are offered again, except resources that another job has.
    Retaken,
    /// Jobs of the node, and the site's policy.
    Shown(NodeJobs),
    /// Nothing was done.
    Refused {
        /// Reason.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_impossible_numbers_and_long_names_are_refused() {
        let job = BatchJob {
            user: "ada".into(),
            partition: "normal".into(),
            ..BatchJob::unknown(JobId(7))
        };
        let part = |core, gpu| JobShare::Part {
            cores: [core].into(),
            gpus: [gpu].into(),
            memory_bytes: u64::MAX,
        };
        let check = |change: &dyn Fn(&mut BatchJob)| {
            let mut changed = job.clone();
            change(&mut changed);
            NodeRequest::Yield(changed.into()).check().is_ok()
        };
        assert!(check(&|_| ()) && check(&|job| job.share = part(CORE_MAX, GPUS_PER_AGENT_MAX - 1)));
        assert!(!check(&|job| job.share = part(CORE_MAX + 1, 0)));
        assert!(!check(&|job| job.share = part(0, GPUS_PER_AGENT_MAX)));
        assert!(!check(&|job| job.gpus = Some([GPUS_PER_AGENT_MAX].into())));
        assert!(!check(&|job| job.account = "a".repeat(NAME_BYTES_MAX + 1)));
        assert!(NodeRequest::Retake(JobId(u64::MAX)).check().is_ok());
    }
}
