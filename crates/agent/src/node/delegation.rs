//! Delegation of slots by the holder of a lease to its peers: making the token, and ending the delegation.

use super::{Node, NodeState};
use crate::leases::incarnation::IncarnationState as WorkerState;
use hotlease_lease::agent::{BookEvent, SessionId};
use hotlease_wire::control::WorkerOrder;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::limits::DELEGATED_SLOTS_MAX;
use hotlease_wire::session::{SessionReply, SlotPlace, UsageTotals};
use hotlease_wire::token::Rights;
use hotlease_wire::{EndReason, Rejection};
use std::sync::Arc;
use std::time::Duration;

/// Longest time for which slots are lent, unless they are lent for as long as the lease lasts.
const WITHIN_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Node {
    /// Lends slots of a lease; returns the delegation's number, and the token for peers.
    pub(crate) fn delegate(
        self: &Arc<Self>,
        lease: LeaseId,
        places: &[SlotPlace],
        within_ms: u64,
    ) -> Result<(u32, Vec<u8>), Rejection> {
        if places.len() > DELEGATED_SLOTS_MAX {
            return Err(Rejection::TooMany {
                what: "slots of one delegation".into(),
                limit: DELEGATED_SLOTS_MAX as u64,
            });
        }
        let until = match within_ms {
            0 => Duration::MAX,
            ms => self.now() + Duration::from_millis(ms).min(WITHIN_MAX),
        };
        let mut tables = self.tables();
        let delegate = BookEvent::Delegate {
            lease,
            places: places.iter().copied().collect(),
            until,
        };
        self.step_locked(&mut tables, delegate)?;
        let lease = tables.book.active(lease)?;
        let delegation = lease.last_delegation;
        tracing::info!(lease = %lease.id, delegation, slots = places.len(), "slots lent");
        Ok((delegation, self.mint_token(lease, until, Rights::INVOKE, delegation)))
    }

    /// Tells peers that their delegation has ended, and makes the workers drop the peers' connections.
    pub(super) fn end_delegation(
        &self,
        tables: &mut NodeState,
        lease: LeaseId,
        (delegation, reason): (u32, EndReason),
        sessions: &[SessionId],
    ) {
        tracing::info!(%lease, delegation, %reason, peers = sessions.len(), "slots are lent no longer");
        // Peers are informed first, so that they have received the reason when their connections close.
        for session in sessions {
            if let Some(outbox) = tables.outboxes.remove(session) {
                // Their usage belongs to the holder.
                let usage = UsageTotals::default();
                outbox.close(SessionReply::LeaseEnded { reason, usage });
            }
        }
        let Some(lease) = tables.leases.get(&lease) else {
            return;
        };
        for incarnation in lease.incarnations() {
            if let WorkerState::Up(worker) = incarnation.state() {
                // A worker that accepts no orders is killed: peers could otherwise go on using it.
                if !worker.send(&WorkerOrder::Dismiss { delegation }, &[]).is_sent() {
                    worker.kill();
                }
            }
        }
    }
}
