//! Runs of agents: which are over, and how one that only seems so proves that it lives.

use super::AGENTS_MAX;
use hotlease_wire::ids::{AgentId, BootId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Runs that are remembered to be over, so that a message of theirs which arrives late brings none back.
const OVER_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Runs {
    over: BTreeSet<BootId>,
    /// The same, the longest over first.
    over_order: VecDeque<BootId>,
    /// What a run that seems to be over has to repeat, to show that it is not.
    challenges: BTreeMap<AgentId, (BootId, u64)>,
    /// The same by their numbers, the oldest first.
    challenged: BTreeMap<u64, AgentId>,
    last_challenge: u64,
}

impl Runs {
    pub fn is_over(&self, boot: BootId) -> bool {
        self.over.contains(&boot)
    }

    pub fn note_over(&mut self, boot: BootId) {
        if self.over.insert(boot) {
            self.over_order.push_back(boot);
        }
        if self.over_order.len() > OVER_MAX
            && let Some(oldest) = self.over_order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    pub fn begin_challenges_after(&mut self, number: u64) {
        self.last_challenge = number;
    }

    pub fn challenge(&mut self, id: AgentId, boot: BootId) -> u64 {
        self.answered(id);
        // The longest unanswered one: who lives asks again.
        if self.challenges.len() >= AGENTS_MAX
            && let Some((_, oldest)) = self.challenged.pop_first()
        {
            self.challenges.remove(&oldest);
        }
        self.last_challenge = self.last_challenge.wrapping_add(1).max(1);
        self.challenges.insert(id, (boot, self.last_challenge));
        self.challenged.insert(self.last_challenge, id);
        self.last_challenge
    }

    /// No answer to an agent's challenge is waited for any more.
    pub fn answered(&mut self, id: AgentId) {
        if let Some((_, number)) = self.challenges.remove(&id) {
            self.challenged.remove(&number);
        }
    }

    pub fn prove(&mut self, id: AgentId, boot: BootId, proof: u64) -> bool {
        let is_proof = proof != 0 && self.challenges.get(&id) == Some(&(boot, proof));
        if is_proof {
            self.answered(id);
            self.over.remove(&boot);
            self.over_order.retain(|over| *over != boot);
        }
        is_proof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_that_nobody_answers_lock_nobody_out() {
        let mut runs = Runs::default();
        let boot = BootId([1; 8]);
        let of = |number: usize| AgentId((number as u64).to_be_bytes());
        let first = runs.challenge(of(0), boot);
        for number in 1..AGENTS_MAX {
            runs.challenge(of(number), boot);
        }
        let late = runs.challenge(of(AGENTS_MAX), boot);
        assert!(runs.prove(of(AGENTS_MAX), boot, late));
        assert!(!runs.prove(of(0), boot, first), "the oldest one made room for it");
        let again = runs.challenge(of(0), boot);
        assert!(runs.prove(of(0), boot, again), "and asks again");
        assert!(runs.challenges.len() < AGENTS_MAX && runs.challenged.len() == runs.challenges.len());
    }
}
