//! State under a port's mutex: its endpoint, the operations under way, and everything that the handling of a completion
//! or a message may touch.

use super::counters::Counters;
use super::endpoint::{CompletionRead, Endpoint, FailedOperation, PostResult, RegionHandle, RegionKeys};
use super::error::OfiError;
use super::ffi::{self, FI_ADDR_NOTAVAIL, fi_addr_t, fi_cq_msg_entry};
use super::operation::{Operation, Operations};
use super::peer_state::{PeerState, RingState};
use crate::memory::Memory;
use crate::shm::NearRing;
use hotlease_wire::connection::RingShape;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Completions read by one call. There are at most `BATCHES_MAX` calls in a row, so that a flood of messages does not
/// keep the mutex locked.
const BATCH: usize = 4;
const BATCHES_MAX: usize = 16;
/// Largest number of control messages (probes, answers, goodbyes) under way.
const CONTROL_BUFFERS: u32 = 32;
pub(super) const CONTROL_BYTES: usize = 64;
/// Largest number of sends and RMA operations under way on one port.
pub(super) const OPERATIONS_MAX: usize = 512;

/// A ring of this end that receives peers' frames.
pub(super) struct OpenChannel {
    pub(super) id: u32,
    pub(super) key: u64,
    pub(super) near: NearRing,
    pub(super) shape: RingShape,
    /// Set once the peer is known.
    pub(super) ring: Option<Arc<RingState>>,
}

/// A registration and its memory.
pub(super) struct RegisteredRegion {
    region: RegionHandle,
    /// Must stay mapped as long as the region is open.
    _memory: Arc<Memory>,
    in_flight: u32,
    released: bool,
}

pub(super) struct PortState {
    // Closed before everything that its operations use.
    pub(super) endpoint: Endpoint,
    pub(super) operations: Operations,
    pub(super) channels: Vec<Option<OpenChannel>>,
    pub(super) links: HashMap<u64, Arc<PeerState>>,
    /// Addresses in the address vector, and how many links use each address.
    pub(super) addresses: HashMap<Vec<u8>, (fi_addr_t, u32)>,
    /// Links and addresses of dropped peers, to which messages may still be under way.
    pub(super) leaving: Vec<(Arc<PeerState>, Vec<u8>)>,
    pub(super) regions: Vec<Option<RegisteredRegion>>,
    pub(super) counters: Counters,
    /// Error of the completion queue itself.
    pub(super) failed: Option<OfiError>,
    /// Whether a thread, the leader, sleeps on the wait object. Other threads that sleep at that time are followers.
    pub(super) leader: bool,
    /// Number of followers.
    pub(super) followers: u32,
    pub(super) buffers: PortBuffers,
}

/// Receive buffers and control messages, in one block of memory.
pub(super) struct PortBuffers {
    pub(super) memory: Arc<Memory>,
    pub(super) descriptor: *mut std::ffi::c_void,
    pub(super) region: Option<u32>,
    pub(super) message_bytes: usize,
    pub(super) pitch: usize,
    pub(super) receives: u32,
    pub(super) free_control: Vec<u32>,
    /// Receive operations for which the provider had no room.
    pub(super) unposted: Vec<u32>,
}

// SAFETY: the descriptor is the provider's, without thread affinity.
unsafe impl Send for PortBuffers {}

impl PortState {
    /// Makes the state with at most `receives` buffers for messages of `message_bytes`. The provider keeps further
    /// messages (FI_RM_ENABLED) until a buffer is posted.
    pub(super) fn new(endpoint: Endpoint, receives: u32, message_bytes: usize) -> Result<Self, OfiError> {
        let (transmits, receives_max) = endpoint.sizes();
        let receives = receives.min(receives_max as u32).max(1);
        let pitch = message_bytes.next_multiple_of(64);
        let bytes = receives as usize * pitch + CONTROL_BUFFERS as usize * CONTROL_BYTES;
        let mut state = Self {
            operations: Operations::new(transmits.clamp(1, OPERATIONS_MAX) + receives as usize),
            endpoint,
            channels: Vec::new(),
            links: HashMap::new(),
            addresses: HashMap::new(),
            leaving: Vec::new(),
            regions: Vec::new(),
            counters: Counters::default(),
            failed: None,
            leader: false,
            followers: 0,
            buffers: PortBuffers {
                memory: Arc::new(Memory::create("hotlease-messages", bytes as u64)?),
                descriptor: std::ptr::null_mut(),
                region: None,
                message_bytes,
                pitch,
                receives,
                free_control: (0..CONTROL_BUFFERS).collect(),
                unposted: Vec::new(),
            },
        };
        if state.endpoint.registers_local() {
            let memory = state.buffers.memory.clone();
            let (region, keys) = state.register(&memory, ffi::FI_SEND | ffi::FI_RECV)?;
            state.buffers.descriptor = keys.descriptor;
            state.buffers.region = Some(region);
        }
        for buffer in 0..receives {
            let begun = state.operations.begin(Operation::Receive { buffer }, None);
            let (number, _) = begun.expect("there is a place for each receive");
            state.buffers.unposted.push(number);
        }
        state.post_receives();
        match state.failed.take() {
            None => Ok(state),
            Some(error) => Err(error),
        }
    }

    fn post_receives(&mut self) {
        while let Some(number) = self.buffers.unposted.pop() {
            let Some(&Operation::Receive { buffer }) = self.operations.get(number) else {
                continue;
            };
            let start = self.buffer(buffer).as_ptr();
            let (bytes, descriptor) = (self.buffers.message_bytes, self.buffers.descriptor);
            let context = self.operations.context(number);
            // SAFETY: only this operation uses the buffer, and buffer and context live until the endpoint is closed.
            match unsafe { self.endpoint.receive(start, bytes, descriptor, context) } {
                PostResult::Yes => {}
                PostResult::Again => {
                    self.buffers.unposted.push(number);
                    return;
                }
                PostResult::Failed(result) => {
                    self.buffers.unposted.push(number);
                    self.failed.get_or_insert(self.endpoint.error("fi_recv", result));
                    return;
                }
            }
        }
    }

    fn buffer(&self, buffer: u32) -> NonNull<u8> {
        // SAFETY: one of the receive buffers, inside the memory.
        unsafe { self.buffers.memory.start().add(buffer as usize * self.buffers.pitch) }
    }

    /// Registers memory under a random key. The memory is kept mapped until the registration is released and no
    /// operation uses it.
    pub(super) fn register(&mut self, memory: &Arc<Memory>, access: u64) -> Result<(u32, RegionKeys), OfiError> {
        let bytes = usize::try_from(memory.size_bytes()).unwrap_or(usize::MAX);
        let mut tries = 0;
        let (region, keys) = loop {
            // SAFETY: the memory is mapped as long as the Arc lives, which is until the region is closed; `Memory` is
            // made to be written by peers.
            let made = unsafe { self.endpoint.register(memory.start(), bytes, access, rand::random()) };
            tries += 1;
            match made {
                // The key is taken (FI_ENOKEY): draw another.
                Err(OfiError::Call { code: 266, .. }) if tries < 8 => {}
                other => break other?,
            }
        };
        let registered = RegisteredRegion {
            region,
            _memory: memory.clone(),
            in_flight: 0,
            released: false,
        };
        let free = self.regions.iter().position(Option::is_none);
        let number = free.unwrap_or(self.regions.len());
        if free.is_none() {
            self.regions.push(None);
        }
        self.regions[number] = Some(registered);
        Ok((number as u32, keys))
    }

    /// Releases a registration; it is closed once no operation uses it.
    pub(super) fn release(&mut self, number: u32) {
        if let Some(Some(registered)) = self.regions.get_mut(number as usize) {
            registered.released = true;
            self.close_if_idle(number);
        }
    }

    fn close_if_idle(&mut self, number: u32) {
        let place = &mut self.regions[number as usize];
        if let Some(registered) = place.take_if(|found| found.released && found.in_flight == 0) {
            self.endpoint.deregister(registered.region);
        }
    }

    /// Reserves a place for an operation that uses a registration.
    #[inline]
    pub(super) fn begin(&mut self, operation: Operation, region: Option<u32>) -> Option<(u32, *mut std::ffi::c_void)> {
        let begun = self.operations.begin(operation, region)?;
        if let Some(Some(registered)) = region.and_then(|number| self.regions.get_mut(number as usize)) {
            registered.in_flight += 1;
        }
        Some(begun)
    }

    /// Frees the place of an operation that is over, or that was not posted.
    #[inline]
    pub(super) fn end(&mut self, number: u32) -> Option<Operation> {
        let (operation, region) = self.operations.end(number)?;
        if let Some(region) = region
            && let Some(Some(registered)) = self.regions.get_mut(region as usize)
        {
            registered.in_flight -= 1;
            self.close_if_idle(region);
        }
        Some(operation)
    }

    /// Removes the addresses of dropped peers to which no operation is under way any more: providers do not tolerate an
    /// earlier removal.
    pub(super) fn forget_peers(&mut self) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|(link, address)| {
            if Arc::strong_count(link) > 1 {
                return true;
            }
            if let Some((fabric_address, links)) = self.addresses.get_mut(address) {
                *links -= 1;
                if *links == 0 {
                    self.endpoint.remove(*fabric_address);
                    self.addresses.remove(address);
                }
            }
            false
        });
        self.leaving = leaving;
    }

    /// Handles completions and puts messages into rings; returns the number of frames.
    #[inline]
    pub(super) fn drive(&mut self) -> u64 {
        let before = self.counters.delivered;
        let nothing = fi_cq_msg_entry {
            op_context: std::ptr::null_mut(),
            flags: 0,
            len: 0,
        };
        let mut entries = [nothing; BATCH];
        let mut sources = [FI_ADDR_NOTAVAIL; BATCH];
        for _ in 0..BATCHES_MAX {
            match self.endpoint.completions(&mut entries, &mut sources) {
                CompletionRead::Read(count) => {
                    for (entry, source) in entries.iter().zip(sources).take(count) {
                        self.handle_completion(entry, source);
                    }
                    if !self.buffers.unposted.is_empty() {
                        self.post_receives();
                    }
                    if count < BATCH {
                        break;
                    }
                }
                CompletionRead::Error(failure) => self.handle_failure(&failure),
                CompletionRead::Failed(result) => {
                    self.failed.get_or_insert(self.endpoint.error("fi_cq_read", result));
                    break;
                }
            }
        }
        self.counters.delivered - before
    }

    #[inline]
    fn handle_completion(&mut self, entry: &fi_cq_msg_entry, source: fi_addr_t) {
        let Some(number) = self.operations.find(entry.op_context) else {
            self.counters.unattributed += 1;
            return;
        };
        if let Some(&Operation::Receive { buffer }) = self.operations.get(number) {
            let length = entry.len.min(self.buffers.message_bytes);
            // SAFETY: the message lies in its buffer, which the provider gave back; no other code writes the buffer
            // until it is posted again.
            let message = unsafe { std::slice::from_raw_parts(self.buffer(buffer).as_ptr(), length) };
            self.dispatch(message, source);
            self.buffers.unposted.push(number);
            return;
        }
        self.finish_operation(number, None);
    }

    pub(super) fn settle(&mut self, operation: Option<Operation>, error: Option<OfiError>) {
        match operation {
            Some(Operation::Frame { ring, entry }) => {
                if let Some(error) = error {
                    ring.link.break_off(error);
                }
                // Pairs with the acquire load in `OfiRing::reclaim`, which waits for the staging entry to be free.
                ring.in_flight[entry].fetch_sub(1, Ordering::Release);
            }
            Some(Operation::Control { buffer, link }) => {
                self.buffers.free_control.push(buffer);
                if let Some(error) = error {
                    link.break_off(error);
                }
            }
            Some(Operation::Chunk { transfer }) => transfer.finish(error),
            Some(Operation::Receive { .. }) | None => {}
        }
    }

    #[inline]
    fn finish_operation(&mut self, number: u32, error: Option<OfiError>) {
        let ended = self.end(number);
        self.settle(ended, error);
        if !self.leaving.is_empty() {
            self.forget_peers();
        }
    }

    #[cold]
    fn handle_failure(&mut self, failure: &FailedOperation) {
        let broken = |what: &'static str, endpoint: &Endpoint| OfiError::LinkBroken {
            what,
            code: failure.code,
            why: endpoint.text(failure.code),
        };
        let Some(number) = self.operations.find(failure.context) else {
            // An injected message has no context. If there is only one peer, the message was for that peer.
            let mut links = self.links.values();
            match (links.next(), links.next()) {
                (Some(only), None) if failure.flags & ffi::FI_RECV == 0 => {
                    only.break_off(broken("send", &self.endpoint));
                }
                _ => self.counters.unattributed += 1,
            }
            return;
        };
        if matches!(self.operations.get(number), Some(Operation::Receive { .. })) {
            self.counters.receive_errors += 1;
            self.buffers.unposted.push(number);
            return;
        }
        let what = match self.operations.get(number) {
            Some(Operation::Chunk { .. }) => "RMA",
            _ => "send",
        };
        let error = broken(what, &self.endpoint);
        self.finish_operation(number, Some(error));
    }

    /// Number of operations under way other than receives.
    pub(super) fn send_count(&self) -> usize {
        self.operations.count() - self.buffers.receives as usize
    }
}

impl Drop for PortState {
    fn drop(&mut self) {
        self.endpoint.close_transfers();
        for registered in self.regions.drain(..).flatten() {
            self.endpoint.deregister(registered.region);
        }
    }
}
