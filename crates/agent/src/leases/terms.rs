//! Terms of a lease, which do not change while it lives.

use super::libraries::Libraries;
use crate::data::storage::LeaseStorage;
use crate::data::swap::StateRequest;
use hotlease_lease::{CoreUse, LeaseRequest};
use hotlease_sandbox::{Kind, Program, WorkerReach};
use hotlease_wire::grpc;
use hotlease_wire::ids::LeaseId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The request for a lease, and what the agent has decided about it.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The request for the lease.
    pub request: Arc<LeaseRequest>,
    /// Time of the request.
    pub asked: Instant,
    /// Part of the granting that was spent waiting for its environment, if it names one.
    pub image: Option<Duration>,
    /// Whether its client asked the agent itself for the lease, without the manager.
    pub direct: bool,
    /// Limit on the memory of each worker, bytes: what was asked for, or the node's share; 0 if there is no limit.
    pub memory_bytes: u64,
    /// Kind of sandbox that isolates its workers.
    pub sandbox: Kind,
    /// Access of its workers beyond their sandboxes, and the variables of native workers.
    pub reach: Arc<WorkerReach>,
    /// The access, in the form that its client receives.
    pub reach_told: grpc::Reach,
    /// Its keys and prefixes in object storage.
    pub storage: Option<Arc<LeaseStorage>>,
    /// State that its single worker saves for the next lease.
    pub state: Option<StateRequest>,
    /// Program of its workers; `None` for native workers.
    pub program: Option<Arc<Program>>,
}

impl Terms {
    /// Whether its workers share their cores.
    pub fn is_shared(&self) -> bool {
        self.request.spec.sharing == CoreUse::Shared
    }

    /// Whether its workers are memory servers, which have no slots.
    pub fn is_memory_alone(&self) -> bool {
        self.request.spec.is_memory_alone()
    }

    /// Memory of all its workers, which is billed, bytes.
    pub fn all_memory_bytes(&self) -> u64 {
        self.request
            .spec
            .all_memory_bytes()
            .max(self.memory_bytes.saturating_mul(self.request.spec.workers.into()))
    }

    /// Whether workers may wait for a lease with these terms, and for the next such lease: a worker without a lease
    /// must not have access to a tenant's directories, the network or storage, nor variables of a lease.
    pub fn can_wait(&self) -> bool {
        let is_plain = self.storage.is_none() && self.reach.variables.is_empty();
        is_plain && (self.sandbox == Kind::Process || self.reach.is_nothing())
    }
}

/// Data that the workers of a lease have in common: the lease's terms and libraries.
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
