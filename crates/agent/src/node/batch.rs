//! Batch jobs on this node: what a job may use is freed before it begins, and offered again when it has ended.

use crate::node::Node;
use hotlease_lease::agent::BookEvent;
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

impl Node {
    /// Learns of the jobs that run already, from the files that `hotlease-node` keeps in this folder: one for each, named
    /// by its number. To be called before the first grant.
    pub(crate) fn recall_jobs(self: &Arc<Self>, folder: &Path) -> Result<(), Rejection> {
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
            // Other names are those of files that were being written.
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A job of which more is not known has the whole node.
            let share = read_job(&entry.path()).map_or(JobShare::Node, |job| job.share);
            tracing::info!(job = id, ?share, "a batch job runs already");
            self.step(BookEvent::BeginJob { job: JobId(id), share })?;
        }
        Ok(())
    }

    /// Ends the leases that hold what a job may use. Returns their number once their workers are gone.
    pub(crate) async fn yield_to(self: &Arc<Self>, job: BatchJob) -> Result<u32, Rejection> {
        let id = job.id;
        // Before the step, so that no end is missed.
        let mut active = self.active_leases();
        let ending = {
            let mut tables = self.tables();
            let begin = BookEvent::BeginJob {
                job: id,
                share: job.share,
            };
            self.step_locked(&mut tables, begin)?;
            tables.book.leases().filter(|lease| lease.batch_job == Some(id)).count()
        };
        tracing::info!(
            job = %id, user = job.user, partition = job.partition, account = job.account, leases = ending,
            "a batch job begins"
        );
        while !self.tables().book.has_room_for(id) {
            // Cannot fail: the sender lives in the node.
            let _ = active.changed().await;
        }
        Ok(ending as u32)
    }

    /// Offers again what a job had.
    pub(crate) fn retake(self: &Arc<Self>, job: JobId) -> Result<(), Rejection> {
        self.step(BookEvent::EndJob { job })?;
        tracing::info!(%job, "a batch job has ended");
        Ok(())
    }
}

/// The job of a file, if the file is whole.
fn read_job(path: &Path) -> Option<BatchJob> {
    let mut bytes = Vec::new();
    // A link would lead elsewhere, and a pipe would be waited for.
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
