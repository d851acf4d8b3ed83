//! Sockets that wait until the client on another host fetches them by a ticket.

use crate::peer::Peer;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::socket::Socket;
use hotlease_wire::Rejection;
use hotlease_wire::tunnel::Ticket;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// Time that a socket waits.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// Limit of sockets that wait at a time, of all peers.
const WAITING_MAX: usize = 1024;
/// Limit of sockets that wait for one tenant: a client with a lease of many workers connects to all of them at once. A
/// tenant may have several certificates, and several leases. Besides, a tenant may not have more waiting sockets than
/// there are free places, so that four tenants that collude do not take all places.
const WAITING_OF_TENANT_MAX: usize = 256;

/// Peer that a socket waits for; no other peer gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TicketHolder {
    /// Peer with this certificate.
    Certified(Peer),
    /// Peer with a lease's token and no certificate: the ticket alone proves the peer's identity.
    Bearer(Peer),
}

impl TicketHolder {
    /// Tenant of the peer.
    pub fn tenant(&self) -> &str {
        let (Self::Certified(peer) | Self::Bearer(peer)) = self;
        peer.tenant.as_deref().unwrap_or(&peer.name)
    }
}

/// Limit of a tenant's sockets while `all` sockets wait in total.
fn most_of_tenant(all: usize) -> usize {
    WAITING_OF_TENANT_MAX.min(WAITING_MAX.saturating_sub(all))
}

struct WaitingSocket {
    socket: ForeignDescriptor,
    holder: TicketHolder,
}

/// Sockets that wait for clients, by ticket. Each waits for a limited time.
pub(super) struct Tickets {
    waiting: Mutex<HashMap<Ticket, WaitingSocket>>,
    waits: Duration,
}

impl Default for Tickets {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            waits: WAIT_LIMIT,
        }
    }
}

impl Tickets {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Ticket, WaitingSocket>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a socket under a new ticket for `holder`; closes it if it is not fetched in time.
    pub fn insert(self: &Arc<Self>, socket: ForeignDescriptor, holder: &TicketHolder) -> Result<Ticket, Rejection> {
        let ticket = Ticket(rand::random());
        {
            let mut waiting = self.waiting();
            let is_of_tenant = |waiting: &&WaitingSocket| waiting.holder.tenant() == holder.tenant();
            let of_tenant = waiting.values().filter(is_of_tenant).count();
            let most = most_of_tenant(waiting.len());
            if of_tenant >= most {
                return Err(Rejection::TooMany {
                    what: "unclaimed connections to workers".into(),
                    limit: most as u64,
                });
            }
            let holder = holder.clone();
            waiting.insert(ticket, WaitingSocket { socket, holder });
        }
        let tickets = Arc::clone(self);
        tokio::spawn(async move {
            sleep(tickets.waits).await;
            tickets.waiting().remove(&ticket);
        });
        Ok(ticket)
    }

    /// Returns the socket if it was kept for this peer; a ticket is valid once.
    pub fn take(&self, ticket: Ticket, peer: &Peer) -> Option<Socket> {
        let mut waiting = self.waiting();
        match &waiting.get(&ticket)?.holder {
            TicketHolder::Certified(holder) if holder == peer => {}
            TicketHolder::Certified(_) | TicketHolder::Bearer(_) => return None,
        }
        waiting.remove(&ticket).map(|waiting| waiting.socket.into())
    }

    /// Returns the socket of a ticket and its peer, to a client without a certificate; a ticket is valid once.
    pub fn take_of_bearer(&self, ticket: Ticket) -> Option<(Socket, Peer)> {
        let mut waiting = self.waiting();
        let TicketHolder::Bearer(peer) = waiting.get(&ticket)?.holder.clone() else {
            return None;
        };
        waiting.remove(&ticket).map(|waiting| (waiting.socket.into(), peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateRole;

    fn peer(name: &str) -> Peer {
        Peer {
            role: CertificateRole::Client,
            name: name.into(),
            tenant: Some(name.into()),
            hosts: Vec::new(),
            fingerprint: [0; 32],
        }
    }

    fn certified(name: &str) -> TicketHolder {
        TicketHolder::Certified(peer(name))
    }

    fn socket() -> (ForeignDescriptor, Socket) {
        let (a, b) = Socket::pair().expect("a pair");
        (a.into(), b)
    }

    #[tokio::test]
    async fn a_ticket_is_good_once_and_for_its_peer_only() {
        let tickets = Arc::new(Tickets::default());
        let ticket = tickets.insert(socket().0, &certified("alice")).expect("room");
        assert!(
            tickets.take(ticket, &peer("mallory")).is_none(),
            "another client got the socket"
        );
        let renewed = Peer {
            fingerprint: [1; 32],
            ..peer("alice")
        };
        assert!(tickets.take(ticket, &renewed).is_none(), "another certificate");
        assert!(tickets.take(Ticket([0; 16]), &peer("alice")).is_none(), "guessed");
        assert!(tickets.take(ticket, &peer("alice")).is_some());
        assert!(tickets.take(ticket, &peer("alice")).is_none(), "used twice");
    }

    #[tokio::test]
    async fn a_bearers_ticket_is_good_once_and_no_certificates_is_a_bearers() {
        let tickets = Arc::new(Tickets::default());
        let certified = tickets.insert(socket().0, &certified("alice")).expect("room");
        assert!(
            tickets.take_of_bearer(certified).is_none(),
            "a bearer got the socket of a certificate"
        );
        let holder = TicketHolder::Bearer(peer("alice"));
        let ticket = tickets.insert(socket().0, &holder).expect("room");
        assert!(
            tickets.take(ticket, &peer("alice")).is_none(),
            "a certificate got the socket of a bearer"
        );
        assert!(tickets.take_of_bearer(Ticket([0; 16])).is_none(), "guessed");
        let (_, found) = tickets.take_of_bearer(ticket).expect("its own");
        assert_eq!(found, peer("alice"));
        assert!(tickets.take_of_bearer(ticket).is_none(), "used twice");
    }

    #[tokio::test]
    async fn one_tenant_cannot_fill_the_table() {
        let tickets = Arc::new(Tickets::default());
        let holder = |number: usize| {
            let peer = Peer {
                fingerprint: [number as u8; 32],
                ..peer("mallory")
            };
            match number % 2 {
                0 => TicketHolder::Certified(peer),
                _ => TicketHolder::Bearer(peer),
            }
        };
        for number in 0..WAITING_OF_TENANT_MAX {
            tickets.insert(socket().0, &holder(number)).expect("room");
        }
        assert!(tickets.insert(socket().0, &holder(0)).is_err());
        assert!(tickets.insert(socket().0, &holder(1)).is_err());
        assert!(tickets.insert(socket().0, &certified("alice")).is_ok());
    }

    #[test]
    fn tenants_that_collude_leave_room_for_another() {
        let mut all = 0;
        for most in [256, 256, 256, 128, 64] {
            let mut own = 0;
            while own < most_of_tenant(all) {
                own += 1;
                all += 1;
            }
            assert_eq!(own, most);
        }
    }

    #[tokio::test]
    async fn a_socket_that_no_client_comes_for_is_closed() {
        let tickets = Arc::new(Tickets {
            waits: Duration::from_millis(1),
            ..Tickets::default()
        });
        let (socket, other) = socket();
        let ticket = tickets.insert(socket, &certified("alice")).expect("room");
        while !tickets.waiting().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(tickets.take(ticket, &peer("alice")).is_none(), "it still waits");
        assert!(other.receive_raw().expect("readable").is_none(), "not closed");
    }
}
