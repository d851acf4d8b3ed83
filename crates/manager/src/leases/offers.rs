//! Requests about offers. By an offer the holder of a lease lends slots to other ranks of its job. Requests are checked
//! here; [`crate::state::offers`] keeps the offers.

use crate::records::bad_request;
use crate::state::ManagerState;
use crate::state::offers::{OfferKey, StoredOffer};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    FindOffersRequest, PutOfferReply, SlotOffer, SlotOfferList, WithdrawOfferReply, WithdrawOfferRequest,
};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::limits::{DELEGATED_SLOTS_MAX, LABEL_BYTES_MAX};
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest invitation, bytes.
const INVITATION_BYTES_MAX: usize = 4096 + 64;
/// Longest duration of an offer whose holder sets one; other offers end with their leases.
const LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

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
    // The lock of the offers is released first: the state machine's lock is never taken while the lock of the offers is
    // held.
    let leases: Vec<OfferKey> = state.offers.keys();
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
    state.offers.remove(&key);
    Ok(WithdrawOfferReply {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_without_a_job_is_refused() {
        for bad in ["", "a\nb", &"x".repeat(LABEL_BYTES_MAX + 1)] {
            assert!(check_job(bad).is_err(), "{bad:?}");
        }
        check_job("4711").expect("a job");
    }
}
