//! Commands of batch systems (submit, state, cancel). They are run as the batch system's description says, and their
//! output is read by its patterns.
//!
//! No shell interprets the words of the commands. The output is bounded and checked.

mod description;

use super::planner::SubmitError;
use super::records::{JobPhase, ListedJob, Queue};
use anyhow::{Context, bail};
pub(super) use description::BatchSystem;
use description::{DESCRIPTION_MAX, StateMeaning};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// Time that a command of a batch system has.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest output of a command, bytes: some 100,000 jobs.
const ANSWER_MAX: u64 = 16 << 20;
/// Longest id of a job, and longest text of a reason or complaint, characters.
const ID_MAX: usize = 128;
const REASON_MAX: usize = 2000;
/// Part of a job's output that is read for its last lines.
const OUTPUT_END_BYTES: u64 = 4096;

/// Properties of a job, for the words of commands.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobWords<'a> {
    pub name: &'a str,
    pub nodes: u32,
    pub output: &'a str,
    /// File of the script.
    pub script: &'a str,
}

/// Exit status and output of a command.
struct CommandAnswer {
    status: ExitStatus,
    output: String,
    errors: String,
}

impl CommandAnswer {
    /// Text without line breaks: its errors, or else its output.
    fn complaint(&self) -> String {
        let text = match self.errors.trim().is_empty() {
            true => &self.output,
            false => &self.errors,
        };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match lines.is_empty() {
            true => self.status.to_string(),
            false => printable(&lines.join("; ")),
        }
    }
}

/// Text for a time limit: hours, minutes and seconds.
fn clock_text(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Text of another program without control characters, cut to the length of a reason.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect()
}

/// Name of the user whose jobs are listed.
fn user() -> String {
    let uid = nix::unistd::geteuid();
    let known = nix::unistd::User::from_uid(uid).ok().flatten();
    known.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Whether a text may be used as an id in a command: it is no option, and has no blank.
fn is_id(text: &str) -> bool {
    let is_fit = |c: char| c.is_alphanumeric() || "._[]+-@".contains(c);
    (1..=ID_MAX).contains(&text.chars().count()) && !text.starts_with('-') && text.chars().all(is_fit)
}

/// Replaces the placeholders of a word, in one pass: a value that was put in is not searched for placeholders.
fn filled(word: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let (mut text, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once('@') {
        text += before;
        let known = after
            .split_once('@')
            .and_then(|(name, left)| Some((value(name)?, left)));
        rest = match known {
            Some((value, left)) => {
                text += &value;
                left
            }
            None => {
                text.push('@');
                after
            }
        };
    }
    text + rest
}

/// Reads the file of a description.
pub(super) fn description_file(path: &Path) -> anyhow::Result<String> {
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        // One more byte shows that the file is too long.
        File::open(path)?
            .take(DESCRIPTION_MAX as u64 + 1)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().with_context(|| format!("cannot read {}", path.display()))?;
    BatchSystem::read(&text).with_context(|| format!("{} is no description", path.display()))?;
    Ok(text)
}

impl BatchSystem {
    /// The description of a queue's batch system.
    pub(super) fn of_queue(queue: &Queue) -> anyhow::Result<Self> {
        Self::of(&queue.system, queue.description.as_deref())
    }

    /// Command line that submits a job of this queue. If `check` is true, it only asks whether the site would accept
    /// the job.
    pub(super) fn submit_line(&self, queue: &Queue, job: JobWords<'_>, check: bool) -> Vec<String> {
        let submit = &self.submit;
        let confined = match queue.cores {
            Some(_) => &submit.some_cores,
            None => &submit.whole_nodes,
        };
        let cores = queue.cores.unwrap_or(1);
        let value = |name: &str| {
            Some(match name {
                "name" => job.name.to_owned(),
                "nodes" => job.nodes.to_string(),
                "time" => clock_text(queue.time_s),
                "minutes" => queue.time_s.div_ceil(60).to_string(),
                "seconds" => queue.time_s.to_string(),
                "output" => job.output.to_owned(),
                "cores" => cores.to_string(),
                "slots" => (u64::from(cores) * u64::from(job.nodes)).to_string(),
                "script" => job.script.to_owned(),
                _ => return None,
            })
        };
        let check: &[String] = if check { &submit.check } else { &[] };
        let own = submit.command.iter().chain(confined).chain(check);
        own.map(|word| filled(word, value))
            .chain(queue.submit_args.iter().cloned())
            .chain(submit.script.iter().map(|word| filled(word, value)))
            .collect()
    }

    /// Command line that lists the user's jobs.
    pub(super) fn state_line(&self) -> Vec<String> {
        let value = |name: &str| (name == "user").then(user);
        self.state.command.iter().map(|word| filled(word, value)).collect()
    }

    /// Command line that cancels a job.
    pub(super) fn cancel_line(&self, number: &str) -> Vec<String> {
        let value = |name: &str| (name == "id").then(|| number.to_owned());
        self.cancel.command.iter().map(|word| filled(word, value)).collect()
    }

    /// Submits a job; returns its number.
    pub(super) async fn submit(&self, queue: &Queue, job: JobWords<'_>) -> Result<String, SubmitError> {
        let unclear = |error: anyhow::Error| SubmitError {
            why: format!("{error:#}"),
            is_rejected: false,
        };
        let answer = run(&self.submit_line(queue, job, false)).await.map_err(unclear)?;
        if !answer.status.success() {
            return Err(SubmitError {
                why: answer.complaint(),
                is_rejected: true,
            });
        }
        let number = self.submit.id.find_in(&answer.output).filter(|number| is_id(number));
        number.map(str::to_owned).ok_or_else(|| {
            unclear(anyhow::anyhow!(
                "{} gave no id of a job: {}",
                self.submit.command[0],
                answer.complaint()
            ))
        })
    }

    /// Asks whether the site would accept a job; returns the answer in its words, or `None` if there is no command for
    /// that.
    pub(super) async fn check(&self, queue: &Queue, job: JobWords<'_>) -> anyhow::Result<Option<String>> {
        if self.submit.check.is_empty() {
            return Ok(None);
        }
        let answer = run(&self.submit_line(queue, job, true)).await?;
        match answer.status.success() {
            true => Ok(Some(answer.complaint())),
            false => bail!("the site would reject the job: {}", answer.complaint()),
        }
    }

    /// Lists the user's jobs.
    pub(super) async fn list(&self) -> anyhow::Result<Vec<ListedJob>> {
        let answer = run(&self.state_line()).await?;
        let says_none = |none: &description::Pattern| none.is_match(&answer.errors) || none.is_match(&answer.output);
        if self.state.none.as_ref().is_some_and(says_none) {
            return Ok(Vec::new());
        }
        if !answer.status.success() {
            bail!("{}: {}", self.state.command[0], answer.complaint());
        }
        Ok(self.jobs(&answer.output))
    }

    /// Reads the list of jobs.
    fn jobs(&self, text: &str) -> Vec<ListedJob> {
        let Some(record) = &self.state.record else {
            return text.lines().filter_map(|line| self.listed(line)).collect();
        };
        let mut begins: Vec<usize> = record.find_iter(text).map(|found| found.start()).collect();
        begins.push(text.len());
        let records = begins.windows(2).map(|bounds| &text[bounds[0]..bounds[1]]);
        records.filter_map(|record| self.listed(record)).collect()
    }

    /// Reads a job of the list; `None` for a text of another form.
    fn listed(&self, text: &str) -> Option<ListedJob> {
        let of = &self.state;
        let number = of.id.find_in(text).filter(|number| is_id(number))?;
        let (name, state) = (of.name.find_in(text)?, of.state.find_in(text)?);
        let reason = of.reason.as_ref().and_then(|reason| reason.find_in(text)).unwrap_or("");
        let exit = of.exit.as_ref().and_then(|exit| exit.find_in(text));
        let is_held = || of.held_reason.as_ref().is_some_and(|held| held.is_match(reason));
        let phase = match self.states.get(state) {
            Some(StateMeaning::Pending) if is_held() => Some(JobPhase::Held),
            Some(meaning) => Some(meaning.phase().unwrap_or_else(|| self.end(exit))),
            None => {
                tracing::warn!(state, number, "unknown state of a job: it counts as before");
                None
            }
        };
        let reason = match reason {
            "None" | "(null)" | "-" => String::new(),
            reason => printable(reason),
        };
        Some(ListedJob {
            number: number.to_owned(),
            name: name.to_owned(),
            phase,
            reason,
        })
    }

    /// How a job ended, by its exit status or the reason of its end.
    fn end(&self, exit: Option<&str>) -> JobPhase {
        let known = exit.and_then(|exit| self.exits.get(exit)?.phase());
        known.unwrap_or(match exit {
            None | Some("" | "0" | "-") => JobPhase::Completed,
            Some(_) => JobPhase::Failed,
        })
    }

    /// Cancels a job that has not ended.
    pub(super) async fn cancel(&self, number: &str) -> anyhow::Result<()> {
        let answer = run(&self.cancel_line(number)).await?;
        if !answer.status.success() {
            bail!("{}: {}", self.cancel.command[0], answer.complaint());
        }
        Ok(())
    }

    /// Cancels these jobs; each has a number and a name. A job that has ended meanwhile counts as cancelled. Returns
    /// why other jobs are not cancelled.
    pub(super) async fn cancel_all(&self, jobs: &[ListedJob]) -> Vec<String> {
        let mut refused = Vec::new();
        for job in jobs {
            if let Err(error) = self.cancel(&job.number).await {
                refused.push((job, error));
            }
        }
        if refused.is_empty() {
            return Vec::new();
        }
        let left = self.list().await;
        let is_left = |job: &ListedJob| match &left {
            Ok(left) => left.iter().any(|other| other.name == job.name && !other.is_over()),
            Err(_) => true,
        };
        let refused = refused.into_iter().filter(|(job, _)| is_left(job));
        refused
            .map(|(job, error)| format!("job {}: {error:#}", job.number))
            .collect()
    }
}

/// Runs a command and waits for its end.
async fn run(words: &[String]) -> anyhow::Result<CommandAnswer> {
    let Some((program, arguments)) = words.split_first() else {
        bail!("there is no command");
    };
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let answer = async {
        let started = command.spawn();
        let mut child = started.with_context(|| format!("cannot run {program}; is it in the PATH of this host?"))?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let (output, errors) = tokio::try_join!(text(program, output), text(program, errors))?;
        let status = child.wait().await?;
        Ok(CommandAnswer { status, output, errors })
    };
    match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer,
        Err(_) => bail!("{program} did not answer within {} s", ANSWER_WITHIN.as_secs()),
    }
}

/// Reads what a command prints.
async fn text(program: &str, from: Option<impl AsyncRead + Unpin>) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(ANSWER_MAX + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > ANSWER_MAX {
        bail!("{program} printed more than {ANSWER_MAX} bytes");
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
mod tests;
