//! Batch jobs on the node. Resources that a job may use are not offered while the job runs.

use super::LeaseBook;
use super::offering::youngest_beyond;
use crate::agent::{BookAction, CoreLease};
use hotlease_wire::Rejection;
use hotlease_wire::batch::JobShare;
use hotlease_wire::ids::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest number of batch jobs on one node.
const JOBS_MAX: usize = 8192;

/// The batch jobs on a node, each with the resources that it may use.
#[derive(Debug, Default)]
pub(super) struct BatchJobs(BTreeMap<JobId, JobShare>);

/// Parts of a node.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) cores: BTreeSet<u32>,
    pub(super) gpus: BTreeSet<u32>,
    pub(super) memory_bytes: u64,
}

impl BatchJobs {
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &JobShare)> {
        self.0.iter().map(|(job, share)| (*job, share))
    }

    /// Whether a job may use all of the node.
    pub(super) fn have_all(&self) -> bool {
        self.0.values().any(|share| *share == JobShare::Node)
    }

    /// Sum of the parts that jobs may use; a job that may use the whole node adds nothing.
    pub(super) fn sum(&self) -> Parts {
        let mut sum = Parts::default();
        for share in self.0.values() {
            if let JobShare::Part {
                cores,
                gpus,
                memory_bytes,
            } = share
            {
                sum.cores.extend(cores);
                sum.gpus.extend(gpus);
                sum.memory_bytes = sum.memory_bytes.saturating_add(*memory_bytes);
            }
        }
        sum
    }

    /// The first job that may use a core or a GPU of the lease.
    fn first_on(&self, lease: &CoreLease) -> Option<JobId> {
        let mut jobs = self.iter();
        jobs.find(|(_, share)| is_on(share, lease)).map(|(job, _)| job)
    }

    /// The job that may use the most memory; `None` if no job was given memory.
    pub(super) fn largest(&self) -> Option<JobId> {
        let given = self.iter().filter_map(|(job, share)| match share {
            JobShare::Part { memory_bytes, .. } if *memory_bytes > 0 => Some((*memory_bytes, job)),
            _ => None,
        });
        given.max().map(|(_, job)| job)
    }
}

/// Whether a job may use a core or a GPU that the lease holds.
pub(super) fn is_on(share: &JobShare, lease: &CoreLease) -> bool {
    match share {
        JobShare::Node => true,
        JobShare::Part { cores, gpus, .. } => {
            let is_on_core = lease.held_cores().iter().any(|core| cores.contains(core));
            is_on_core || lease.gpus().iter().any(|gpu| gpus.contains(gpu))
        }
    }
}

impl LeaseBook {
    /// The batch jobs on the node, each with the resources that it may use.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &JobShare)> {
        self.jobs.iter()
    }

    /// Whether jobs may use all of the node: a job has the whole node, or jobs have all its memory, so that no worker
    /// can run.
    pub(super) fn jobs_have_all(&self) -> bool {
        let memory_bytes = self.offer.memory_bytes;
        self.jobs.have_all() || (memory_bytes > 0 && self.jobs.sum().memory_bytes >= memory_bytes)
    }

    /// Whether no lease, ending or not, holds any resource that this job may use.
    pub fn has_room_for(&self, job: JobId) -> bool {
        let Some(share) = self.jobs.0.get(&job) else {
            return true;
        };
        let is_given_memory = matches!(share, JobShare::Part { memory_bytes, .. } if *memory_bytes > 0);
        let held = self.leases.values().map(|lease| lease.memory_bytes);
        let fits = match self.jobs_have_all() {
            true => self.leases.is_empty(),
            false => held.fold(0, u64::saturating_add) <= self.memory_bytes,
        };
        let has_memory = !is_given_memory || self.offer.memory_bytes == 0 || fits;
        has_memory && !self.leases.values().any(|lease| is_on(share, lease))
    }

    /// Withdraws the resources of a job from the offer, and ends the leases that hold some of them.
    pub(super) fn begin_job(
        &mut self,
        job: JobId,
        share: JobShare,
        now: Duration,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        if self.jobs.0.len() == JOBS_MAX && !self.jobs.0.contains_key(&job) {
            return Err(Rejection::TooMany {
                what: "batch jobs on one node".into(),
                limit: JOBS_MAX as u64,
            });
        }
        self.jobs.0.insert(job, share);
        self.put_into_effect();
        self.expire(now, actions);
        Ok(())
    }

    /// Offers the resources of a job again, except those that another job may use.
    pub(super) fn end_job(&mut self, job: JobId, now: Duration, actions: &mut Vec<BookAction>) {
        if self.jobs.0.remove(&job).is_some() {
            self.put_into_effect();
            self.expire(now, actions);
        }
    }

    /// Marks the leases that end now: leases that hold resources of jobs, and, if jobs need memory, the youngest
    /// leases.
    pub(super) fn make_room_for_jobs(&mut self) {
        let over = |lease: &mut CoreLease, job| {
            lease.leaving = Some(Duration::ZERO);
            lease.batch_job = Some(job);
        };
        let of_all = self.jobs.largest().filter(|_| self.jobs_have_all());
        for lease in self.leases.values_mut() {
            if let Some(job) = self.jobs.first_on(lease).or(of_all) {
                over(lease, job);
            }
        }
        // If the node's memory is not known, no lease ends because of memory.
        if self.offer.memory_bytes == 0 {
            return;
        }
        let Some(job) = self.jobs.largest() else { return };
        let others = self.leases.values_mut();
        let others = others.filter(|lease| lease.is_active() && lease.batch_job.is_none());
        for lease in youngest_beyond(self.memory_bytes, others, |lease| lease.memory_bytes) {
            over(lease, job);
        }
    }
}
