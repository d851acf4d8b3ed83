//! One rule of the table, and the reason why it is not followed.

use super::{LinkKind, Question};
use crate::algorithm::Recipe;
use crate::error::Error;
use crate::operation::{Algorithm, Operation};
use serde::Deserialize;
use std::fmt;

/// One rule of the table. An absent condition is always fulfilled; bounds are inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The operation that the rule is for.
    pub operation: Operation,
    /// The links that the rule is for.
    #[serde(default)]
    pub links: Vec<LinkKind>,
    /// Minimum number of ranks.
    pub ranks_min: Option<u32>,
    /// Maximum number of ranks.
    pub ranks_max: Option<u32>,
    /// Minimum number of bytes.
    pub bytes_min: Option<usize>,
    /// Maximum number of bytes.
    pub bytes_max: Option<usize>,
    /// Minimum number of bytes per rank.
    pub block_bytes_min: Option<usize>,
    /// Maximum number of bytes per rank.
    pub block_bytes_max: Option<usize>,
    /// The algorithm to use.
    pub algorithm: Algorithm,
    /// Runs the algorithm between the leaders of nodes, with trees inside nodes. Fits only if there are several nodes,
    /// and at least one of them has several ranks.
    #[serde(default)]
    pub by_nodes: bool,
    /// Fits only if a node has more members than processors.
    #[serde(default)]
    pub crowded: bool,
    /// For `chain`: bytes sent at a time.
    #[serde(default)]
    pub segment_bytes: usize,
}

impl Rule {
    pub(super) fn recipe(&self, question: &Question) -> Recipe {
        let segment = match self.segment_bytes {
            0 => 0,
            bytes => (bytes / question.call.datatype.size()).max(1),
        };
        Recipe {
            algorithm: self.algorithm,
            by_nodes: self.by_nodes,
            segment,
        }
    }

    /// Reason why the rule can never be followed.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let (operation, algorithm) = (self.operation, self.algorithm);
        let empty = |least: Option<usize>, most: Option<usize>| least.zip(most).is_some_and(|(a, b)| a > b);
        let ranks = |bound: Option<u32>| bound.map(|ranks| ranks as usize);
        if !operation.algorithms().contains(&algorithm) {
            Some("there is no such algorithm for this operation")
        } else if self.by_nodes && (!operation.has_levels() || algorithm.is_mediated()) {
            Some("it cannot be done in two levels")
        } else if self
            .links
            .iter()
            .any(|link| link.is_mediated() != algorithm.is_mediated())
        {
            Some("stores need algorithms that use objects, and other links need algorithms that use messages")
        } else if self.segment_bytes > 0 && algorithm != Algorithm::Chain {
            Some("only `chain` sends in segments")
        } else if empty(self.bytes_min, self.bytes_max)
            || empty(self.block_bytes_min, self.block_bytes_max)
            || empty(ranks(self.ranks_min), ranks(self.ranks_max))
        {
            Some("a minimum is more than its maximum")
        } else {
            None
        }
    }

    /// Reason why the rule is not followed for a call of this many bytes. A reason allocates only when it is printed.
    pub(super) fn obstacle(&self, question: &Question, bytes: usize) -> Option<Obstacle> {
        let ranks = question.call.ranks;
        if !self.links.is_empty() && !self.links.contains(&question.link) {
            return Some(Obstacle::Link);
        }
        if self.algorithm.is_mediated() != question.link.is_mediated() {
            return Some(Obstacle::Mediation);
        }
        if self.ranks_min.is_some_and(|least| ranks < least) || self.ranks_max.is_some_and(|most| ranks > most) {
            return Some(Obstacle::Ranks);
        }
        let block = bytes / (ranks as usize).max(1);
        if self.bytes_min.is_some_and(|least| bytes < least)
            || self.bytes_max.is_some_and(|most| bytes > most)
            || self.block_bytes_min.is_some_and(|least| block < least)
            || self.block_bytes_max.is_some_and(|most| block > most)
        {
            return Some(Obstacle::Bytes);
        }
        if self.by_nodes && (question.nodes < 2 || question.nodes as u64 >= u64::from(ranks)) {
            return Some(Obstacle::Nodes);
        }
        if self.crowded && !question.is_crowded {
            return Some(Obstacle::OwnProcessors);
        }
        match self.recipe(question).check(question.call) {
            Err(Error::UnsupportedAlgorithm { why, .. }) => Some(Obstacle::Algorithm(why)),
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}",
            self.algorithm,
            if self.by_nodes { " between nodes" } else { "" }
        )?;
        if self.segment_bytes > 0 {
            write!(f, " in segments of {} bytes", self.segment_bytes)?;
        }
        let mut separator = ", for ";
        let mut condition = |f: &mut fmt::Formatter<'_>, text: String| {
            f.write_str(std::mem::replace(&mut separator, ", "))?;
            f.write_str(&text)
        };
        if self.crowded {
            condition(f, "members that share processors".into())?;
        }
        if !self.links.is_empty() {
            let links: Vec<String> = self.links.iter().map(LinkKind::to_string).collect();
            condition(f, links.join(" and "))?;
        }
        let mut range =
            |f: &mut fmt::Formatter<'_>, least: Option<usize>, most: Option<usize>, what: &str| match (least, most) {
                (Some(least), Some(most)) => condition(f, format!("{least} to {most} {what}")),
                (Some(least), None) => condition(f, format!("{least} {what} and more")),
                (None, Some(most)) => condition(f, format!("up to {most} {what}")),
                (None, None) => Ok(()),
            };
        range(
            f,
            self.ranks_min.map(|ranks| ranks as usize),
            self.ranks_max.map(|ranks| ranks as usize),
            "ranks",
        )?;
        range(f, self.bytes_min, self.bytes_max, "bytes")?;
        range(f, self.block_bytes_min, self.block_bytes_max, "bytes for each rank")
    }
}

/// Reason why a rule is not followed for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    Link,
    /// Stores need algorithms that use objects, and other links need algorithms that use messages.
    Mediation,
    Ranks,
    Bytes,
    Nodes,
    OwnProcessors,
    Algorithm(&'static str),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Link => "another link",
            Obstacle::Mediation => {
                "stores need algorithms that use objects, and other links need algorithms that use messages"
            }
            Obstacle::Ranks => "another number of ranks",
            Obstacle::Bytes => "another number of bytes",
            Obstacle::Nodes => "it needs several nodes, one of them with several ranks, or the nodes are not known",
            Obstacle::OwnProcessors => "each member has a processor, as far as is known",
            Obstacle::Algorithm(why) => why,
        })
    }
}
