//! Client's end of a channel: publishes requests, polls for replies.

use crate::doorbell::Doorbell;
use crate::memory::MemoryError;
use crate::ring::{FarRing, Line};
use crate::shm::{NearRing, ShmRing};
use hotlease_wire::DecodeError;
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{EXPRESS_ENTRY, Flags, Inline, InvocationId, ReplyHeader, RequestHeader, Seq};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use hotlease_wire::limits::INLINE_BYTES;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Ring for replies, in the client's memory; made before the channel is opened.
pub struct ReplyRing(NearRing);

impl ReplyRing {
    /// Creates a ring of this shape.
    pub fn create(shape: RingShape) -> Result<Self, MemoryError> {
        Ok(Self(NearRing::create("hotlease-replies", shape)?))
    }

    /// The ring itself, for a port of a fabric, which puts replies into it.
    pub fn near(&self) -> &NearRing {
        &self.0
    }

    /// Descriptor to pass to the worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// Parameters of an invocation, without its payload.
#[derive(Debug, Clone, Copy)]
pub struct CallParameters {
    /// Epoch of the worker.
    pub epoch: Epoch,
    /// Index of the function.
    pub function: FunctionIndex,
    /// Flags for data in buffers; if any is set, the payload starts with the spans of these buffers.
    pub flags: Flags,
    /// Time limit in microseconds; 0 means no limit.
    pub timeout_us: u32,
    /// Largest number of output bytes that the caller wants in the ring; reduced to the reply ring's entry size.
    pub output_capacity: u32,
}

/// The payload does not fit into a request entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("payload of {bytes} bytes is over the channel's {capacity}")]
pub struct PayloadTooLong {
    /// Size of the payload.
    pub bytes: usize,
    /// Size of the entry.
    pub capacity: usize,
}

/// The client's end of a channel. `Send + Sync`; different entries may be used from different threads at once. The
/// caller must follow the rule of [`crate::channel`]: it publishes an invocation only while it owns the invocation's
/// entry.
pub struct ClientChannel<F: FarRing = ShmRing> {
    requests: F,
    replies: NearRing,
    generation: u32,
}

impl ClientChannel {
    /// Opens the client's end, after the worker has opened its end. `generation`, the request ring and the slot's
    /// doorbell come from the worker; `request` is the ring shape for which the client asked.
    pub fn open(
        reply: ReplyRing,
        generation: u32,
        request: RingShape,
        request_ring: OwnedFd,
        slot_doorbell: OwnedFd,
    ) -> Result<Self, MemoryError> {
        let requests = ShmRing::attach(request_ring, request, Doorbell::attach(slot_doorbell)?)?;
        Ok(Self {
            requests,
            replies: reply.0,
            generation: generation.max(1),
        })
    }
}

impl<F: FarRing> ClientChannel<F> {
    /// Makes the client's end over any transport. `requests`: the worker's ring, written through the transport;
    /// `generation`: the channel's, from the worker.
    pub fn over(reply: ReplyRing, generation: u32, requests: F) -> Self {
        Self {
            requests,
            replies: reply.0,
            generation: generation.max(1),
        }
    }

    /// Wraps the channel's transport into another type.
    pub fn map<G: FarRing>(self, wrap: impl FnOnce(F) -> G) -> ClientChannel<G> {
        ClientChannel {
            requests: wrap(self.requests),
            replies: self.replies,
            generation: self.generation,
        }
    }

    /// The transport's ring.
    #[inline]
    pub fn far(&self) -> &F {
        &self.requests
    }

    /// Number of entries, which is the limit of invocations in flight.
    pub fn depth(&self) -> u32 {
        self.replies.layout().depth()
    }

    /// Largest number of payload bytes of a request.
    #[inline]
    pub fn request_bytes(&self) -> usize {
        self.requests.payload_bytes()
    }

    /// Largest number of payload bytes of a reply.
    #[inline]
    pub fn reply_bytes(&self) -> usize {
        self.replies.layout().entry_bytes()
    }

    /// Writes a request and wakes the slot if it sleeps. The request's payload is the concatenation of the parts in
    /// `payload`.
    #[inline]
    pub fn publish(&self, number: u64, call: &CallParameters, payload: &[&[u8]]) -> Result<(), PayloadTooLong> {
        self.publish_quiet(number, call, payload)?;
        self.requests.ring();
        Ok(())
    }

    /// Writes a request without waking the slot; a sleeping slot sees it after [`ClientChannel::ring`]. For batches.
    #[inline]
    pub fn publish_quiet(&self, number: u64, call: &CallParameters, payload: &[&[u8]]) -> Result<(), PayloadTooLong> {
        self.publish_in(self.entry_of(number), number, call, payload)
    }

    /// The express entry; see [`crate::channel`].
    #[inline]
    pub fn express(&self) -> ExpressEntry<'_, F> {
        ExpressEntry(self)
    }

    #[inline]
    fn publish_in(
        &self,
        entry: u32,
        number: u64,
        call: &CallParameters,
        payload: &[&[u8]],
    ) -> Result<(), PayloadTooLong> {
        let bytes: usize = payload.iter().map(|part| part.len()).sum();
        let capacity = self.requests.payload_bytes();
        if bytes > capacity {
            return Err(PayloadTooLong { bytes, capacity });
        }
        let inline = bytes <= INLINE_BYTES;
        let header = RequestHeader {
            seq: Seq::new(self.generation, number),
            epoch: call.epoch,
            function: call.function,
            flags: call.flags,
            length: bytes as u32,
            reply_entry: entry,
            timeout_us: call.timeout_us,
            output_capacity: call.output_capacity.min(self.reply_bytes() as u32),
            inline: if inline { join(payload) } else { Inline::default() },
        };
        if !inline {
            let mut to = self.requests.payload(entry).as_ptr();
            for part in payload {
                // SAFETY: the parts together fit the entry, as checked above; the entry is ours until
                // published, by the caller's rule; a borrowed slice cannot overlap a ring.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                    to = to.add(part.len());
                }
            }
        }
        self.requests
            .publish(entry, if inline { 0 } else { bytes }, &header.encode());
        Ok(())
    }

    /// Name of the invocation `number` in logs.
    pub fn invocation(&self, number: u64) -> InvocationId {
        InvocationId::new(Seq::new(self.generation, number), self.entry_of(number))
    }

    /// Wakes the slot if it sleeps.
    #[inline]
    pub fn ring(&self) {
        self.requests.ring();
    }

    /// Reads the payload of a request back from its entry, so that the request can be sent again if the worker died
    /// without starting it. The caller must not have reused the entry. Returns `None` if the transport cannot read
    /// entries back, or if the entry holds another request. The number of bytes is checked. A hostile worker may have
    /// changed the bytes, but they belong to its own tenant.
    pub fn recall(&self, number: u64) -> Option<Vec<u8>> {
        let entry = self.entry_of(number);
        let (line, payload) = self.requests.published(entry)?;
        let header = RequestHeader::decode(&line).ok()?;
        let length = usize::try_from(header.length).ok()?;
        if header.seq != Seq::new(self.generation, number) || length > self.request_bytes() {
            return None;
        }
        let mut bytes = vec![0; length];
        if length <= INLINE_BYTES {
            header.inline.read(&mut bytes);
        } else {
            // SAFETY: length is the size of `bytes`, and by the check above at most the size of the entry's payload.
            // The mapping lives as long as self. If the worker still lives and writes, the bytes are garbage, nothing
            // worse.
            unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), bytes.as_mut_ptr(), length) };
        }
        Some(bytes)
    }

    /// Withdraws the request `number` of the ring. Its reply must not be harvested yet, and no other thread may free
    /// its entry meanwhile. Returns `true` if the request will not run: the worker then touches none of the request's
    /// memory, and a reply reports the withdrawal, in the order of the ring. Returns `false` if the request has begun,
    /// or cannot be withdrawn (without [`Flags::WITHDRAWABLE`], or over a fabric).
    pub fn withdraw(&self, number: u64) -> bool {
        let seq = Seq::new(self.generation, number);
        self.requests.withdraw(self.entry_of(number), seq)
    }

    /// Private copy of the reply to `number`, if it has arrived.
    #[inline]
    pub fn poll(&self, number: u64) -> Option<Result<ReplyHeader, DecodeError>> {
        self.awaited(number).poll()
    }

    /// Handle of the reply to `number`, for polling in a tight loop.
    #[inline]
    pub fn awaited(&self, number: u64) -> ReplyHandle<'_, F> {
        self.awaited_in(self.entry_of(number), number)
    }

    #[inline]
    fn awaited_in(&self, entry: u32, number: u64) -> ReplyHandle<'_, F> {
        ReplyHandle {
            channel: self,
            line: self.replies.line(entry),
            entry,
            seq: Seq::new(self.generation, number),
        }
    }

    #[inline]
    fn entry_of(&self, number: u64) -> u32 {
        number as u32 & (self.depth() - 1)
    }

    /// Copies the output of the reply to `number` from the ring: the first `output.len()` bytes, at most
    /// `header.length` and [`ClientChannel::reply_bytes`]. Returns the number of bytes copied.
    #[inline]
    pub fn read(&self, number: u64, header: &ReplyHeader, output: &mut [u8]) -> usize {
        self.read_in(self.entry_of(number), header, output)
    }

    #[inline]
    fn read_in(&self, entry: u32, header: &ReplyHeader, output: &mut [u8]) -> usize {
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let bytes = output.len().min(length).min(self.reply_bytes());
        if length <= INLINE_BYTES {
            header.inline.read(&mut output[..bytes]);
        } else {
            // SAFETY: bytes <= entry_bytes, the size of the entry's payload, and <= output.len(). The worker
            // is done with the entry; if the worker is hostile and still writes, the bytes are garbage, nothing worse.
            unsafe {
                std::ptr::copy_nonoverlapping(self.replies.payload(entry).as_ptr(), output.as_mut_ptr(), bytes);
            }
        }
        bytes
    }
}

/// Express entry of a channel: holds one invocation at a time, for which the client waits. Its invocations have numbers
/// of their own. Each method does what the channel's method of the same name does.
pub struct ExpressEntry<'a, F: FarRing = ShmRing>(&'a ClientChannel<F>);

impl<'a, F: FarRing> ExpressEntry<'a, F> {
    /// See [`ClientChannel::publish_quiet`]. The caller must own the express entry.
    #[inline]
    pub fn publish_quiet(&self, number: u64, call: &CallParameters, payload: &[&[u8]]) -> Result<(), PayloadTooLong> {
        self.0.publish_in(EXPRESS_ENTRY, number, call, payload)
    }

    /// See [`ClientChannel::invocation`].
    pub fn invocation(&self, number: u64) -> InvocationId {
        InvocationId::new(Seq::new(self.0.generation, number), EXPRESS_ENTRY)
    }

    /// See [`ClientChannel::awaited`].
    #[inline]
    pub fn awaited(&self, number: u64) -> ReplyHandle<'a, F> {
        self.0.awaited_in(EXPRESS_ENTRY, number)
    }

    /// See [`ClientChannel::poll`].
    #[inline]
    pub fn poll(&self, number: u64) -> Option<Result<ReplyHeader, DecodeError>> {
        self.awaited(number).poll()
    }

    /// See [`ClientChannel::read`].
    #[inline]
    pub fn read(&self, header: &ReplyHeader, output: &mut [u8]) -> usize {
        self.0.read_in(EXPRESS_ENTRY, header, output)
    }
}

/// Line in which a reply will appear.
pub struct ReplyHandle<'a, F: FarRing = ShmRing> {
    channel: &'a ClientChannel<F>,
    line: &'a Line,
    entry: u32,
    seq: Seq,
}

impl<F: FarRing> ReplyHandle<'_, F> {
    /// Private copy of the reply, if it has arrived.
    #[inline(always)]
    pub fn poll(&self) -> Option<Result<ReplyHeader, DecodeError>> {
        // Progress over a fabric costs one or two system calls, so it is skipped if the reply has already arrived.
        let words = self.line.poll(self.seq).or_else(|| {
            let moved = self.channel.requests.progress();
            moved.then(|| self.line.poll(self.seq)).flatten()
        })?;
        let header = ReplyHeader::decode(&words);
        if let Ok(header) = &header {
            let replies = &self.channel.replies;
            let bytes = usize::try_from(header.length).unwrap_or(usize::MAX);
            // Output in a buffer may have any length; it is not in the payload, which is then not read.
            if bytes > INLINE_BYTES && bytes <= replies.layout().entry_bytes() {
                replies.prefetch_payload(self.entry, bytes);
            }
        }
        Some(header)
    }
}

/// Concatenates the parts of an inline payload.
#[inline]
fn join(parts: &[&[u8]]) -> Inline {
    if let [bytes] | [bytes, []] = parts {
        return Inline::from_bytes(bytes);
    }
    let mut joined = [0; INLINE_BYTES];
    let mut at = 0;
    for part in parts {
        joined[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    Inline::from_bytes(&joined)
}
