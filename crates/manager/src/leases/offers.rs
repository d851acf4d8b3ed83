//! Offers: slots that holders of leases lend, for other ranks of their jobs to find.
//!
//! An offer contains an invitation that its holder made with its agent; it is stored under the name of a job. It is
//! shown to the same tenant only, until its lease ends, its time is over, or it is withdrawn. Offers are kept in
//! memory only, so that no secrets of tenants are on the manager's disk: a restarted manager knows none.

use crate::records::bad_request;
use crate::state::ManagerState;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    FindOffersRequest, PutOfferReply, SlotOffer, SlotOfferList, WithdrawOfferReply, WithdrawOfferRequest,
};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::limits::{DELEGATED_SLOTS_MAX, LABEL_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit of offers of one tenant.
const OF_TENANT_MAX: usize = 256;
/// Limit of offers of all tenants.
const ALL_MAX: usize = 16 * 1024;
/// Longest invitation, bytes.
const INVITATION_BYTES_MAX: usize = 4096 + 64;
/// Longest time of an offer that does not last as long as its lease.
const LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Tenant, lease, and number of the delegation.
type OfferKey = (String, LeaseId, u32);

struct StoredOffer {
    offer: SlotOffer,
    /// End by the manager's clock; none: the offer lasts as long as its lease.
    until: Option<Duration>,
}

/// Offers of all tenants.
#[derive(Default)]
pub(crate) struct Offers(Mutex<BTreeMap<OfferKey, StoredOffer>>);

impl Offers {
    fn kept(&self) -> MutexGuard<'_, BTreeMap<OfferKey, StoredOffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes offers that are over. `is_over`: whether a lease has ended.
    fn forget(&self, now: Duration, is_over: impl Fn(LeaseId) -> bool) {
        self.kept()
            .retain(|(_, lease, _), kept| kept.until.is_none_or(|until| now < until) && !is_over(*lease));
    }

    fn put(&self, key: OfferKey, kept: StoredOffer) -> Result<(), Rejection> {
        let mut all = self.kept();
        if !all.contains_key(&key) {
            let too_many = |what: &str, limit: usize| {
                Err(Rejection::TooMany {
                    what: what.into(),
                    limit: limit as u64,
                })
            };
            if all.keys().filter(|(tenant, ..)| *tenant == key.0).count() >= OF_TENANT_MAX {
                return too_many("offers of slots of one tenant", OF_TENANT_MAX);
            }
            if all.len() >= ALL_MAX {
                return too_many("offers of slots", ALL_MAX);
            }
        }
        all.insert(key, kept);
        Ok(())
    }

    fn of(&self, tenant: &str, job: &str) -> Vec<SlotOffer> {
        let all = self.kept();
        let own = all
            .iter()
            .filter(|((whose, ..), kept)| whose == tenant && kept.offer.job == job);
        own.map(|(_, kept)| kept.offer.clone()).collect()
    }
}

fn lease_id(text: &str) -> Result<LeaseId, Rejection> {
    text.parse().map_err(|_| bad_request("not a lease id"))
}

fn check_job(job: &str) -> Result<(), Rejection> {
    if job.is_empty() || job.len() > LABEL_BYTES_MAX || job.chars().any(char::is_control) {
        return Err(bad_request(format!(
            "offers have the name of a job of 1 to {LABEL_BYTES_MAX} bytes; set `job`, or $HOTLEASE_JOB"
        )));
    }
    Ok(())
}

fn forget(state: &ManagerState) {
    // The lock of the offers is released first: the machine's lock is never taken under it.
    let leases: Vec<OfferKey> = state.offers.kept().keys().cloned().collect();
    let over: BTreeSet<LeaseId> = {
        let machine = state.machine();
        let over = leases
            .iter()
            .filter(|(tenant, lease, _)| machine.cluster.holder(*lease) != Some(tenant));
        over.map(|(_, lease, _)| *lease).collect()
    };
    // Offers that were added meanwhile were checked when they were added.
    state.offers.forget(state.now(), |lease| over.contains(&lease));
}

pub(crate) fn put(state: &ManagerState, offer: SlotOffer, tenant: String) -> Result<PutOfferReply, Rejection> {
    check_job(&offer.job)?;
    let lease = lease_id(&offer.lease)?;
    if offer.invitation.is_empty() || offer.invitation.len() > INVITATION_BYTES_MAX {
        return Err(bad_request("the invitation is missing, or too long"));
    }
    if offer.slots == 0 || offer.slots as usize > DELEGATED_SLOTS_MAX {
        return Err(bad_request("an offer is of no slots, or of more than a lease lends"));
    }
    // The error does not reveal leases of other tenants.
    if state.machine().cluster.holder(lease) != Some(&tenant) {
        return Err(Rejection::UnknownLease);
    }
    forget(state);
    let until = match offer.lasts_ms {
        0 => None,
        ms => Some(state.now() + Duration::from_millis(ms).min(LASTS_MAX)),
    };
    let key = (tenant, lease, offer.delegation);
    state.offers.put(key, StoredOffer { offer, until })?;
    Ok(PutOfferReply {})
}

pub(crate) fn find(
    state: &ManagerState,
    request: &FindOffersRequest,
    tenant: &str,
) -> Result<SlotOfferList, Rejection> {
    check_job(&request.job)?;
    forget(state);
    Ok(SlotOfferList {
        offers: state.offers.of(tenant, &request.job),
    })
}

pub(crate) fn withdraw(
    state: &ManagerState,
    request: &WithdrawOfferRequest,
    tenant: String,
) -> Result<WithdrawOfferReply, Rejection> {
    let key = (tenant, lease_id(&request.lease)?, request.delegation);
    // The offer may have ended already.
    state.offers.kept().remove(&key);
    Ok(WithdrawOfferReply {})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(job: &str, until: Option<Duration>) -> StoredOffer {
        StoredOffer {
            offer: SlotOffer {
                job: job.into(),
                ..SlotOffer::default()
            },
            until,
        }
    }

    fn key(tenant: &str, lease: u8, delegation: u32) -> OfferKey {
        (tenant.into(), LeaseId([lease; 8]), delegation)
    }

    #[test]
    fn offers_are_told_to_their_own_tenant_and_job_until_they_are_over() {
        let offers = Offers::default();
        let second = Duration::from_secs(1);
        offers.put(key("alice", 1, 1), kept("md", None)).expect("room");
        offers.put(key("alice", 1, 2), kept("md", Some(second))).expect("room");
        offers.put(key("alice", 2, 1), kept("fluid", None)).expect("room");
        assert_eq!(offers.of("alice", "md").len(), 2);
        assert_eq!(
            (offers.of("bob", "md").len(), offers.of("alice", "other").len()),
            (0, 0)
        );
        offers.forget(second, |lease| lease == LeaseId([2; 8]));
        assert_eq!(offers.of("alice", "md").len(), 1, "the time of the second is over");
        assert_eq!(offers.of("alice", "fluid").len(), 0, "its lease is over");
    }

    #[test]
    fn offers_are_bounded() {
        let offers = Offers::default();
        for number in 0..OF_TENANT_MAX as u32 {
            offers.put(key("alice", 1, number), kept("md", None)).expect("room");
        }
        let more = offers.put(key("alice", 2, 0), kept("md", None));
        assert!(matches!(more, Err(Rejection::TooMany { .. })), "{more:?}");
        offers
            .put(key("alice", 1, 0), kept("md", None))
            .expect("it is there already");
        offers
            .put(key("bob", 2, 0), kept("md", None))
            .expect("others have room");
    }

    #[test]
    fn an_offer_without_a_job_is_refused() {
        for bad in ["", "a\nb", &"x".repeat(LABEL_BYTES_MAX + 1)] {
            assert!(check_job(bad).is_err(), "{bad:?}");
        }
        check_job("4711").expect("a job");
    }
}
