//! What there is of something, for refusals that say so.

use super::{AgentRecord, Need, Registry};

/// The largest holdings of any one agent that is not gone: what a refusal tells the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Most cores, or places, free on one agent.
    pub free: u32,
    /// Most offered by one agent.
    pub offered: u32,
}

impl Registry {
    /// The most that any agent which takes leases has of what is needed, for a refusal.
    pub fn capacity(&self, need: Need) -> Capacity {
        self.most(|record| Some(record.room(need)))
    }

    /// The most GPUs that any agent has which takes leases and offers the cores or places, too.
    pub fn gpu_capacity(&self, beside: Need) -> Capacity {
        let offers = |record: &AgentRecord| record.room(beside).1 >= beside.count();
        self.most(|record| offers(record).then_some((record.free_gpus, record.gpus)))
    }

    fn most(&self, of: impl Fn(&AgentRecord) -> Option<(u32, u32)>) -> Capacity {
        let serving = self.agents.values().filter(|entry| entry.takes_leases());
        let figures = serving.filter_map(|entry| of(&entry.record));
        figures.fold(Capacity::default(), |most, (free, offered)| Capacity {
            free: most.free.max(free),
            offered: most.offered.max(offered),
        })
    }
}
