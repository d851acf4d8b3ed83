//! A session that is attached.

use super::{Node, Tables};
use crate::active_lease::ActiveLease;
use hotlease_lease::agent::{Event, SessionId};
use hotlease_wire::control::Lent;
use hotlease_wire::ids::WorkerIndex;
use hotlease_wire::session::Place;
use hotlease_wire::token::Rights;
use hotlease_wire::{EndReason, Refusal};
use std::sync::Arc;

/// A session's hold on its lease; given back when dropped.
pub(crate) struct Attachment {
    pub(super) node: Arc<Node>,
    pub(super) session: SessionId,
    /// The lease.
    pub lease: Arc<ActiveLease>,
    /// What the bearer of the token may do.
    pub rights: Rights,
    /// Which delegation of the holder's it is for; 0: it is the holder's own.
    pub(super) delegation: u32,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut tables = self.node.tables();
        tables.outboxes.remove(&self.session);
        let closed = Event::SessionClosed {
            session: self.session,
            lease: self.lease.id,
        };
        tracing::debug!(lease = %self.lease.id, session = self.session.0, "session closed");
        // Never refused: it only reports.
        let _ = self.node.step_locked(&mut tables, closed);
    }
}

impl Attachment {
    /// Whether its client holds the lease, rather than being lent slots of it.
    pub(crate) fn is_holder(&self) -> bool {
        self.delegation == 0
    }

    /// The slots that its client may use; none: all.
    pub(crate) fn lent(&self, tables: &Tables) -> Result<Option<Vec<Place>>, Refusal> {
        if self.is_holder() {
            return Ok(None);
        }
        let lease = tables.book.active(self.lease.id)?;
        let lent = lease.delegations.get(&self.delegation);
        let lent = lent.ok_or(Refusal::LeaseEnded(EndReason::TakenBack))?;
        Ok(Some(lent.places.iter().copied().collect()))
    }

    /// The slots of a worker that its client may use; none: all. Refused if there are none.
    pub(crate) fn lent_of(&self, tables: &Tables, worker: WorkerIndex) -> Result<Option<Lent>, Refusal> {
        let Some(places) = self.lent(tables)? else {
            return Ok(None);
        };
        let of_worker = places.iter().filter(|place| place.worker == worker);
        let lent = Lent {
            delegation: self.delegation,
            slots: of_worker.map(|place| place.slot).collect(),
        };
        if lent.slots.is_empty() {
            return Err(Refusal::NotPermitted {
                what: format!("worker {worker} was not lent to this client"),
            });
        }
        Ok(Some(lent))
    }
}
