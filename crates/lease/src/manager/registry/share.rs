//! Whom to ask for a part of a request that is spread over several agents.

use super::{AgentState, CANDIDATES_MAX, Demand, HOPES_MAX, Need, Registry, Room};
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
    /// Whom to ask for as many of these workers, of which each needs this, as it may have room for. `asked`: who was asked already, and for how
    /// many workers it said then to have room.
    ///
    /// Who has room for all of them, the tightest fit first; else the one with most, so that the parts are few. Who seems
    /// to be full comes last, as only the agent knows.
    pub(in crate::manager) fn share(
        &self,
        workers: u32,
        each: impl Into<Demand>,
        asked: &BTreeMap<AgentId, Option<u32>>,
        serves: impl Fn(&AgentId) -> bool,
    ) -> Option<Share> {
        let Demand { room, gpus } = each.into();
        let cores = room.count().max(1);
        debug_assert!(matches!(room, Need::Cores(_)), "places are on one agent");
        // What is scarcer decides who comes first.
        let (rooms, one) = match gpus {
            0 => (&self.rooms, cores),
            gpus => (&self.gpus, gpus),
        };
        let need = workers.saturating_mul(one);
        let from = |state, free| (state, free, Reverse(u32::MAX), AgentId([0; 8]));
        let most = |state| (state, u32::MAX, Reverse(0), AgentId([u8::MAX; 8]));
        let fitting = |state| rooms.range(from(state, need)..=most(state));
        let some = |state| rooms.range(from(state, one)..from(state, need)).rev();
        let full = |state| rooms.range(from(state, 0)..from(state, one)).rev();
        // Nobody who was asked for the second time is, so that at most so many are passed over.
        let looked_at = CANDIDATES_MAX + asked.len();
        let share = |room: &Room, hoped: bool| {
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
                // What it said is in the record, too, but for what others gave back since then.
                Some(Some(room)) if gpus > 0 => free.min(*room),
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
