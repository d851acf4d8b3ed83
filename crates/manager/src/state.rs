//! What the manager's requests share.

use crate::ManagerConfig;
use crate::links::Links;
use crate::records::bad;
use hotlease_lease::manager::{AgentRecord, AgentState, Registry};
use hotlease_store::{Store, StoreError};
use hotlease_wire::Refusal;
use hotlease_wire::ids::{AgentId, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// See the module.
pub(crate) struct State {
    pub(crate) config: ManagerConfig,
    pub(crate) links: Links,
    /// True once a client asked the manager to stop.
    pub(crate) asked_to_stop: watch::Sender<bool>,
    /// The agent that registered last.
    pub(crate) newest_agent: watch::Sender<Option<AgentRecord>>,
    /// Held while an agent comes or goes, so that registry and store change together: whoever compares
    /// them never sees one half of a registration.
    pub(crate) membership: tokio::sync::Mutex<()>,
    started: Instant,
    /// Soft state: lost with the process, healed by the agents' next heartbeats. Held only for look-ups
    /// and changes in memory, never across an await.
    registry: Mutex<Registry>,
    /// Leases, by agent, that the last heartbeat did not name: see [`crate::membership`].
    unreported: Mutex<BTreeMap<AgentId, BTreeSet<LeaseId>>>,
}

impl State {
    pub(crate) fn new(config: ManagerConfig) -> Self {
        Self {
            links: Links::new(
                config
                    .network
                    .as_ref()
                    .map(|network| Arc::clone(&network.identity)),
            ),
            config,
            asked_to_stop: watch::Sender::new(false),
            newest_agent: watch::Sender::new(None),
            membership: tokio::sync::Mutex::default(),
            started: Instant::now(),
            registry: Mutex::default(),
            unreported: Mutex::default(),
        }
    }

    /// Time since the start: the clock of the pure state machines.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unreported(&self) -> MutexGuard<'_, BTreeMap<AgentId, BTreeSet<LeaseId>>> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Agents as they are now, with how long each has been silent.
    pub(crate) fn agents(&self) -> Vec<(AgentRecord, AgentState, Duration)> {
        let now = self.now();
        let mut registry = self.registry();
        registry.tick(now);
        let agents = registry.agents();
        agents
            .map(|(record, state, heard)| (record.clone(), state, now.saturating_sub(heard)))
            .collect()
    }

    /// Agents that are worth a question.
    pub(crate) fn reachable_agents(&self) -> Vec<AgentRecord> {
        let agents = self.agents().into_iter();
        agents
            .filter(|(_, state, _)| *state != AgentState::Gone)
            .map(|(record, ..)| record)
            .collect()
    }

    /// Works with the durable state on a thread that may block.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = Arc::clone(&self.config.store);
        match tokio::task::spawn_blocking(move || work(store.as_ref())).await {
            Ok(done) => done.map_err(|error| match error {
                StoreError::Full { what, limit } => Refusal::TooMany {
                    what: what.into(),
                    limit: limit as u64,
                },
                StoreError::TenantChanged { .. } => bad(error.to_string()),
            }),
            Err(error) => Err(Refusal::Unavailable {
                what: format!("the manager's state: {error}"),
            }),
        }
    }
}
