//! The file of a site's policy.

use super::policy::{CompanyRule, KeptBack, SitePolicy};
use crate::AgentError;
use hotlease_wire::batch::{CORE_MAX, NAME_BYTES_MAX};
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use toml::Value;

/// Longest file, bytes.
const BYTES_MAX: u64 = 256 << 10;
/// Largest number of rules.
const RULES_MAX: usize = 64;
/// Largest number of entries of a list.
const ENTRIES_MAX: usize = 1024;

const KEYS: &[&str] = &["nodes-max", "ended-after", "named-gpus", "keep", "company"];
const KEEP_KEYS: &[&str] = &["cores", "memory", "gpus"];
const RULE_KEYS: &[&str] = &[
    "partitions",
    "accounts",
    "users",
    "constraint",
    "comment",
    "oversubscribe",
    "nodes-max",
    "hours",
];

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PolicyFile {
    nodes_max: Option<NonZeroU32>,
    ended_after: Option<String>,
    #[serde(default)]
    named_gpus: bool,
    #[serde(default)]
    keep: KeepEntry,
    #[serde(default)]
    company: Vec<RuleEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct KeepEntry {
    cores: Option<u32>,
    memory: Option<String>,
    gpus: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RuleEntry {
    #[serde(default)]
    partitions: Vec<String>,
    #[serde(default)]
    accounts: Vec<String>,
    #[serde(default)]
    users: Vec<String>,
    constraint: Option<String>,
    comment: Option<String>,
    #[serde(default)]
    oversubscribe: bool,
    nodes_max: Option<NonZeroU32>,
    #[serde(default)]
    hours: Vec<String>,
}

impl SitePolicy {
    /// Reads the file of a policy.
    pub fn load(file: &Path) -> Result<Self, AgentError> {
        let text = read(file).and_then(|text| Self::parse(&text));
        text.map_err(|why| AgentError::Policy {
            path: file.to_owned(),
            why,
        })
    }

    /// Reads the text of a policy; the error says what is wrong in it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        check_keys(&table, "the policy", KEYS)?;
        if let Some(keep) = table.get("keep").and_then(Value::as_table) {
            check_keys(keep, "[keep]", KEEP_KEYS)?;
        }
        let rules = table.get("company").and_then(Value::as_array);
        for (number, rule) in (1..).zip(rules.into_iter().flatten()) {
            if let Some(rule) = rule.as_table() {
                check_keys(rule, &format!("rule {number} ([[company]])"), RULE_KEYS)?;
            }
        }
        let file: PolicyFile = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.company.len() > RULES_MAX {
            return Err(format!("it has {} rules, of at most {RULES_MAX}", file.company.len()));
        }
        let rules = (1..).zip(file.company).map(|(number, rule)| {
            let rule = rule.check();
            rule.map_err(|why| format!("rule {number} ([[company]]): {why}"))
        });
        Ok(Self {
            nodes_max: file.nodes_max,
            ended_after: file.ended_after.as_deref().map(time).transpose()?,
            named_gpus: file.named_gpus,
            keep: file.keep.check().map_err(|why| format!("[keep]: {why}"))?,
            rules: rules.collect::<Result<_, _>>()?,
        })
    }
}

/// Text of the file.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    if metadata.mode() & 0o002 != 0 {
        return Err("every user may write it; take that right away (`chmod o-w`)".into());
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(format!("it is longer than {BYTES_MAX} bytes")),
        false => Ok(text),
    }
}

/// Refuses unknown keys: the error names the first unknown key, and the known key that is most similar.
fn check_keys(table: &toml::Table, place: &str, known: &[&str]) -> Result<(), String> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else {
        return Ok(());
    };
    let nearest = known.iter().min_by_key(|name| strsim::osa_distance(key, name));
    let meant = nearest.filter(|name| strsim::osa_distance(key, name) <= 1 + name.len() / 3);
    let advice = match meant {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("its keys are {}", known.join(", ")),
    };
    Err(format!("{place} has no key `{key}`; {advice}"))
}

impl KeepEntry {
    fn check(self) -> Result<KeptBack, String> {
        let default = KeptBack::default();
        let keep = KeptBack {
            cores: self.cores.unwrap_or(default.cores),
            memory_bytes: self.memory.as_deref().map_or(Ok(default.memory_bytes), bytes)?,
            gpus: self.gpus.unwrap_or(default.gpus),
        };
        if keep.cores > CORE_MAX {
            return Err(format!(
                "cores = {} is more than a node has: at most {CORE_MAX}",
                keep.cores
            ));
        }
        if keep.gpus > GPUS_PER_AGENT_MAX {
            return Err(format!("gpus = {} is more than {GPUS_PER_AGENT_MAX}", keep.gpus));
        }
        Ok(keep)
    }
}

/// A time such as `60s` or `5min`, of at most a day.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("min") {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').unwrap_or_default(), 1),
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_number);
    let seconds = number.and_then(|number| number.checked_mul(unit));
    match seconds.filter(|seconds| (1..=24 * 3600).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err(format!("ended-after = {text:?} is no time from 1s to 1440min")),
    }
}

/// Bytes of a size such as `4G`.
fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[number.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => 64,
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_number);
    let bytes = number.and_then(|number| number.checked_mul(1u64.checked_shl(shift)?));
    bytes.ok_or_else(|| format!("memory = {text:?} is no size; write it as \"4G\" or \"512M\""))
}

impl RuleEntry {
    fn check(self) -> Result<CompanyRule, String> {
        for (key, names) in [
            ("partitions", &self.partitions),
            ("accounts", &self.accounts),
            ("users", &self.users),
        ] {
            check_names(key, names)?;
        }
        for (key, name) in [("constraint", &self.constraint), ("comment", &self.comment)] {
            check_names(key, name.as_slice())?;
        }
        if let Some(word) = self.comment.iter().chain(&self.constraint).find(|word| !is_word(word)) {
            return Err(format!("{word:?} is not one word"));
        }
        if self.hours.len() > ENTRIES_MAX {
            return Err(format!(
                "hours has {} entries, of at most {ENTRIES_MAX}",
                self.hours.len()
            ));
        }
        let hours = self.hours.iter().map(|hours| hours.parse());
        Ok(CompanyRule {
            hours: hours.collect::<Result<_, _>>()?,
            partitions: self.partitions,
            accounts: self.accounts,
            users: self.users,
            constraint: self.constraint,
            comment: self.comment,
            oversubscribe: self.oversubscribe,
            nodes_max: self.nodes_max,
        })
    }
}

fn check_names(key: &str, names: &[String]) -> Result<(), String> {
    if names.len() > ENTRIES_MAX {
        return Err(format!("{key} has {} entries, of at most {ENTRIES_MAX}", names.len()));
    }
    match names.iter().find(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        Some(name) => Err(format!("{key}: {name:?} is no name: 1 to {NAME_BYTES_MAX} bytes")),
        None => Ok(()),
    }
}

/// Whether a job's list of words or features can contain this text as one entry.
fn is_word(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || ",;&|[]()*".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that is shipped with the program.
    const EXAMPLE: &str = include_str!("../../../../deploy/slurm/policy.toml");

    #[test]
    fn the_example_is_a_policy_and_names_every_key() {
        let policy = SitePolicy::parse(EXAMPLE).expect("the example");
        assert!(!policy.rules.is_empty());
        // A key is at the beginning of a line, perhaps after `#`.
        let lines = EXAMPLE.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
        let keys: Vec<&str> = lines.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
        let known = KEYS.iter().chain(KEEP_KEYS).chain(RULE_KEYS);
        for key in known.filter(|key| !["keep", "company"].contains(key)) {
            assert!(keys.contains(key), "the example does not show {key}");
        }
        let all: Vec<&str> = EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.starts_with(' ') => key,
                _ => line,
            })
            .collect();
        SitePolicy::parse(&all.join("\n")).expect("also with all keys");
    }

    #[test]
    fn a_file_that_says_nonsense_is_refused_with_its_place() {
        for (text, says) in [
            ("nodes-max = 0", "nodes-max = 0"),
            ("nodes-max = -1", "nodes-max = -1"),
            ("nodes-max = \"4\"", "line 1"),
            ("nodes_max = 4", "did you mean `nodes-max`?"),
            ("ended-after = \"0s\"", "is no time"),
            ("ended-after = \"1h\"", "is no time"),
            ("ended-after = \"+9s\"", "is no time"),
            ("ended-after = \"1441min\"", "is no time"),
            ("ended-after = 60", "line 1"),
            ("named-gpus = 1", "line 1"),
            ("company = 4", "line 1"),
            ("[company]\npartitions = []", "company"),
            ("[[company]]\npartition = [\"a\"]", "did you mean `partitions`?"),
            (
                "[[company]]\n[[company]]\nacounts = [\"a\"]",
                "rule 2 ([[company]]) has no key `acounts`",
            ),
            ("[[company]]\nzzzzzz = 1", "its keys are partitions, "),
            ("[[company]]\npartitions = \"a\"", "line 2"),
            ("[[company]]\npartitions = [1]", "line 2"),
            ("[[company]]\npartitions = [\"\"]", "is no name"),
            (
                "[[company]]\nhours = [\"noon\"]",
                "rule 1 ([[company]]): \"noon\" are no hours",
            ),
            ("[[company]]\nhours = 8", "line 2"),
            ("[[company]]\ncomment = \"two words\"", "is not one word"),
            ("[[company]]\nconstraint = \"a|b\"", "is not one word"),
            ("[[company]]\noversubscribe = \"yes\"", "line 2"),
            ("[[company]]\nnodes-max = 99999999999", "line 2"),
            ("[keep]\ncores = 65536", "[keep]: cores = 65536"),
            ("[keep]\ncores = 1.5", "line 2"),
            ("[keep]\nmemory = \"4 G\"", "is no size"),
            ("[keep]\nmemory = \"99999999999G\"", "is no size"),
            ("[keep]\nmemory = \"+4G\"", "is no size"),
            ("[keep]\nmemory = \"4GG\"", "is no size"),
            ("[keep]\nmemory = 4", "line 2"),
            ("[keep]\ngpus = 1025", "gpus"),
            ("[keep]\ncore = 1", "did you mean `cores`?"),
            ("[keep", "line 1"),
            ("nodes-max = 1\nnodes-max = 2", "line 2"),
        ] {
            let error = SitePolicy::parse(text).expect_err(text);
            assert!(error.contains(says), "{text:?}: {error}");
        }
        let many = "[[company]]\n".repeat(RULES_MAX + 1);
        assert!(SitePolicy::parse(&many).is_err());
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, value) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1 << 10),
            ("3M", 3 << 20),
            ("4G", 4 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(value));
        }
        for bad in ["", "G", "-1", "1g", "1Ki"] {
            assert!(bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_that_every_user_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.toml");
        std::fs::write(&file, "nodes-max = 4\n").expect("a file");
        assert!(SitePolicy::load(&file).is_ok());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("a mode");
        let error = SitePolicy::load(&file).expect_err("refused").to_string();
        assert!(
            error.contains("every user may write it") && error.contains("policy.toml"),
            "{error}"
        );
        assert!(SitePolicy::load(folder.path()).is_err(), "a folder");
        assert!(SitePolicy::load(&folder.path().join("none")).is_err());
        std::fs::write(folder.path().join("long"), " ".repeat(BYTES_MAX as usize + 1)).expect("a file");
        assert!(SitePolicy::load(&folder.path().join("long")).is_err());
        std::fs::write(folder.path().join("bytes"), [0xff]).expect("a file");
        assert!(SitePolicy::load(&folder.path().join("bytes")).is_err());
    }
}
