//! Plan of an invoker's leases: their code and options, and what all of them have in common.

use crate::code::Code;
use crate::options::LeaseOptions;
use crate::session::RoomNotice;
use hotlease_fabric::doorbell::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Code and options of a lease. Clones belong to the same invoker.
#[derive(Clone)]
pub(crate) struct LeasePlan {
    pub(crate) code: Code,
    pub(crate) options: Arc<LeaseOptions>,
    /// Doorbell on which this client's threads sleep.
    pub(crate) doorbell: Arc<Doorbell>,
    /// Called when another client wants the lease's cores.
    pub(crate) wanted: Arc<RoomNotice>,
    /// Whether a lease so far had its workers in sandboxes that are to confine their code.
    confined: Arc<AtomicBool>,
}

impl LeasePlan {
    pub(crate) fn new(code: Code, options: LeaseOptions, doorbell: Doorbell) -> Self {
        Self {
            code,
            options: Arc::new(options),
            doorbell: Arc::new(doorbell),
            wanted: Arc::default(),
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

    /// Notes the kind of sandbox that a lease was granted.
    pub(crate) fn note_sandbox(&self, granted: &str) {
        if [granted, self.options.sandbox.as_str()]
            .iter()
            .any(|kind| !matches!(*kind, "" | "process"))
        {
            self.confined.store(true, Ordering::Release);
        }
    }

    /// Whether workers of a lease so far were in sandboxes that are to confine their code.
    pub(crate) fn is_confined(&self) -> bool {
        self.confined.load(Ordering::Acquire)
    }
}
