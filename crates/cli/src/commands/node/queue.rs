//! Jobs that run now, as Slurm's `squeue` lists them.

use anyhow::{Context, bail};
use hotlease_wire::batch::{BatchJob, JobSharing};
use hotlease_wire::ids::JobId;
use std::io::{ErrorKind, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time that `squeue` has; it waits for its controller.
const LIMIT: Duration = Duration::from_secs(30);
/// Largest number of bytes that are read of the output of `squeue`.
const BYTES_MAX: u64 = 64 << 20;
/// Character between the fields: no field contains it.
const SEPARATOR: char = '\u{1f}';
/// Number, partition, account, user, number of nodes, sharing, constraint, comment.
const FIELDS: [&str; 8] = ["%A", "%P", "%a", "%u", "%D", "%h", "%f", "%k"];

/// Jobs of a listing.
#[derive(Debug, Default)]
pub(super) struct JobList {
    pub jobs: Vec<BatchJob>,
    /// Number of lines that are no job.
    pub unread: usize,
}

/// Jobs that run now; `None` if there is no Slurm here.
pub(super) fn running_jobs() -> anyhow::Result<Option<JobList>> {
    let format = FIELDS.join(&SEPARATOR.to_string());
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--states=RUNNING", "--format", &format]);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("squeue cannot be started"),
    };
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (done, read) = mpsc::channel();
    // A separate thread reads, so that a squeue that writes very much or hangs is left behind after the limit.
    thread::spawn(move || done.send((text_of(output), text_of(errors))));
    let read = read.recv_timeout(LIMIT);
    // Fails if `squeue` has ended already.
    let _ = child.kill();
    let status = child.wait().context("squeue")?;
    let Ok((output, errors)) = read else {
        bail!(
            "squeue has not answered within {} s; `scontrol ping` says whether its controller does",
            LIMIT.as_secs()
        );
    };
    match status.success() || (status.code().is_none() && !output.is_empty()) {
        true => Ok(Some(jobs_in(&output))),
        false => bail!("squeue failed ({status}): {}", errors.trim()),
    }
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // Text that was read before an error is used.
    let _ = pipe.map(|pipe| pipe.take(BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn jobs_in(text: &str) -> JobList {
    let mut list = JobList::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match job_in(line) {
            Some(job) => list.jobs.push(job),
            None => list.unread += 1,
        }
    }
    list
}

/// The job of a line. Fields that a version of Slurm has added at the end are ignored.
fn job_in(line: &str) -> Option<BatchJob> {
    let mut fields = line.split(SEPARATOR).map(str::trim);
    let id = fields.next()?.parse().ok()?;
    let mut field = || match fields.next()? {
        "(null)" | "N/A" | "n/a" => Some(String::new()),
        text => Some(text.to_owned()),
    };
    let job = BatchJob {
        partition: field()?,
        account: field()?,
        user: field()?,
        nodes: field()?.parse().unwrap_or(0),
        sharing: JobSharing::of_slurm(&field()?),
        constraint: field()?,
        comment: field()?,
        ..BatchJob::unknown(JobId(id))
    };
    Some(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_job_are_counted_and_the_others_read() {
        let line = |fields: &[&str]| fields.join("\u{1f}");
        let text = [
            line(&["17", "main", "(null)", "ada", "2", "OK", "(null)", "run 7 | x"]),
            String::new(),
            "slurm_load_jobs error".into(),
            line(&["18", "shared", "physics", "bob", "x", "YES", "a&b", "hotlease", "more"]),
            line(&["19", "shared"]),
            line(&["-1", "main", "a", "b", "1", "NO", "", ""]),
        ];
        let list = jobs_in(&text.join("\n"));
        assert_eq!(list.unread, 3);
        let [first, second] = &list.jobs[..] else {
            panic!("{list:?}")
        };
        assert_eq!((first.id, first.nodes, first.account.as_str()), (JobId(17), 2, ""));
        assert_eq!(
            (first.comment.as_str(), first.sharing),
            ("run 7 | x", JobSharing::Possible)
        );
        assert_eq!(
            (second.nodes, second.constraint.as_str()),
            (0, "a&b"),
            "a number that is not known"
        );
        assert_eq!(
            (second.comment.as_str(), second.sharing),
            ("hotlease", JobSharing::Requested)
        );
    }
}
