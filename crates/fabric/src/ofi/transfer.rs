//! Registered memory, and transfers of large data: reads and writes of spans of a peer's registered memory.

use super::REGISTRATIONS_MAX;
use super::endpoint::PostResult;
use super::error::OfiError;
use super::ffi;
use super::operation::{Operation, Transfer};
use super::port::{Access, DeadlineWait, Port, PortPeer};
use super::port_state::PortState;
use crate::memory::Memory;
use hotlease_wire::fabric::RmaMemory;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time to wait for the other pieces after a failure. Limited, because some providers never report the end of an
/// operation whose peer is gone.
const LATE_PIECES_LIMIT: Duration = Duration::from_millis(100);
/// Largest number of operations that one transfer has under way.
const WINDOW: u32 = 8;

/// Registered memory of this end. Deregistered when it is dropped and the last operation on it has ended; the memory
/// stays mapped until then.
pub struct Registration {
    port: Arc<Port>,
    number: u32,
    descriptor: *mut c_void,
    remote: RmaMemory,
    memory: Arc<Memory>,
}

// SAFETY: the descriptor is the provider's, without thread affinity.
unsafe impl Send for Registration {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(
        port: Arc<Port>,
        number: u32,
        descriptor: *mut c_void,
        remote: RmaMemory,
        memory: Arc<Memory>,
    ) -> Self {
        Self {
            port,
            number,
            descriptor,
            remote,
            memory,
        }
    }

    /// Description of the memory for peers, if it was registered for them.
    pub fn remote(&self) -> &RmaMemory {
        &self.remote
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn descriptor(&self) -> *mut c_void {
        self.descriptor
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.port.lock().release(self.number);
    }
}

/// A span of a peer's memory and a span of our memory, equally long.
#[derive(Clone, Copy)]
pub struct TransferSpans<'a> {
    /// The peer's memory.
    pub remote: &'a RmaMemory,
    /// Offset of the span in the peer's memory.
    pub remote_offset: u64,
    /// Our memory.
    pub local: &'a Registration,
    /// Offset of the span in our memory.
    pub local_offset: u64,
    /// Number of bytes.
    pub length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    /// As `Write`, but the peer's memory has the bytes when the operation is complete.
    WriteDelivered,
}

impl Port {
    /// Registers memory. Local access needs a registration on some providers only; on the other providers a
    /// registration is cheap.
    pub fn register(self: &Arc<Self>, memory: &Arc<Memory>, access: Access) -> Result<Registration, OfiError> {
        let peers = match access {
            Access::Local => 0,
            Access::PeerReads => ffi::FI_REMOTE_READ,
            Access::PeerWrites => ffi::FI_REMOTE_WRITE,
            Access::PeerReadsAndWrites => ffi::FI_REMOTE_READ | ffi::FI_REMOTE_WRITE,
        };
        let own = ffi::FI_SEND | ffi::FI_RECV | ffi::FI_READ | ffi::FI_WRITE;
        let mut state = self.lock();
        if state.regions.iter().flatten().count() >= REGISTRATIONS_MAX {
            return Err(OfiError::TooMany {
                what: "registrations",
                limit: REGISTRATIONS_MAX,
            });
        }
        let (number, keys) = state.register(memory, own | peers)?;
        drop(state);
        let remote = RmaMemory {
            address: keys.address,
            key: keys.key,
            size: memory.size_bytes(),
        };
        Ok(Registration::new(
            self.clone(),
            number,
            keys.descriptor,
            remote,
            memory.clone(),
        ))
    }

    /// Copies from the peer's memory into ours, and returns when all bytes have arrived. Makes progress meanwhile.
    ///
    /// After an error pieces may still be under way: the local memory stays mapped, and may still change.
    pub fn read(&self, peer: &PortPeer, spans: &[TransferSpans<'_>], timeout: Duration) -> Result<(), OfiError> {
        self.transfer(peer, spans, timeout, Direction::Read)
    }

    /// Copies from our memory into the peer's memory. Our memory must not change until this returns. A frame that is
    /// published to the same peer after the return arrives only when the bytes are in place.
    pub fn write(&self, peer: &PortPeer, spans: &[TransferSpans<'_>], timeout: Duration) -> Result<(), OfiError> {
        self.transfer(peer, spans, timeout, Direction::Write)
    }

    /// As [`write`](Self::write), but the peer's memory has the bytes when this returns.
    pub fn write_delivered(
        &self,
        peer: &PortPeer,
        spans: &[TransferSpans<'_>],
        timeout: Duration,
    ) -> Result<(), OfiError> {
        self.transfer(peer, spans, timeout, Direction::WriteDelivered)
    }

    fn transfer(
        &self,
        peer: &PortPeer,
        spans: &[TransferSpans<'_>],
        timeout: Duration,
        direction: Direction,
    ) -> Result<(), OfiError> {
        for spans in spans {
            self.check(peer, spans)?;
        }
        let transfer = Arc::new(Transfer::default());
        let mut patience = DeadlineWait::until(Instant::now() + timeout);
        let mut pieces = pieces(spans, self.chunk_bytes as u64).peekable();
        let mut failed: Option<Instant> = None;
        loop {
            let mut moved = false;
            {
                let mut state = self.lock();
                let before = transfer.outstanding.load(Ordering::Acquire);
                self.drive(&mut state);
                moved |= transfer.outstanding.load(Ordering::Acquire) != before;
                let unfailed = transfer.error.get().is_none() && !peer.link.is_broken();
                while unfailed
                    && transfer.outstanding.load(Ordering::Acquire) < WINDOW
                    && let Some(piece) = pieces.peek()
                {
                    match self.post_piece(&mut state, peer, piece, &transfer, direction) {
                        Some(PostResult::Yes) => drop(pieces.next()),
                        Some(PostResult::Failed(result)) => {
                            let call = if direction == Direction::Read {
                                "fi_read"
                            } else {
                                "fi_write"
                            };
                            let _ = transfer.error.set(state.endpoint.error(call, result));
                            break;
                        }
                        Some(PostResult::Again) | None => break,
                    }
                    moved = true;
                }
            }
            let outstanding = transfer.outstanding.load(Ordering::Acquire);
            let error = transfer.error.get().cloned().or_else(|| peer.link.broken());
            match error {
                None if outstanding == 0 && pieces.peek().is_none() => return Ok(()),
                Some(error) => {
                    let failed = failed.get_or_insert_with(Instant::now);
                    if outstanding == 0 || failed.elapsed() > LATE_PIECES_LIMIT {
                        return Err(error);
                    }
                }
                None => {}
            }
            if moved {
                patience.note_movement();
            }
            if !patience.should_retry() && failed.is_none() {
                return Err(OfiError::Timeout {
                    what: "RMA transfer",
                    after: timeout,
                });
            }
        }
    }

    fn check(&self, peer: &PortPeer, spans: &TransferSpans<'_>) -> Result<(), OfiError> {
        let bad = |why| Err(OfiError::BadEnd { why });
        if !std::ptr::eq(self, &*spans.local.port) || !std::ptr::eq(self, &*peer.port) {
            return bad("memory or peer is of another port");
        }
        let (remote, local) = (spans.remote, spans.local);
        check_bounds("remote memory", spans.remote_offset, spans.length, remote.size)?;
        let size_bytes = local.memory.size_bytes();
        check_bounds("local memory", spans.local_offset, spans.length, size_bytes)?;
        match remote.address.checked_add(remote.size) {
            Some(_) => Ok(()),
            None => bad("remote memory wraps"),
        }
    }

    fn post_piece(
        &self,
        state: &mut PortState,
        peer: &PortPeer,
        piece: &TransferSpans<'_>,
        transfer: &Arc<Transfer>,
        direction: Direction,
    ) -> Option<PostResult> {
        let operation = Operation::Chunk {
            transfer: transfer.clone(),
        };
        let local = piece.local;
        let (number, context) = state.begin(operation, Some(local.number))?;
        transfer.outstanding.fetch_add(1, Ordering::Relaxed);
        let remote = piece.remote.address + piece.remote_offset;
        let (key, address, length) = (piece.remote.key, peer.link.address, piece.length as usize);
        // SAFETY: both spans were checked; the operation keeps the registration, and so the mapping, until it ends.
        // `Memory` is shared with peers by design, so no code assumes more about its bytes.
        let posted = unsafe {
            let start = local.memory.start().add(piece.local_offset as usize).as_ptr();
            match direction {
                Direction::Read => state
                    .endpoint
                    .read(start, length, local.descriptor, address, remote, key, context),
                Direction::Write | Direction::WriteDelivered => {
                    let delivered = !self.ordered || direction == Direction::WriteDelivered;
                    state.endpoint.write(
                        start,
                        length,
                        local.descriptor,
                        address,
                        remote,
                        key,
                        context,
                        delivered,
                    )
                }
            }
        };
        if posted != PostResult::Yes {
            drop(state.end(number));
            transfer.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
        Some(posted)
    }
}

/// Cuts the spans into pieces of at most `chunk` bytes.
fn pieces<'a>(spans: &'a [TransferSpans<'a>], chunk: u64) -> impl Iterator<Item = TransferSpans<'a>> {
    spans.iter().flat_map(move |spans| {
        let starts = (0..spans.length).step_by(chunk as usize);
        starts.map(move |done| TransferSpans {
            remote_offset: spans.remote_offset + done,
            local_offset: spans.local_offset + done,
            length: (spans.length - done).min(chunk),
            ..*spans
        })
    })
}

pub(super) fn check_bounds(what: &'static str, offset: u64, length: u64, size: u64) -> Result<(), OfiError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(OfiError::OutOfBounds {
            what,
            offset,
            length,
            size,
        }),
    }
}
