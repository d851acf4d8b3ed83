//! What goes to the disk, and in which order.

use hotlease_lease::manager::{CommitId, Write};
use hotlease_wire::ids::AgentId;

/// Writes on their way to the disk.
pub(super) struct Commit {
    pub id: CommitId,
    pub agent: AgentId,
    pub writes: Vec<Write>,
}

impl Commit {
    /// Whether this one may overtake that one, as the daemon's writers let it.
    pub fn may_overtake(&self, earlier: &Self) -> bool {
        let alone = |commit: &Self| {
            let mut writes = commit.writes.iter();
            writes.any(Write::changes_agent)
        };
        self.agent != earlier.agent || !(alone(self) || alone(earlier))
    }
}
