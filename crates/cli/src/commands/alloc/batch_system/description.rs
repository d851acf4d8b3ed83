//! Description of a batch system: the file with its commands, the form of their output, and the lines of a job's
//! script.

use crate::commands::alloc::records::JobPhase;
use anyhow::{Context, bail};
use regex::{Regex, RegexBuilder};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Longest description, bytes.
pub(super) const DESCRIPTION_MAX: usize = 64 << 10;
/// Placeholders of the command that submits a job.
const OF_JOB: &[&str] = &[
    "name", "nodes", "time", "minutes", "seconds", "output", "cores", "slots", "script",
];

/// Descriptions that are part of the program, by name.
const SHIPPED: [(&str, &str); 5] = [
    ("slurm", include_str!("slurm.toml")),
    ("pbs", include_str!("pbs.toml")),
    ("lsf", include_str!("lsf.toml")),
    ("flux", include_str!("flux.toml")),
    ("htcondor", include_str!("htcondor.toml")),
];

/// Commands of a batch system. In the words of a command, `@...@` stands for a property of the job; a word stays one
/// word when a property is put into it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::commands::alloc) struct BatchSystem {
    /// Name on the command line.
    pub name: String,
    pub submit: SubmitCommand,
    pub state: StateCommand,
    /// Meaning of each state, by the batch system's word for the state.
    pub states: BTreeMap<String, StateMeaning>,
    /// Meanings of the texts that the pattern `exit` of `state` finds for jobs that have ended. If a text has no entry,
    /// `0`, `-` and an empty text mean completed, and any other text means failed. A job without a text is completed.
    #[serde(default)]
    pub exits: BTreeMap<String, StateMeaning>,
    pub cancel: CancelCommand,
    pub script: ScriptLines,
}

/// Command that submits a job. Its words are `command`, `some-cores` or `whole-nodes`, the user's arguments, and
/// `script`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::commands::alloc) struct SubmitCommand {
    #[serde(deserialize_with = "program_of_job")]
    pub command: Vec<String>,
    /// Further words of the command for a job that gets some cores of each node.
    #[serde(default, deserialize_with = "words_of_job")]
    pub some_cores: Vec<String>,
    /// Further words of the command for a job that gets whole nodes.
    #[serde(default, deserialize_with = "words_of_job")]
    pub whole_nodes: Vec<String>,
    /// Further words with which the command only checks the job; empty if it cannot check jobs.
    #[serde(default, deserialize_with = "words_of_job")]
    pub check: Vec<String>,
    /// Last words.
    #[serde(default = "script_alone", deserialize_with = "words_of_job")]
    pub script: Vec<String>,
    /// Largest number of nodes of a job; `None` if there is no limit.
    pub nodes_max: Option<u32>,
    /// Pattern of the job's id in the command's output.
    pub id: Pattern,
}

/// Command that lists the user's jobs, also those that ended just now.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(in crate::commands::alloc) struct StateCommand {
    #[serde(deserialize_with = "program_of_user")]
    pub command: Vec<String>,
    /// Form of the complaint that the command prints if there is no job.
    pub none: Option<Pattern>,
    /// Form of the first line of each job; `None` if each line is a job.
    #[serde(default, deserialize_with = "line")]
    pub record: Option<Regex>,
    pub id: Pattern,
    pub name: Pattern,
    /// Pattern of the word for the job's state.
    pub state: Pattern,
    /// Pattern of the exit status, or of the reason why the job ended.
    pub exit: Option<Pattern>,
    /// Pattern of the reason for the job's state.
    pub reason: Option<Pattern>,
    /// Form of the reason of a job that waits because it is held.
    pub held_reason: Option<Pattern>,
}

/// Command that cancels a job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::commands::alloc) struct CancelCommand {
    #[serde(deserialize_with = "program_of_id")]
    pub command: Vec<String>,
}

/// Lines of a job's script, for `bash`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::commands::alloc) struct ScriptLines {
    /// Lines that set `end`, the job's end in seconds since 1970. If `end` is not set, it is the present time plus the
    /// time limit.
    #[serde(default)]
    pub end: String,
    /// Runs `bash -c "$agent"` on each of the `$nodes` nodes.
    pub start: String,
    /// Runs on each node: lowers `cores` and `gpus`, and sets `memory` (a size), to the job's part of the node.
    #[serde(default)]
    pub node: String,
}

/// Meaning of a state's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands::alloc) enum StateMeaning {
    Pending,
    Held,
    Running,
    /// The job has ended; the exit status says how it ended.
    Ended,
    Completed,
    OutOfTime,
    Preempted,
    Cancelled,
    Failed,
}

impl StateMeaning {
    /// Phase of a job in this state; `None` if the exit status decides.
    pub(super) fn phase(self) -> Option<JobPhase> {
        Some(match self {
            Self::Pending => JobPhase::Pending,
            Self::Held => JobPhase::Held,
            Self::Running => JobPhase::Running,
            Self::Ended => return None,
            Self::Completed => JobPhase::Completed,
            Self::OutOfTime => JobPhase::OutOfTime,
            Self::Preempted => JobPhase::Preempted,
            Self::Cancelled => JobPhase::Cancelled,
            Self::Failed => JobPhase::Failed,
        })
    }
}

/// Regular expression with one group. The text of the group is the result. `^` and `$` are the ends of a line.
#[derive(Debug)]
pub(in crate::commands::alloc) struct Pattern(Regex);

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.0
    }
}

impl Pattern {
    /// Text that the pattern's group has in the first match, without the blanks around it.
    pub(super) fn find_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        Some(self.captures(text)?.get(1)?.as_str().trim())
    }
}

fn regex<E: Error>(text: &str) -> Result<Regex, E> {
    RegexBuilder::new(text).multi_line(true).build().map_err(E::custom)
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let regex = regex::<D::Error>(&String::deserialize(from)?)?;
        match regex.captures_len() {
            2 => Ok(Self(regex)),
            groups => Err(D::Error::custom(format!(
                "the regular expression must have one group (...), and has {}; write other groups as (?:...)",
                groups - 1
            ))),
        }
    }
}

fn line<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Regex>, D::Error> {
    regex::<D::Error>(&String::deserialize(from)?).map(Some)
}

/// Reads the words of a command; refuses unknown placeholders.
fn words<'de, D: Deserializer<'de>>(from: D, known: &[&str]) -> Result<Vec<String>, D::Error> {
    let words = Vec::<String>::deserialize(from)?;
    for word in &words {
        if let Some(name) = placeholders(word).find(|name| !known.contains(name)) {
            let known = known.join("@, @");
            return Err(D::Error::custom(format!(
                "@{name}@ is no placeholder here; the placeholders are @{known}@"
            )));
        }
        if word.contains('\0') {
            return Err(D::Error::custom("a word must not have a zero byte"));
        }
    }
    Ok(words)
}

/// Names between two `@` in a word; an `@` before other characters stands for itself.
fn placeholders(word: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
    let parts: Vec<&str> = word.split('@').collect();
    let inner = 1..parts.len().saturating_sub(1);
    inner.map(move |at| parts[at]).filter(is_name)
}

fn program<'de, D: Deserializer<'de>>(from: D, known: &[&str]) -> Result<Vec<String>, D::Error> {
    let words = words(from, known)?;
    match words.first().is_some_and(|first| !first.is_empty()) {
        true => Ok(words),
        false => Err(D::Error::custom("a command must begin with the name of its program")),
    }
}

fn words_of_job<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    words(from, OF_JOB)
}

fn program_of_job<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    program(from, OF_JOB)
}

fn program_of_user<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    program(from, &["user"])
}

fn program_of_id<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    program(from, &["id"])
}

fn script_alone() -> Vec<String> {
    vec!["@script@".to_owned()]
}

impl BatchSystem {
    /// The description in `text`, or without a text the shipped description of this name.
    pub(in crate::commands::alloc) fn of(name: &str, text: Option<&str>) -> anyhow::Result<Self> {
        if let Some(text) = text {
            return Self::read(text);
        }
        match SHIPPED.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::read(text),
            None => bail!(
                "hotlease knows the batch systems {}, and not {name:?}; describe another one with --system FILE",
                SHIPPED.map(|(known, _)| known).join(", ")
            ),
        }
    }

    /// Reads a description.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        if text.len() > DESCRIPTION_MAX {
            bail!("a description of a batch system has at most {DESCRIPTION_MAX} bytes");
        }
        toml::from_str(text).context("cannot read the description of the batch system")
    }
}
