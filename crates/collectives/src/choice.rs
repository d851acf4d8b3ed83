//! Choice of an algorithm by a table of rules: the first rule that fits is followed.

mod rule;
mod tuning;

use crate::algorithm::Recipe;
use crate::collective::CollectiveCall;
use crate::error::Error;
use crate::names::{name_of, parse_name};
use crate::operation::{Algorithm, Operation};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

pub use rule::Rule;
pub use tuning::Measurement;

/// Kind of the link that a communicator sends over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Shared memory of ranks on one node.
    Shm,
    /// A fabric, through libfabric.
    Ofi,
    /// TCP from rank to rank.
    Tcp,
    /// A Redis server.
    Redis,
    /// An S3 object store.
    S3,
    /// A DynamoDB table.
    DynamoDb,
}

impl LinkKind {
    /// All kinds, each with its name in tables and on command lines.
    pub const NAMES: [(LinkKind, &'static str); 6] = [
        (LinkKind::Shm, "shm"),
        (LinkKind::Ofi, "ofi"),
        (LinkKind::Tcp, "tcp"),
        (LinkKind::Redis, "redis"),
        (LinkKind::S3, "s3"),
        (LinkKind::DynamoDb, "dynamodb"),
    ];

    /// Returns whether data goes through a store, in steps [`Step::Publish`](crate::Step::Publish) and
    /// [`Step::Fetch`](crate::Step::Fetch).
    pub const fn is_mediated(self) -> bool {
        matches!(self, LinkKind::Redis | LinkKind::S3 | LinkKind::DynamoDb)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&LinkKind::NAMES, self))
    }
}

impl FromStr for LinkKind {
    type Err = Error;

    /// Parses a kind from its name in tables.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse_name(&LinkKind::NAMES, "link", text)
    }
}

/// Inputs of a choice. All ranks ask the same question, so all choose the same.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The collective.
    pub call: &'a CollectiveCall<'a>,
    /// The link that the collective uses.
    pub link: LinkKind,
    /// Number of nodes that the ranks are on; 0 if it is unknown.
    pub nodes: usize,
    /// Whether a node has more members than processors.
    pub is_crowded: bool,
}

impl<'a> Question<'a> {
    /// Makes a question about a call that has passed [`CollectiveCall::check`]. Assumes that each member has a
    /// processor of its own. Counts the nodes in each call: a caller with many questions should count the nodes once,
    /// and set the fields of each question instead of calling this.
    pub fn new(call: &'a CollectiveCall<'a>, link: LinkKind) -> Self {
        let nodes = call.nodes.map_or(0, |nodes| nodes.iter().collect::<HashSet<_>>().len());
        Question {
            call,
            link,
            nodes,
            is_crowded: false,
        }
    }
}

/// Bytes of the segments that [`Question::candidates`] tries.
const SEGMENT_BYTES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];

impl Question<'_> {
    /// Lists all recipes to measure: each algorithm that can do the call over this link, between all ranks and, if
    /// that makes a difference, between nodes.
    pub fn candidates(&self) -> Vec<Recipe> {
        let levels = self.nodes > 1 && (self.nodes as u64) < u64::from(self.call.ranks);
        let mut candidates = Vec::new();
        for &algorithm in self.call.collective.operation().algorithms() {
            let segments = if algorithm == Algorithm::Chain {
                &SEGMENT_BYTES[..]
            } else {
                &[0]
            };
            for bytes in segments {
                for by_nodes in [false, true] {
                    let segment = bytes / self.call.datatype.size();
                    let recipe = Recipe {
                        algorithm,
                        by_nodes,
                        segment,
                    };
                    let is_possible = algorithm.is_mediated() == self.link.is_mediated() && (levels || !by_nodes);
                    if is_possible && recipe.check(self.call).is_ok() {
                        candidates.push(recipe);
                    }
                }
            }
        }
        candidates
    }
}

/// Rules by operation, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableFile {
    version: u32,
    #[serde(default)]
    rule: Vec<Rule>,
}

/// Maximum length of a table that is read, in bytes.
const BYTES_MAX: usize = 1 << 20;
/// Maximum number of rules in a table.
const RULES_MAX: usize = 10_000;

impl Table {
    /// Table that is used unless a measured table was made for the site.
    pub fn built_in() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| Table::parse(include_str!("choice/built_in.toml")).expect("a test reads it"))
    }

    /// Reads a table.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if the text is not TOML, has an unknown field or value, has a rule that fits no call,
    /// or is longer than 1 MiB or 10,000 rules.
    pub fn parse(text: &str) -> Result<Table, Error> {
        let error = |why: String| Error::Table { why };
        if text.len() > BYTES_MAX {
            return Err(error(format!("{} bytes, the most is {BYTES_MAX}", text.len())));
        }
        let TableFile { version, rule } = toml::from_str(text).map_err(|why| error(why.to_string()))?;
        if version != 1 {
            return Err(error(format!("it is of version {version}, and 1 is known here")));
        }
        Table::of(rule)
    }

    /// Makes a table of these rules. Rules of one operation are tried in the given order.
    ///
    /// # Errors
    ///
    /// [`Error::Table`] if a rule fits no call, or there are more than 10,000 rules.
    pub fn of(mut rules: Vec<Rule>) -> Result<Table, Error> {
        if rules.len() > RULES_MAX {
            return Err(Error::Table {
                why: format!("{} rules, the most is {RULES_MAX}", rules.len()),
            });
        }
        for (number, rule) in (1..).zip(&rules) {
            if let Some(wrong) = rule.contradiction() {
                let why = format!("rule {number} ({}: {rule}): {wrong}", rule.operation);
                return Err(Error::Table { why });
            }
        }
        rules.sort_by_key(|rule| rule.operation);
        Ok(Table { rules })
    }

    /// All rules, ordered by operation.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Chooses a recipe that can do the call, without allocating: the recipe of the first rule that fits, else the
    /// operation's first algorithm that can do the call.
    pub fn choose(&self, question: &Question) -> Recipe {
        let bytes = question.call.bytes();
        let mut rules = self.rules_of(question.call.collective.operation()).iter();
        match rules.find(|rule| rule.obstacle(question, bytes).is_none()) {
            Some(rule) => rule.recipe(question),
            None => fallback(question),
        }
    }

    /// Chooses a recipe, and gives the verdict on each rule.
    pub fn explain(&self, question: &Question) -> Explanation {
        let operation = question.call.collective.operation();
        let (recipe, bytes) = (self.choose(question), question.call.bytes());
        let (mut lines, mut is_by_rule) = (Vec::new(), false);
        for rule in self.rules_of(operation) {
            let obstacle = rule.obstacle(question, bytes);
            is_by_rule = obstacle.is_none();
            let verdict = obstacle.map_or("yes".into(), |obstacle| format!("no: {obstacle}"));
            lines.push(format!("{rule}: {verdict}"));
            if is_by_rule {
                break;
            }
        }
        let (ranks, link) = (question.call.ranks, question.link);
        let crowd = if question.is_crowded {
            " that share processors"
        } else {
            ""
        };
        let why = match (is_by_rule, recipe.by_nodes) {
            (false, _) => ", as no rule fits",
            (true, true) => " between nodes",
            (true, false) => "",
        };
        let algorithm = recipe.algorithm;
        let summary = format!("{operation} of {bytes} bytes by {ranks} ranks{crowd} over {link}: {algorithm}{why}");
        Explanation { recipe, summary, lines }
    }

    fn rules_of(&self, operation: Operation) -> &[Rule] {
        let first = self.rules.partition_point(|rule| rule.operation < operation);
        let end = self.rules.partition_point(|rule| rule.operation <= operation);
        &self.rules[first..end]
    }
}

impl fmt::Display for Table {
    /// Writes the table as TOML that [`Table::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version = 1")?;
        for rule in &self.rules {
            writeln!(f, "\n[[rule]]\noperation = \"{}\"", rule.operation)?;
            if !rule.links.is_empty() {
                let links: Vec<String> = rule.links.iter().map(|link| format!("\"{link}\"")).collect();
                writeln!(f, "links = [{}]", links.join(", "))?;
            }
            let bounds = [
                ("ranks_min", rule.ranks_min.map(|ranks| ranks as usize)),
                ("ranks_max", rule.ranks_max.map(|ranks| ranks as usize)),
                ("bytes_min", rule.bytes_min),
                ("bytes_max", rule.bytes_max),
                ("block_bytes_min", rule.block_bytes_min),
                ("block_bytes_max", rule.block_bytes_max),
                ("segment_bytes", (rule.segment_bytes > 0).then_some(rule.segment_bytes)),
            ];
            for (name, bound) in bounds {
                if let Some(bound) = bound {
                    writeln!(f, "{name} = {bound}")?;
                }
            }
            writeln!(f, "algorithm = \"{}\"", rule.algorithm)?;
            for (name, is_set) in [("by_nodes", rule.by_nodes), ("crowded", rule.crowded)] {
                if is_set {
                    writeln!(f, "{name} = true")?;
                }
            }
        }
        Ok(())
    }
}

/// The operation's first algorithm that can do the call. Each operation has two algorithms that can do any call: one
/// sends messages, the other uses objects of a store.
fn fallback(question: &Question) -> Recipe {
    let operation = question.call.collective.operation();
    let fits = |recipe: &Recipe| {
        recipe.algorithm.is_mediated() == question.link.is_mediated() && recipe.check(question.call).is_ok()
    };
    let mut recipes = operation.algorithms().iter().map(|algorithm| Recipe::from(*algorithm));
    recipes
        .find(fits)
        .unwrap_or_else(|| Recipe::from(operation.algorithms()[0]))
}

/// A choice with its reasons, for printing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The chosen recipe.
    pub recipe: Recipe,
    /// The choice in words.
    pub summary: String,
    /// Rules of the operation up to the rule that is followed, with the reason why each earlier rule does not fit.
    pub lines: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        self.lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

#[cfg(test)]
mod tests;
