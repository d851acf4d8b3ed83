//! Batch jobs on this node: a job's resources are freed before it begins, and offered again when it has ended.

use crate::batch::follower::JobChange;
use crate::node::Node;
use hotlease_lease::agent::{BookEvent, CoreLease};
use hotlease_wire::Rejection;
use hotlease_wire::batch::{BatchJob, JobShare};
use hotlease_wire::ids::JobId;
use hotlease_wire::limits::MESSAGE_BYTES_MAX;
use nix::fcntl::OFlag;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Time between two looks at the file of the site's policy.
const POLICY_LOOKS: Duration = Duration::from_secs(1);
/// Time between two looks at a job while it waits for the agent's last processes to die.
const DEATH_LOOKS: Duration = Duration::from_millis(10);
/// Time between two looks at the control groups of jobs. When a job grows, leases may use its new resources for this
/// long.
const GROUP_LOOKS: Duration = Duration::from_millis(200);

impl Node {
    /// Finds the jobs that run already: in control groups, and in the files that `hotlease-node` writes into a folder,
    /// one for each job, named by the job's number. Must be called before the first grant.
    pub(crate) fn recall_jobs(self: &Arc<Self>) -> Result<(), Rejection> {
        let Some(folder) = self.batch.folder.clone() else {
            return Ok(());
        };
        self.recall_files(&folder)?;
        self.look_at_jobs();
        Ok(())
    }

    fn recall_files(self: &Arc<Self>, folder: &Path) -> Result<(), Rejection> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(Rejection::Unavailable {
                    what: format!("the batch jobs in {}: {error}", folder.display()),
                });
            }
        };
        for entry in entries.flatten() {
            // Files with other names were still being written.
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A job that is known only by its number has the whole node.
            let id = JobId(id);
            let job = read_job(&entry.path()).filter(|job| job.id == id);
            let job = job.unwrap_or_else(|| BatchJob::unknown(id));
            tracing::info!(job = %id, share = ?job.share, "a batch job runs already");
            let mut jobs = self.batch.jobs();
            self.step(BookEvent::BeginJob {
                job: id,
                share: job.share.clone(),
            })?;
            jobs.recall(job, self.now());
        }
        Ok(())
    }

    /// Follows the resources that jobs may use, which their control groups show. Does not return.
    pub(crate) async fn follow_jobs(self: Arc<Self>) {
        if self.batch.folder.is_none() {
            return std::future::pending().await;
        }
        let mut looks = interval(GROUP_LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let node = Arc::clone(&self);
            // Fails only when the runtime ends.
            let _ = tokio::task::spawn_blocking(move || node.look_at_jobs()).await;
        }
    }

    fn look_at_jobs(self: &Arc<Self>) {
        let mut jobs = self.batch.jobs();
        for change in self.batch.look(&mut jobs, self.now()) {
            let stepped = match change {
                JobChange::Share(job, share) => {
                    tracing::info!(%job, ?share, "a batch job may use another part of the node");
                    self.step(BookEvent::BeginJob { job, share })
                }
                JobChange::End(job) => {
                    tracing::warn!(%job, "a batch job has ended without an epilog");
                    // Only root may remove the file. If it stays, the next agent notices the end in the same way.
                    let _ = self
                        .batch
                        .folder
                        .as_ref()
                        .map(|folder| fs::remove_file(folder.join(job.to_string())));
                    self.step(BookEvent::EndJob { job })
                }
            };
            if let Err(refusal) = stepped {
                tracing::error!(%refusal, "a change of a batch job was not noted");
            }
        }
    }

    /// Reads the site's policy again when its file changes. Does not return.
    pub(crate) async fn follow_policy(self: Arc<Self>) {
        if !self.batch.policy.has_file() {
            return std::future::pending().await;
        }
        let mut looks = interval(POLICY_LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let node = Arc::clone(&self);
            // The disk may be slow. An error means that the runtime ends.
            let _ = tokio::task::spawn_blocking(move || node.batch.policy.read()).await;
        }
    }

    /// Ends the leases that hold resources of a job. Returns their number once their workers are gone.
    pub(crate) async fn yield_to(self: &Arc<Self>, job: BatchJob) -> Result<u32, Rejection> {
        let id = job.id;
        // Taken before the step, so that no end is missed.
        let mut active = self.active_leases();
        let (user, partition, account) = (job.user.clone(), job.partition.clone(), job.account.clone());
        {
            let mut jobs = self.batch.jobs();
            self.step(BookEvent::BeginJob {
                job: id,
                share: job.share.clone(),
            })?;
            self.batch.begin(&mut jobs, job, self.now());
        }
        let is_ending = |lease: &&CoreLease| lease.batch_job == Some(id);
        let ending = self.tables().book.leases().filter(is_ending).count();
        tracing::info!(job = %id, user, partition, account, leases = ending, "a batch job begins");
        while !self.tables().book.has_room_for(id) {
            // Cannot fail: the node owns the sender.
            let _ = active.changed().await;
        }
        self.until_alone(id).await;
        Ok(ending as u32)
    }

    /// If the job has the whole node, waits until the processes that wait for leases, or will soon wait for them, are
    /// gone too.
    async fn until_alone(&self, job: JobId) {
        let has_node = || {
            let jobs = self.batch.jobs();
            let mut jobs = jobs.jobs().map(|(followed, _)| followed);
            jobs.any(|followed| followed.id == job && followed.share == JobShare::Node)
        };
        let mut looks = interval(DEATH_LOOKS);
        // If the job ends meanwhile, or gets another share, the agent need not end its processes.
        while has_node() {
            tokio::select! {
                () = self.supply.launcher.all_gone() => return,
                _ = looks.tick() => {}
            }
        }
    }

    /// Offers the resources of a job again, because it has ended.
    pub(crate) fn retake(self: &Arc<Self>, job: JobId) -> Result<(), Rejection> {
        let mut jobs = self.batch.jobs();
        self.step(BookEvent::EndJob { job })?;
        self.batch.end(&mut jobs, job);
        tracing::info!(%job, "a batch job has ended");
        Ok(())
    }
}

/// The job of a file, if the file is whole.
fn read_job(path: &Path) -> Option<BatchJob> {
    let mut bytes = Vec::new();
    // A link would lead to another file, and opening a pipe would wait.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
        .ok()?;
    file.take(MESSAGE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    let job = hotlease_wire::decode::<BatchJob>(&bytes).ok()?;
    job.check().is_ok().then_some(job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn a_pipe_or_link_in_the_place_of_a_job_s_file_is_neither_waited_for_nor_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, link) = (folder.path().join("7"), folder.path().join("8"));
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
        std::os::unix::fs::symlink("/dev/zero", &link).expect("a link");
        assert_eq!((read_job(&pipe), read_job(&link)), (None, None));
    }
}
