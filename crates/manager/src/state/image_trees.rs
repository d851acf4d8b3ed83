//! Distribution of environments: agents that need the same one form a tree, in the order in which they asked.
//!
//! ```text
//!   store ──► 1st ──► 2nd ──► 4th, 5th
//!              └────► 3rd ──► 6th, 7th
//! ```
//!
//! The first agent reads the file in the store. Every other agent reads from the agent above it, even while that agent
//! is still reading. An agent is removed if it is gone, or if another agent reports that it did not deliver the file;
//! the agents behind it move up. So the agent above has always asked earlier, and no agent waits for itself. Trees are
//! kept in memory: after a restart, the first agent that asks reads from the store again.

use hotlease_wire::ids::{AgentId, CodeHash};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of agents that read from one agent. With two, the last of 1,000 is nine steps behind the first, and no
/// network card sends more than twice what it receives.
const FAN_OUT: usize = 2;
/// Limit of trees, one for each environment; beyond it, the tree that was asked for longest ago is removed.
const TREES_MAX: usize = 1024;
/// Limit of agents in a tree.
const AGENTS_MAX: usize = 16 * 1024;

#[derive(Default)]
struct ImageTree {
    agents: Vec<AgentId>,
    /// Time of the last request, by the manager's clock.
    asked: Duration,
}

/// Trees of agents by the hash of the environment.
#[derive(Default)]
pub(crate) struct ImageTrees(Mutex<HashMap<CodeHash, ImageTree>>);

impl ImageTrees {
    /// Returns the agent from which the agent `who` is to read, or `None` if it is to read from the store. `without`:
    /// agent that did not deliver the file. `is_there`: whether an agent can be asked.
    pub(crate) fn source_of(
        &self,
        image: CodeHash,
        (who, without): (AgentId, Option<AgentId>),
        now: Duration,
        is_there: impl Fn(AgentId) -> bool,
    ) -> Option<AgentId> {
        let mut trees = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !trees.contains_key(&image) && trees.len() >= TREES_MAX {
            let oldest = trees.iter().min_by_key(|(_, tree)| tree.asked);
            if let Some(oldest) = oldest.map(|(image, _)| *image) {
                trees.remove(&oldest);
            }
        }
        let tree = trees.entry(image).or_default();
        tree.asked = now;
        if without != Some(who) {
            tree.agents.retain(|agent| Some(*agent) != without);
        }
        let known = tree.agents.iter().position(|agent| *agent == who);
        let mut place = match known {
            Some(place) => place,
            None if tree.agents.len() >= AGENTS_MAX => return None,
            None => {
                tree.agents.push(who);
                tree.agents.len() - 1
            }
        };
        loop {
            let above = place.checked_sub(1)? / FAN_OUT;
            let agent = tree.agents[above];
            if is_there(agent) {
                return Some(agent);
            }
            tree.agents.remove(above);
            place -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: CodeHash = CodeHash([7; 32]);

    fn agent(number: u64) -> AgentId {
        AgentId(number.to_be_bytes())
    }

    fn ask(images: &ImageTrees, who: u64, without: Option<u64>, gone: &[u64]) -> Option<u64> {
        let is_there = |id| !gone.iter().any(|number| agent(*number) == id);
        let above = images.source_of(IMAGE, (agent(who), without.map(agent)), Duration::ZERO, is_there);
        above.map(|agent| u64::from_be_bytes(agent.0))
    }

    #[test]
    fn one_agent_reads_the_store_and_each_serves_at_most_two_others() {
        let images = ImageTrees::default();
        let above: Vec<_> = (0..1000).map(|who| ask(&images, who, None, &[])).collect();
        assert_eq!(above[..5], [None, Some(0), Some(0), Some(1), Some(1)]);
        let mut steps = vec![0; 1000];
        for (who, from) in above.iter().enumerate().skip(1) {
            let from = from.expect("a source") as usize;
            assert!(from < who, "{who} reads from {from}, who asked later");
            steps[who] = steps[from] + 1;
            let readers = above.iter().filter(|other| **other == Some(from as u64));
            assert!(readers.count() <= FAN_OUT);
        }
        assert_eq!(steps.iter().max(), Some(&9));
    }

    #[test]
    fn an_agent_that_asks_again_keeps_its_place_in_the_tree() {
        let images = ImageTrees::default();
        for who in 0..4 {
            ask(&images, who, None, &[]);
        }
        assert_eq!(ask(&images, 3, None, &[]), Some(1));
        assert_eq!(ask(&images, 0, None, &[]), None);
    }

    #[test]
    fn an_agent_that_sends_nothing_or_is_gone_loses_its_place_to_the_next() {
        let images = ImageTrees::default();
        for who in 0..4 {
            ask(&images, who, None, &[]);
        }
        assert_eq!(ask(&images, 3, Some(1), &[]), Some(0));
        assert_eq!(ask(&images, 3, None, &[0]), Some(2));
        assert_eq!(ask(&images, 3, Some(2), &[0]), None, "it is the only one left");
        // No agent removes itself.
        assert_eq!(ask(&images, 3, Some(3), &[]), None);
    }

    #[test]
    fn trees_are_bounded_and_what_was_asked_for_last_stays() {
        let images = ImageTrees::default();
        let image = |number: usize| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&number.to_le_bytes());
            CodeHash(hash)
        };
        for number in 0..TREES_MAX + 10 {
            let now = Duration::from_secs(number as u64);
            images.source_of(image(number), (agent(1), None), now, |_| true);
        }
        let trees = images.0.lock().unwrap();
        assert_eq!(trees.len(), TREES_MAX);
        assert!(trees.contains_key(&image(TREES_MAX + 9)) && !trees.contains_key(&image(0)));
    }
}
