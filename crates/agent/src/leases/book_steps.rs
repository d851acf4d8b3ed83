//! Steps of the node's book of leases that the workers of a lease cause.

use hotlease_lease::agent::BookEvent;
use hotlease_wire::Rejection;
use hotlease_wire::ids::LeaseId;
use std::sync::Arc;

/// Owner of the node's book of leases.
pub(crate) trait BookSteps: Send + Sync + 'static {
    /// Steps the book with an event, and carries out its actions.
    fn step(self: &Arc<Self>, event: BookEvent) -> Result<(), Rejection>;

    /// Refuses unless the lease is active: neither ending nor ended.
    fn check_active(&self, lease: LeaseId) -> Result<(), Rejection>;
}
