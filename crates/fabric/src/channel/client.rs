//! The client's end of a channel.

use crate::doorbell::Doorbell;
use crate::memory::MemoryError;
use crate::ring::FarRing;
use crate::shm::{NearRing, ShmRing};
use hotlease_wire::DecodeError;
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{Flags, ReplyHeader, RequestHeader, Seq};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use hotlease_wire::limits::INLINE_BYTES;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The client's own ring, made before the channel is opened.
pub struct ReplyRing(NearRing);

impl ReplyRing {
    /// Of this shape.
    pub fn create(shape: RingShape) -> Result<Self, MemoryError> {
        Ok(Self(NearRing::create("hotlease-replies", shape)?))
    }

    /// To pass to the worker.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// What to invoke, without its payload.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The worker's.
    pub epoch: Epoch,
    /// Which function.
    pub function: FunctionIndex,
    /// What is in buffers; the payload then starts with their spans.
    pub flags: Flags,
    /// Time it has, microseconds; 0: unlimited.
    pub timeout_us: u32,
    /// Output bytes wanted in the ring at most (reduced to the reply ring's entry size).
    pub output_capacity: u32,
}

/// The payload does not fit into a request entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("payload of {bytes} bytes is over the channel's {capacity}")]
pub struct TooLong {
    /// Its size.
    pub bytes: usize,
    /// The entry's.
    pub capacity: usize,
}

/// The client's end. `Send + Sync`; different entries may be used from different threads at once. The
/// caller keeps the rule of the module: it publishes `id` only while it owns entry `id % depth`.
pub struct ClientChannel<F: FarRing = ShmRing> {
    requests: F,
    replies: NearRing,
    generation: u32,
}

impl ClientChannel {
    /// After the worker has opened it: `generation`, the request ring and the slot's doorbell are the
    /// worker's, `request` is the shape that was asked for.
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
    /// Entries: invocations in flight.
    pub fn depth(&self) -> u32 {
        self.replies.layout().depth()
    }

    /// Payload bytes of a request.
    #[inline]
    pub fn request_bytes(&self) -> usize {
        self.requests.payload_bytes()
    }

    /// Payload bytes of a reply.
    #[inline]
    pub fn reply_bytes(&self) -> usize {
        self.replies.layout().entry_bytes()
    }

    /// Writes a request and wakes the slot if it sleeps. `payload` is the concatenation of its parts.
    #[inline]
    pub fn publish(&self, id: u32, call: &Call, payload: &[&[u8]]) -> Result<(), TooLong> {
        self.publish_quiet(id, call, payload)?;
        self.requests.ring();
        Ok(())
    }

    /// Writes a request; a sleeping slot sees it after [`ClientChannel::ring`]. For batches.
    #[inline]
    pub fn publish_quiet(&self, id: u32, call: &Call, payload: &[&[u8]]) -> Result<(), TooLong> {
        let bytes: usize = payload.iter().map(|part| part.len()).sum();
        let capacity = self.requests.payload_bytes();
        if bytes > capacity {
            return Err(TooLong { bytes, capacity });
        }
        let entry = id & (self.depth() - 1);
        let mut header = RequestHeader {
            seq: Seq::new(self.generation, id),
            epoch: call.epoch,
            function: call.function,
            flags: call.flags,
            length: bytes as u32,
            reply_entry: entry,
            timeout_us: call.timeout_us,
            output_capacity: call.output_capacity.min(self.reply_bytes() as u32),
            inline: [0; INLINE_BYTES],
        };
        let inline = bytes <= INLINE_BYTES;
        let start = if inline {
            header.inline.as_mut_ptr()
        } else {
            self.requests.payload(entry).as_ptr()
        };
        let mut at = 0;
        for part in payload {
            // SAFETY: the parts together are `bytes` long, which fits the inline area or the entry as
            // checked above; the entry is ours until published, by the caller's rule; source and
            // destination do not overlap, as one is a borrowed slice and the other is not.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start.add(at), part.len()) };
            at += part.len();
        }
        self.requests
            .publish(entry, if inline { 0 } else { bytes }, &header.encode());
        Ok(())
    }

    /// Wakes the slot if it sleeps.
    #[inline]
    pub fn ring(&self) {
        self.requests.ring();
    }

    /// A private copy of the reply to `id`, if it is there.
    #[inline]
    pub fn poll(&self, id: u32) -> Option<Result<ReplyHeader, DecodeError>> {
        self.requests.progress();
        let words = self.replies.line(id).poll(Seq::new(self.generation, id))?;
        Some(ReplyHeader::decode(&words))
    }

    /// Copies the output of the reply to `id` from the ring: the first `output.len()` bytes, at most
    /// `header.length` and [`ClientChannel::reply_bytes`]. Returns how many.
    #[inline]
    pub fn read(&self, id: u32, header: &ReplyHeader, output: &mut [u8]) -> usize {
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let bytes = output.len().min(length).min(self.reply_bytes());
        if length <= INLINE_BYTES {
            output[..bytes].copy_from_slice(&header.inline[..bytes]);
        } else {
            // SAFETY: bytes <= entry_bytes, the size of the entry's payload, and <= output.len(). The worker
            // is done with the entry; if it is hostile and writes on, the bytes are garbage, no more.
            unsafe {
                std::ptr::copy_nonoverlapping(self.replies.payload(id).as_ptr(), output.as_mut_ptr(), bytes);
            }
        }
        bytes
    }

    #[cfg(test)]
    pub(super) fn far(&self) -> &F {
        &self.requests
    }
}
