//! Clients that wait for leases: what they ask for, so that more nodes can be got from a batch system.
//!
//! A client that waits repeats its request after pauses of at most a second, and sends a number that identifies it. The
//! client counts as waiting from its second refusal on, because a client that does not wait asks only once. The client
//! has ceased to wait when it is served, is refused for another reason, or no longer asks. The list is in memory only;
//! after a restart it fills again with the clients' next requests.

use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AcquireRequest, WaitingClient};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time without a request after which a client is forgotten. A waiting client pauses for a second, and its request is
/// answered within 8 s.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Limit of clients of one tenant; further clients wait, but are not listed.
const OF_TENANT_MAX: usize = 256;
/// Limit of clients of all tenants.
const ALL_MAX: usize = 16 * 1024;

/// A client that was refused for lack of room.
struct RefusedClient {
    client: WaitingClient,
    refusals: u32,
    first: Duration,
    last: Duration,
}

/// Clients that wait, by tenant and their own number.
#[derive(Default)]
pub(crate) struct WaitingClients(Mutex<BTreeMap<(String, u64), RefusedClient>>);

/// Whether a request was refused for lack of resources that another agent could have.
fn lacks_room(refusal: &Rejection) -> bool {
    match refusal {
        Rejection::NoCapacity { .. } | Rejection::NoPlaces { .. } | Rejection::NoGpus { .. } => true,
        Rejection::NotTogether { .. } | Rejection::NoAgent | Rejection::Unavailable { .. } => true,
        // Memory, and limits of a manager or of a shared core, for which more nodes may help or not.
        Rejection::TooMany { .. } => true,
        _ => false,
    }
}

impl WaitingClients {
    /// Notes that a request was refused, or served.
    pub(crate) fn note(&self, message: &AcquireRequest, refusal: Option<&Rejection>, now: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (message.tenant.clone(), message.waiting);
        let Some(refusal) = refusal.filter(|refusal| lacks_room(refusal)) else {
            known.remove(&key);
            return;
        };
        let client = WaitingClient {
            tenant: message.tenant.clone(),
            label: message.label.clone(),
            workers: message.workers,
            slots_per_worker: message.slots_per_worker,
            gpus: message.gpus,
            memory_bytes: message.memory_bytes,
            spread: message.spread_least > 0,
            waited_ms: 0,
            why: refusal.to_string(),
        };
        if let Some(earlier) = known.get_mut(&key) {
            earlier.refusals = earlier.refusals.saturating_add(1);
            earlier.last = now;
            earlier.client = client;
            return;
        }
        let of_tenant = || known.range((key.0.clone(), 0)..=(key.0.clone(), u64::MAX)).count();
        if known.len() >= ALL_MAX || of_tenant() >= OF_TENANT_MAX {
            known.retain(|_, client| client.last + SILENT_MAX >= now);
        }
        let of_tenant = known.range((key.0.clone(), 0)..=(key.0.clone(), u64::MAX)).count();
        if known.len() < ALL_MAX && of_tenant < OF_TENANT_MAX {
            let refused = RefusedClient {
                client,
                refusals: 1,
                first: now,
                last: now,
            };
            known.insert(key, refused);
        }
    }

    /// Lists the waiting clients of a tenant, in the order in which they began to wait. An empty name stands for all
    /// tenants.
    pub(crate) fn list(&self, tenant: &str, now: Duration) -> Vec<WaitingClient> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, client| client.last + SILENT_MAX >= now);
        let asked = |client: &&RefusedClient| tenant.is_empty() || client.client.tenant == tenant;
        let waiting = known.values().filter(asked).filter(|client| client.refusals > 1);
        let listed = waiting.map(|known| WaitingClient {
            waited_ms: now.saturating_sub(known.first).as_millis() as u64,
            ..known.client.clone()
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by_key(|client| std::cmp::Reverse(client.waited_ms));
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tenant: &str, waiting: u64) -> AcquireRequest {
        AcquireRequest {
            tenant: tenant.into(),
            waiting,
            workers: 3,
            ..AcquireRequest::default()
        }
    }

    #[test]
    fn a_client_waits_from_its_second_refusal_until_it_is_served_or_silent() {
        let clients = WaitingClients::default();
        let second = Duration::from_secs(1);
        let full = Rejection::NoAgent;
        let note = |tenant, number, refusal, at| clients.note(&request(tenant, number), refusal, at * second);
        let listed = |tenant: &str, at| {
            let listed = clients.list(tenant, at * second);
            listed
                .iter()
                .map(|client| (client.tenant.clone(), client.waited_ms))
                .collect::<Vec<_>>()
        };
        note("alice", 1, Some(&full), 0);
        note("alice", 2, Some(&full), 0);
        note("bob", 1, Some(&full), 0);
        assert_eq!(listed("", 1), [], "a client without patience asks once");
        note("alice", 1, Some(&full), 1);
        note("bob", 1, Some(&full), 2);
        assert_eq!(listed("alice", 3), [("alice".to_owned(), 3000)]);
        assert_eq!(listed("", 3).len(), 2);
        note("bob", 1, None, 4);
        assert_eq!(listed("bob", 4), [], "it is served");
        // Another agent does not help against a quota.
        let quota = Rejection::NotPermitted { what: String::new() };
        note("alice", 2, Some(&quota), 4);
        note("alice", 2, Some(&full), 4);
        assert_eq!(listed("alice", 4).len(), 1);
        assert_eq!(listed("alice", 30), [], "it no longer asks");
    }

    #[test]
    fn waiting_clients_are_bounded_and_silent_ones_make_room() {
        let clients = WaitingClients::default();
        for round in 0..2 {
            for number in 0..2 * OF_TENANT_MAX as u64 {
                clients.note(
                    &request("alice", number),
                    Some(&Rejection::NoAgent),
                    round * SILENT_MAX / 2,
                );
            }
        }
        assert_eq!(clients.list("alice", SILENT_MAX).len(), OF_TENANT_MAX);
        for _ in 0..2 {
            clients.note(&request("alice", u64::MAX), Some(&Rejection::NoAgent), 3 * SILENT_MAX);
        }
        assert_eq!(clients.list("alice", 3 * SILENT_MAX).len(), 1);
    }
}
