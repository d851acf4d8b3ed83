//! A site's policy: which batch jobs have company. A job has company if leases may use the free resources of its nodes.

use super::hours::{WeekHours, WeekMinute};
use hotlease_wire::batch::{BatchJob, JobSharing};
use std::num::NonZeroU32;
use std::time::Duration;

/// Policy of a site. The default policy gives no job company: leases use idle nodes only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SitePolicy {
    /// Number of nodes above which a job never has company.
    pub(crate) nodes_max: Option<NonZeroU32>,
    /// Time for which the control group of a job must be gone before the job is taken as ended without an epilog. To be
    /// set only if groups live as long as their jobs. `None` if a group may be gone between two steps of a job.
    pub(crate) ended_after: Option<Duration>,
    /// Whether a job uses only the GPUs that the batch system names, if its control group's files do not name GPUs.
    pub(crate) named_gpus: bool,
    /// Resources that leases must leave free on a node with jobs.
    pub(crate) keep: KeptBack,
    /// A job has company if at least one of these rules holds for it.
    pub(crate) rules: Vec<CompanyRule>,
}

/// Resources of a node that stay free while jobs run on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBack {
    /// Number of cores.
    pub cores: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Number of GPUs.
    pub gpus: u32,
}

impl Default for KeptBack {
    /// 1 GiB of memory, for the agent and for workers that wait for leases: this memory belongs to no lease.
    fn default() -> Self {
        Self {
            cores: 0,
            memory_bytes: 1 << 30,
            gpus: 0,
        }
    }
}

/// Conditions under which a job has company. All of them must hold; an empty list is no condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CompanyRule {
    pub partitions: Vec<String>,
    pub accounts: Vec<String>,
    pub users: Vec<String>,
    /// Feature that the job must demand of its nodes.
    pub constraint: Option<String>,
    /// Word that must be in the comment of the job.
    pub comment: Option<String>,
    /// Whether the job must have been submitted with `--oversubscribe`.
    pub oversubscribe: bool,
    pub nodes_max: Option<NonZeroU32>,
    pub hours: Vec<WeekHours>,
}

impl SitePolicy {
    /// Number of the rule by which a job has company (from 1), or the reasons why it has no company.
    pub fn company(&self, job: &BatchJob, at: WeekMinute) -> Result<usize, Vec<String>> {
        if self.rules.is_empty() {
            return Err(vec!["no rule gives jobs company".into()]);
        }
        if job.sharing == JobSharing::Exclusive {
            return Err(vec!["it has asked for its nodes alone".into()]);
        }
        if let Some(why) = self.nodes_max.and_then(|limit| over_limit(job, limit)) {
            return Err(vec![why]);
        }
        let mut reasons = Vec::new();
        for (number, rule) in (1..).zip(&self.rules) {
            match rule.obstacle(job, at) {
                None => return Ok(number),
                Some(why) => reasons.push(format!("rule {number}: {why}")),
            }
        }
        Err(reasons)
    }

    /// Resources of a node that stay free while jobs run on it.
    pub fn keep(&self) -> KeptBack {
        self.keep
    }

    /// The policy in words, a sentence for each rule.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match self.rules.is_empty() {
            true => lines.push("No job has company: leases use idle nodes only.".into()),
            false => {
                let limit = self.nodes_max.map(|limit| format!(" of at most {limit} nodes"));
                lines.push(format!(
                    "Jobs{} for which a rule holds have company.",
                    limit.unwrap_or_default()
                ));
                let rules = (1..).zip(&self.rules);
                lines.extend(rules.map(|(number, rule)| format!("rule {number}: {}", rule.describe())));
                let KeptBack {
                    cores,
                    memory_bytes,
                    gpus,
                } = self.keep;
                let mib = memory_bytes >> 20;
                lines.push(format!(
                    "While jobs run on a node, these stay free: cores {cores}, memory {mib} MiB, GPUs {gpus}."
                ));
            }
        }
        lines
    }
}

/// Reason why a job exceeds, or may exceed, a limit of nodes; `None` if it does not.
fn over_limit(job: &BatchJob, limit: NonZeroU32) -> Option<String> {
    match job.nodes {
        0 => Some(format!(
            "the number of its nodes is not known, and nodes-max is {limit}"
        )),
        nodes if nodes > limit.get() => Some(format!("it has {nodes} nodes, and nodes-max is {limit}")),
        _ => None,
    }
}

impl CompanyRule {
    /// The first condition that does not hold.
    fn obstacle(&self, job: &BatchJob, at: WeekMinute) -> Option<String> {
        let lists = [
            ("partition", &self.partitions, &job.partition),
            ("account", &self.accounts, &job.account),
            ("user", &self.users, &job.user),
        ];
        for (what, wanted, has) in lists {
            if !wanted.is_empty() && !wanted.contains(has) {
                return Some(match has.is_empty() {
                    true => format!("its {what} is not known"),
                    false => format!("its {what} is {has}"),
                });
            }
        }
        if let Some(feature) = &self.constraint
            && !demands(&job.constraint, feature)
        {
            return Some(format!("it does not demand the feature {feature}"));
        }
        if let Some(word) = &self.comment
            && !has_word(&job.comment, word)
        {
            return Some(format!("its comment has no word {word}"));
        }
        if self.oversubscribe && job.sharing != JobSharing::Requested {
            return Some(match job.sharing {
                JobSharing::Unknown => "the batch system does not say whether it has --oversubscribe".into(),
                _ => "it has no --oversubscribe".into(),
            });
        }
        if let Some(why) = self.nodes_max.and_then(|limit| over_limit(job, limit)) {
            return Some(why);
        }
        if !self.hours.is_empty() && !self.hours.iter().any(|hours| hours.contains(at)) {
            return Some(format!("{at} is not in its hours"));
        }
        None
    }

    fn describe(&self) -> String {
        let list = |what: &str, names: &[String]| match names {
            [] => None,
            names => Some(format!("{what} {}", names.join(" or "))),
        };
        let hours: Vec<String> = self.hours.iter().map(ToString::to_string).collect();
        let conditions = [
            list("partition", &self.partitions),
            list("account", &self.accounts),
            list("user", &self.users),
            self.constraint.as_ref().map(|feature| format!("constraint {feature}")),
            self.comment
                .as_ref()
                .map(|word| format!("comment with the word {word}")),
            self.oversubscribe.then(|| "--oversubscribe".to_owned()),
            self.nodes_max.map(|limit| format!("at most {limit} nodes")),
            list("hours", &hours),
        ];
        let conditions: Vec<String> = conditions.into_iter().flatten().collect();
        match conditions.is_empty() {
            true => "every job".into(),
            false => conditions.join("; "),
        }
    }
}

/// Whether this constraint of a job demands the feature on all its nodes: the feature must be one of several that are
/// joined by `&` or `,`. Returns `false` for alternatives and counts, because they need not hold for this node.
fn demands(constraint: &str, feature: &str) -> bool {
    let is_plain = !constraint.contains(['|', '[', ']', '(', ')', '*']);
    is_plain && constraint.split(['&', ',']).any(|one| one.trim() == feature)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || c == ',' || c == ';')
        .any(|one| one == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::ids::JobId;

    fn job() -> BatchJob {
        BatchJob {
            partition: "shared".into(),
            account: "physics".into(),
            user: "ada".into(),
            nodes: 2,
            ..BatchJob::unknown(JobId(1))
        }
    }

    fn company(policy: &str, change: impl Fn(&mut BatchJob)) -> Result<usize, String> {
        let policy = SitePolicy::parse(policy).expect(policy);
        let mut job = job();
        change(&mut job);
        let at = "fri 18:00".parse().expect("a time");
        policy.company(&job, at).map_err(|reasons| reasons.join("; "))
    }

    #[test]
    fn the_default_gives_no_job_company() {
        let at = WeekMinute::now();
        assert!(SitePolicy::default().company(&job(), at).is_err());
        assert!(company("", |_| ()).is_err());
        assert_eq!(
            company("[[company]]", |_| ()),
            Ok(1),
            "a rule without conditions is for each job"
        );
    }

    #[test]
    fn each_condition_of_a_rule_must_hold_and_one_rule_is_enough() {
        let names = "[[company]]\npartitions = [\"a\", \"shared\"]\naccounts = [\"physics\"]\nusers = [\"ada\"]";
        assert_eq!(company(names, |_| ()), Ok(1));
        type Change = fn(&mut BatchJob);
        let changes: [(Change, &str); 4] = [
            (|job| job.partition = "main".into(), "its partition is main"),
            (|job| job.account = "chem".into(), "its account is chem"),
            (|job| job.account = String::new(), "its account is not known"),
            (|job| job.user = "bob".into(), "its user is bob"),
        ];
        for (change, says) in changes {
            let why = company(names, change).expect_err(says);
            assert!(why.contains(says), "{why}");
        }
        let two = format!("[[company]]\npartitions = [\"main\"]\n{names}");
        assert_eq!(company(&two, |_| ()), Ok(2));
        let why = company(&two, |job| job.partition = "x".into()).expect_err("neither holds");
        assert!(why.contains("rule 1: ") && why.contains("rule 2: "), "{why}");
    }

    #[test]
    fn a_feature_counts_where_all_nodes_must_have_it() {
        let rule = "[[company]]\nconstraint = \"company\"";
        for (constraint, holds) in [
            ("company", true),
            ("haswell&company", true),
            ("haswell,company", true),
            ("haswell", false),
            ("", false),
            ("nocompany", false),
            ("company|haswell", false),
            ("[company*2&haswell*4]", false),
            ("(haswell|knl)&company", false),
        ] {
            let company = company(rule, |job| job.constraint = constraint.into());
            assert_eq!(company.is_ok(), holds, "{constraint}");
        }
    }

    #[test]
    fn a_comment_counts_by_its_words() {
        let rule = "[[company]]\ncomment = \"hotlease\"";
        for (comment, holds) in [
            ("hotlease", true),
            ("run 7, hotlease; x", true),
            ("nohotlease", false),
            ("hotlease-not", false),
            ("", false),
        ] {
            assert_eq!(
                company(rule, |job| job.comment = comment.into()).is_ok(),
                holds,
                "{comment}"
            );
        }
    }

    #[test]
    fn jobs_of_many_nodes_and_jobs_that_are_exclusive_never_have_company() {
        let rule = "nodes-max = 4\n[[company]]\n[[company]]\nnodes-max = 8";
        for (nodes, holds) in [(1, true), (4, true), (5, false), (0, false)] {
            assert_eq!(company(rule, |job| job.nodes = nodes).is_ok(), holds, "{nodes}");
        }
        assert!(company("[[company]]\nnodes-max = 1", |_| ()).is_err());
        assert_eq!(company("[[company]]", |job| job.nodes = 0), Ok(1), "there is no limit");
        assert!(company("[[company]]", |job| job.sharing = JobSharing::Exclusive).is_err());
        for (word, holds) in [
            ("YES", true),
            ("OK", false),
            ("NO", false),
            ("USER", false),
            ("", false),
        ] {
            let sharing = JobSharing::of_slurm(word);
            let company = company("[[company]]\noversubscribe = true", |job| job.sharing = sharing);
            assert_eq!(company.is_ok(), holds, "{word:?}");
        }
    }

    #[test]
    fn hours_bound_company() {
        for (hours, holds) in [
            ("\"fri 18:00-19:00\"", true),
            ("\"sat\", \"17:00-18:00\"", false),
            ("", true),
        ] {
            let rule = format!("[[company]]\nhours = [{hours}]");
            assert_eq!(company(&rule, |_| ()).is_ok(), holds, "{hours}");
        }
    }
}
