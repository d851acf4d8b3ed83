//! Whom to ask for a part of a request that is spread over several agents.

use super::{AgentState, CANDIDATES_MAX, HOPES_MAX, Registry, Room};
use hotlease_wire::ids::AgentId;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A part of a request that is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::manager) struct Share {
    /// Who may have room for it.
    pub agent: AgentId,
    /// For so many workers.
    pub workers: u32,
}

impl Registry {
    /// Whom to ask for as many of these workers as it may have room for. `asked`: who was asked already, and for how
    /// many workers it said then to have room.
    ///
    /// Who has room for all of them, the tightest fit first; else the one with most, so that the parts are few. Who seems
    /// to be full comes last, as only the agent knows.
    pub(in crate::manager) fn share(
        &self,
        workers: u32,
        cores: u32,
        asked: &BTreeMap<AgentId, Option<u32>>,
        serves: impl Fn(&AgentId) -> bool,
    ) -> Option<Share> {
        let cores = cores.max(1);
        let need = workers.saturating_mul(cores);
        let from = |state, free| (state, free, Reverse(u32::MAX), AgentId([0; 8]));
        let most = |state| (state, u32::MAX, Reverse(0), AgentId([u8::MAX; 8]));
        let fitting = |state| self.rooms.range(from(state, need)..=most(state));
        let some = |state| self.rooms.range(from(state, cores)..from(state, need)).rev();
        let full = |state| self.rooms.range(from(state, 0)..from(state, cores)).rev();
        // Nobody who was asked for the second time is, so that at most so many are passed over.
        let looked_at = CANDIDATES_MAX + asked.len();
        let share = |room: &Room, hoped: bool| {
            let record = &self.agents.get(&room.3).filter(|_| serves(&room.3))?.record;
            let offered = record.cores.len() as u32 / cores;
            let room = match asked.get(&record.id) {
                None if hoped => offered,
                None => room.1 / cores,
                Some(Some(room)) => *room,
                Some(None) => 0,
            };
            (room > 0).then(|| Share {
                agent: record.id,
                workers: room.min(offered).min(workers),
            })
        };
        let heard = [AgentState::Serving, AgentState::Suspected];
        let with_room = heard
            .into_iter()
            .flat_map(|state| fitting(state).chain(some(state)));
        let mut with_room = with_room.take(looked_at);
        let mut hopes = heard.into_iter().flat_map(full).take(HOPES_MAX + asked.len());
        with_room
            .find_map(|room| share(room, false))
            .or_else(|| hopes.find_map(|room| share(room, true)))
            .filter(|share| share.workers > 0)
    }
}
