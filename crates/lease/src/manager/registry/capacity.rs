//! Largest free and offered amounts of any agent, for the texts of refusals.

use super::{AgentEntry, AgentProfile, Demand, Need, Registry};
use hotlease_wire::ids::AgentId;

/// The largest amounts of any one agent that grants leases. A refusal shows them to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Largest number of cores, or places, free on one agent.
    pub free: u32,
    /// Largest number of cores, or places, offered by one agent.
    pub offered: u32,
}

impl Registry {
    /// The largest numbers of cores or places of any agent that grants leases, for a refusal.
    pub fn capacity(&self, need: Need) -> Capacity {
        self.most(|record| Some(record.room(need)))
    }

    /// The largest numbers of GPUs of any agent that grants leases and also offers the cores or places in `beside`.
    pub fn gpu_capacity(&self, beside: Need) -> Capacity {
        let offers = |record: &AgentProfile| record.room(beside).1 >= beside.count();
        self.most(|record| offers(record).then_some((record.free_gpus, record.gpus)))
    }

    /// Whether the serving agents that `serves` accepts offer room for `workers` workers, free or not; each worker
    /// needs `each`.
    pub(in crate::manager) fn could_hold(&self, workers: u32, each: Demand, serves: impl Fn(&AgentId) -> bool) -> bool {
        let mut missing = workers;
        let serving = self
            .agents
            .iter()
            .filter(|(id, entry)| entry.takes_leases() && serves(id));
        for (_, AgentEntry { record, .. }) in serving {
            let by_gpus = record.gpus.checked_div(each.gpus).unwrap_or(u32::MAX);
            let by_room = record.room(each.room).1 / each.room.count().max(1);
            missing = missing.saturating_sub(by_room.min(by_gpus));
            if missing == 0 {
                return true;
            }
        }
        false
    }

    /// Number of workers, each of which needs `each`, for which there is room according to the last reports. Counts the
    /// agents that grant leases and that `serves` accepts.
    pub(in crate::manager) fn free_workers(&self, each: Demand, serves: impl Fn(&AgentId) -> bool) -> u32 {
        let agents = self.agents.iter();
        let serving = agents.filter(|(id, entry)| entry.takes_leases() && serves(id));
        serving.fold(0, |sum: u32, (_, AgentEntry { record, .. })| {
            let by_gpus = record.free_gpus.checked_div(each.gpus).unwrap_or(u32::MAX);
            let by_room = record.room(each.room).0 / each.room.count().max(1);
            sum.saturating_add(by_room.min(by_gpus))
        })
    }

    fn most(&self, of: impl Fn(&AgentProfile) -> Option<(u32, u32)>) -> Capacity {
        let serving = self.agents.values().filter(|entry| entry.takes_leases());
        let figures = serving.filter_map(|entry| of(&entry.record));
        figures.fold(Capacity::default(), |most, (free, offered)| Capacity {
            free: most.free.max(free),
            offered: most.offered.max(offered),
        })
    }
}
