//! Registered agents: whether each still reports, and which agents to ask for cores first.

mod capacity;
mod need;
mod runs;
mod share;
mod silence;

use crate::agent::{Availability, NodeLimits};
pub use capacity::Capacity;
use hotlease_wire::ids::{AgentId, BootId};
pub use need::{Demand, Need};
use runs::AgentRuns;
pub use silence::{FORGOTTEN_AFTER, GONE_AFTER, REPORTS_PER_SECOND_MAX, SUSPECTED_AFTER};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of agents that one manager remembers. For a further agent, the agent that has been gone for longest
/// is forgotten, if any is gone.
pub const AGENTS_MAX: usize = 16 * 1024;

/// Description of an agent, by its own report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProfile {
    /// The agent's identity.
    pub id: AgentId,
    /// The present run of the agent.
    pub boot: BootId,
    /// Address at which the agent serves gRPC.
    pub address: String,
    /// Socket at which the agent accepts client sessions of its own node.
    pub session_socket: String,
    /// Endpoint at which the agent accepts sessions from other hosts; empty if there is none.
    pub endpoint: String,
    /// Name of the certificate with which the agent registered; empty if it registered over the local socket.
    pub owner: String,
    /// Cores that the agent offers.
    pub cores: Vec<u32>,
    /// Number of offered cores that no lease holds.
    pub free_cores: u32,
    /// Memory that the agent offers, bytes.
    pub memory_bytes: u64,
    /// Spare workers in the agent's pool.
    pub pool: u32,
    /// Name of the agent's node, as operators call it; empty if unknown.
    pub host: String,
    /// Whether the agent grants leases.
    pub availability: Availability,
    /// The last order of an operator that the agent has carried out; 0 if there was none in this run.
    pub order: u64,
    /// Places for warm slots on one shared core; 0 if the agent shares no core.
    pub places_per_core: u32,
    /// Free places, on shared and on free cores.
    pub free_places: u32,
    /// GPUs that the agent offers.
    pub gpus: u32,
    /// Number of offered GPUs that no lease holds.
    pub free_gpus: u32,
    /// Numbers of the offered GPUs.
    pub gpu_numbers: Vec<u32>,
    /// All resources that the agent can offer; `None` if the agent has not reported them.
    pub limits: Option<Arc<NodeLimits>>,
}

impl AgentProfile {
    /// Numbers of free and of offered cores or places, depending on the need.
    fn room(&self, need: Need) -> (u32, u32) {
        let cores = self.cores.len() as u32;
        match need {
            Need::Cores(_) => (self.free_cores, cores),
            Need::Places(_) => (self.free_places, cores.saturating_mul(self.places_per_core)),
        }
    }

    /// Whether the agent offers the demanded resources, free or not.
    fn offers(&self, demand: Demand) -> bool {
        self.room(demand.room).1 >= demand.room.count() && self.gpus >= demand.gpus
    }

    /// Whether the demanded resources are free, according to the last report.
    fn has_free(&self, demand: Demand) -> bool {
        self.room(demand.room).0 >= demand.room.count() && self.free_gpus >= demand.gpus
    }
}

/// Offer of an agent at the time of a report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentOffer {
    /// Cores.
    pub cores: Vec<u32>,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u32,
    /// Numbers of the GPUs.
    pub gpu_numbers: Vec<u32>,
    /// Whether the agent grants leases.
    pub availability: Availability,
    /// The last order of an operator that the agent has carried out; 0 if there was none in this run.
    pub order: u64,
}

/// How recently an agent has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentState {
    /// Reported within [`Registry::suspected_after`].
    Serving,
    /// Silent, perhaps only slow.
    Suspected,
    /// Silent for [`GONE_AFTER`]; after a heartbeat the agent is serving again.
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
pub enum RegistrationError {
    /// [`AGENTS_MAX`] agents are registered and none of them is gone.
    #[error("{AGENTS_MAX} agents are registered, and none of them is gone; start another manager")]
    Full,
    /// The message is from a run that is over: a later run has registered, or this run has said goodbye.
    #[error("this run of the agent is over")]
    RunEnded,
}

#[derive(Debug)]
struct AgentEntry {
    record: AgentProfile,
    state: AgentState,
    last_heard: Duration,
}

/// Sort key of an agent that may be asked: the agent's state, then its free cores, places or GPUs, fewest first, so
/// that the tightest fit comes first, then its spare workers, most first.
type CandidateKey = (AgentState, u32, Reverse<u32>, AgentId);

impl AgentEntry {
    fn takes_leases(&self) -> bool {
        self.state != AgentState::Gone && self.record.availability == Availability::Serving
    }

    fn rooms(&self) -> Option<[CandidateKey; 3]> {
        let record = &self.record;
        let room = |free| (self.state, free, Reverse(record.pool), record.id);
        self.takes_leases()
            .then(|| [record.free_cores, record.free_places, record.free_gpus].map(room))
    }
}

/// Largest number of agents that are proposed although they seem to lack free cores. If the whole site is full, the
/// manager refuses a request after this many questions.
const LACKING_MAX: usize = 16;
/// Largest number of agents that are proposed because they seem to have free cores.
const CANDIDATES_MAX: usize = 64;

/// All agents that registered with a manager. Sorted sets make it unnecessary to go through all agents for a request.
#[derive(Debug, Default)]
pub struct Registry {
    agents: BTreeMap<AgentId, AgentEntry>,
    /// Agents to ask, by their free cores: all agents that grant leases and are not gone.
    by_cores: BTreeSet<CandidateKey>,
    /// Agents to ask, by their free places on shared cores.
    places: BTreeSet<CandidateKey>,
    /// Agents to ask that offer GPUs, by their free GPUs.
    gpus: BTreeSet<CandidateKey>,
    /// When each agent last reported, the longest silent agent first.
    silence: BTreeSet<(Duration, AgentId)>,
    runs: AgentRuns,
}

impl Registry {
    /// Makes a registry without agents.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`register`](Self::register) would accept this run.
    pub fn check_admission(&self, id: AgentId, boot: BootId) -> Result<(), RegistrationError> {
        if self.is_over(boot) {
            return Err(RegistrationError::RunEnded);
        }
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&id) && self.longest_gone().is_none() {
            return Err(RegistrationError::Full);
        }
        Ok(())
    }

    fn longest_gone(&self) -> Option<AgentId> {
        let gone = self.agents.values().filter(|entry| entry.state == AgentState::Gone);
        gone.min_by_key(|entry| entry.last_heard).map(|entry| entry.record.id)
    }

    /// Registers an agent, for the first time or again. Its former run is then over. If another run is known, the
    /// caller must have made sure that this run is alive: see [`prove`](Self::prove).
    pub fn register(&mut self, record: AgentProfile, now: Duration) -> Result<(), RegistrationError> {
        self.check_admission(record.id, record.boot)?;
        if self.agents.len() >= AGENTS_MAX
            && !self.agents.contains_key(&record.id)
            && let Some(longest_gone) = self.longest_gone()
        {
            self.take(longest_gone);
        }
        let entry = AgentEntry {
            state: AgentState::Serving,
            last_heard: now,
            record,
        };
        let (id, boot) = (entry.record.id, entry.record.boot);
        self.runs.drop_challenge(id);
        if let Some(former) = self.take(id)
            && former.record.boot != boot
        {
            self.runs.note_over(former.record.boot);
        }
        self.put(entry);
        Ok(())
    }

    fn put(&mut self, entry: AgentEntry) {
        if let Some([cores, places, gpus]) = entry.rooms() {
            self.by_cores.insert(cores);
            self.places.insert(places);
            if entry.record.gpus > 0 {
                self.gpus.insert(gpus);
            }
        }
        self.silence.insert((entry.last_heard, entry.record.id));
        self.agents.insert(entry.record.id, entry);
    }

    fn take(&mut self, id: AgentId) -> Option<AgentEntry> {
        let entry = self.agents.remove(&id)?;
        if let Some([cores, places, gpus]) = entry.rooms() {
            self.by_cores.remove(&cores);
            self.places.remove(&places);
            self.gpus.remove(&gpus);
        }
        self.silence.remove(&(entry.last_heard, id));
        Some(entry)
    }

    /// Changes an entry, and its positions in the sorted sets.
    fn change(&mut self, id: AgentId, change: impl FnOnce(&mut AgentEntry)) {
        if let Some(mut entry) = self.take(id) {
            change(&mut entry);
            self.put(entry);
        }
    }

    /// Starts the numbers of challenges after this number, so that a challenge of an earlier manager is not valid.
    pub fn with_challenges_after(mut self, number: u64) -> Self {
        self.runs.begin_challenges_after(number);
        self
    }

    /// Makes the number that a run has to repeat if it seems to be over, or would replace another run. First messages
    /// of runs may arrive late and in either order, so the manager cannot decide which of two runs is the later run.
    /// But a message that repeats this number was written after the challenge, and only one run of an agent is alive at
    /// a time.
    pub fn challenge(&mut self, id: AgentId, boot: BootId) -> u64 {
        self.runs.challenge(id, boot)
    }

    /// Accepts the proof of a run that repeats its last challenge: the run is not over. Works once for each
    /// challenge.
    pub fn prove(&mut self, id: AgentId, boot: BootId, proof: u64) -> bool {
        self.runs.prove(id, boot, proof)
    }

    /// Whether this run is known to be over.
    pub fn is_over(&self, boot: BootId) -> bool {
        self.runs.is_over(boot)
    }

    /// Notes that an agent is alive. Returns `false` if this run of the agent is not known and should register again.
    pub fn heartbeat(
        &mut self,
        id: AgentId,
        boot: BootId,
        (free_cores, free_places, free_gpus): (u32, u32, u32),
        pool: u32,
        now: Duration,
    ) -> bool {
        let known = self.agents.get(&id).is_some_and(|entry| entry.record.boot == boot);
        self.change(id, |entry| {
            if known {
                entry.record.free_cores = free_cores;
                entry.record.free_places = free_places;
                entry.record.free_gpus = free_gpus;
                entry.record.pool = pool;
                entry.state = AgentState::Serving;
                entry.last_heard = now;
            }
        });
        known
    }

    /// Subtracts the resources that an agent granted, until the agent reports again.
    pub fn note_granted(&mut self, id: AgentId, demand: impl Into<Demand>) {
        let Demand { room, gpus } = demand.into();
        self.change(id, |AgentEntry { record, .. }| {
            record.free_gpus = record.free_gpus.saturating_sub(gpus);
            match room {
                Need::Cores(cores) => {
                    record.free_cores = record.free_cores.saturating_sub(cores);
                    let places = cores.saturating_mul(record.places_per_core);
                    record.free_places = record.free_places.saturating_sub(places);
                }
                // The number of free cores may change, too; the agent will report it.
                Need::Places(places) => record.free_places = record.free_places.saturating_sub(places),
            }
        });
    }

    /// Adds the resources of a lease that is over.
    pub fn note_released(&mut self, id: AgentId, demand: impl Into<Demand>) {
        let Demand { room: need, gpus } = demand.into();
        self.change(id, |AgentEntry { record, .. }| {
            record.free_gpus = record.free_gpus.saturating_add(gpus).min(record.gpus);
            let (free, offered) = record.room(need);
            let free = free.saturating_add(need.count()).min(offered);
            match need {
                Need::Cores(_) => record.free_cores = free,
                Need::Places(_) => record.free_places = free,
            }
        });
    }

    /// Notes an agent's answer that it has no more free cores or places than this.
    pub fn note_full(&mut self, id: AgentId, free: Need) {
        self.change(id, |AgentEntry { record, .. }| match free {
            Need::Cores(free) => record.free_cores = free.min(record.free_cores),
            Need::Places(free) => record.free_places = free.min(record.free_places),
        });
    }

    /// Notes an agent's answer that it has no more free GPUs than this.
    pub fn note_no_gpus(&mut self, id: AgentId, free: u32) {
        self.change(id, |AgentEntry { record, .. }| {
            record.free_gpus = free.min(record.free_gpus)
        });
    }

    /// Notes the present offer of a registered agent.
    pub fn offers(&mut self, id: AgentId, offering: AgentOffer) {
        let same = self.agents.get(&id).is_some_and(|entry| {
            let record = &entry.record;
            record.cores == offering.cores
                && record.memory_bytes == offering.memory_bytes
                && record.gpus == offering.gpus
                && record.gpu_numbers == offering.gpu_numbers
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
            record.gpu_numbers = offering.gpu_numbers;
            record.free_gpus = record.free_gpus.min(record.gpus);
            record.availability = offering.availability;
            record.order = offering.order;
        });
    }

    /// Removes an agent that says goodbye. If a later run of the agent has registered, that run stays.
    pub fn deregister(&mut self, id: AgentId, boot: BootId) {
        if self.agents.get(&id).is_some_and(|entry| entry.record.boot == boot) {
            self.take(id);
            self.runs.note_over(boot);
        }
    }

    /// All agents, ordered by id: the record, the state (as of the last [`tick`](Self::tick) or heartbeat), and when
    /// the agent last reported.
    pub fn agents(&self) -> impl Iterator<Item = (&AgentProfile, AgentState, Duration)> {
        self.agents
            .values()
            .map(|entry| (&entry.record, entry.state, entry.last_heard))
    }

    /// Number of agents.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Whether no agent is registered.
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// One agent: its record, its state, and when it last reported.
    pub fn agent(&self, id: AgentId) -> Option<(&AgentProfile, AgentState, Duration)> {
        self.agents
            .get(&id)
            .map(|entry| (&entry.record, entry.state, entry.last_heard))
    }

    /// Agents to ask for these cores or places, and GPUs, in this order. Only nodes that grant leases are among them.
    ///
    /// The tightest fit comes first, so that large gaps stay for large leases. Among equal fits, the agent with the
    /// most spare workers comes first. Serving agents come before suspected agents, and gone agents are not asked. The
    /// number of free cores is as old as the last heartbeat, and may have changed. So a few agents that offer enough
    /// cores, but seem to lack free cores, come last. If GPUs are wanted, only agents that offer GPUs are considered,
    /// and their GPUs determine the fit.
    pub fn candidates(&self, demand: impl Into<Demand>) -> Vec<AgentId> {
        let demand = demand.into();
        let (rooms, count) = match demand {
            Demand {
                room: Need::Cores(count),
                gpus: 0,
            } => (&self.by_cores, count),
            Demand {
                room: Need::Places(count),
                gpus: 0,
            } => (&self.places, count),
            Demand { gpus, .. } => (&self.gpus, gpus),
        };
        // Smallest key of an agent in this state with `free` cores, places or GPUs.
        let from = |state, free| (state, free, Reverse(u32::MAX), AgentId([0; 8]));
        let most = |state| (state, u32::MAX, Reverse(0), AgentId([u8::MAX; 8]));
        let fits = |state| rooms.range(from(state, count)..=most(state));
        let lacks = |state| rooms.range(from(state, 0)..from(state, count)).rev();
        let record = |room: &CandidateKey| self.agents.get(&room.3).map(|entry| &entry.record);
        let offers = |room: &&CandidateKey| record(room).is_some_and(|record| record.offers(demand));
        let has_free = |room: &&CandidateKey| record(room).is_some_and(|record| record.has_free(demand));
        let heard = [AgentState::Serving, AgentState::Suspected];
        let fitting = heard.into_iter().flat_map(fits).filter(offers).filter(has_free);
        // Agents that have the GPUs and seem to lack the cores.
        let coreless = heard.into_iter().filter(|_| demand.gpus > 0).flat_map(fits);
        let coreless = coreless.filter(offers).filter(|room| !has_free(room));
        let lacking = heard.into_iter().flat_map(lacks).filter(offers);
        let hopes = coreless.chain(lacking).take(LACKING_MAX);
        let all = fitting.take(CANDIDATES_MAX).chain(hopes);
        all.map(|room| room.3).collect()
    }
}

#[cfg(test)]
mod tests;
