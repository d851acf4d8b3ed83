//! Terms of a lease, which do not change while it lives.

use super::libraries::Libraries;
use crate::data::storage::LeaseStorage;
use crate::data::swap::StateRequest;
use hotlease_sandbox::{Kind, Program, WorkerReach};
use hotlease_wire::control::PollingPolicy;
use hotlease_wire::grpc;
use hotlease_wire::ids::LeaseId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Configuration that all workers of a lease share.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// Tenant that holds the lease.
    pub tenant: String,
    /// How slots wait for requests.
    pub polling: PollingPolicy,
    /// Time for which slots poll before they sleep.
    pub hot_budget_ns: u64,
    /// Memory limit of each worker, bytes; 0: none.
    pub memory_bytes: u64,
    /// Whether its workers share their cores.
    pub shared: bool,
    /// Time of the request for the lease.
    pub asked: Instant,
    /// Part of the granting that was spent waiting for its environment, if it names one.
    pub image: Option<Duration>,
    /// Whether its client asked the agent itself for it, without the manager.
    pub direct: bool,
    /// Kind of sandbox that isolates its workers.
    pub sandbox: Kind,
    /// Access of its workers beyond their sandboxes.
    pub reach: Arc<WorkerReach>,
    /// The access, in the form that its client is told.
    pub reach_told: grpc::Reach,
    /// Its keys and prefixes in object storage.
    pub storage: Option<Arc<LeaseStorage>>,
    /// State that its single worker saves for the next lease.
    pub state: Option<StateRequest>,
    /// Program of its workers, in place of the native one.
    pub program: Option<Arc<Program>>,
}

impl Terms {
    /// Whether workers may wait for such a lease, and for the next one: without a lease no worker may have access to a
    /// tenant's directories, the network or storage.
    pub fn can_wait(&self) -> bool {
        self.storage.is_none() && (self.sandbox == Kind::Process || self.reach.is_nothing())
    }
}

/// What the workers of a lease have in common: the lease's terms and libraries.
#[derive(Clone)]
pub(crate) struct ServedLease {
    /// Identifier of the lease.
    pub id: LeaseId,
    /// Configuration of its workers.
    pub terms: Arc<Terms>,
    /// Its libraries.
    pub libraries: Arc<Libraries>,
    /// Time from the request's arrival to the grant, without the wait for the environment.
    pub granting: Duration,
}
