//! Messages between this end and many peers, over one endpoint, for an owner that polls.
//!
//! ```text
//!  send: a free buffer  | envelope | content |  ── message ──►  receive buffer  ──►  poll: content, while it is read
//! ```
//!
//! Both ends copy; no memory of this end is reserved for a peer, so there may be thousands of peers. Each peer gets an
//! [`Inbox`], to which it sends, over an authenticated connection. Messages of one peer are received in the order in
//! which they were sent, and none is left out. A message without the peer's key, or from another address, is only
//! counted.
//!
//! Providers that keep the order (FI_ORDER_SAS) fill receive buffers in that order, but may report them in another
//! order: ofi_rxm fetches long messages, and reports short messages meanwhile. A message that is reported too early is
//! copied and waits for its turn; the number and size of waiting messages is bounded.
//!
//! # Buffers and their owners
//!
//! | buffer | is written by | until |
//! |---|---|---|
//! | send buffer | the closure of [`Messenger::send`] | its return; then the provider reads it until the completion |
//! | receive buffer | the provider | the completion; then [`Messenger::poll`] passes it on and posts it again |
//!
//! A peer has at most [`SENDS_PER_PEER_MAX`] send buffers, so that a peer that reads slowly does not block the others;
//! [`Messenger::send`] refuses further messages. The buffers of a peer that is gone become free when the provider
//! reports the end of their operations.

mod polling;
mod sending;

use super::address::OwnAddress;
use super::endpoint::{Endpoint, RegionHandle};
use super::error::OfiError;
use super::ffi::{self, fi_addr_t};
use super::operation::Operations;
use super::providers::Provider;
use crate::memory::Memory;
use hotlease_wire::fabric::{Envelope, Inbox};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Largest number of send buffers of one peer: some are under way while the next are written.
const SENDS_PER_PEER_MAX: u32 = 4;
/// Largest number of send buffers of all peers.
const SENDS: usize = 256;
/// Receive buffers: 8 MiB of messages of 64 KiB, which an adapter has to pin.
const RECEIVES: u32 = 128;

/// Operation of a completion.
enum MessengerOperation {
    Receive(u32),
    Send { buffer: u32, to: u32 },
}

/// A message that the provider has not accepted yet.
struct QueuedMessage {
    buffer: u32,
    bytes: usize,
}

struct MessengerPeer {
    /// Key that the peer's messages must contain; `None` once the peer's messages are refused.
    key: Option<u64>,
    /// Sequence number of the next message from the peer.
    next: u32,
    /// Messages that arrived before their turn, by sequence number.
    early: BTreeMap<u32, Vec<u8>>,
    early_bytes: usize,
    /// Address and inbox of the peer, once it is known.
    far: Option<PeerInbox>,
    /// Number of send buffers in use for the peer.
    held: u32,
    /// Messages to be posted, in order.
    ready: VecDeque<QueuedMessage>,
    has_failed: bool,
}

struct PeerInbox {
    address: fi_addr_t,
    key: u64,
    number: u32,
    sequence: u32,
    message_bytes: usize,
}

/// Messages between this end and many peers, over one endpoint, for an owner that polls.
pub struct Messenger {
    // Closed before everything that its operations use.
    endpoint: Endpoint,
    operations: Operations<MessengerOperation>,
    /// Receive buffers, then send buffers.
    memory: Arc<Memory>,
    descriptor: *mut c_void,
    region: Option<RegionHandle>,
    message_bytes: usize,
    pitch: usize,
    /// Free send buffers.
    free: Vec<u32>,
    /// Receive operations for which the provider had no room.
    unposted: Vec<u32>,
    peers: Vec<MessengerPeer>,
    /// Peers with messages for which the provider had no room.
    stalled: Vec<u32>,
    failed: VecDeque<(u32, OfiError)>,
    address: OwnAddress,
    refused: u64,
}

// SAFETY: the descriptor is the provider's, without thread affinity; everything else may be sent.
unsafe impl Send for Messenger {}

impl Messenger {
    /// Opens an endpoint for the peers 0 to `peers` - 1, and messages of up to `content_bytes`. The endpoint has a
    /// descriptor to sleep on if the provider supports descriptors.
    pub fn open(provider: &Provider, peers: u32, content_bytes: usize) -> Result<Self, OfiError> {
        let unusable = |why: String| OfiError::Unusable {
            provider: provider.name().into(),
            why,
        };
        if !provider.keeps_order() {
            return Err(unusable("its messages may overtake each other".into()));
        }
        let mut endpoint = Endpoint::open(provider, true)?;
        let message_bytes = (Envelope::BYTES + content_bytes).min(endpoint.message_bytes());
        if message_bytes <= Envelope::BYTES {
            return Err(unusable(format!("its messages are at most {message_bytes} bytes long")));
        }
        let address = OwnAddress::of(provider, endpoint.address()?);
        let (sends_max, receives_max) = endpoint.sizes();
        let receives = provider.quirks().receives.min(RECEIVES) as usize;
        let receives = receives.min(receives_max).max(1);
        let sends = (peers as usize).saturating_mul(SENDS_PER_PEER_MAX as usize);
        let sends = sends.min(SENDS).min(sends_max).max(1);
        let pitch = message_bytes.next_multiple_of(64);
        // The pages of this memory are allocated when they are first used, unless the provider needs all memory
        // registered.
        let size = (receives + sends) * pitch;
        let memory = Arc::new(Memory::create("hotlease-messages", size as u64)?);
        let (mut region, mut descriptor) = (None, ptr::null_mut());
        if endpoint.registers_local() {
            let access = ffi::FI_SEND | ffi::FI_RECV;
            // SAFETY: the memory is mapped until after the region is closed, see Drop.
            let made = unsafe { endpoint.register(memory.start(), size, access, rand::random()) }?;
            descriptor = made.1.descriptor;
            region = Some(made.0);
        }
        let peer = |_| MessengerPeer {
            key: Some(rand::random()),
            next: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            far: None,
            held: 0,
            ready: VecDeque::new(),
            has_failed: false,
        };
        let mut messenger = Self {
            endpoint,
            operations: Operations::new(receives + sends),
            memory,
            descriptor,
            region,
            message_bytes,
            pitch,
            free: (receives as u32..(receives + sends) as u32).rev().collect(),
            unposted: Vec::with_capacity(receives),
            peers: (0..peers).map(peer).collect(),
            stalled: Vec::new(),
            failed: VecDeque::new(),
            address,
            refused: 0,
        };
        for buffer in (0..receives as u32).rev() {
            let begun = messenger.operations.begin(MessengerOperation::Receive(buffer), None);
            let (number, _) = begun.expect("there is a place for each buffer");
            messenger.unposted.push(number);
        }
        messenger.post_receives()?;
        Ok(messenger)
    }

    /// Name of the provider.
    pub fn provider(&self) -> &'static str {
        self.address.provider()
    }

    /// Description of this end that a peer needs to send messages here. It must be sent to that peer only.
    ///
    /// # Panics
    /// If there is no peer of this number.
    pub fn inbox(&self, peer: u32) -> Inbox {
        Inbox {
            address: self.address.to_port_address(),
            number: peer,
            key: self.peers[peer as usize].key.unwrap_or_default(),
            message_bytes: self.message_bytes as u32,
        }
    }

    /// Records a peer's inbox. The peer must not send before it learns that this function was called: earlier messages
    /// are refused.
    pub fn add_inbox(&mut self, peer: u32, inbox: &Inbox) -> Result<(), OfiError> {
        self.address.check(&inbox.address)?;
        let Some(place) = self.peers.get_mut(peer as usize) else {
            return Err(OfiError::BadEnd {
                why: "there is no such peer",
            });
        };
        if place.far.is_some() {
            return Err(OfiError::BadEnd {
                why: "it is known already",
            });
        }
        // SAFETY: format and length were checked to be those of our own address.
        let address = unsafe { self.endpoint.insert(&inbox.address.address) }?;
        place.far = Some(PeerInbox {
            address,
            key: inbox.key,
            number: inbox.number,
            sequence: 0,
            message_bytes: self.message_bytes.min(inbox.message_bytes as usize),
        });
        Ok(())
    }

    /// Drops a peer: sends nothing more to it and refuses its messages. Operations under way to the peer continue.
    pub fn drop_peer(&mut self, peer: u32) {
        let Some(place) = self.peers.get_mut(peer as usize) else {
            return;
        };
        (place.key, place.has_failed) = (None, true);
        place.early.clear();
        for ready in place.ready.drain(..) {
            place.held -= 1;
            self.free.push(ready.buffer);
        }
    }

    /// Whether a message to a peer is still in its send buffer. `false` for a peer that has failed or was dropped.
    pub fn is_sending(&self, peer: u32) -> bool {
        self.peers
            .get(peer as usize)
            .is_some_and(|peer| !peer.has_failed && peer.held > 0)
    }

    /// Next peer that has failed, and why: messages can no longer be sent to the peer, or a message of the peer is
    /// missing. Each failed peer is returned once.
    pub fn next_failure(&mut self) -> Option<(u32, OfiError)> {
        self.failed.pop_front()
    }

    /// Whether the provider had no room for some message. Each [`poll`](Self::poll) tries again to send it.
    pub fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Number of messages that belonged to no peer.
    pub fn refused_messages(&self) -> u64 {
        self.refused
    }

    /// Records the failure of a peer, once for each peer.
    fn fail(&mut self, number: u32, error: OfiError) {
        if self.peers[number as usize].has_failed {
            return;
        }
        self.drop_peer(number);
        self.failed.push_back((number, error));
    }

    fn fail_all(&mut self, error: &OfiError) {
        for number in 0..self.peers.len() as u32 {
            self.fail(number, error.clone());
        }
    }

    /// Descriptor that is readable when something may have arrived, but only after
    /// [`prepare_sleep`](Self::prepare_sleep) returned true and until the next poll. `None` if the provider has no
    /// descriptor to sleep on: nap instead.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.wait_fd()
    }

    /// Prepares a wait for [`wait_fd`](Self::wait_fd); returns `true` if there is nothing to do until the descriptor is
    /// readable. If it returns `false`, poll again, after a nap if nothing has arrived.
    pub fn prepare_sleep(&mut self) -> bool {
        let is_quiet = self.stalled.is_empty() && self.unposted.is_empty();
        is_quiet && self.endpoint.wait_fd().is_some() && self.endpoint.prepare_sleep()
    }
}

/// Start of a buffer.
#[inline]
fn at(memory: &Memory, buffer: u32, pitch: usize) -> NonNull<u8> {
    // SAFETY: all buffers are inside the memory.
    unsafe { memory.start().add(buffer as usize * pitch) }
}

impl Drop for Messenger {
    fn drop(&mut self) {
        self.endpoint.close_transfers();
        if let Some(region) = self.region.take() {
            self.endpoint.deregister(region);
        }
    }
}

impl std::fmt::Debug for Messenger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "messenger of {}", self.provider())
    }
}
