//! Agents: who is registered, who is silent, and whom to ask for cores first.

mod capacity;
mod need;
mod runs;
mod share;
mod silence;

use crate::agent::Availability;
pub use capacity::Capacity;
use hotlease_wire::ids::{AgentId, BootId};
pub use need::{Demand, Need};
use runs::Runs;
pub(super) use share::Share;
pub use silence::{FORGOTTEN_AFTER, GONE_AFTER, REPORTS_PER_SECOND_MAX, SUSPECTED_AFTER};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// Agents that one manager remembers; beyond, the longest gone one makes room, if any is gone.
pub const AGENTS_MAX: usize = 16 * 1024;

/// What an agent said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRecord {
    /// Its identity.
    pub id: AgentId,
    /// Which run of it.
    pub boot: BootId,
    /// Where it serves gRPC.
    pub address: String,
    /// Where it takes client sessions of its own machine.
    pub session_socket: String,
    /// Where it takes those from other hosts; empty: nowhere.
    pub endpoint: String,
    /// Name of the certificate that it registered with; empty: it came over the local socket.
    pub owner: String,
    /// Cores that it offers.
    pub cores: Vec<u32>,
    /// How many of them no lease holds.
    pub free_cores: u32,
    /// Memory that it offers.
    pub memory_bytes: u64,
    /// Workers waiting in its warm pool.
    pub pool: u32,
    /// Name of its machine, as operators say it; empty: not told.
    pub host: String,
    /// Whether it takes leases.
    pub availability: Availability,
    /// The last order of an operator that it has carried out; 0: none in this run.
    pub order: u64,
    /// Places for warm slots on one shared core; 0: it shares none.
    pub places_per_core: u32,
    /// How many of them are left, on shared and on free cores.
    pub free_places: u32,
    /// GPUs that it offers.
    pub gpus: u32,
    /// How many of them no lease holds.
    pub free_gpus: u32,
}

impl AgentRecord {
    /// What it has of what is needed: free, and in all.
    fn room(&self, need: Need) -> (u32, u32) {
        let cores = self.cores.len() as u32;
        match need {
            Need::Cores(_) => (self.free_cores, cores),
            Need::Places(_) => (self.free_places, cores.saturating_mul(self.places_per_core)),
        }
    }

    /// Whether it offers all of it.
    fn offers(&self, demand: Demand) -> bool {
        self.room(demand.room).1 >= demand.room.count() && self.gpus >= demand.gpus
    }

    /// Whether all of it is free, as far as is known.
    fn has_free(&self, demand: Demand) -> bool {
        self.room(demand.room).0 >= demand.room.count() && self.free_gpus >= demand.gpus
    }
}

/// What an agent offers at the time of a report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offering {
    /// Cores.
    pub cores: Vec<u32>,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u32,
    /// Whether it takes leases.
    pub availability: Availability,
    /// The last order of an operator that it has carried out; 0: none in this run.
    pub order: u64,
}

/// How well an agent is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentState {
    /// Heard of within [`Registry::suspected_after`].
    Serving,
    /// Silent, perhaps only slow.
    Suspected,
    /// Silent for [`GONE_AFTER`]; a heartbeat brings it back.
    Gone,
}

impl fmt::Display for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Suspected => "suspected",
            Self::Gone => "gone",
        })
    }
}

/// Why an agent was not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRegistered {
    /// [`AGENTS_MAX`] agents are registered and none of them is gone.
    #[error("{AGENTS_MAX} agents are registered, and none of them is gone; start another manager")]
    Full,
    /// A message of a run that is over: a later one has registered, or it has said goodbye.
    #[error("this run of the agent is over")]
    Over,
}

#[derive(Debug)]
struct Entry {
    record: AgentRecord,
    state: AgentState,
    heard: Duration,
}

/// An agent that may be asked, in the order of a tightest fit: how well it is heard, its free cores or places,
/// the most pooled workers first.
type Room = (AgentState, u32, Reverse<u32>, AgentId);

impl Entry {
    fn takes_leases(&self) -> bool {
        self.state != AgentState::Gone && self.record.availability == Availability::Serving
    }

    fn rooms(&self) -> Option<[Room; 3]> {
        let record = &self.record;
        let room = |free| (self.state, free, Reverse(record.pool), record.id);
        self.takes_leases()
            .then(|| [record.free_cores, record.free_places, record.free_gpus].map(room))
    }
}

/// Agents that are proposed of those that seem to lack free cores: a full site is told so after a few questions.
const HOPES_MAX: usize = 16;
/// Agents that are proposed in all.
const CANDIDATES_MAX: usize = 64;

/// All agents that registered with a manager. No request looks at all of them.
#[derive(Debug, Default)]
pub struct Registry {
    agents: BTreeMap<AgentId, Entry>,
    /// Whom to ask: all that take leases and are not gone.
    rooms: BTreeSet<Room>,
    /// The same, by their free places on shared cores.
    places: BTreeSet<Room>,
    /// Those of them that offer GPUs, by how many of these are free.
    gpus: BTreeSet<Room>,
    /// When each was last heard, the longest silent first.
    silence: BTreeSet<(Duration, AgentId)>,
    runs: Runs,
}

impl Registry {
    /// Nobody registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`register`](Self::register) would take it.
    pub fn admits(&self, id: AgentId, boot: BootId) -> Result<(), NotRegistered> {
        if self.is_over(boot) {
            return Err(NotRegistered::Over);
        }
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&id) && self.longest_gone().is_none()
        {
            return Err(NotRegistered::Full);
        }
        Ok(())
    }

    fn longest_gone(&self) -> Option<AgentId> {
        let gone = self
            .agents
            .values()
            .filter(|entry| entry.state == AgentState::Gone);
        gone.min_by_key(|entry| entry.heard).map(|entry| entry.record.id)
    }

    /// An agent introduces itself, for the first time or again; its former run is over. Whoever calls this has
    /// seen that this run lives, if another one is known: see [`prove`](Self::prove).
    pub fn register(&mut self, record: AgentRecord, now: Duration) -> Result<(), NotRegistered> {
        self.admits(record.id, record.boot)?;
        if self.agents.len() >= AGENTS_MAX
            && !self.agents.contains_key(&record.id)
            && let Some(longest_gone) = self.longest_gone()
        {
            self.take(longest_gone);
        }
        let entry = Entry {
            state: AgentState::Serving,
            heard: now,
            record,
        };
        let (id, boot) = (entry.record.id, entry.record.boot);
        self.runs.answered(id);
        if let Some(former) = self.take(id)
            && former.record.boot != boot
        {
            self.runs.note_over(former.record.boot);
        }
        self.put(entry);
        Ok(())
    }

    fn put(&mut self, entry: Entry) {
        if let Some([cores, places, gpus]) = entry.rooms() {
            self.rooms.insert(cores);
            self.places.insert(places);
            if entry.record.gpus > 0 {
                self.gpus.insert(gpus);
            }
        }
        self.silence.insert((entry.heard, entry.record.id));
        self.agents.insert(entry.record.id, entry);
    }

    fn take(&mut self, id: AgentId) -> Option<Entry> {
        let entry = self.agents.remove(&id)?;
        if let Some([cores, places, gpus]) = entry.rooms() {
            self.rooms.remove(&cores);
            self.places.remove(&places);
            self.gpus.remove(&gpus);
        }
        self.silence.remove(&(entry.heard, id));
        Some(entry)
    }

    /// Changes an entry, and its places in the orders.
    fn change(&mut self, id: AgentId, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.take(id) {
            change(&mut entry);
            self.put(entry);
        }
    }

    /// Challenges begin after this number: one that an earlier manager gave is none of this one's.
    pub fn with_challenges_after(mut self, number: u64) -> Self {
        self.runs.begin_challenges_after(number);
        self
    }

    /// A number that a run has to repeat which seems to be over, or would replace another one. First words may come
    /// late and in either order, so nobody can say which of two runs is the later one; but a message that repeats
    /// this was written after it, and of all runs of an agent one is alive.
    pub fn challenge(&mut self, id: AgentId, boot: BootId) -> u64 {
        self.runs.challenge(id, boot)
    }

    /// Whether this run repeats its last challenge: then it is not over. Once for each challenge.
    pub fn prove(&mut self, id: AgentId, boot: BootId, proof: u64) -> bool {
        self.runs.prove(id, boot, proof)
    }

    /// Whether this run is known to be over.
    pub fn is_over(&self, boot: BootId) -> bool {
        self.runs.is_over(boot)
    }

    /// An agent is alive. False if it is not known (in this boot) and should register again.
    pub fn heartbeat(
        &mut self,
        id: AgentId,
        boot: BootId,
        (free_cores, free_places, free_gpus): (u32, u32, u32),
        pool: u32,
        now: Duration,
    ) -> bool {
        let known = self
            .agents
            .get(&id)
            .is_some_and(|entry| entry.record.boot == boot);
        self.change(id, |entry| {
            if known {
                entry.record.free_cores = free_cores;
                entry.record.free_places = free_places;
                entry.record.free_gpus = free_gpus;
                entry.record.pool = pool;
                entry.state = AgentState::Serving;
                entry.heard = now;
            }
        });
        known
    }

    /// An agent granted this: until it reports again, it has so much less.
    pub fn granted(&mut self, id: AgentId, demand: impl Into<Demand>) {
        let Demand { room, gpus } = demand.into();
        self.change(id, |Entry { record, .. }| {
            record.free_gpus = record.free_gpus.saturating_sub(gpus);
            match room {
                Need::Cores(cores) => {
                    record.free_cores = record.free_cores.saturating_sub(cores);
                    let places = cores.saturating_mul(record.places_per_core);
                    record.free_places = record.free_places.saturating_sub(places);
                }
                // How many cores became shared by it, it will say.
                Need::Places(places) => record.free_places = record.free_places.saturating_sub(places),
            }
        });
    }

    /// A lease with this is over.
    pub fn released(&mut self, id: AgentId, demand: impl Into<Demand>) {
        let Demand { room: need, gpus } = demand.into();
        self.change(id, |Entry { record, .. }| {
            record.free_gpus = record.free_gpus.saturating_add(gpus).min(record.gpus);
            let (free, offered) = record.room(need);
            let free = free.saturating_add(need.count()).min(offered);
            match need {
                Need::Cores(_) => record.free_cores = free,
                Need::Places(_) => record.free_places = free,
            }
        });
    }

    /// An agent has no more than this: it said so.
    pub fn full(&mut self, id: AgentId, free: Need) {
        self.change(id, |Entry { record, .. }| match free {
            Need::Cores(free) => record.free_cores = free.min(record.free_cores),
            Need::Places(free) => record.free_places = free.min(record.free_places),
        });
    }

    /// An agent has no more free GPUs than this: it said so.
    pub fn no_gpus(&mut self, id: AgentId, free: u32) {
        self.change(id, |Entry { record, .. }| {
            record.free_gpus = free.min(record.free_gpus)
        });
    }

    /// What a registered agent offers now.
    pub fn offers(&mut self, id: AgentId, offering: Offering) {
        let same = self.agents.get(&id).is_some_and(|entry| {
            let record = &entry.record;
            record.cores == offering.cores
                && record.memory_bytes == offering.memory_bytes
                && record.gpus == offering.gpus
                && record.availability == offering.availability
                && record.order == offering.order
        });
        if same {
            return;
        }
        self.change(id, |entry| {
            let record = &mut entry.record;
            record.cores = offering.cores;
            record.free_cores = record.free_cores.min(record.cores.len() as u32);
            record.memory_bytes = offering.memory_bytes;
            record.gpus = offering.gpus;
            record.free_gpus = record.free_gpus.min(record.gpus);
            record.availability = offering.availability;
            record.order = offering.order;
        });
    }

    /// An agent says goodbye. A later boot of it is not meant.
    pub fn deregister(&mut self, id: AgentId, boot: BootId) {
        if self
            .agents
            .get(&id)
            .is_some_and(|entry| entry.record.boot == boot)
        {
            self.take(id);
            self.runs.note_over(boot);
        }
    }

    /// Everybody, ordered by id: the record, how well it is heard (as of the last
    /// [`tick`](Self::tick) or heartbeat), and when it was last heard.
    pub fn agents(&self) -> impl Iterator<Item = (&AgentRecord, AgentState, Duration)> {
        self.agents
            .values()
            .map(|entry| (&entry.record, entry.state, entry.heard))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether nobody is registered.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// One agent.
    pub fn agent(&self, id: AgentId) -> Option<(&AgentRecord, AgentState, Duration)> {
        self.agents
            .get(&id)
            .map(|entry| (&entry.record, entry.state, entry.heard))
    }

    /// Whom to ask for this many cores or places, and GPUs, in this order. Only nodes that take leases.
    ///
    /// The tightest fit first, so that large gaps stay for large leases; among equals the one with the
    /// most pooled workers. Serving agents come before suspected ones, and gone ones are not asked. The
    /// number of free cores is as old as the last heartbeat, and only the agent knows; so a few agents that
    /// offer enough cores but seem to lack free ones come last instead of not at all. Where GPUs are wanted, only agents
    /// that offer them are looked at, and their GPUs are what is to fit tightly.
    pub fn candidates(&self, demand: impl Into<Demand>) -> Vec<AgentId> {
        let demand = demand.into();
        let (rooms, count) = match demand {
            Demand {
                room: Need::Cores(count),
                gpus: 0,
            } => (&self.rooms, count),
            Demand {
                room: Need::Places(count),
                gpus: 0,
            } => (&self.places, count),
            Demand { gpus, .. } => (&self.gpus, gpus),
        };
        // The least room of all that have so many free.
        let from = |state, free| (state, free, Reverse(u32::MAX), AgentId([0; 8]));
        let most = |state| (state, u32::MAX, Reverse(0), AgentId([u8::MAX; 8]));
        let fits = |state| rooms.range(from(state, count)..=most(state));
        let lacks = |state| rooms.range(from(state, 0)..from(state, count)).rev();
        let record = |room: &Room| self.agents.get(&room.3).map(|entry| &entry.record);
        let offers = |room: &&Room| record(room).is_some_and(|record| record.offers(demand));
        let has_free = |room: &&Room| record(room).is_some_and(|record| record.has_free(demand));
        let heard = [AgentState::Serving, AgentState::Suspected];
        let fitting = heard.into_iter().flat_map(fits).filter(offers).filter(has_free);
        // They have the GPUs, and seem to lack the cores.
        let coreless = heard.into_iter().filter(|_| demand.gpus > 0).flat_map(fits);
        let coreless = coreless.filter(offers).filter(|room| !has_free(room));
        let lacking = heard.into_iter().flat_map(lacks).filter(offers);
        let hopes = coreless.chain(lacking).take(HOPES_MAX);
        let all = fitting.take(CANDIDATES_MAX).chain(hopes);
        all.map(|room| room.3).collect()
    }
}

#[cfg(test)]
mod tests;
