//! Runs of agents: the runs that are over, and the proof of a run that it is alive although it seems to be over.

use super::AGENTS_MAX;
use hotlease_wire::ids::{AgentId, BootId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Largest number of runs that are remembered as over, so that a late message of such a run is not accepted.
const OVER_MAX: usize = 4096;

/// The runs that are over, and the challenges that wait for proof.
#[derive(Debug, Default)]
pub(super) struct AgentRuns {
    ended: BTreeSet<BootId>,
    /// The runs that are over, the earliest first.
    ended_order: VecDeque<BootId>,
    /// Challenges: the number that a run has to repeat to prove that it is alive.
    challenges: BTreeMap<AgentId, (BootId, u64)>,
    /// The challenged agents by the challenge's number, the oldest first.
    challenged: BTreeMap<u64, AgentId>,
    last_challenge: u64,
}

impl AgentRuns {
    pub fn is_over(&self, boot: BootId) -> bool {
        self.ended.contains(&boot)
    }

    pub fn note_over(&mut self, boot: BootId) {
        if self.ended.insert(boot) {
            self.ended_order.push_back(boot);
        }
        if self.ended_order.len() > OVER_MAX
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    pub fn begin_challenges_after(&mut self, number: u64) {
        self.last_challenge = number;
    }

    pub fn challenge(&mut self, id: AgentId, boot: BootId) -> u64 {
        self.drop_challenge(id);
        // Drops the challenge that has been unanswered for longest. A living run registers again, and gets a new
        // challenge.
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

    /// Drops the challenge of an agent.
    pub fn drop_challenge(&mut self, id: AgentId) {
        if let Some((_, number)) = self.challenges.remove(&id) {
            self.challenged.remove(&number);
        }
    }

    pub fn prove(&mut self, id: AgentId, boot: BootId, proof: u64) -> bool {
        let is_proof = proof != 0 && self.challenges.get(&id) == Some(&(boot, proof));
        if is_proof {
            self.drop_challenge(id);
            self.ended.remove(&boot);
            self.ended_order.retain(|over| *over != boot);
        }
        is_proof
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_that_are_not_answered_lock_no_agent_out() {
        let mut runs = AgentRuns::default();
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
