//! Shares of the batch jobs on a node, determined by their control groups and the site's policy.
//!
//! A job has the whole node from its prolog on. If the policy gives the job company, its share shrinks to the limits of
//! its control group, as soon as this group exists. Whenever the group does not exist, cannot be read, or could be the
//! group of an earlier run, the job has the whole node again.

use super::control_groups::{GroupGpus, GroupLimits};
use super::hours::WeekMinute;
use super::policy::SitePolicy;
use hotlease_wire::batch::{BatchJob, JobShare};
use hotlease_wire::ids::JobId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time for which the control group of a job without a prolog must be gone before the job is considered ended.
const FOUND_GONE: Duration = Duration::from_secs(60);

/// Limits of the control groups on a node, by the group's name: the job's number, or the name that the batch system
/// uses in its place.
pub(crate) type GroupSight = Result<BTreeMap<String, Result<GroupLimits, String>>, String>;

/// Resources of a node that its agent may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeParts {
    /// Cores: first the cores that the agent does not offer, then the offered cores.
    pub cores: Vec<u32>,
    /// Memory, bytes; 0 if it is not known.
    pub memory_bytes: u64,
    pub gpus: u32,
}

/// Inputs of a look at the control groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookTerms<'t> {
    pub policy: &'t SitePolicy,
    pub node: &'t NodeParts,
    /// Time of the agent's clock.
    pub now: Duration,
    /// Time of the week.
    pub at: WeekMinute,
}

/// Change that a look has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobChange {
    /// The job may use this share from now on.
    Share(JobId, JobShare),
    /// The job has ended, without an epilog.
    End(JobId),
}

/// The batch jobs on a node.
#[derive(Debug, Default)]
pub(crate) struct JobFollower {
    jobs: BTreeMap<JobId, FollowedJob>,
    /// Control groups that still exist after the epilog of their job.
    left_behind: BTreeSet<String>,
}

#[derive(Debug)]
struct FollowedJob {
    /// The job, with its present share.
    job: BatchJob,
    /// Reason for its share.
    why: String,
    /// Time at which its control group was last seen; at first, the time at which the job was noted.
    since: Duration,
    /// Whether its group is taken for the group of an earlier run. Reset once the group is gone.
    is_stale: bool,
    /// Whether the job is known only by its control group: it had no prolog, and may have no epilog.
    is_found: bool,
}

impl FollowedJob {
    fn is_group(&self, name: &str) -> bool {
        name == self.job.group || name == self.job.id.to_string()
    }
}

impl JobFollower {
    /// Jobs with the reasons for their shares.
    pub fn jobs(&self) -> impl Iterator<Item = (&BatchJob, &str)> {
        self.jobs
            .values()
            .map(|followed| (&followed.job, followed.why.as_str()))
    }

    /// Notes a job whose prolog runs; the job has the whole node. A group of this job that exists already is the group
    /// of an earlier run.
    pub fn begin<'g>(&mut self, job: BatchJob, now: Duration, groups: impl Iterator<Item = &'g str>) {
        let mut groups = groups;
        let id = job.id;
        self.insert(job, now, "it has not started yet");
        if let Some(followed) = self.jobs.get_mut(&id) {
            followed.is_stale = groups.any(|name| followed.is_group(name));
        }
    }

    /// Notes a job that began before the agent's start.
    pub fn recall(&mut self, job: BatchJob, now: Duration) {
        self.insert(job, now, "it was there before the agent");
    }

    fn insert(&mut self, job: BatchJob, now: Duration, why: &str) {
        let followed = FollowedJob {
            is_found: false,
            job,
            why: why.into(),
            since: now,
            is_stale: false,
        };
        self.jobs.insert(followed.job.id, followed);
    }

    /// Forgets a job whose epilog has run. Its group may still exist for a while.
    pub fn end<'g>(&mut self, job: JobId, groups: impl Iterator<Item = &'g str>) {
        let ended = self.jobs.remove(&job);
        let is_its = |name: &&str| match &ended {
            Some(followed) => followed.is_group(name),
            None => *name == job.to_string(),
        };
        self.left_behind.extend(groups.filter(is_its).map(str::to_owned));
    }

    /// Compares the jobs with their control groups; returns the changes.
    pub fn look(&mut self, sight: &GroupSight, terms: LookTerms<'_>) -> Vec<JobChange> {
        let mut changes = Vec::new();
        let groups = match sight {
            Ok(groups) => groups,
            Err(why) => {
                let whole = |job: &FollowedJob| (job.job.id, Err(format!("the control groups cannot be read: {why}")));
                let wanted = self.jobs.values().map(whole).collect();
                self.share(wanted, terms, &mut changes);
                return changes;
            }
        };
        self.find_others(groups, terms.now);
        self.end_those_gone(groups, terms, &mut changes);
        let wanted = self.jobs.values().map(|job| (job.job.id, job.wanted(groups, terms)));
        let wanted = wanted.collect();
        self.share(wanted, terms, &mut changes);
        changes
    }

    /// Notes jobs that are known only by their control groups.
    fn find_others(&mut self, groups: &BTreeMap<String, Result<GroupLimits, String>>, now: Duration) {
        self.left_behind.retain(|name| groups.contains_key(name));
        for name in groups.keys() {
            if self.left_behind.contains(name) || self.jobs.values().any(|job| job.is_group(name)) {
                continue;
            }
            let mut job = BatchJob::unknown(number_of(name));
            job.group.clone_from(name);
            // The job begins with an empty share, so that its first share is a change, and is reported.
            job.share = JobShare::Part {
                cores: BTreeSet::new(),
                gpus: BTreeSet::new(),
                memory_bytes: 0,
            };
            let id = job.id;
            self.insert(job, now, "");
            if let Some(found) = self.jobs.get_mut(&id) {
                found.is_found = true;
            }
        }
    }

    /// Forgets jobs that are considered ended without an epilog, because their groups have been gone for long enough.
    fn end_those_gone(
        &mut self,
        groups: &BTreeMap<String, Result<GroupLimits, String>>,
        terms: LookTerms<'_>,
        changes: &mut Vec<JobChange>,
    ) {
        self.jobs.retain(|id, followed| {
            if groups.keys().any(|name| followed.is_group(name)) {
                followed.since = terms.now;
                return true;
            }
            followed.is_stale = false;
            let gone = terms.now.saturating_sub(followed.since);
            let limit = terms.policy.ended_after.or(followed.is_found.then_some(FOUND_GONE));
            let has_ended = limit.is_some_and(|limit| gone >= limit);
            if has_ended {
                changes.push(JobChange::End(*id));
            }
            !has_ended
        });
    }

    /// Gives each job its share: the limits of its group and the number of the rule, or the whole node and the reason.
    fn share(
        &mut self,
        wanted: BTreeMap<JobId, Result<(usize, JobLimits), String>>,
        terms: LookTerms<'_>,
        changes: &mut Vec<JobChange>,
    ) {
        let parts = wanted.values().filter_map(|limits| Some(&limits.as_ref().ok()?.1));
        let mut kept = Some(kept_back(parts, terms));
        for (id, limits) in wanted {
            let Some(followed) = self.jobs.get_mut(&id) else {
                continue;
            };
            let (share, why) = match limits {
                Err(why) => (JobShare::Node, why),
                Ok((rule, mut limits)) => {
                    // Resources that must stay free beside all jobs are added to the first job's share.
                    if let Some(kept) = kept.take() {
                        limits.cores.extend(kept.cores);
                        limits.gpus.extend(kept.gpus);
                        limits.memory_bytes = limits.memory_bytes.saturating_add(kept.memory_bytes);
                    }
                    (limits.into(), format!("rule {rule} gives it company"))
                }
            };
            followed.why = why;
            if followed.job.share != share {
                followed.job.share = share.clone();
                changes.push(JobChange::Share(id, share));
            }
        }
    }
}

impl FollowedJob {
    /// Number of the rule by which the job has company, and the job's limits; or the reason why it has the whole node.
    fn wanted(
        &self,
        groups: &BTreeMap<String, Result<GroupLimits, String>>,
        terms: LookTerms<'_>,
    ) -> Result<(usize, JobLimits), String> {
        // Every job has a user. If the user is missing, only the job's number is known.
        if self.job.user.is_empty() {
            return Err("no prolog has described it".into());
        }
        let rule = terms.policy.company(&self.job, terms.at);
        let rule = rule.map_err(|reasons| reasons.join("; "))?;
        if terms.node.memory_bytes == 0 {
            return Err("the memory of the node is not known".into());
        }
        let mut of_job = groups.iter().filter(|(name, _)| self.is_group(name));
        let limits = match (of_job.next(), of_job.next()) {
            (Some(_), _) if self.is_stale => return Err("its control group is that of an earlier run".into()),
            (Some((_, limits)), None) => limits.as_ref().map_err(Clone::clone)?,
            (Some(_), Some(_)) => return Err("it has two control groups".into()),
            (None, _) => return Err("its control group is not there".into()),
        };
        if limits.memory_bytes == u64::MAX {
            return Err("its control group does not limit its memory".into());
        }
        let gpus = match (&limits.gpus, &self.job.gpus) {
            (GroupGpus::Listed(gpus), _) => gpus.clone(),
            (GroupGpus::Untold, gpus) if terms.policy.named_gpus => gpus.clone().unwrap_or_default(),
            _ => (0..terms.node.gpus).collect(),
        };
        let limits = JobLimits {
            cores: limits.cores.clone(),
            gpus,
            memory_bytes: limits.memory_bytes,
        };
        Ok((rule, limits))
    }
}

/// Resources that a job may use.
#[derive(Debug, Default)]
struct JobLimits {
    cores: BTreeSet<u32>,
    gpus: BTreeSet<u32>,
    memory_bytes: u64,
}

impl From<JobLimits> for JobShare {
    fn from(limits: JobLimits) -> Self {
        Self::Part {
            cores: limits.cores,
            gpus: limits.gpus,
            memory_bytes: limits.memory_bytes,
        }
    }
}

/// Resources outside the shares of these jobs that stay free while the jobs run.
fn kept_back<'j>(jobs: impl Iterator<Item = &'j JobLimits>, terms: LookTerms<'_>) -> JobLimits {
    let (mut cores, mut gpus) = (BTreeSet::<u32>::new(), BTreeSet::<u32>::new());
    for job in jobs {
        cores.extend(&job.cores);
        gpus.extend(&job.gpus);
    }
    let (keep, node) = (terms.policy.keep(), terms.node);
    let left = node.cores.iter().copied().filter(|core| !cores.contains(core));
    let left_gpus = (0..node.gpus).filter(|gpu| !gpus.contains(gpu));
    JobLimits {
        cores: left.take(keep.cores as usize).collect(),
        gpus: left_gpus.take(keep.gpus as usize).collect(),
        memory_bytes: keep.memory_bytes,
    }
}

/// Number for a job that is known only by the name of its group.
fn number_of(name: &str) -> JobId {
    let number = name.parse().ok();
    JobId(number.unwrap_or_else(|| {
        let hash = blake3::hash(name.as_bytes());
        let bytes = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        // No batch system has job numbers this high.
        u64::from_le_bytes(bytes) | 1 << 63
    }))
}

#[cfg(test)]
mod tests;
