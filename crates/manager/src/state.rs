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
use std::time::{Duration, Instant, SystemTime};
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
    /// Agents that registered with this process: others in the durable state are known from before.
    registered: Mutex<BTreeSet<AgentId>>,
    started: Instant,
    /// Milliseconds since 1970 then: see [`Self::unix_ms`].
    started_ms: u64,
    /// Soft state: lost with the process, healed by the agents' next heartbeats. Held only for look-ups
    /// and changes in memory, never across an await.
    registry: Mutex<Registry>,
    /// Leases, by agent, that the last heartbeat did not name: see [`crate::membership`].
    unreported: Mutex<BTreeMap<AgentId, BTreeSet<LeaseId>>>,
}

impl State {
    /// `latest_ms`: the latest moment in the durable state.
    pub(crate) fn new(config: ManagerConfig, latest_ms: u64) -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall_ms = since_1970.map_or(0, |since| since.as_millis() as u64);
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
            registered: Mutex::default(),
            started: Instant::now(),
            started_ms: wall_ms.max(latest_ms),
            registry: Mutex::default(),
            unreported: Mutex::default(),
        }
    }

    /// Time since the start: the clock of the pure state machines.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Milliseconds since 1970, of which accounts and bills are made. The machine's clock is looked at when
    /// the manager starts, and not again: if it is set back or forth meanwhile, or while the manager is
    /// down, no lease is billed for time that did not pass, and time goes on from the latest that was
    /// written down.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.started_ms
            .saturating_add(self.started.elapsed().as_millis() as u64)
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn registered(&self) -> MutexGuard<'_, BTreeSet<AgentId>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
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
                StoreError::TenantChanged { .. } | StoreError::TooManyLines { .. } => bad(error.to_string()),
                error => {
                    tracing::error!(%error, "the manager's state was not read or changed");
                    Refusal::Unavailable {
                        what: error.to_string(),
                    }
                }
            }),
            Err(error) => Err(Refusal::Unavailable {
                what: format!("the manager's state: {error}"),
            }),
        }
    }
}
