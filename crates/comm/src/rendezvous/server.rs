//! Server of a rendezvous: its ports, its limits, and its statistics.

use super::ports::Ports;
use crate::secret::Secret;
use mio::Waker;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limits of a rendezvous on its peers: their connections, time, and number.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections at a time that have not proved the secret (default: 256). When it is reached, a
    /// new connection replaces an old one.
    pub strangers: usize,
    /// Time that the proof may take (default: 5 s).
    pub handshake: Duration,
    /// Maximum number of members that wait for others at a time (default: 16384).
    pub members: u32,
    /// Maximum number of pairs at a time that talk through the rendezvous because they cannot reach each other
    /// (default: 1024; 0: none). Each pair takes two connections and 128 KiB at most; pairs have their turns one after
    /// the other.
    pub relays: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            strangers: 256,
            handshake: Duration::from_secs(5),
            members: 16 * 1024,
            relays: 1024,
        }
    }
}

/// Statistics of the peers that a rendezvous has refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Number of members with another secret.
    pub other_secret: u64,
    /// Number of other refused peers: they are no members, took too long, or were replaced.
    pub others: u64,
    /// The last refused peer, with the reason.
    pub last: Option<String>,
}

/// Counters of a rendezvous.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) waiting: AtomicU64,
    /// Number of pairs that are relayed.
    pub(super) relayed: Arc<AtomicU32>,
    other_secret: AtomicU64,
    others: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Counters {
    pub(super) fn count(&self, from: SocketAddr, is_other_secret: bool, why: &str) {
        let counter = if is_other_secret {
            &self.other_secret
        } else {
            &self.others
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let peer = from.to_string();
        if is_other_secret {
            tracing::warn!(from = peer, "did not let a member in: {why}");
        } else {
            tracing::debug!(from = peer, "closed a connection: {why}");
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{peer}: {why}"));
    }
}

/// Orders of the owner of a rendezvous.
#[derive(Default)]
pub(super) struct OwnerOrders {
    pub(super) is_closed: AtomicBool,
    pub(super) is_over: AtomicBool,
}

/// Rendezvous that serves until it is dropped.
///
/// ```
/// use hotlease_comm::{Secret, rendezvous::Server};
/// let secret = Secret::new(b"of at least sixteen bytes")?;
/// let server = Server::start("127.0.0.1:0", vec![secret], Default::default())?;
/// assert_ne!(server.address().port(), 0);
/// # Ok::<(), hotlease_comm::Error>(())
/// ```
pub struct Server {
    address: SocketAddr,
    second: Option<SocketAddr>,
    waker: Arc<Waker>,
    orders: Arc<OwnerOrders>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address (port 0: any free port), for members that have one of these secrets. Also listens at a
    /// second port: a member behind a NAT connects to both ports, and so shows the kind of its NAT. The second port is
    /// the next port number, or any free port if `address` has port 0. If the second port is not available, the
    /// rendezvous works without it, with a warning.
    ///
    /// # Errors
    /// [`crate::Error::LocalFailure`] if it cannot listen at the address, [`crate::Error::Secret`] without a secret.
    pub fn start(address: impl ToSocketAddrs, secrets: Vec<Secret>, limits: Limits) -> Result<Self, crate::Error> {
        if secrets.is_empty() {
            let why = "a rendezvous needs one at least".into();
            return Err(crate::Error::Secret { why });
        }
        let local = crate::Error::local;
        let ports = || {
            let asked: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
            let first = TcpListener::bind(asked.as_slice())?;
            first.set_nonblocking(true)?;
            let address = first.local_addr()?;
            let is_any = asked.iter().any(|asked| asked.port() == 0);
            let second = second_port(address, is_any).inspect_err(|error| {
                tracing::warn!(%address, %error, "a rendezvous has no second port: it cannot tell NATs apart");
            });
            Ok((first, second.ok(), address))
        };
        let (first, second, address) = ports().map_err(local("listen for members"))?;
        let second_address = second.as_ref().and_then(|port| port.local_addr().ok());
        let counters = Arc::new(Counters::default());
        let orders = Arc::new(OwnerOrders::default());
        let set_up = || {
            let (ports, waker) = Ports::new(first, second, secrets, limits, Arc::clone(&counters))?;
            let owner = Arc::clone(&orders);
            let thread = std::thread::Builder::new().name("rendezvous".into());
            let thread = thread.spawn(move || ports.serve(&owner))?;
            Ok((waker, thread))
        };
        let (waker, thread) = set_up().map_err(local("serve members"))?;
        Ok(Self {
            address,
            second: second_address,
            waker,
            orders,
            counters,
            thread: Some(thread),
        })
    }

    /// Assembles no more members: members that wait, and members that arrive later, are told at once that the
    /// rendezvous is stopping (`JoinRejection::Stopping` on the wire). Relayed pairs continue.
    pub fn close(&self) {
        self.orders.is_closed.store(true, Ordering::Release);
        // Fails only if the thread is awake anyway.
        let _ = self.waker.wake();
    }

    /// Address on which the rendezvous listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Address of the second port, if there is one.
    pub fn second_address(&self) -> Option<SocketAddr> {
        self.second
    }

    /// Number of pairs of members that talk through the rendezvous.
    pub fn relayed(&self) -> u32 {
        self.counters.relayed.load(Ordering::Acquire)
    }

    /// Number of members that wait for others at this rendezvous.
    pub fn waiting(&self) -> u64 {
        self.counters.waiting.load(Ordering::Acquire)
    }

    /// Statistics of the refused peers.
    pub fn refusals(&self) -> Refusals {
        Refusals {
            other_secret: self.counters.other_secret.load(Ordering::Relaxed),
            others: self.counters.others.load(Ordering::Relaxed),
            last: self
                .counters
                .last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders.is_over.store(true, Ordering::Release);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the second port: the port after `first`, or any free port if `is_any`.
fn second_port(first: SocketAddr, is_any: bool) -> io::Result<TcpListener> {
    let next = if is_any {
        0
    } else {
        let next = first.port().checked_add(1);
        next.ok_or_else(|| io::Error::other("there is no port after 65535"))?
    };
    let port = TcpListener::bind(SocketAddr::new(first.ip(), next))?;
    port.set_nonblocking(true)?;
    Ok(port)
}
