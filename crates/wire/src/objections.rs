//! What several agents have against one request, each for a reason that no waiting changes.

use crate::Refusal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Different reasons that are told; bytes of each; agents that are named with one. A refusal goes into a header of HTTP.
const REASONS_MAX: usize = 8;
const REASON_BYTES_MAX: usize = 384;
const NAMED_MAX: usize = 4;

/// A reason, and who gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objection {
    /// Agents, by name; at most four.
    pub nodes: Vec<String>,
    /// How many more of them.
    pub more: u32,
    /// In the words of the first.
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

/// Objections, as they are gathered.
#[derive(Debug, Clone, Default)]
pub struct Objections(Vec<(Objection, Option<Refusal>)>);

impl Objections {
    /// Whether nobody has any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `node` says so; or others do, which it has asked.
    pub fn add(&mut self, node: &str, refusal: Refusal) {
        let Refusal::Nowhere { reasons } = refusal else {
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

    fn note(&mut self, new: Objection, refusal: Option<Refusal>) {
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

    /// All of them as one refusal: where everybody says the same, that.
    pub fn sum(&self) -> Refusal {
        match &self.0[..] {
            [(_, Some(refusal))] => refusal.clone(),
            said => Refusal::Nowhere {
                reasons: said.iter().map(|(objection, _)| objection.clone()).collect(),
            },
        }
    }
}

/// How an agent is named in them.
pub fn node_name(host: &str, agent: impl fmt::Display) -> String {
    match host {
        "" => format!("agent {agent}"),
        host => format!("{host} (agent {agent})"),
    }
}

fn cut(mut why: String) -> String {
    if why.len() > REASON_BYTES_MAX {
        let boundary = |at: &usize| why.is_char_boundary(*at);
        // There is one at 0.
        why.truncate((0..=REASON_BYTES_MAX).rev().find(boundary).unwrap_or(0));
        why.push_str(" ...");
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(why: &str) -> Refusal {
        Refusal::CodeRejected { why: why.into() }
    }

    #[test]
    fn what_all_say_is_said_once_and_what_differs_is_told_of_each() {
        let mut objections = Objections::default();
        for node in ["a", "b"] {
            objections.add(node, rejected("no libm"));
        }
        assert_eq!(objections.sum(), rejected("no libm"));
        objections.add("c", Refusal::BadToken);
        let told = objections.sum().to_string();
        for part in ["a, b: ", "no libm", "c: the token is not valid", "nothing ran"] {
            assert!(told.contains(part), "{told:?} lacks {part:?}");
        }
    }

    #[test]
    fn what_others_were_told_is_gathered_with_ones_own() {
        let mut theirs = Objections::default();
        theirs.add("a", rejected("no libm"));
        theirs.add("b", Refusal::BadToken);
        let mut ours = Objections::default();
        ours.add("c", Refusal::BadToken);
        ours.add("the manager", theirs.sum());
        let Refusal::Nowhere { reasons } = ours.sum() else {
            panic!("{:?}", ours.sum());
        };
        assert_eq!((reasons[0].nodes.join(" "), reasons.len()), ("c b".into(), 2));
        assert_eq!(reasons[1].nodes, ["a"]);
    }

    #[test]
    fn they_are_bounded() {
        let mut objections = Objections::default();
        for node in 0..1000 {
            objections.add(&node.to_string(), rejected(&"ä".repeat(REASON_BYTES_MAX)));
        }
        for reason in 0..1000 {
            objections.add("x", rejected(&reason.to_string()));
        }
        let (first, _) = &objections.0[0];
        assert_eq!(
            (first.nodes.len(), first.more),
            (NAMED_MAX, 1000 - NAMED_MAX as u32)
        );
        assert_eq!(objections.0.len(), REASONS_MAX);
        let told = objections.sum().to_string();
        assert!(told.len() < 2 * REASONS_MAX * REASON_BYTES_MAX, "{}", told.len());
    }
}
