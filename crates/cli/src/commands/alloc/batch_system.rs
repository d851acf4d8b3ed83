//! Descriptions of batch systems: three commands (submit, state, cancel), and how to read what they print.

use super::planner::SubmitError;
use super::records::{JobPhase, ListedJob, Queue};
use anyhow::{Context, bail};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// Time that a command of a batch system has.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Part of a job's output that is read for its last lines.
const OUTPUT_END_BYTES: u64 = 4096;
/// Separator of the fields of a listed job.
const FIELD: char = '|';

/// Commands of a batch system. In their words, `{...}` stands for a property of the job, see [`JobWords`].
#[derive(Debug)]
pub(super) struct BatchSystem {
    /// Name on the command line.
    pub name: &'static str,
    /// Command that submits a job, and prints its number up to the first character that is no part of one. The user's
    /// arguments and the script follow.
    submit: &'static [&'static str],
    /// Further words where a job gets some cores of each node, and where it gets whole nodes.
    some_cores: &'static [&'static str],
    whole_nodes: &'static [&'static str],
    /// Words of `submit` that let it check the job only.
    check: &'static [&'static str],
    /// Command that lists the user's jobs, also those that ended just now: number, state, reason and name, with `|` between
    /// them.
    list: &'static [&'static str],
    /// Command that cancels a job.
    cancel: &'static [&'static str],
    /// States in its words.
    states: &'static [(&'static str, JobPhase)],
    /// Part of the reason of a job that waits because it is held.
    held: &'static str,
}

/// Slurm. Tried with 22.05.
static SLURM: BatchSystem = BatchSystem {
    name: "slurm",
    submit: &[
        "sbatch",
        "--parsable",
        "--job-name={name}",
        "--nodes={nodes}",
        "--ntasks-per-node=1",
        "--time={time}",
        "--output={output}",
        "--open-mode=append",
    ],
    some_cores: &["--cpus-per-task={cores}"],
    whole_nodes: &["--exclusive"],
    check: &["--test-only"],
    list: &[
        "squeue",
        "--noheader",
        "--states=all",
        "--user={user}",
        "--format=%i|%T|%r|%j",
    ],
    cancel: &["scancel", "{number}"],
    states: &[
        ("PENDING", JobPhase::Pending),
        ("CONFIGURING", JobPhase::Pending),
        ("REQUEUED", JobPhase::Pending),
        ("REQUEUE_FED", JobPhase::Pending),
        ("REQUEUE_HOLD", JobPhase::Held),
        ("RESV_DEL_HOLD", JobPhase::Held),
        ("SPECIAL_EXIT", JobPhase::Held),
        ("RUNNING", JobPhase::Running),
        ("COMPLETING", JobPhase::Running),
        ("RESIZING", JobPhase::Running),
        ("SIGNALING", JobPhase::Running),
        ("STAGE_OUT", JobPhase::Running),
        ("STOPPED", JobPhase::Running),
        ("SUSPENDED", JobPhase::Running),
        ("COMPLETED", JobPhase::Completed),
        ("TIMEOUT", JobPhase::OutOfTime),
        ("DEADLINE", JobPhase::OutOfTime),
        ("PREEMPTED", JobPhase::Preempted),
        ("CANCELLED", JobPhase::Cancelled),
        ("REVOKED", JobPhase::Cancelled),
        ("FAILED", JobPhase::Failed),
        ("BOOT_FAIL", JobPhase::Failed),
        ("LAUNCH_FAILED", JobPhase::Failed),
        ("NODE_FAIL", JobPhase::Failed),
        ("OUT_OF_MEMORY", JobPhase::Failed),
        ("RECONFIG_FAIL", JobPhase::Failed),
    ],
    held: "held",
};

/// Properties of a job, for the words of commands.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobWords<'a> {
    pub name: &'a str,
    pub nodes: u32,
    pub output: &'a str,
    /// File of the script.
    pub script: &'a str,
}

/// Text for a time limit: hours, minutes and seconds.
fn clock_text(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Name of the user whose jobs are listed.
fn user() -> String {
    let uid = nix::unistd::geteuid();
    let known = nix::unistd::User::from_uid(uid).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

impl BatchSystem {
    /// The description of this name.
    pub(super) fn of(name: &str) -> anyhow::Result<&'static Self> {
        match name {
            "slurm" => Ok(&SLURM),
            _ => bail!("hotlease knows the batch system slurm, and not {name:?}"),
        }
    }

    /// Command line that submits a job of this queue. `check`: only asks whether the site would accept it.
    pub(super) fn submit_line(&self, queue: &Queue, job: JobWords<'_>, check: bool) -> Vec<String> {
        let cores = queue.cores.map_or_else(String::new, |cores| cores.to_string());
        let confined = if queue.cores.is_some() {
            self.some_cores
        } else {
            self.whole_nodes
        };
        let words = self.submit.iter().chain(confined);
        let check: &[&str] = if check { self.check } else { &[] };
        let words = words.chain(check);
        let own = words.map(|word| {
            word.replace("{name}", job.name)
                .replace("{nodes}", &job.nodes.to_string())
                .replace("{time}", &clock_text(queue.time_s))
                .replace("{output}", job.output)
                .replace("{cores}", &cores)
        });
        own.chain(queue.submit_args.iter().cloned())
            .chain([job.script.to_owned()])
            .collect()
    }

    /// Submits a job; returns its number.
    pub(super) async fn submit(&self, queue: &Queue, job: JobWords<'_>) -> Result<String, SubmitError> {
        let unclear = |error: anyhow::Error| SubmitError {
            why: format!("{error:#}"),
            is_rejected: false,
        };
        let output = run(&self.submit_line(queue, job, false)).await.map_err(unclear)?;
        if !output.status.success() {
            return Err(SubmitError {
                why: complaint(&output),
                is_rejected: true,
            });
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let number: String = text
            .trim()
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "._[]-".contains(*c))
            .collect();
        match number.is_empty() {
            true => Err(unclear(anyhow::anyhow!("the batch system gave no number: {text:?}"))),
            false => Ok(number),
        }
    }

    /// Asks whether the site would accept a job; returns the answer in its words.
    pub(super) async fn check(&self, queue: &Queue, job: JobWords<'_>) -> anyhow::Result<String> {
        let output = run(&self.submit_line(queue, job, true)).await?;
        match output.status.success() {
            true => Ok(complaint(&output)),
            false => bail!("the site would reject the job: {}", complaint(&output)),
        }
    }

    /// Lists the user's jobs.
    pub(super) async fn list(&self) -> anyhow::Result<Vec<ListedJob>> {
        let words: Vec<String> = self.list.iter().map(|word| word.replace("{user}", &user())).collect();
        let output = run(&words).await?;
        if !output.status.success() {
            bail!("{}: {}", self.list[0], complaint(&output));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| self.listed(line)).collect())
    }

    /// Reads a line of the list of jobs; none for a line of another form.
    fn listed(&self, line: &str) -> Option<ListedJob> {
        let mut fields = line.splitn(4, FIELD).map(str::trim);
        let (number, state, reason, name) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        // `CANCELLED by 1000`.
        let state = state.split_whitespace().next()?;
        let known = self.states.iter().find(|(word, _)| *word == state);
        let phase = match known {
            Some((_, JobPhase::Pending)) if reason.to_ascii_lowercase().contains(self.held) => Some(JobPhase::Held),
            Some((_, phase)) => Some(*phase),
            None => {
                tracing::warn!(state, number, "unknown state of a job: it counts as before");
                None
            }
        };
        let reason = match reason {
            "None" | "(null)" => "",
            reason => reason,
        };
        Some(ListedJob {
            number: number.to_owned(),
            name: name.to_owned(),
            phase,
            reason: reason.to_owned(),
        })
    }

    /// Cancels a job that has not ended.
    pub(super) async fn cancel(&self, number: &str) -> anyhow::Result<()> {
        let words: Vec<String> = self
            .cancel
            .iter()
            .map(|word| word.replace("{number}", number))
            .collect();
        let output = run(&words).await?;
        if !output.status.success() {
            bail!("{}: {}", self.cancel[0], complaint(&output));
        }
        Ok(())
    }
}

/// Runs a command and waits for its end.
async fn run(words: &[String]) -> anyhow::Result<Output> {
    let Some((program, arguments)) = words.split_first() else {
        bail!("there is no command");
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(ANSWER_WITHIN, command.output()).await {
        Ok(output) => output.with_context(|| format!("cannot run {program}; is it in the PATH of this host?")),
        Err(_) => bail!("{program} did not answer within {} s", ANSWER_WITHIN.as_secs()),
    }
}

/// Text that a command printed, without line breaks: its errors, or else its output.
fn complaint(output: &Output) -> String {
    let text = match output.stderr.is_empty() {
        true => &output.stdout,
        false => &output.stderr,
    };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.is_empty() {
        true => output.status.to_string(),
        false => lines.join("; "),
    }
}

/// The last lines of a job's output, without line breaks.
pub(super) fn last_lines(output: &Path, lines: usize) -> String {
    // The output may be of any length.
    let end = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(output)?;
        let begin = file.metadata()?.len().saturating_sub(OUTPUT_END_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut text = Vec::new();
        file.take(OUTPUT_END_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = end().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last: Vec<&str> = text
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(lines)
        .collect();
    last.into_iter().rev().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_slurm_are_told_apart() {
        let phase = |line: &str| SLURM.listed(line).map(|job| (job.phase, job.reason));
        for (line, expected, reason) in [
            ("17|PENDING|Priority|hotlease-a-1", JobPhase::Pending, "Priority"),
            ("17|PENDING|JobHeldAdmin|hotlease-a-1", JobPhase::Held, "JobHeldAdmin"),
            (
                "17|PENDING|launch failed requeued held|x",
                JobPhase::Held,
                "launch failed requeued held",
            ),
            ("17|PENDING|BeginTime|x", JobPhase::Pending, "BeginTime"),
            ("17|RUNNING|None|x", JobPhase::Running, ""),
            ("17|PREEMPTED|None|x", JobPhase::Preempted, ""),
            ("17|CANCELLED by 0|None|x", JobPhase::Cancelled, ""),
            ("17|FAILED|NonZeroExitCode|x", JobPhase::Failed, "NonZeroExitCode"),
            ("17|NODE_FAIL|None|x", JobPhase::Failed, ""),
            ("17|TIMEOUT|TimeLimit|x", JobPhase::OutOfTime, "TimeLimit"),
            ("17|REQUEUE_HOLD|None|x", JobPhase::Held, ""),
        ] {
            assert_eq!(phase(line), Some((Some(expected), reason.to_owned())), "{line}");
        }
        assert_eq!(phase("17|DREAMING|None|x"), Some((None, String::new())));
        for other in ["", "17", "slurm_load_jobs error"] {
            assert_eq!(phase(other), None, "{other:?}");
        }
        let named = SLURM.listed("17_3|RUNNING|None|a name | with a bar").expect("a job");
        assert_eq!(
            (named.number.as_str(), named.name.as_str()),
            ("17_3", "a name | with a bar")
        );
    }

    #[test]
    fn only_the_end_of_a_long_output_is_read() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "line\n".repeat(10_000) + "one\n\ntwo\n").expect("written");
        assert_eq!(last_lines(file.path(), 3), "line; one; two");
        assert_eq!(last_lines(Path::new("/no/output"), 3), "");
    }

    #[test]
    fn time_limits_are_hours_minutes_and_seconds() {
        assert_eq!([59, 3600, 90_061].map(clock_text), ["0:00:59", "1:00:00", "25:01:01"]);
    }
}
