//! Delegations: slots of a lease that its holder lends to peers.
//!
//! A delegation belongs to its lease. It ends with the lease, when the holder takes it back, or when its time is
//! over. The agent reports changes of the lease to peers' sessions. But these sessions neither keep the lease alive nor
//! end it; only the holder's sessions do.

use super::LeaseBook;
use crate::agent::{BookAction, Delegation, SessionId};
use hotlease_wire::ids::{Epoch, LeaseId};
use hotlease_wire::limits::{DELEGATIONS_MAX, PEERS_MAX};
use hotlease_wire::session::SlotPlace;
use hotlease_wire::{EndReason, Rejection};
use std::collections::BTreeSet;
use std::time::Duration;

impl LeaseBook {
    pub(super) fn delegate(
        &mut self,
        id: LeaseId,
        places: BTreeSet<SlotPlace>,
        until: Duration,
        now: Duration,
    ) -> Result<(), Rejection> {
        let lease = self.active_mut(id)?;
        for SlotPlace { worker, slot } in &places {
            let cores = lease
                .workers
                .get(usize::from(worker.0))
                .map(|worker| worker.cores.len())
                .ok_or(Rejection::UnknownWorker {
                    index: worker.0,
                    workers: lease.workers.len() as u16,
                })?;
            if usize::from(slot.0) >= cores {
                return Err(Rejection::UnknownSlot {
                    index: slot.0,
                    slots: cores as u16,
                });
            }
        }
        if places.is_empty() || until <= now {
            return Err(Rejection::BadRequest {
                what: "a delegation is of at least one slot, and for some time".into(),
            });
        }
        if lease.delegations.len() >= DELEGATIONS_MAX {
            return Err(Rejection::TooMany {
                what: "delegations of one lease".into(),
                limit: DELEGATIONS_MAX as u64,
            });
        }
        // The number does not reach its limit: one lease never makes four billion delegations.
        lease.last_delegation = lease.last_delegation.saturating_add(1);
        let delegation = Delegation {
            places,
            until,
            sessions: BTreeSet::new(),
        };
        lease.delegations.insert(lease.last_delegation, delegation);
        Ok(())
    }

    pub(super) fn revoke(
        &mut self,
        id: LeaseId,
        delegation: u32,
        reason: EndReason,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        let ended = self.active_mut(id)?.delegations.remove(&delegation);
        // `None` means that the delegation was revoked before or has expired, so it has ended, as intended.
        if let Some(ended) = ended {
            actions.push(BookAction::DelegationEnded {
                lease: id,
                delegation,
                reason,
                sessions: ended.sessions.into_iter().collect(),
            });
        }
        Ok(())
    }

    pub(super) fn attach_peer(
        &mut self,
        session: SessionId,
        id: LeaseId,
        epoch: Epoch,
        tenant: &str,
        number: u32,
    ) -> Result<(), Rejection> {
        let lease = self.lease_of_token(id, epoch, tenant)?;
        let delegation = lease.delegations.get_mut(&number);
        let delegation = delegation.ok_or(Rejection::LeaseEnded(EndReason::TakenBack))?;
        if delegation.sessions.len() >= PEERS_MAX {
            return Err(Rejection::TooMany {
                what: "peers of one delegation".into(),
                limit: PEERS_MAX as u64,
            });
        }
        delegation.sessions.insert(session);
        Ok(())
    }

    /// Ends delegations whose time is over.
    pub(super) fn expire_delegations(&mut self, now: Duration, actions: &mut Vec<BookAction>) {
        let over: Vec<(LeaseId, u32)> = self
            .leases
            .values()
            .filter(|lease| lease.is_active())
            .flat_map(|lease| {
                let over = lease.delegations.iter().filter(|(_, lent)| lent.until <= now);
                over.map(|(number, _)| (lease.id, *number))
            })
            .collect();
        for (lease, delegation) in over {
            // Never refused: the lease is active.
            let _ = self.revoke(lease, delegation, EndReason::NoLongerLent, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SECOND, gone, granted, id, request, up};
    use super::*;
    use crate::agent::BookEvent;
    use hotlease_wire::ids::{SlotIndex, WorkerIndex};

    fn place(worker: u16, slot: u16) -> SlotPlace {
        SlotPlace {
            worker: WorkerIndex(worker),
            slot: SlotIndex(slot),
        }
    }

    fn delegate(places: &[SlotPlace], until: Duration) -> BookEvent {
        BookEvent::Delegate {
            lease: id(1),
            places: places.iter().copied().collect(),
            until,
        }
    }

    fn peer(session: u64, epoch: Epoch, tenant: &str, delegation: u32) -> BookEvent {
        BookEvent::AttachPeer {
            session: SessionId(session),
            lease: id(1),
            epoch,
            tenant: tenant.into(),
            delegation,
        }
    }

    fn holder(epoch: Epoch) -> BookEvent {
        BookEvent::Attach {
            session: SessionId(100),
            lease: id(1),
            epoch,
            tenant: "uid:1000".into(),
            until: 5 * SECOND,
        }
    }

    /// A lease of two workers with two slots each. It is in phase Serving, and a session of the holder is attached.
    fn held() -> (LeaseBook, Epoch) {
        let mut book = LeaseBook::new(0..4, 0);
        let epoch = granted(&mut book, 1, request(2, 2), Duration::ZERO);
        for event in [up(id(1), 0, epoch), up(id(1), 1, epoch), holder(epoch)] {
            assert_eq!(book.step(event, Duration::ZERO).refusal, None);
        }
        (book, epoch)
    }

    #[test]
    fn only_slots_of_the_lease_are_lent() {
        let (mut book, _) = held();
        for (places, until) in [
            (vec![place(2, 0)], SECOND),
            (vec![place(0, 0), place(1, 2)], SECOND),
            (vec![place(u16::MAX, u16::MAX)], SECOND),
            (vec![], SECOND),
            (vec![place(0, 0)], Duration::ZERO),
        ] {
            let step = book.step(delegate(&places, until), Duration::ZERO);
            assert!(
                step.refusal.is_some() && step.actions.is_empty(),
                "{places:?}: {step:?}"
            );
        }
        for _ in 0..DELEGATIONS_MAX {
            assert_eq!(
                book.step(delegate(&[place(1, 1)], SECOND), Duration::ZERO).refusal,
                None
            );
        }
        let more = book.step(delegate(&[place(1, 1)], SECOND), Duration::ZERO).refusal;
        assert!(matches!(more, Some(Rejection::TooMany { .. })), "{more:?}");
    }

    #[test]
    fn a_peer_neither_keeps_a_lease_nor_ends_it() {
        let (mut book, epoch) = held();
        assert_eq!(book.step(delegate(&[place(0, 1)], Duration::MAX), SECOND).refusal, None);
        for (event, expected) in [
            (peer(1, Epoch(99), "uid:1000", 1), "epoch"),
            (peer(1, epoch, "uid:1", 1), "tenant"),
            (peer(1, epoch, "uid:1000", 2), "taken back"),
        ] {
            let refusal = book.step(event, SECOND).refusal.expect(expected);
            assert!(refusal.to_string().contains(expected), "{refusal}");
        }
        let before = book.lease(id(1)).expect("there").expires;
        for session in 1..=PEERS_MAX as u64 {
            assert_eq!(book.step(peer(session, epoch, "uid:1000", 1), SECOND).refusal, None);
        }
        let full = book.step(peer(0, epoch, "uid:1000", 1), SECOND).refusal;
        assert!(matches!(full, Some(Rejection::TooMany { .. })), "{full:?}");
        assert_eq!(book.lease(id(1)).expect("there").expires, before, "it is not renewed");
        for session in 1..=PEERS_MAX as u64 {
            let closed = BookEvent::SessionClosed {
                session: SessionId(session),
                lease: id(1),
            };
            assert!(
                book.step(closed, SECOND).actions.is_empty(),
                "the holder does not notice"
            );
        }
        assert_eq!(book.step(peer(7, epoch, "uid:1000", 1), SECOND).refusal, None);
        // When the holder dies, its peers' sessions end too.
        let closed = BookEvent::SessionClosed {
            session: SessionId(100),
            lease: id(1),
        };
        assert_eq!(book.step(closed, SECOND).actions.len(), 2, "both workers are killed");
        let refused = book.step(peer(8, epoch, "uid:1000", 1), SECOND).refusal;
        assert_eq!(refused, Some(Rejection::LeaseEnded(EndReason::ClientGone)));
        let _ = book.step(gone(id(1), 0, epoch), SECOND);
        let last = book.step(gone(id(1), 1, epoch), SECOND).actions;
        assert!(
            matches!(&last[..], [BookAction::LeaseEnded { sessions, .. }] if *sessions == [SessionId(7)]),
            "the peer is told: {last:?}"
        );
    }

    #[test]
    fn a_revoked_or_expired_delegation_ends_for_its_peers_alone() {
        let (mut book, epoch) = held();
        for until in [2 * SECOND, Duration::MAX] {
            assert_eq!(book.step(delegate(&[place(0, 0)], until), SECOND).refusal, None);
        }
        for (session, delegation) in [(1, 1), (2, 2)] {
            let attached = book.step(peer(session, epoch, "uid:1000", delegation), SECOND);
            assert_eq!(attached.refusal, None);
        }
        assert_eq!(book.next_expiry(), Some(2 * SECOND), "the agent has to look then");
        let ended = |delegation, reason, session| BookAction::DelegationEnded {
            lease: id(1),
            delegation,
            reason,
            sessions: vec![SessionId(session)],
        };
        let step = book.step(BookEvent::Tick, 2 * SECOND);
        assert_eq!(step.actions, [ended(1, EndReason::NoLongerLent, 1)]);
        let revoke = BookEvent::Revoke {
            lease: id(1),
            delegation: 2,
        };
        let step = book.step(revoke.clone(), 2 * SECOND);
        assert_eq!(
            (step.refusal, step.actions),
            (None, vec![ended(2, EndReason::TakenBack, 2)])
        );
        let again = book.step(revoke, 2 * SECOND);
        assert_eq!((again.refusal, again.actions.len()), (None, 0));
        assert!(book.active(id(1)).is_ok(), "the lease goes on");
    }

    #[test]
    fn peers_are_told_of_the_death_of_a_worker() {
        let (mut book, epoch) = held();
        assert_eq!(book.step(delegate(&[place(0, 0)], Duration::MAX), SECOND).refusal, None);
        assert_eq!(book.step(peer(1, epoch, "uid:1000", 1), SECOND).refusal, None);
        let step = book.step(gone(id(1), 0, epoch), SECOND);
        assert!(
            matches!(&step.actions[..], [BookAction::ReportWorkerDeath { sessions, .. }] if sessions.len() == 2),
            "{step:?}"
        );
    }
}
