//! A port: this end of a fabric, for any number of peers and channels.

use super::PEERS_MAX;
use super::address::OwnAddress;
use super::counters::Counters;
use super::endpoint::Endpoint;
use super::error::OfiError;
use super::peer_state::PeerState;
use super::port_state::PortState;
use super::providers::Provider;
use super::staging::HEADER_BYTES;
use hotlease_wire::fabric::{MessageKind, PortAddress, Prefix};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest single operation.
const CHUNK_BYTES: usize = 1 << 20;
/// How long a dropped port waits for its sends to leave.
const LINGER: Duration = Duration::from_millis(100);
/// Time until an unanswered probe is sent again; doubled each time.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(250);
/// Idle time after which a wait yields its core between checks. Longer than most transfers, because a thread that
/// yields may get the core back only milliseconds later.
const SPIN: Duration = Duration::from_millis(1);

/// Options of a port.
#[derive(Debug, Clone, Copy)]
pub struct PortOptions {
    /// Whether the port has a descriptor to sleep on, if the provider supports descriptors. Default: true.
    pub sleep: bool,
    /// How long a frame may wait for room at the provider, or for its own staging entry, before its link is treated as
    /// broken. Default: 5 s.
    pub send_timeout: Duration,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            sleep: true,
            send_timeout: Duration::from_secs(5),
        }
    }
}

/// Access of peers to registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// No access: only this end's own reads and writes use the memory.
    Local,
    /// Peers may read it.
    PeerReads,
    /// Peers may write it.
    PeerWrites,
    /// Peers may read and write it.
    PeerReadsAndWrites,
}

/// This end of a fabric: one endpoint, its completion queue and its receive buffers. `Send + Sync`; rings, peers and
/// registrations hold a reference, and the port is closed when the last of them is dropped.
pub struct Port {
    pub(super) state: Mutex<PortState>,
    /// Wakes the followers: threads that sleep here while one thread, the leader, sleeps on the wait object.
    pub(super) followers: Condvar,
    /// Interrupts the leader's sleep when another thread took the frame for which the leader waits.
    pub(super) signal: EventFd,
    pub(super) wait_fd: Option<RawFd>,
    pub(super) ordered: bool,
    /// Whether peers may vanish safely. If not, no goodbye is sent to a peer, and its address is not removed.
    pub(super) survives_peers: bool,
    pub(super) registers_local: bool,
    pub(super) inject_bytes: usize,
    pub(super) chunk_bytes: usize,
    message_bytes: usize,
    address: OwnAddress,
    pub(super) options: PortOptions,
    probes: AtomicU32,
}

/// Numbers of a port's current resources. Each resource is freed when its owners are gone and its operations have
/// ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortResources {
    /// Registrations of memory.
    pub registrations: usize,
    /// Open ends of channels.
    pub channels: usize,
    /// Links to peers.
    pub peers: usize,
    /// Addresses in the provider's address vector.
    pub addresses: usize,
    /// Sends, reads and writes under way.
    pub operations: usize,
}

/// A peer of a port. Removed when dropped.
pub struct PortPeer {
    pub(super) port: Arc<Port>,
    pub(super) link: Arc<PeerState>,
    address: Vec<u8>,
}

/// A wait in small steps until a deadline.
pub(super) struct DeadlineWait {
    deadline: Instant,
    /// Time of the first check since the last movement.
    moved: Option<Instant>,
}

impl DeadlineWait {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { deadline, moved: None }
    }

    /// Pauses after a check that found nothing; returns whether to check again.
    pub(super) fn should_retry(&mut self) -> bool {
        let now = Instant::now();
        if now - *self.moved.get_or_insert(now) > SPIN {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        now < self.deadline
    }

    /// Notes that something moved.
    pub(super) fn note_movement(&mut self) {
        self.moved = None;
    }
}

impl Port {
    /// Opens a port with default options.
    pub fn open(provider: &Provider) -> Result<Arc<Self>, OfiError> {
        Self::open_with(provider, PortOptions::default())
    }

    /// Opens an endpoint at the provider's interface, with a port number of the provider's choice.
    pub fn open_with(provider: &Provider, options: PortOptions) -> Result<Arc<Self>, OfiError> {
        let endpoint = Endpoint::open(provider, options.sleep)?;
        let address = OwnAddress::of(provider, endpoint.address()?);
        let eager = HEADER_BYTES + provider.quirks().eager_bytes as usize;
        let message_bytes = eager.min(endpoint.message_bytes());
        if message_bytes <= HEADER_BYTES {
            return Err(OfiError::Unusable {
                provider: provider.name().into(),
                why: format!("its messages are at most {message_bytes} bytes long"),
            });
        }
        let signal = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let signal = signal.map_err(|error| OfiError::Memory(format!("eventfd: {error}")))?;
        Ok(Arc::new(Self {
            followers: Condvar::new(),
            signal,
            wait_fd: endpoint.wait_fd().map(|fd| fd.as_raw_fd()),
            ordered: provider.keeps_write_order(),
            survives_peers: provider.quirks().survives_peer,
            registers_local: endpoint.registers_local(),
            inject_bytes: endpoint.inject_bytes(),
            chunk_bytes: endpoint.message_bytes().min(CHUNK_BYTES),
            message_bytes,
            address,
            options,
            probes: AtomicU32::new(0),
            state: Mutex::new(PortState::new(endpoint, provider.quirks().receives, message_bytes)?),
        }))
    }

    /// Name of the provider.
    pub fn provider(&self) -> &'static str {
        self.address.provider()
    }

    /// Address of the port, to give to peers.
    pub fn address(&self) -> PortAddress {
        self.address.to_port_address()
    }

    /// Counts of received messages so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Numbers of the port's current resources.
    pub fn holdings(&self) -> PortResources {
        let state = self.lock();
        PortResources {
            registrations: state.regions.iter().flatten().count(),
            channels: state.channels.iter().flatten().count(),
            peers: state.links.len(),
            addresses: state.addresses.len(),
            operations: state.send_count(),
        }
    }

    /// Reason why the port as a whole does not work any more; `None` if it works.
    pub fn failure(&self) -> Option<OfiError> {
        self.lock().failed.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PortState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles messages that have arrived, and drives the operations that are under way. Returns at once if another
    /// thread has the lock.
    #[inline]
    pub fn progress(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            self.drive(&mut state);
        }
    }

    /// As [`Port::progress`], with the lock held already.
    #[inline]
    pub(super) fn drive(&self, state: &mut PortState) {
        let delivered = state.drive();
        if delivered > 0 && (state.leader || state.followers > 0) {
            self.wake(state);
        }
    }

    #[cold]
    fn wake(&self, state: &PortState) {
        if state.leader {
            // Fails only if the counter is full; in this case the leader is being woken already.
            let _ = self.signal.write(1);
        }
        self.followers.notify_all();
    }

    /// Draws a key for a link that this end begins.
    pub fn draw_key() -> u64 {
        rand::random()
    }

    /// Adds a peer. `key` was drawn at random for this link and passed to both ends over the control plane; see
    /// [`Port::probe`].
    pub fn peer(self: &Arc<Self>, address: &PortAddress, key: u64) -> Result<PortPeer, OfiError> {
        self.address.check(address)?;
        let mut state = self.lock();
        if state.links.len() + state.leaving.len() >= PEERS_MAX {
            return Err(OfiError::TooMany {
                what: "peers",
                limit: PEERS_MAX,
            });
        }
        if state.links.contains_key(&key) {
            return Err(OfiError::BadEnd {
                why: "the link's key is in use",
            });
        }
        let state = &mut *state;
        let known = state.addresses.get_mut(&address.address);
        let fabric_address = match known {
            Some((fabric_address, links)) => {
                *links += 1;
                *fabric_address
            }
            None => {
                // SAFETY: format and length were checked to be those of our own address.
                let inserted = unsafe { state.endpoint.insert(&address.address) }?;
                state.addresses.insert(address.address.clone(), (inserted, 1));
                inserted
            }
        };
        let link = Arc::new(PeerState::new(fabric_address, key));
        state.links.insert(key, link.clone());
        Ok(PortPeer {
            port: self.clone(),
            link,
            address: address.address.clone(),
        })
    }

    pub(super) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Sends a probe to the peer and waits for its answer; returns the round-trip time. The peer must have added this
    /// link, and must make progress. The first probe also makes the provider set up its connection, if it does this
    /// lazily.
    pub fn probe(&self, peer: &PortPeer, timeout: Duration) -> Result<Duration, OfiError> {
        let number = self.probes.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let begin = Instant::now();
        let probe = Prefix::bare(MessageKind::Probe, number, peer.link.key);
        let mut patience = DeadlineWait::until(begin + timeout);
        // A peer that has not added this link yet drops the probe, so the probe is repeated.
        let mut next = begin;
        let mut interval = PROBE_INTERVAL;
        loop {
            {
                let mut state = self.lock();
                if Instant::now() >= next && state.send_control(&peer.link, probe) {
                    next = Instant::now() + interval;
                    interval = (2 * interval).min(PROBE_INTERVAL_MAX);
                }
                self.drive(&mut state);
            }
            if peer.link.answered.load(Ordering::Acquire) == number {
                return Ok(begin.elapsed());
            }
            if let Some(error) = peer.link.broken() {
                return Err(error);
            }
            if !patience.should_retry() {
                return Err(OfiError::Timeout {
                    what: "probe",
                    after: timeout,
                });
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut patience = DeadlineWait::until(Instant::now() + LINGER);
        while state.send_count() > 0 && state.failed.is_none() {
            state.drive();
            if !patience.should_retry() {
                break;
            }
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "port of {}", self.provider())
    }
}

impl PortPeer {
    /// Treats the peer as gone, even if the provider reports no failure: transfers with the peer end, on any thread,
    /// and frames to it are dropped. This is needed because over sockets a provider may try for ever to connect again
    /// to a port that was closed.
    pub fn give_up(&self) {
        self.link.break_off(OfiError::PeerClosed);
    }

    /// Port to which the peer belongs.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }
}

impl Drop for PortPeer {
    fn drop(&mut self) {
        let mut state = self.port.lock();
        state.links.remove(&self.link.key);
        if !self.port.survives_peers {
            return;
        }
        // Operations under way to the peer, usually a goodbye, end in a completion or in an error, perhaps much later.
        let link = std::mem::replace(&mut self.link, Arc::new(PeerState::new(0, 0)));
        state.leaving.push((link, std::mem::take(&mut self.address)));
        self.port.drive(&mut state);
        state.forget_peers();
    }
}
