//! Agents: who is registered, who is silent, and whom to ask for cores first.

use hotlease_wire::ids::{AgentId, BootId};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Silence after which an agent is asked only when nobody else can help.
pub const SUSPECTED_AFTER: Duration = Duration::from_millis(1500);
/// Silence after which an agent is not asked at all.
pub const GONE_AFTER: Duration = Duration::from_secs(10);
/// Silence after which an agent is no longer listed.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
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
}

/// How well an agent is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AgentState {
    /// Heard of within [`SUSPECTED_AFTER`].
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

/// [`AGENTS_MAX`] agents are registered and none of them is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{AGENTS_MAX} agents are registered, and none of them is gone; start another manager")]
pub struct RegistryFull;

/// The largest holdings of any one agent that is not gone: what a refusal tells the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Most cores free on one agent.
    pub free: u32,
    /// Most cores offered by one agent.
    pub offered: u32,
}

#[derive(Debug)]
struct Entry {
    record: AgentRecord,
    state: AgentState,
    heard: Duration,
}

/// All agents that registered with a manager.
#[derive(Debug, Default)]
pub struct Registry {
    agents: BTreeMap<AgentId, Entry>,
}

impl Registry {
    /// Nobody registered.
    pub fn new() -> Self {
        Self::default()
    }

    /// An agent introduces itself, for the first time or again. A new boot replaces the old one.
    pub fn register(&mut self, record: AgentRecord, now: Duration) -> Result<(), RegistryFull> {
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&record.id) {
            let longest_gone = self
                .agents
                .iter()
                .filter(|(_, entry)| entry.state == AgentState::Gone)
                .min_by_key(|(_, entry)| entry.heard)
                .map(|(id, _)| *id);
            self.agents.remove(&longest_gone.ok_or(RegistryFull)?);
        }
        let entry = Entry {
            state: AgentState::Serving,
            heard: now,
            record,
        };
        self.agents.insert(entry.record.id, entry);
        Ok(())
    }

    /// An agent is alive. False if it is not known (in this boot) and should register again.
    pub fn heartbeat(
        &mut self,
        id: AgentId,
        boot: BootId,
        free_cores: u32,
        pool: u32,
        now: Duration,
    ) -> bool {
        match self.agents.get_mut(&id) {
            Some(entry) if entry.record.boot == boot => {
                entry.record.free_cores = free_cores;
                entry.record.pool = pool;
                entry.state = AgentState::Serving;
                entry.heard = now;
                true
            }
            _ => false,
        }
    }

    /// An agent says goodbye. A later boot of it is not meant.
    pub fn deregister(&mut self, id: AgentId, boot: BootId) {
        if self
            .agents
            .get(&id)
            .is_some_and(|entry| entry.record.boot == boot)
        {
            self.agents.remove(&id);
        }
    }

    /// Time passes: the silent become suspected, then gone, then forgotten.
    pub fn tick(&mut self, now: Duration) {
        self.agents.retain(|_, entry| {
            let silent = now.saturating_sub(entry.heard);
            entry.state = if silent >= GONE_AFTER {
                AgentState::Gone
            } else if silent >= SUSPECTED_AFTER {
                AgentState::Suspected
            } else {
                AgentState::Serving
            };
            silent < FORGOTTEN_AFTER
        });
    }

    /// Everybody, ordered by id: the record, how well it is heard (as of the last
    /// [`tick`](Self::tick) or heartbeat), and when it was last heard.
    pub fn agents(&self) -> impl Iterator<Item = (&AgentRecord, AgentState, Duration)> {
        self.agents
            .values()
            .map(|entry| (&entry.record, entry.state, entry.heard))
    }

    /// One agent.
    pub fn agent(&self, id: AgentId) -> Option<(&AgentRecord, AgentState, Duration)> {
        self.agents
            .get(&id)
            .map(|entry| (&entry.record, entry.state, entry.heard))
    }

    /// Whom to ask for this many cores, in this order.
    ///
    /// The tightest fit first, so that large gaps stay for large leases; among equals the one with the
    /// most pooled workers. Serving agents come before suspected ones, and gone ones are not asked. The
    /// number of free cores is as old as the last heartbeat, and only the agent knows; so agents that
    /// offer enough cores but seem to lack free ones come last instead of not at all.
    pub fn candidates(&self, cores: u32) -> Vec<AgentId> {
        let mut able: Vec<_> = self
            .agents
            .values()
            .filter(|entry| entry.state != AgentState::Gone && entry.record.cores.len() >= cores as usize)
            .collect();
        able.sort_by_key(|entry| {
            let free = entry.record.free_cores;
            let fits = free >= cores;
            let tightness = if fits { free } else { u32::MAX - free };
            (
                !fits,
                entry.state,
                tightness,
                Reverse(entry.record.pool),
                entry.record.id,
            )
        });
        able.into_iter().map(|entry| entry.record.id).collect()
    }

    /// The most that any agent which is not gone has, for [`hotlease_wire::Refusal::NoCapacity`].
    pub fn capacity(&self) -> Capacity {
        self.agents
            .values()
            .filter(|entry| entry.state != AgentState::Gone)
            .fold(Capacity::default(), |most, entry| Capacity {
                free: most.free.max(entry.record.free_cores),
                offered: most.offered.max(entry.record.cores.len() as u32),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: u8, offered: u32, free_cores: u32) -> AgentRecord {
        AgentRecord {
            id: AgentId([number; 8]),
            boot: BootId([number; 8]),
            address: format!("/run/agent{number}.sock"),
            session_socket: format!("/run/session{number}.sock"),
            endpoint: String::new(),
            owner: String::new(),
            cores: (0..offered).collect(),
            free_cores,
            memory_bytes: 1 << 30,
            pool: 0,
        }
    }

    fn registry(agents: &[AgentRecord]) -> Registry {
        let mut registry = Registry::new();
        for agent in agents {
            registry.register(agent.clone(), Duration::ZERO).expect("room");
        }
        registry
    }

    fn state(registry: &Registry, number: u8) -> Option<AgentState> {
        registry.agent(AgentId([number; 8])).map(|(_, state, _)| state)
    }

    #[test]
    fn silence_makes_an_agent_suspected_then_gone_then_forgotten() {
        let mut registry = registry(&[agent(1, 4, 4)]);
        let mut at = |now| {
            registry.tick(now);
            state(&registry, 1)
        };
        let moment = Duration::from_millis(1);
        assert_eq!(at(SUSPECTED_AFTER - moment), Some(AgentState::Serving));
        assert_eq!(at(SUSPECTED_AFTER), Some(AgentState::Suspected));
        assert_eq!(at(GONE_AFTER - moment), Some(AgentState::Suspected));
        assert_eq!(at(GONE_AFTER), Some(AgentState::Gone));
        assert_eq!(at(FORGOTTEN_AFTER), None);
    }

    #[test]
    fn a_heartbeat_brings_a_gone_agent_back_with_what_it_says() {
        let mut registry = registry(&[agent(1, 4, 4)]);
        registry.tick(GONE_AFTER);
        assert!(registry.candidates(1).is_empty(), "a gone agent is not asked");
        assert!(registry.heartbeat(AgentId([1; 8]), BootId([1; 8]), 2, 7, GONE_AFTER));
        let (record, state, heard) = registry.agent(AgentId([1; 8])).expect("registered");
        assert_eq!((record.free_cores, record.pool), (2, 7));
        assert_eq!((state, heard), (AgentState::Serving, GONE_AFTER));
    }

    #[test]
    fn an_unknown_agent_or_boot_is_told_to_register() {
        let mut registry = registry(&[agent(1, 4, 4)]);
        assert!(!registry.heartbeat(AgentId([2; 8]), BootId([1; 8]), 4, 0, Duration::ZERO));
        assert!(!registry.heartbeat(AgentId([1; 8]), BootId([9; 8]), 4, 0, Duration::ZERO));
        registry.deregister(AgentId([1; 8]), BootId([9; 8]));
        assert_eq!(
            registry.agents().count(),
            1,
            "another boot's goodbye changes nothing"
        );
        registry.deregister(AgentId([1; 8]), BootId([1; 8]));
        assert_eq!(registry.agents().count(), 0);
    }

    #[test]
    fn the_tightest_fit_is_asked_first_and_the_suspected_later() {
        let mut registry = registry(&[
            agent(1, 16, 16),
            agent(2, 8, 5),
            agent(3, 8, 2),
            agent(4, 4, 4),
            agent(5, 2, 2),
        ]);
        let first_bytes = |registry: &Registry, cores| {
            registry
                .candidates(cores)
                .iter()
                .map(|id| id.0[0])
                .collect::<Vec<_>>()
        };
        assert_eq!(first_bytes(&registry, 4), [4, 2, 1, 3], "5 offers too few");
        let later = SUSPECTED_AFTER;
        for number in [1, 2, 3, 5] {
            assert!(registry.heartbeat(AgentId([number; 8]), BootId([number; 8]), 8, 0, later));
        }
        registry.tick(later);
        assert_eq!(state(&registry, 4), Some(AgentState::Suspected));
        assert_eq!(first_bytes(&registry, 4), [1, 2, 3, 4]);
        assert!(registry.candidates(17).is_empty());
        assert_eq!(registry.capacity(), Capacity { free: 8, offered: 16 });
    }

    #[test]
    fn a_full_registry_drops_only_the_gone() {
        let mut registry = Registry::new();
        let numbered = |number: usize| AgentRecord {
            id: AgentId((number as u64).to_be_bytes()),
            ..agent(0, 1, 1)
        };
        for number in 0..AGENTS_MAX {
            registry
                .register(numbered(number), Duration::ZERO)
                .expect("below the limit");
        }
        assert_eq!(
            registry.register(numbered(AGENTS_MAX), Duration::ZERO),
            Err(RegistryFull)
        );
        registry
            .register(numbered(3), Duration::ZERO)
            .expect("it is registered already");
        registry.tick(GONE_AFTER);
        registry
            .register(numbered(AGENTS_MAX), GONE_AFTER)
            .expect("a gone agent makes room");
        assert_eq!(registry.agents().count(), AGENTS_MAX);
    }
}
