//! Places of requests: the number of requests that are processed at a time, for each caller and in all.
//!
//! A request has its place from the check of its caller until its response, also while its body is still on the way.
//! So a caller that begins requests and does not end them only uses up its own places. Requests of this host and of the
//! site's daemons have places that no other caller can take: agents are never given up because members ask for much.

use super::{Caller, ConnectionPeer};
use hotlease_net::CertificateRole;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places of a connection whose peer has not proved who it is.
const STRANGER_PLACES: usize = 4;
/// Number of known callers above which those without requests are forgotten.
const CALLERS_KEPT: usize = 1024;

/// Numbers of places of an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaceLimits {
    /// Places of each group of callers: this host, daemons, members, strangers.
    pub group: usize,
    /// Places of each daemon, and of each tenant.
    pub caller: usize,
}

/// Places of all requests of an interface.
pub(crate) struct RequestPlaces {
    limits: PlaceLimits,
    host: Arc<Semaphore>,
    daemons: Arc<Semaphore>,
    members: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    /// Places of the callers that have requests now.
    callers: Mutex<HashMap<CallerKey, Weak<Semaphore>>>,
}

/// Place of one request.
#[derive(Debug)]
pub(crate) struct RequestPlace {
    _own: Option<OwnedSemaphorePermit>,
    _group: OwnedSemaphorePermit,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum CallerKey {
    /// Name of the tenant, or of a caller without one.
    Tenant(String),
    /// Identifier of a stranger's connection, or of a daemon's certificate.
    Connection([u8; 32]),
}

impl RequestPlaces {
    /// Makes the places of an interface.
    pub(crate) fn new(limits: PlaceLimits) -> Self {
        let group = || Arc::new(Semaphore::new(limits.group));
        Self {
            limits,
            host: group(),
            daemons: group(),
            members: group(),
            strangers: group(),
            callers: Mutex::default(),
        }
    }

    /// Waits for a place. `caller` is `None` if it is not known (yet).
    pub(crate) async fn take(&self, connection: &ConnectionPeer, caller: Option<&Caller>) -> RequestPlace {
        let (group, own) = self.of(connection, caller);
        // The caller's own place is taken first, so that a request that waits for it takes none from others.
        let own = match own {
            Some(own) => Some(permit(own).await),
            None => None,
        };
        RequestPlace {
            _own: own,
            _group: permit(Arc::clone(group)).await,
        }
    }

    /// Takes a place if one is free.
    pub(crate) fn try_take(&self, connection: &ConnectionPeer, caller: Option<&Caller>) -> Option<RequestPlace> {
        let (group, own) = self.of(connection, caller);
        Some(RequestPlace {
            _own: own.map(Semaphore::try_acquire_owned).transpose().ok()?,
            _group: Arc::clone(group).try_acquire_owned().ok()?,
        })
    }

    /// Places of the caller's group, and its own places.
    fn of(&self, connection: &ConnectionPeer, caller: Option<&Caller>) -> (&Arc<Semaphore>, Option<Arc<Semaphore>>) {
        let each = self.limits.caller;
        let (group, key, places) = match (connection, caller) {
            (ConnectionPeer::Local { .. }, _) => return (&self.host, None),
            (ConnectionPeer::Certified(peer), _) if peer.role != CertificateRole::Client => {
                (&self.daemons, CallerKey::Connection(peer.fingerprint), each)
            }
            (_, Some(caller)) => (&self.members, CallerKey::Tenant(caller.payer().into()), each),
            // Requests that are open to strangers count for the member, too, if the connection is a member's.
            (ConnectionPeer::Stranger { payer: Some(payer), .. }, None) => {
                (&self.members, CallerKey::Tenant(payer.clone()), each)
            }
            (ConnectionPeer::Certified(peer), None) => {
                let payer = peer.tenant.as_ref().unwrap_or(&peer.name);
                (&self.members, CallerKey::Tenant(payer.clone()), each)
            }
            (ConnectionPeer::Stranger { channel, .. }, None) => {
                (&self.strangers, CallerKey::Connection(*channel), STRANGER_PLACES)
            }
        };
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() > CALLERS_KEPT {
            callers.retain(|_, places| places.strong_count() > 0);
        }
        let known = callers.get(&key).and_then(Weak::upgrade);
        let own = known.unwrap_or_else(|| {
            let own = Arc::new(Semaphore::new(places));
            callers.insert(key, Arc::downgrade(&own));
            own
        });
        (group, Some(own))
    }
}

async fn permit(places: Arc<Semaphore>) -> OwnedSemaphorePermit {
    places.acquire_owned().await.expect("no semaphore here is ever closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{CallerProof, Role};
    use hotlease_net::Peer;

    const LIMITS: PlaceLimits = PlaceLimits { group: 512, caller: 64 };

    fn certified(role: CertificateRole, number: u8) -> ConnectionPeer {
        ConnectionPeer::Certified(Arc::new(Peer {
            role,
            name: format!("{role} {number}"),
            tenant: None,
            hosts: Vec::new(),
            fingerprint: [number; 32],
        }))
    }

    fn certificate_of(tenant: &str, number: u8) -> ConnectionPeer {
        ConnectionPeer::Certified(Arc::new(Peer {
            role: CertificateRole::Client,
            name: format!("client {number}"),
            tenant: Some(tenant.into()),
            hosts: Vec::new(),
            fingerprint: [number; 32],
        }))
    }

    fn member(tenant: &str) -> Caller {
        Caller {
            name: format!("someone of {tenant}"),
            tenant: Some(tenant.into()),
            role: Role::User,
            proof: CallerProof::Token,
        }
    }

    fn stranger(number: u8) -> ConnectionPeer {
        ConnectionPeer::Stranger {
            channel: [number; 32],
            server: [0; 32],
            payer: None,
        }
    }

    /// Takes all places that the caller gets.
    fn all(places: &RequestPlaces, connection: &ConnectionPeer, caller: Option<&Caller>) -> Vec<RequestPlace> {
        std::iter::from_fn(|| places.try_take(connection, caller)).collect()
    }

    #[test]
    fn a_caller_that_holds_all_of_its_places_takes_none_from_others() {
        let places = RequestPlaces::new(LIMITS);
        let (ann, bob) = (member("ann"), member("bob"));
        // Connections and certificates of a tenant do not matter.
        let of_ann = all(&places, &stranger(1), Some(&ann));
        assert_eq!(of_ann.len(), LIMITS.caller);
        assert!(
            places.try_take(&certificate_of("ann", 4), None).is_none(),
            "nor with requests that are open to all"
        );
        assert!(places.try_take(&certificate_of("bob", 5), None).is_some());
        assert!(
            places
                .try_take(&certified(CertificateRole::Client, 2), Some(&ann))
                .is_none()
        );
        assert!(places.try_take(&stranger(1), Some(&bob)).is_some());
        let agent = certified(CertificateRole::Agent, 3);
        assert_eq!(all(&places, &agent, None).len(), LIMITS.caller);
        drop(of_ann);
        assert!(
            places.try_take(&stranger(1), Some(&ann)).is_some(),
            "they are free again"
        );
    }

    #[test]
    fn members_and_strangers_take_no_place_of_the_host_and_the_daemons() {
        let places = RequestPlaces::new(LIMITS);
        let tenants: Vec<Caller> = (0..20).map(|number| member(&format!("tenant {number}"))).collect();
        let held: Vec<RequestPlace> = tenants
            .iter()
            .flat_map(|tenant| all(&places, &stranger(0), Some(tenant)))
            .chain((0..=254).flat_map(|number| all(&places, &stranger(number), None)))
            .collect();
        assert_eq!(held.len(), 2 * LIMITS.group, "all places of both groups");
        assert!(places.try_take(&certified(CertificateRole::Agent, 255), None).is_some());
        assert!(places.try_take(&ConnectionPeer::Local { uid: 0 }, None).is_some());
    }

    #[test]
    fn requests_on_a_known_connection_take_no_place_of_strangers() {
        let places = RequestPlaces::new(LIMITS);
        let known = |number: u8| ConnectionPeer::Stranger {
            channel: [number; 32],
            server: [0; 32],
            payer: Some("ann".into()),
        };
        let held: Vec<RequestPlace> = (0..=254)
            .flat_map(|number| all(&places, &known(number), None))
            .collect();
        assert_eq!(held.len(), LIMITS.caller, "those of one tenant");
        assert!(places.try_take(&stranger(0), None).is_some());
        assert!(places.try_take(&stranger(0), Some(&member("bob"))).is_some());
        assert!(places.try_take(&stranger(0), Some(&member("ann"))).is_none());
    }

    #[test]
    fn callers_without_requests_are_forgotten() {
        let places = RequestPlaces::new(LIMITS);
        for number in 0..3 * CALLERS_KEPT {
            drop(places.try_take(&stranger(0), Some(&member(&number.to_string()))));
        }
        assert!(places.callers.lock().expect("no panic").len() <= CALLERS_KEPT + 1);
    }

    #[tokio::test]
    async fn a_request_waits_for_a_place_of_its_caller() {
        let places = RequestPlaces::new(LIMITS);
        let mut held = all(&places, &stranger(1), None);
        assert_eq!(held.len(), STRANGER_PLACES);
        let connection = stranger(1);
        let waiting = places.take(&connection, None);
        tokio::pin!(waiting);
        let early = tokio::time::timeout(std::time::Duration::from_millis(20), &mut waiting).await;
        assert!(early.is_err(), "no place is free");
        held.pop();
        waiting.await;
    }
}
