//! Batch jobs on the node, as reported by the batch system and seen in control groups, and the site's policy for them.

use super::control_groups::ControlGroups;
use super::follower::{GroupSight, JobChange, JobFollower, LookTerms, NodeParts};
use super::hours::WeekMinute;
use super::policy_watch::PolicyWatch;
use hotlease_wire::batch::{BatchJob, JobOnNode, NodeJobs};
use hotlease_wire::ids::JobId;
use hotlease_wire::limits::MESSAGE_BYTES_MAX;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Jobs and policy of an agent.
pub(crate) struct JobWatch {
    pub policy: PolicyWatch,
    /// Folder with the files of the jobs that run; `None` if no batch system reports jobs.
    pub folder: Option<PathBuf>,
    groups: ControlGroups,
    node: NodeParts,
    jobs: Mutex<JobFollower>,
}

impl JobWatch {
    pub fn new(policy: PolicyWatch, folder: Option<PathBuf>, groups: ControlGroups, node: NodeParts) -> Self {
        Self {
            policy,
            folder,
            groups,
            node,
            jobs: Mutex::default(),
        }
    }

    /// Locks the jobs. A caller that also locks the tables of the node locks the jobs first. The jobs stay locked while
    /// control groups are read, so that no job begins or ends between the reading and its effect.
    pub fn jobs(&self) -> MutexGuard<'_, JobFollower> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a job whose prolog runs.
    pub fn begin(&self, jobs: &mut JobFollower, job: BatchJob, now: Duration) {
        let groups = self.group_names(job.id);
        jobs.begin(job, now, groups.iter().map(String::as_str));
    }

    /// Forgets a job whose epilog has run.
    pub fn end(&self, jobs: &mut JobFollower, job: JobId) {
        jobs.end(job, self.group_names(job).iter().map(String::as_str));
    }

    /// Compares the jobs with their control groups.
    pub fn look(&self, jobs: &mut JobFollower, now: Duration) -> Vec<JobChange> {
        let terms = LookTerms {
            policy: &self.policy.policy(),
            node: &self.node,
            now,
            at: WeekMinute::now(),
        };
        jobs.look(&self.sight(), terms)
    }

    fn sight(&self) -> GroupSight {
        let listing = self.groups.list().map_err(|error| error.to_string())?;
        let read = listing.into_iter().map(|(name, group)| (name, group.limits()));
        Ok(read.collect())
    }

    /// Names of the groups that exist. If the groups cannot be read, returns the name of this job's group.
    fn group_names(&self, job: JobId) -> Vec<String> {
        match self.groups.list() {
            Ok(listing) => listing.into_keys().collect(),
            Err(_) => vec![job.to_string()],
        }
    }

    /// Jobs and policy for an operator to read, as many jobs as fit in a message.
    pub fn show(&self) -> NodeJobs {
        let mut shown = NodeJobs {
            policy: self.policy.state(),
            jobs: Vec::new(),
            left_out: 0,
        };
        let mut left = MESSAGE_BYTES_MAX / 2;
        for (job, why) in self.jobs().jobs() {
            let job = JobOnNode {
                job: job.clone(),
                why: why.to_owned(),
            };
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
