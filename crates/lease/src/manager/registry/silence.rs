//! Pauses between the reports of agents, and the consequences of silence.

use super::{AgentState, Registry};
use crate::agent::HEARTBEAT;
use hotlease_wire::ids::AgentId;
use std::time::Duration;

/// Largest number of reports of all agents together per second. If there are more agents than [`HEARTBEAT`] times this
/// number, each agent reports less often.
pub const REPORTS_PER_SECOND_MAX: u32 = 5000;
/// Number of pauses between reports after which a silent agent is suspected.
const MISSED_MAX: u32 = 3;
/// Silence after which an agent is asked only if no other agent can serve the request. This value applies if the pause
/// is [`HEARTBEAT`]; see [`Registry::suspected_after`].
pub const SUSPECTED_AFTER: Duration = Duration::from_millis(1500);
/// Silence after which an agent is not asked at all.
pub const GONE_AFTER: Duration = Duration::from_secs(10);
/// Silence after which an agent is no longer listed.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

impl Registry {
    /// Pause between reports of each agent: [`HEARTBEAT`], or longer if there are so many agents that their reports
    /// would use up a manager's time.
    pub fn heartbeat_pause(&self) -> Duration {
        let agents = u32::try_from(self.agents.len()).unwrap_or(u32::MAX);
        HEARTBEAT.max(Duration::from_secs(1) * agents / REPORTS_PER_SECOND_MAX)
    }

    /// Silence after which an agent is asked only if no other agent can serve the request: three pauses.
    pub fn suspected_after(&self) -> Duration {
        MISSED_MAX * self.heartbeat_pause()
    }

    /// Applies the time: silent agents become suspected, then gone, then forgotten. Returns the forgotten agents.
    pub fn tick(&mut self, now: Duration) -> Vec<AgentId> {
        let silent = |heard: Duration| now.saturating_sub(heard);
        let suspected_after = self.suspected_after();
        let silent_ones = self.silence.iter();
        let silent_ones: Vec<_> = silent_ones
            .take_while(|(heard, _)| silent(*heard) >= suspected_after)
            .copied()
            .collect();
        let mut forgotten = Vec::new();
        for (heard, id) in silent_ones {
            if silent(heard) >= FORGOTTEN_AFTER {
                self.take(id);
                forgotten.push(id);
                continue;
            }
            let state = match silent(heard) >= GONE_AFTER {
                true => AgentState::Gone,
                false => AgentState::Suspected,
            };
            if self.agents.get(&id).is_some_and(|entry| entry.state != state) {
                self.change(id, |entry| entry.state = state);
            }
        }
        forgotten
    }
}
