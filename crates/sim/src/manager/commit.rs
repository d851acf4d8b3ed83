//! Commits to the disk, and their order.

use hotlease_lease::manager::{CommitId, StateWrite};
use hotlease_wire::ids::AgentId;

/// Writes on their way to the disk.
pub(super) struct Commit {
    pub id: CommitId,
    pub agent: AgentId,
    pub writes: Vec<StateWrite>,
}

impl Commit {
    /// Whether this commit may become durable before an earlier commit, as in the real daemon.
    pub fn may_overtake(&self, earlier: &Self) -> bool {
        let alone = |commit: &Self| {
            let mut writes = commit.writes.iter();
            writes.any(StateWrite::changes_agent)
        };
        self.agent != earlier.agent || !(alone(self) || alone(earlier))
    }
}
