//! Plan of an invoker's leases: their code and options, and what all of them have in common.

use crate::code::Code;
use crate::options::LeaseOptions;
use crate::session::RoomNotice;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::ids::AgentId;
use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Code and options of a lease. Clones belong to the same invoker.
#[derive(Clone)]
pub(crate) struct LeasePlan {
    pub(crate) code: Code,
    pub(crate) options: Arc<LeaseOptions>,
    /// Agents that are not asked for the lease; at most [`EXCLUDED_MAX`](hotlease_lease::EXCLUDED_MAX).
    pub(crate) without: BTreeSet<AgentId>,
    /// Doorbell on which this client's threads sleep.
    pub(crate) doorbell: Arc<Doorbell>,
    /// Called when another client wants the lease's cores.
    pub(crate) wanted: Arc<RoomNotice>,
    /// Identifies this invoker to the manager while the invoker waits for a lease.
    waiting: u64,
    /// Whether a lease so far had its workers in sandboxes that are to confine code.
    confined: Arc<AtomicBool>,
}

impl LeasePlan {
    pub(crate) fn new(code: Code, options: LeaseOptions, doorbell: Doorbell) -> Self {
        Self {
            code,
            options: Arc::new(options),
            without: BTreeSet::new(),
            doorbell: Arc::new(doorbell),
            wanted: Arc::default(),
            waiting: RandomState::new().build_hasher().finish().max(1),
            confined: Arc::default(),
        }
    }

    /// Returns the plan with other options.
    pub(crate) fn with_options(&self, options: LeaseOptions) -> Self {
        Self {
            options: Arc::new(options),
            ..self.clone()
        }
    }

    /// Returns the plan without these agents.
    pub(crate) fn without(&self, agents: BTreeSet<AgentId>) -> Self {
        Self {
            without: agents,
            ..self.clone()
        }
    }

    /// The request for `workers` workers.
    pub(crate) fn request(&self, workers: u16) -> AcquireRequest {
        AcquireRequest {
            waiting: self.waiting,
            ..self.options.acquire_request(workers, &self.code)
        }
    }

    /// Notes the kind of sandbox that a lease was granted.
    pub(crate) fn note_sandbox(&self, granted: &str) {
        if [granted, self.options.sandbox.as_str()]
            .iter()
            .any(|kind| !matches!(*kind, "" | "process"))
        {
            self.confined.store(true, Ordering::Release);
        }
    }

    /// Whether workers of a lease so far were in sandboxes that are to confine code.
    pub(crate) fn is_confined(&self) -> bool {
        self.confined.load(Ordering::Acquire)
    }
}
