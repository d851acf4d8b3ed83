//! Objections of several agents to one request, each for a reason that waiting does not change.

use crate::Rejection;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest number of different reasons in a rejection. This and the two limits below keep a rejection short enough for
/// a header of HTTP.
const REASONS_MAX: usize = 8;
/// Largest number of bytes of a reason.
const REASON_BYTES_MAX: usize = 384;
/// Largest number of agents named with a reason.
const NAMED_MAX: usize = 4;

/// A reason, and the agents that gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objection {
    /// Names of agents, at most four.
    pub nodes: Vec<String>,
    /// Number of further agents with this reason.
    pub more: u32,
    /// The reason, in the words of the first agent.
    pub why: String,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.nodes.join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        write!(f, ": {}", self.why)
    }
}

/// A collection of objections.
#[derive(Debug, Clone, Default)]
pub struct Objections(Vec<(Objection, Option<Rejection>)>);

impl Objections {
    /// Whether there are no objections.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a rejection by `node`. If it is a list of other agents' objections, adds these objections.
    pub fn add(&mut self, node: &str, refusal: Rejection) {
        let Rejection::NoSuitableAgent { reasons } = refusal else {
            let objection = Objection {
                nodes: vec![node.to_owned()],
                more: 0,
                why: cut(refusal.to_string()),
            };
            return self.note(objection, Some(refusal));
        };
        for mut reason in reasons {
            reason.why = cut(reason.why);
            let unnamed = reason.nodes.len().saturating_sub(NAMED_MAX);
            reason.nodes.truncate(NAMED_MAX);
            reason.nodes = reason.nodes.into_iter().map(cut).collect();
            reason.more = reason.more.saturating_add(unnamed as u32);
            self.note(reason, None);
        }
    }

    fn note(&mut self, new: Objection, refusal: Option<Rejection>) {
        let Some((same, _)) = self.0.iter_mut().find(|(said, _)| said.why == new.why) else {
            if self.0.len() < REASONS_MAX {
                self.0.push((new, refusal));
            }
            return;
        };
        same.more = same.more.saturating_add(new.more);
        for node in new.nodes {
            if same.nodes.len() < NAMED_MAX {
                same.nodes.push(node);
            } else {
                same.more = same.more.saturating_add(1);
            }
        }
    }

    /// Sums up all objections as one rejection. If all agents give the same rejection, returns that rejection.
    pub fn sum(&self) -> Rejection {
        match &self.0[..] {
            [(_, Some(refusal))] => refusal.clone(),
            said => Rejection::NoSuitableAgent {
                reasons: said.iter().map(|(objection, _)| objection.clone()).collect(),
            },
        }
    }
}

/// Name of an agent in objections.
pub fn node_name(host: &str, agent: impl fmt::Display) -> String {
    match host {
        "" => format!("agent {agent}"),
        host => format!("{host} (agent {agent})"),
    }
}

fn cut(mut why: String) -> String {
    if why.len() > REASON_BYTES_MAX {
        let boundary = |at: &usize| why.is_char_boundary(*at);
        // There is a character boundary at 0.
        why.truncate((0..=REASON_BYTES_MAX).rev().find(boundary).unwrap_or(0));
        why.push_str(" ...");
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(why: &str) -> Rejection {
        Rejection::CodeRejected { why: why.into() }
    }

    #[test]
    fn equal_objections_are_merged_and_different_ones_listed() {
        let mut objections = Objections::default();
        for node in ["a", "b"] {
            objections.add(node, rejected("no libm"));
        }
        assert_eq!(objections.sum(), rejected("no libm"));
        objections.add("c", Rejection::BadToken);
        let told = objections.sum().to_string();
        for part in ["a, b: ", "no libm", "c: the token is not valid", "nothing ran"] {
            assert!(told.contains(part), "{told:?} lacks {part:?}");
        }
    }

    #[test]
    fn objections_of_others_are_merged_with_own_ones() {
        let mut theirs = Objections::default();
        theirs.add("a", rejected("no libm"));
        theirs.add("b", Rejection::BadToken);
        let mut ours = Objections::default();
        ours.add("c", Rejection::BadToken);
        ours.add("the manager", theirs.sum());
        let Rejection::NoSuitableAgent { reasons } = ours.sum() else {
            panic!("{:?}", ours.sum());
        };
        assert_eq!((reasons[0].nodes.join(" "), reasons.len()), ("c b".into(), 2));
        assert_eq!(reasons[1].nodes, ["a"]);
    }

    #[test]
    fn objections_are_bounded() {
        let mut objections = Objections::default();
        for node in 0..1000 {
            objections.add(&node.to_string(), rejected(&"ä".repeat(REASON_BYTES_MAX)));
        }
        for reason in 0..1000 {
            objections.add("x", rejected(&reason.to_string()));
        }
        let (first, _) = &objections.0[0];
        assert_eq!((first.nodes.len(), first.more), (NAMED_MAX, 1000 - NAMED_MAX as u32));
        assert_eq!(objections.0.len(), REASONS_MAX);
        let told = objections.sum().to_string();
        assert!(told.len() < 2 * REASONS_MAX * REASON_BYTES_MAX, "{}", told.len());
    }
}
