//! Attachment of a session to its lease.

use super::{Node, NodeState};
use crate::isolation::caller::SessionPeer;
use crate::leases::active_lease::ActiveLease;
use crate::node::outbox::Outbox;
use hotlease_lease::agent::{BookEvent, SessionId};
use hotlease_wire::control::LentSlots;
use hotlease_wire::ids::WorkerIndex;
use hotlease_wire::session::SlotPlace;
use hotlease_wire::token::Rights;
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use std::time::Duration;

/// A session's hold on its lease; released when dropped.
pub(crate) struct SessionHold {
    pub(super) node: Arc<Node>,
    pub(super) session: SessionId,
    /// The lease that the session is attached to.
    pub lease: Arc<ActiveLease>,
    /// Rights of the token's bearer.
    pub rights: Rights,
    /// Delegation to which the session belongs; 0 if the session belongs to the holder of the lease.
    pub(super) delegation: u32,
}

impl Node {
    /// Attaches a session to the lease that its token names.
    pub fn attach(
        self: &Arc<Self>,
        token: &[u8],
        caller: SessionPeer,
        outbox: &Arc<Outbox>,
    ) -> Result<SessionHold, Rejection> {
        let claims = self.open_token(token)?;
        if let SessionPeer::Bearer { lease, .. } = &caller
            && *lease != claims.lease
        {
            return Err(Rejection::BadToken);
        }
        let tenant = self.identity.tenants.of_session(caller, &claims.tenant);
        let mut tables = self.tables();
        tables.last_session += 1;
        let session = SessionId(tables.last_session);
        let (lease, epoch, delegation) = (claims.lease, claims.epoch, claims.delegation);
        let attach = match delegation {
            0 => BookEvent::Attach {
                session,
                lease,
                epoch,
                tenant,
                until: Duration::from_millis(claims.attach_until_ms),
            },
            delegation => BookEvent::AttachPeer {
                session,
                lease,
                epoch,
                tenant,
                delegation,
            },
        };
        self.step_locked(&mut tables, attach)?;
        let lease = tables.leases.get(&claims.lease).cloned();
        let lease = lease.ok_or(Rejection::UnknownLease)?;
        tables.outboxes.insert(session, Arc::clone(outbox));
        tracing::debug!(lease = %lease.id, session = session.0, delegation, "session attached");
        Ok(SessionHold {
            node: Arc::clone(self),
            session,
            lease,
            rights: claims.rights,
            delegation,
        })
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        let mut tables = self.node.tables();
        tables.outboxes.remove(&self.session);
        let closed = BookEvent::SessionClosed {
            session: self.session,
            lease: self.lease.id,
        };
        tracing::debug!(lease = %self.lease.id, session = self.session.0, "session closed");
        // The book cannot refuse this event, which only reports.
        let _ = self.node.step_locked(&mut tables, closed);
    }
}

impl SessionHold {
    /// Whether its client holds the lease, instead of having a delegation of slots.
    pub(crate) fn is_holder(&self) -> bool {
        self.delegation == 0
    }

    /// Slots that its client may use; `None` if it may use all.
    pub(crate) fn delegated_slots(&self, tables: &NodeState) -> Result<Option<Vec<SlotPlace>>, Rejection> {
        if self.is_holder() {
            return Ok(None);
        }
        let lease = tables.book.active(self.lease.id)?;
        let lent = lease.delegations.get(&self.delegation);
        let lent = lent.ok_or(Rejection::LeaseEnded(EndReason::TakenBack))?;
        Ok(Some(lent.places.iter().copied().collect()))
    }

    /// Slots of a worker that its client may use; `None` if it may use all. Fails if it may use none.
    pub(crate) fn delegated_slots_of(
        &self,
        tables: &NodeState,
        worker: WorkerIndex,
    ) -> Result<Option<LentSlots>, Rejection> {
        let Some(places) = self.delegated_slots(tables)? else {
            return Ok(None);
        };
        let of_worker = places.iter().filter(|place| place.worker == worker);
        let lent = LentSlots {
            delegation: self.delegation,
            slots: of_worker.map(|place| place.slot).collect(),
        };
        if lent.slots.is_empty() {
            return Err(Rejection::NotPermitted {
                what: format!("worker {worker} was not lent to this client"),
            });
        }
        Ok(Some(lent))
    }
}
