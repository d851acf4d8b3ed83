//! State that all requests of the manager share.

pub(crate) mod agent_connections;
pub(crate) mod commits;
pub(crate) mod driver;
pub(crate) mod image_trees;
pub(crate) mod machine;
pub(crate) mod offers;
pub(crate) mod readiness;
pub(crate) mod waiting;

use crate::ManagerConfig;
use crate::identity::{Authenticator, TenantDirectory};
use crate::metrics::Metrics;
use crate::records::bad_request;
use agent_connections::AgentConnections;
use hotlease_lease::manager::{AgentProfile, AgentState, ClusterEvent};
use hotlease_store::{Store, StoreError};
use hotlease_wire::Rejection;
use hotlease_wire::ids::AgentId;
use image_trees::ImageTrees;
use machine::ClusterDriver;
use offers::Offers;
use readiness::Readiness;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use waiting::WaitingClients;

/// Number of readings of both clocks; the reading that took the shortest time is used.
const CLOCK_READINGS: u32 = 8;

/// State of a running manager.
pub(crate) struct ManagerState {
    pub(crate) config: ManagerConfig,
    pub(crate) links: AgentConnections,
    pub(crate) directory: Arc<TenantDirectory>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    /// True once a client has asked the manager to stop.
    pub(crate) asked_to_stop: watch::Sender<bool>,
    /// The agent that registered last.
    pub(crate) newest_agent: watch::Sender<Option<AgentProfile>>,
    started: Instant,
    /// Milliseconds since 1970 at the start, see [`Self::unix_ms`].
    started_ms: u64,
    /// Random number of this run, sent to agents: another run may have lost what this run acknowledged.
    pub(crate) ledger: u64,
    /// Slots that holders of leases offer.
    pub(crate) offers: Offers,
    /// Clients that wait for leases.
    pub(crate) waiting: WaitingClients,
    /// Trees in which agents hand on environments.
    pub(crate) images: ImageTrees,
    machine: Mutex<ClusterDriver>,
}

fn wall_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or(0, |since| since.as_millis() as u64)
}

/// Reads the two clocks at nearly the same moment, even on a busy node. Time between the two readings would be missing
/// from the account of each lease that was granted before this start.
fn clocks() -> (Instant, u64) {
    let look = || {
        let monotonic = Instant::now();
        let wall_ms = wall_ms();
        (monotonic.elapsed(), monotonic, wall_ms)
    };
    let (_, monotonic, wall_ms) = (1..CLOCK_READINGS).fold(look(), |nearest, _| nearest.min(look()));
    (monotonic, wall_ms)
}

impl ManagerState {
    /// Makes the state. `latest_ms`: the latest time in the store.
    pub(crate) fn new(
        mut config: ManagerConfig,
        latest_ms: u64,
        machine: ClusterDriver,
        directory: Arc<TenantDirectory>,
    ) -> Self {
        let (started, wall_ms) = clocks();
        let authenticator = Arc::new(Authenticator::new(
            Arc::clone(&directory),
            config.issuers.take(),
            config.munge.take(),
        ));
        Self {
            links: AgentConnections::new(config.network.as_ref().map(|network| Arc::clone(&network.identity))),
            config,
            authenticator,
            directory,
            metrics: Arc::default(),
            readiness: Readiness::default(),
            asked_to_stop: watch::Sender::new(false),
            newest_agent: watch::Sender::new(None),
            started,
            started_ms: wall_ms.max(latest_ms),
            ledger: rand::random(),
            offers: Offers::default(),
            waiting: WaitingClients::default(),
            images: ImageTrees::default(),
            machine: Mutex::new(machine),
        }
    }

    /// Time since the start: the clock of the pure state machines.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Time for accounts and bills, milliseconds since 1970. The node's clock is read once, when the manager starts,
    /// and time continues at least from the latest stored time. So if that clock is set while the manager runs or is
    /// down, no lease is billed for time that did not pass.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.started_ms
            .saturating_add(self.started.elapsed().as_millis() as u64)
    }

    /// Milliseconds since 1970 by the node's clock, with which credentials are dated.
    pub(crate) fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    /// Changes tenants or keys; when it returns, the change is in effect at this manager.
    pub(crate) async fn change_people<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let directory = Arc::clone(&self.directory);
        self.store(move |store| {
            let done = work(store)?;
            directory.refresh(store)?;
            Ok(done)
        })
        .await
    }

    /// Locks the state machine, to read it or for a short change.
    pub(crate) fn machine(&self) -> MutexGuard<'_, ClusterDriver> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Record of a registered agent.
    pub(crate) fn agent(&self, agent: AgentId) -> Result<AgentProfile, Rejection> {
        let machine = self.machine();
        let known = machine.cluster.registry().agent(agent);
        known.map(|(record, ..)| record.clone()).ok_or(Rejection::Unavailable {
            what: format!("agent {agent} is gone"),
        })
    }

    /// Agents with their present state, and the time for which each has been silent.
    pub(crate) fn agents(self: &Arc<Self>) -> Vec<(AgentProfile, AgentState, Duration)> {
        self.step(ClusterEvent::Tick);
        let now = self.now();
        let machine = self.machine();
        let agents = machine.cluster.registry().agents();
        agents
            .map(|(record, state, heard)| (record.clone(), state, now.saturating_sub(heard)))
            .collect()
    }

    /// Agents that serve. Silent agents are left out, because asking them would only cost waiting time.
    pub(crate) fn serving_agents(self: &Arc<Self>) -> Vec<AgentProfile> {
        let agents = self.agents().into_iter();
        agents
            .filter(|(_, state, _)| *state == AgentState::Serving)
            .map(|(record, ..)| record)
            .collect()
    }

    /// Number of agents that are not gone.
    pub(crate) fn reachable_agents(self: &Arc<Self>) -> usize {
        let agents = self.agents().into_iter();
        agents.filter(|(_, state, _)| *state != AgentState::Gone).count()
    }

    /// Works with the store on a thread that may block.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let store = Arc::clone(&self.config.store);
        match tokio::task::spawn_blocking(move || work(store.as_ref())).await {
            Ok(done) => done.map_err(refusal_of),
            Err(error) => Err(Rejection::Unavailable {
                what: format!("the manager's state: {error}"),
            }),
        }
    }
}

/// Translates an error of the store into a refusal for the caller.
pub(crate) fn refusal_of(error: StoreError) -> Rejection {
    match error {
        StoreError::Full { what, limit } => Rejection::TooMany {
            what: what.into(),
            limit: limit as u64,
        },
        StoreError::MemberOfOther { .. } | StoreError::NoTenant { .. } | StoreError::TooManyLines { .. } => {
            bad_request(error.to_string())
        }
        error => {
            tracing::error!(%error, "the manager's state was not read or changed");
            Rejection::Unavailable {
                what: error.to_string(),
            }
        }
    }
}
