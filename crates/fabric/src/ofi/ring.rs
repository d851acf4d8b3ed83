//! Both ends of a channel over a fabric: the near ring, open for frames, and the peer's ring.

use super::CHANNELS_MAX;
use super::endpoint::PostResult;
use super::error::OfiError;
use super::operation::Operation;
use super::peer_state::RingState;
use super::port::{Access, DeadlineWait, Port, PortPeer};
use super::port_state::{OpenChannel, PortState};
use super::staging::{HEADER_BYTES, Staging};
use super::transfer::Registration;
use crate::ring::FarRing;
use crate::shm::{NearRing, RingLayout};
use hotlease_wire::connection::RingShape;
use hotlease_wire::fabric::{MessageKind, Prefix, RingDescription};
use hotlease_wire::frame::{EXPRESS_ENTRY, LineWords};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Instant;

/// This end's ring, open for frames. Closed when dropped.
pub struct NearEnd {
    port: Arc<Port>,
    end: RingDescription,
    // Peers can write payloads ahead as long as this registration exists.
    _registration: Registration,
}

impl NearEnd {
    pub(super) fn new(port: Arc<Port>, end: RingDescription, registration: Registration) -> Self {
        Self {
            port,
            end,
            _registration: registration,
        }
    }

    /// Description of this end that the peer needs to write into it.
    pub fn end(&self) -> &RingDescription {
        &self.end
    }

    /// Connects this end with the peer's ring. If `guard`, each staging entry has a guard page behind it, for a worker
    /// whose functions write there.
    pub fn connect(self, peer: &Arc<PortPeer>, far: &RingDescription, guard: bool) -> Result<OfiRing, OfiError> {
        let bad = |why| OfiError::BadEnd { why };
        let layout = RingLayout::of(far.shape).ok_or_else(|| bad("its shape is over the limits"))?;
        if far.shape.depth != self.end.shape.depth {
            return Err(bad("its depth differs from that of this end"));
        }
        if far.ring.size < layout.ring_bytes() as u64 || far.ring.address.checked_add(far.ring.size).is_none() {
            return Err(bad("its memory is smaller than its ring"));
        }
        if (far.message_bytes as usize) < HEADER_BYTES {
            return Err(bad("it receives no frames"));
        }
        let staging = Staging::new(layout, guard)?;
        let registers = self.port.registers_local;
        let registration = registers
            .then(|| self.port.register(staging.memory(), Access::Local))
            .transpose()?;
        let state = Arc::new(RingState {
            link: peer.link.clone(),
            in_flight: (0..=layout.depth()).map(|_| AtomicU32::new(0)).collect(),
            closed: AtomicBool::new(false),
            _staging: staging.memory().clone(),
        });
        if let Some(Some(channel)) = self.port.lock().channels.get_mut(self.index()) {
            channel.ring = Some(state.clone());
        }
        Ok(OfiRing {
            message_bytes: self.port.message_bytes().min(far.message_bytes as usize),
            far: *far,
            lines: (0..=layout.depth()).map(|_| AtomicU8::new(0)).collect(),
            staging,
            registration,
            state,
            near: self,
            peer: peer.clone(),
        })
    }

    fn index(&self) -> usize {
        self.end.channel as usize & (CHANNELS_MAX - 1)
    }
}

impl Drop for NearEnd {
    fn drop(&mut self) {
        let index = self.index();
        self.port.lock().channels[index] = None;
    }
}

impl Port {
    /// Opens this end of a channel: from now on frames for it are put into `near`.
    pub fn open_channel(self: &Arc<Self>, near: &NearRing) -> Result<NearEnd, OfiError> {
        let registration = self.register(near.memory(), Access::PeerWrites)?;
        let layout = near.layout();
        let shape = RingShape {
            depth: layout.depth(),
            entry_bytes: layout.entry_bytes() as u32,
        };
        let key = rand::random();
        let mut state = self.lock();
        let free = state.channels.iter().position(Option::is_none);
        let index = free.unwrap_or(state.channels.len());
        if index >= CHANNELS_MAX {
            return Err(OfiError::TooMany {
                what: "channels",
                limit: CHANNELS_MAX,
            });
        }
        // The upper bits are random, so that a frame for a closed channel is not delivered to a later channel.
        let id = (rand::random::<u32>() & !(CHANNELS_MAX as u32 - 1)) | index as u32;
        let channel = OpenChannel {
            id,
            key,
            near: near.clone(),
            shape,
            ring: None,
        };
        if free.is_none() {
            state.channels.push(None);
        }
        state.channels[index] = Some(channel);
        drop(state);
        let end = RingDescription {
            channel: id,
            key,
            shape,
            ring: *registration.remote(),
            message_bytes: self.message_bytes() as u32,
        };
        Ok(NearEnd::new(self.clone(), end, registration))
    }
}

/// The peer's ring, which this end writes over a fabric. Dropping it sends the peer a goodbye.
pub struct OfiRing {
    far: RingDescription,
    /// Longest message that both ends support.
    message_bytes: usize,
    staging: Staging,
    /// For each staging entry, the number of bytes of the line before the payload; 0 if nothing was published there
    /// yet.
    lines: Box<[AtomicU8]>,
    registration: Option<Registration>,
    state: Arc<RingState>,
    near: NearEnd,
    peer: Arc<PortPeer>,
}

impl OfiRing {
    /// Reason why the ring is broken, if it is. Frames published to a broken ring are dropped.
    pub fn break_reason(&self) -> Option<OfiError> {
        self.state.broken().or_else(|| self.port().failure())
    }

    /// Port through which the ring sends.
    pub fn port(&self) -> &Arc<Port> {
        &self.near.port
    }

    /// Peer to which the ring sends.
    pub fn peer(&self) -> &Arc<PortPeer> {
        &self.peer
    }

    #[inline]
    fn index(&self, entry: u32) -> usize {
        let depth = self.far.shape.depth;
        if entry == EXPRESS_ENTRY {
            depth as usize
        } else {
            (entry & (depth - 1)) as usize
        }
    }

    /// Waits until no operation uses the staging entry any more. Returns `false` if the ring is broken.
    #[inline]
    fn reclaim(&self, index: usize) -> bool {
        let idle = || self.state.in_flight[index].load(Ordering::Acquire) == 0;
        idle() || self.wait("room for a frame", |_| idle().then_some(PostResult::Yes))
    }

    /// Repeats `step` until it has posted an operation, and makes progress in between. Returns `false` if the ring is
    /// broken.
    fn wait(&self, what: &'static str, mut step: impl FnMut(&mut PortState) -> Option<PostResult>) -> bool {
        let timeout = self.port().options.send_timeout;
        let mut patience = DeadlineWait::until(Instant::now() + timeout);
        loop {
            if self.state.is_broken() {
                return false;
            }
            let mut state = self.port().lock();
            match step(&mut state) {
                Some(PostResult::Yes) => return true,
                Some(PostResult::Failed(result)) => {
                    let code = result.unsigned_abs() as i32;
                    let why = state.endpoint.text(code);
                    self.state.link.break_off(OfiError::LinkBroken { what, code, why });
                    return false;
                }
                Some(PostResult::Again) | None => self.port().drive(&mut state),
            }
            drop(state);
            if !patience.should_retry() {
                self.state.link.break_off(OfiError::Timeout { what, after: timeout });
                return false;
            }
        }
    }

    /// Posts one part of the frame in a staging entry. Returns `None` if the table of operations is full.
    #[inline]
    fn post(&self, state: &mut PortState, index: usize, part: FramePart) -> Option<PostResult> {
        let operation = Operation::Frame {
            ring: self.state.clone(),
            entry: index,
        };
        let region = self.registration.as_ref().map(Registration::number);
        let descriptor = self
            .registration
            .as_ref()
            .map_or(std::ptr::null_mut(), Registration::descriptor);
        let (number, context) = state.begin(operation, region)?;
        self.state.in_flight[index].fetch_add(1, Ordering::Relaxed);
        let peer = self.state.link.address;
        // SAFETY: message and payload lie in the staging entry, which is not written until in_flight is 0 (reclaim),
        // and is mapped until the operation ends (RingState holds the memory). The far address is inside the ring that
        // the peer announced, by its layout.
        let posted = unsafe {
            match part {
                FramePart::Message(message) => {
                    let start = self.staging.message(index, message.header_bytes);
                    state
                        .endpoint
                        .send(start.as_ptr(), message.bytes, descriptor, peer, context)
                }
                FramePart::Payload { bytes, at, delivered } => {
                    let payload = self.staging.message(index, 0);
                    let (address, key) = (self.far.ring.address + at, self.far.ring.key);
                    state.endpoint.write(
                        payload.as_ptr(),
                        bytes,
                        descriptor,
                        peer,
                        address,
                        key,
                        context,
                        delivered,
                    )
                }
            }
        };
        if posted != PostResult::Yes {
            drop(state.end(number));
            self.state.in_flight[index].fetch_sub(1, Ordering::Relaxed);
        }
        Some(posted)
    }

    /// Writes the payload into the peer's entry; it is in place there before a message that is sent afterwards arrives.
    fn write_ahead(&self, entry: u32, index: usize, bytes: usize) -> bool {
        let delivered = !self.port().ordered;
        let at = self.staging.layout().near_payload_at(entry) as u64;
        let part = FramePart::Payload { bytes, at, delivered };
        self.wait("RMA write", |state| self.post(state, index, part)) && (!delivered || self.reclaim(index))
    }
}

/// A message in a staging entry.
#[derive(Clone, Copy)]
struct StagedMessage {
    /// Bytes before the payload.
    header_bytes: usize,
    /// Bytes of the whole message.
    bytes: usize,
}

/// A part of a frame that is sent over the fabric from a staging entry.
#[derive(Clone, Copy)]
enum FramePart {
    Message(StagedMessage),
    Payload { bytes: usize, at: u64, delivered: bool },
}

impl FarRing for OfiRing {
    /// May wait for an earlier frame of the entry to leave.
    #[inline]
    fn payload(&self, entry: u32) -> NonNull<u8> {
        let index = self.index(entry);
        // On a broken ring the wait may end early: the bytes that are then overwritten are of no use any more.
        self.reclaim(index);
        self.staging.payload(index)
    }

    #[inline]
    fn payload_bytes(&self) -> usize {
        self.staging.layout().entry_bytes()
    }

    #[inline]
    fn publish(&self, entry: u32, payload_bytes: usize, words: &LineWords) {
        let index = self.index(entry);
        let payload_bytes = payload_bytes.min(self.payload_bytes());
        if self.state.is_broken() || !self.reclaim(index) {
            return;
        }
        let ahead = HEADER_BYTES + payload_bytes > self.message_bytes;
        if ahead && !self.write_ahead(entry, index, payload_bytes) {
            return;
        }
        let prefix = Prefix {
            kind: MessageKind::Frame,
            payload_written: ahead,
            channel: self.far.channel,
            key: self.far.key,
            entry: if entry == EXPRESS_ENTRY { entry } else { index as u32 },
            length: payload_bytes as u32,
        };
        let line_bytes = Prefix::line_bytes(prefix.length, words);
        let header_bytes = Prefix::BYTES + line_bytes;
        let message = StagedMessage {
            header_bytes,
            bytes: header_bytes + if ahead { 0 } else { payload_bytes },
        };
        let start = self.staging.message(index, header_bytes).as_ptr();
        // SAFETY: the message's header, in our staging entry. At most the payload of this frame is under way from the
        // entry.
        unsafe {
            std::ptr::copy_nonoverlapping(prefix.encode().as_ptr(), start, Prefix::BYTES);
            for (at, word) in words.iter().take(line_bytes / 8).enumerate() {
                start
                    .add(Prefix::BYTES)
                    .cast::<u64>()
                    .add(at)
                    .write_unaligned(word.to_le());
            }
        }
        // Relaxed: an entry is used by one thread at a time, and is passed to another thread with acquire and release.
        self.lines[index].store(line_bytes as u8, Ordering::Relaxed);
        let posted = {
            let mut state = self.port().lock();
            self.send(&mut state, index, message)
        };
        if posted != Some(PostResult::Yes) {
            self.wait("send", |state| self.send(state, index, message));
        }
    }

    fn published(&self, entry: u32) -> Option<(LineWords, NonNull<u8>)> {
        let index = self.index(entry);
        let line_bytes = usize::from(self.lines[index].load(Ordering::Relaxed));
        let start = self.staging.message(index, line_bytes).cast::<u64>();
        let mut words = LineWords::default();
        for (at, word) in words.iter_mut().enumerate().take(line_bytes / 8) {
            // SAFETY: `publish` has written this many bytes of the line there; the staging entry belongs to this end.
            *word = u64::from_le(unsafe { start.add(at).read_unaligned() });
        }
        (line_bytes > 0).then(|| (words, self.staging.payload(index)))
    }

    /// A message wakes a sleeping peer by itself, so this only drives operations that could not be sent at once.
    #[inline]
    fn ring(&self) {
        self.port().progress();
    }

    #[inline]
    fn progress(&self) -> bool {
        self.port().progress();
        true
    }
}

impl OfiRing {
    #[inline]
    fn send(&self, state: &mut PortState, index: usize, message: StagedMessage) -> Option<PostResult> {
        if message.bytes > self.port().inject_bytes {
            return self.post(state, index, FramePart::Message(message));
        }
        let start = self.staging.message(index, message.header_bytes);
        // SAFETY: the message was built by `publish` and is not written during the call.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), message.bytes) };
        Some(state.endpoint.inject(bytes, self.state.link.address))
    }
}

impl Drop for OfiRing {
    fn drop(&mut self) {
        if self.state.is_broken() || !self.port().survives_peers {
            return;
        }
        let goodbye = Prefix::bare(MessageKind::Goodbye, self.far.channel, self.far.key);
        let mut state = self.port().lock();
        if !state.send_control(&self.state.link, goodbye) {
            state.drive();
            state.send_control(&self.state.link, goodbye);
        }
    }
}
