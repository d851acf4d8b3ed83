//! Batch system → agent, over the agent's node socket: jobs that begin and end on the node.
//!
//! The sender is `hotlease-node`, which the batch system runs as root before and after each job. One request a
//! connection, one answer.

use crate::ids::JobId;
use crate::limits::GPUS_PER_AGENT_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Longest name of a user, a partition or an account, bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Highest number of a core.
pub const CORE_MAX: u32 = 65_535;

/// What a job may use of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobShare {
    /// All of it.
    Node,
    /// These parts.
    Part {
        /// Its cores; the agent may use fewer than all of them.
        cores: BTreeSet<u32>,
        /// Numbers of its GPUs.
        gpus: BTreeSet<u32>,
        /// Its memory, bytes.
        memory_bytes: u64,
    },
}

impl JobShare {
    /// Whether its numbers are those of a machine that can be.
    fn is_sound(&self) -> bool {
        match self {
            Self::Node => true,
            Self::Part { cores, gpus, .. } => {
                cores.iter().all(|core| *core <= CORE_MAX) && gpus.iter().all(|gpu| *gpu < GPUS_PER_AGENT_MAX)
            }
        }
    }
}

/// A job, as the batch system describes it. Empty names: it says nothing of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchJob {
    /// Its number.
    pub id: JobId,
    /// Name of its user.
    pub user: String,
    /// Its partition, or queue.
    pub partition: String,
    /// Account that pays for it.
    pub account: String,
    /// What it may use of this node.
    pub share: JobShare,
}

impl BatchJob {
    /// Checks lengths and numbers; the error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        let names = [&self.user, &self.partition, &self.account];
        if names.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return Err("a name is longer than 256 bytes");
        }
        match self.share.is_sound() {
            true => Ok(()),
            false => Err("no machine has a core or a GPU of that number"),
        }
    }
}

/// Request to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRequest {
    /// A job is about to begin, or its share has changed: free that. Answered when nothing else runs there.
    Yield(BatchJob),
    /// A job has ended: use again what it had.
    Retake(JobId),
}

impl NodeRequest {
    /// Checks lengths and numbers; the error says what is wrong.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Yield(job) => job.check(),
            Self::Retake(_) => Ok(()),
        }
    }
}

/// Answer of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAnswer {
    /// Nothing of the agent runs on what the job may use.
    Free {
        /// Number of leases that ended for it.
        leases: u32,
    },
    /// What the job had is offered again, as far as no other job has it.
    Retaken,
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
            id: JobId(7),
            user: "ada".into(),
            partition: "normal".into(),
            account: String::new(),
            share: JobShare::Node,
        };
        let part = |core, gpu| JobShare::Part {
            cores: [core].into(),
            gpus: [gpu].into(),
            memory_bytes: u64::MAX,
        };
        let check = |change: &dyn Fn(&mut BatchJob)| {
            let mut changed = job.clone();
            change(&mut changed);
            NodeRequest::Yield(changed).check().is_ok()
        };
        assert!(check(&|_| ()) && check(&|job| job.share = part(CORE_MAX, GPUS_PER_AGENT_MAX - 1)));
        assert!(!check(&|job| job.share = part(CORE_MAX + 1, 0)));
        assert!(!check(&|job| job.share = part(0, GPUS_PER_AGENT_MAX)));
        assert!(!check(&|job| job.account = "a".repeat(NAME_BYTES_MAX + 1)));
        assert!(NodeRequest::Retake(JobId(u64::MAX)).check().is_ok());
    }
}
