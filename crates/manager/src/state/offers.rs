//! Offers: slots that holders of leases lend, for other ranks of their jobs to find.
//!
//! An offer contains an invitation that its holder made with its agent; it is stored under the name of a job. It is
//! shown to the same tenant only, until its lease ends, its time is over, or it is withdrawn. Offers are kept in memory
//! only, so that no secrets of tenants are on the manager's disk: a restarted manager has none.

use hotlease_wire::Rejection;
use hotlease_wire::grpc::SlotOffer;
use hotlease_wire::ids::LeaseId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit of offers of one tenant.
const OF_TENANT_MAX: usize = 256;
/// Limit of offers of all tenants.
const ALL_MAX: usize = 16 * 1024;

/// Tenant, lease, and number of the delegation.
pub(crate) type OfferKey = (String, LeaseId, u32);

/// An offer, and how long it lasts.
pub(crate) struct StoredOffer {
    pub(crate) offer: SlotOffer,
    /// End by the manager's clock; `None`: the offer lasts as long as its lease.
    pub(crate) until: Option<Duration>,
}

/// Offers of all tenants.
#[derive(Default)]
pub(crate) struct Offers(Mutex<BTreeMap<OfferKey, StoredOffer>>);

impl Offers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<OfferKey, StoredOffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of all offers.
    pub(crate) fn keys(&self) -> Vec<OfferKey> {
        self.lock().keys().cloned().collect()
    }

    /// Removes an offer, if it is still there.
    pub(crate) fn remove(&self, key: &OfferKey) {
        self.lock().remove(key);
    }

    /// Removes offers that are over. `is_over`: whether a lease has ended.
    pub(crate) fn forget(&self, now: Duration, is_over: impl Fn(LeaseId) -> bool) {
        self.lock()
            .retain(|(_, lease, _), kept| kept.until.is_none_or(|until| now < until) && !is_over(*lease));
    }

    pub(crate) fn put(&self, key: OfferKey, kept: StoredOffer) -> Result<(), Rejection> {
        let mut all = self.lock();
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

    pub(crate) fn of(&self, tenant: &str, job: &str) -> Vec<SlotOffer> {
        let all = self.lock();
        let own = all
            .iter()
            .filter(|((whose, ..), kept)| whose == tenant && kept.offer.job == job);
        own.map(|(_, kept)| kept.offer.clone()).collect()
    }
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
}
