//! Jobs on the node as the batch system has described them, and the site's policy for them.

use super::hours::WeekMinute;
use super::policy_watch::PolicyWatch;
use hotlease_wire::batch::{BatchJob, JobOnNode, NodeJobs};
use hotlease_wire::ids::JobId;
use hotlease_wire::limits::MESSAGE_BYTES_MAX;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Jobs and policy of an agent.
pub(crate) struct JobWatch {
    pub policy: PolicyWatch,
    jobs: Mutex<BTreeMap<JobId, BatchJob>>,
}

impl JobWatch {
    pub fn new(policy: PolicyWatch) -> Self {
        Self {
            policy,
            jobs: Mutex::default(),
        }
    }

    /// Locks the jobs. To be locked before the tables of the node, if both are.
    pub fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, BatchJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs and policy for people, as much as fits in a message.
    pub fn show(&self) -> NodeJobs {
        let (policy, at) = (self.policy.policy(), WeekMinute::now());
        let mut shown = NodeJobs {
            policy: self.policy.state(),
            jobs: Vec::new(),
            left_out: 0,
        };
        let mut left = MESSAGE_BYTES_MAX / 2;
        for job in self.jobs().values() {
            let why = match policy.company(job, at) {
                Ok(rule) => format!("rule {rule} gives it company"),
                Err(reasons) => reasons.join("; "),
            };
            let job = JobOnNode { job: job.clone(), why };
            let bytes = hotlease_wire::encode(&job).len();
            match left.checked_sub(bytes) {
                Some(rest) => {
                    left = rest;
                    shown.jobs.push(job);
                }
                None => shown.left_out += 1,
            }
        }
        shown
    }
}
