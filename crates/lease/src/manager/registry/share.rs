//! Choice of agents for the parts of a request that is spread over several agents.

use super::{AgentState, CANDIDATES_MAX, CandidateKey, Demand, LACKING_MAX, Need, Registry};
use hotlease_wire::ids::AgentId;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Part of a spread request for which one agent is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::manager) struct PartShare {
    /// The agent that may have room for the part.
    pub agent: AgentId,
    /// Number of workers.
    pub workers: u32,
    /// Number of workers for which the agent's offer is enough, free or not.
    pub offered: u32,
}

impl Registry {
    /// Chooses the next agent to ask, and for how many of these workers. Each worker needs `each`. `asked` contains the
    /// agents that were asked already, and for how many workers each reported room.
    ///
    /// If agents have room for all workers, the agent with the tightest fit is chosen. Else the agent with the most
    /// room is chosen, so that the parts are few. Agents that seem to be full come last: they may have room by now.
    pub(in crate::manager) fn share(
        &self,
        workers: u32,
        each: impl Into<Demand>,
        asked: &BTreeMap<AgentId, Option<u32>>,
        serves: impl Fn(&AgentId) -> bool,
    ) -> Option<PartShare> {
        let Demand { room, gpus } = each.into();
        let cores = room.count().max(1);
        debug_assert!(matches!(room, Need::Cores(_)), "places are on one agent");
        // The scarcer resource decides which agent comes first.
        let (rooms, one) = match gpus {
            0 => (&self.by_cores, cores),
            gpus => (&self.gpus, gpus),
        };
        let need = workers.saturating_mul(one);
        let from = |state, free| (state, free, Reverse(u32::MAX), AgentId([0; 8]));
        let most = |state| (state, u32::MAX, Reverse(0), AgentId([u8::MAX; 8]));
        let fitting = |state| rooms.range(from(state, need)..=most(state));
        let some = |state| rooms.range(from(state, one)..from(state, need)).rev();
        let full = |state| rooms.range(from(state, 0)..from(state, one)).rev();
        // Agents that were asked before may be skipped, so `asked.len()` more agents are considered.
        let looked_at = CANDIDATES_MAX + asked.len();
        let share = |room: &CandidateKey, hoped: bool| {
            let record = &self.agents.get(&room.3).filter(|_| serves(&room.3))?.record;
            let fit = |has_cores: u32, has_gpus: u32| {
                let by_gpus = has_gpus.checked_div(gpus).unwrap_or(u32::MAX);
                by_gpus.min(has_cores / cores)
            };
            let offered = fit(record.cores.len() as u32, record.gpus);
            let free = fit(record.free_cores, record.free_gpus);
            let room = match asked.get(&record.id) {
                None if hoped => offered,
                None => free,
                // The agent's answer is newer than its record, in which resources that were released since the last
                // report are missing.
                Some(Some(room)) => *room,
                Some(None) => 0,
            };
            (room > 0).then(|| PartShare {
                agent: record.id,
                workers: room.min(offered).min(workers),
                offered,
            })
        };
        let heard = [AgentState::Serving, AgentState::Suspected];
        let with_room = heard.into_iter().flat_map(|state| fitting(state).chain(some(state)));
        let mut with_room = with_room.take(looked_at);
        let mut hopes = heard.into_iter().flat_map(full).take(LACKING_MAX + asked.len());
        with_room
            .find_map(|room| share(room, false))
            .or_else(|| hopes.find_map(|room| share(room, true)))
            .filter(|share| share.workers > 0)
    }
}
