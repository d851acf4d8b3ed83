//! Places of sessions: bounded for all clients together, and for each tenant on other hosts.
//!
//! A tenant may have at most as many sessions as there are free places: a tenant that is alone gets half of the places,
//! the next tenant half of the rest. With a fixed half for each tenant, two tenants that collude would get all places.
//! The agent's own user on the agent's host has no such bound, because it could stop the agent anyway.

use crate::isolation::caller::SessionPeer;
use hotlease_wire::Rejection;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Largest number of sessions at a time.
const SESSIONS_MAX: usize = 1024;

type TenantCounts = Mutex<HashMap<String, usize>>;

/// Places of all sessions of an agent.
#[derive(Clone)]
pub(crate) struct SessionPlaces {
    all: Arc<Semaphore>,
    of_tenants: Arc<TenantCounts>,
}

impl Default for SessionPlaces {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(SESSIONS_MAX)),
            of_tenants: Arc::default(),
        }
    }
}

/// Place of one session. Dropping it frees the place.
pub(crate) struct SessionPlace {
    _all: OwnedSemaphorePermit,
    _of_tenant: Option<TenantPlace>,
}

struct TenantPlace {
    counts: Arc<TenantCounts>,
    tenant: String,
}

impl SessionPlaces {
    /// Takes a place, or refuses the session.
    pub fn take(&self, caller: &SessionPeer) -> Result<SessionPlace, Rejection> {
        let of_tenant = match caller {
            SessionPeer::Local { .. } => None,
            SessionPeer::Certified { tenant } | SessionPeer::Bearer { tenant, .. } => Some(self.of_tenant(tenant)?),
        };
        let all = Arc::clone(&self.all).try_acquire_owned();
        Ok(SessionPlace {
            _all: all.map_err(|_| too_many("sessions with this agent", SESSIONS_MAX))?,
            _of_tenant: of_tenant,
        })
    }

    fn of_tenant(&self, tenant: &str) -> Result<TenantPlace, Rejection> {
        let mut counts = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(tenant.to_owned()).or_default();
        let own = *count;
        // A tenant that has no session gets the error about the limit of all sessions instead.
        if own > 0 && own >= self.all.available_permits() {
            return Err(too_many("sessions of one tenant with this agent now", own));
        }
        *count += 1;
        Ok(TenantPlace {
            counts: Arc::clone(&self.of_tenants),
            tenant: tenant.to_owned(),
        })
    }
}

fn too_many(what: &str, limit: usize) -> Rejection {
    Rejection::TooMany {
        what: what.into(),
        limit: limit as u64,
    }
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::ids::LeaseId;

    #[test]
    fn one_tenant_leaves_places_for_others_with_any_proof() {
        let places = SessionPlaces::default();
        let certified = |tenant: &str| SessionPeer::Certified { tenant: tenant.into() };
        let bearer = SessionPeer::Bearer {
            tenant: "alice".into(),
            lease: LeaseId([1; 8]),
        };
        let alice = certified("alice");
        const HALF: usize = SESSIONS_MAX / 2;
        let mut taken: Vec<_> = (0..HALF)
            .map(|number| places.take([&bearer, &alice][number % 2]).ok())
            .collect();
        assert!(taken.iter().all(Option::is_some));
        let limit = |refused: Option<Rejection>| match refused {
            Some(Rejection::TooMany { limit, .. }) => limit as usize,
            other => panic!("{other:?}"),
        };
        for caller in [&bearer, &alice] {
            assert_eq!(limit(places.take(caller).err()), HALF);
        }
        taken.pop();
        taken.push(places.take(&bearer).ok());
        assert!(taken.iter().all(Option::is_some), "the place was free again");
        let other = places.take(&certified("bob")).expect("another tenant's are its own");
        let local = || places.take(&SessionPeer::Local { uid: 0 });
        let rest: Vec<_> = std::iter::from_fn(|| local().ok()).collect();
        assert_eq!(rest.len(), SESSIONS_MAX - HALF - 1);
        assert_eq!(limit(local().err()), SESSIONS_MAX);
        assert_eq!(limit(places.take(&certified("carol")).err()), SESSIONS_MAX);
        drop((taken, other, rest));
        assert!(
            places.of_tenants.lock().expect("whole").is_empty(),
            "tenants without sessions are forgotten"
        );
    }

    #[test]
    fn tenants_that_collude_leave_places_for_another() {
        let places = SessionPlaces::default();
        let mut taken = Vec::new();
        for (tenant, most) in [("alice", 512), ("bob", 256), ("carol", 128), ("dave", 64)] {
            let caller = SessionPeer::Certified { tenant: tenant.into() };
            let before = taken.len();
            taken.extend(std::iter::from_fn(|| places.take(&caller).ok()));
            assert_eq!(taken.len() - before, most, "{tenant}");
        }
    }
}
