//! The worker's end of a channel.

use crate::doorbell::Doorbell;
use crate::memory::MemoryError;
use crate::ring::FarRing;
use crate::shm::{NearRing, ShmRing};
use hotlease_wire::connection::RingShape;
use hotlease_wire::frame::{
    EXPRESS_ENTRY, Inline, InvocationStatus, LineWords, ReplyHeader, RequestClaim, RequestHeader, Seq,
};
use hotlease_wire::limits::INLINE_BYTES;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Distance, in entries, at which the lines of a busy channel are prefetched. Measured with 64 invocations of 8 bytes
/// in flight: 6.2 million invocations a second without the prefetch, 14 to 20 million with it. The prefetch is issued
/// after a reply is published, so that a lone invocation does not wait for it.
const PREFETCH_ENTRIES: u32 = 3;

/// The worker's own ring.
pub struct RequestRing(NearRing);

impl RequestRing {
    /// Creates a ring of this shape.
    pub fn create(shape: RingShape) -> Result<Self, MemoryError> {
        Ok(Self(NearRing::create("hotlease-requests", shape)?))
    }

    /// The ring itself, for a port of a fabric, which puts requests into it.
    pub fn near(&self) -> &NearRing {
        &self.0
    }

    /// Descriptor to pass to the client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

/// The worker's end of a channel; used by one slot's thread.
pub struct WorkerChannel<F: FarRing = ShmRing> {
    requests: NearRing,
    replies: F,
    generation: u32,
    /// Number of the next request in the ring.
    pub(super) next: u64,
    /// Number of the next request in the express entry, which counts its own requests.
    pub(super) express_next: u64,
    /// Whether the last request arrived in the express entry; if so, the ring has the next turn.
    was_express: bool,
    /// Whether a reply was published since the last check of the client's doorbell.
    unsettled: bool,
    /// Size of the last output if it did not fit into a reply's line, else 0. The next output probably has the same
    /// size.
    last_output: usize,
}

/// A request whose form and lengths were checked on a private copy.
pub struct CheckedRequest {
    /// The private copy. `length`, `reply_entry` and `output_capacity` fit the channel.
    pub header: RequestHeader,
    /// Entry of the request, and of its reply.
    entry: u32,
}

/// A request's payload bytes.
pub struct RequestPayload {
    /// First byte, aligned to 64.
    pub start: NonNull<u8>,
    /// Number of bytes.
    pub bytes: usize,
}

impl WorkerChannel {
    /// Opens the worker's end with the client's reply ring and doorbell, both of which are checked. `generation` is not
    /// 0.
    pub fn open(
        requests: RequestRing,
        generation: u32,
        reply: RingShape,
        reply_ring: OwnedFd,
        client_doorbell: OwnedFd,
    ) -> Result<Self, MemoryError> {
        let replies = ShmRing::attach_guarded(reply_ring, reply, Doorbell::attach(client_doorbell)?)?;
        if replies.layout().depth() != requests.0.layout().depth() {
            return Err(MemoryError::BadSize {
                size_bytes: u64::from(reply.depth),
            });
        }
        Ok(Self::over(requests, generation, replies))
    }
}

impl<F: FarRing> WorkerChannel<F> {
    /// Makes the worker's end over any transport. `replies` writes the client's reply ring through the transport; the
    /// reply ring must be as deep as the request ring. `generation` is not 0.
    pub fn over(requests: RequestRing, generation: u32, replies: F) -> Self {
        Self {
            requests: requests.0,
            replies,
            generation,
            next: 0,
            express_next: 0,
            was_express: false,
            unsettled: false,
            last_output: 0,
        }
    }

    /// Wraps the channel's transport into another type.
    pub fn map<G: FarRing>(self, wrap: impl FnOnce(F) -> G) -> WorkerChannel<G> {
        WorkerChannel {
            requests: self.requests,
            replies: wrap(self.replies),
            generation: self.generation,
            next: self.next,
            express_next: self.express_next,
            was_express: self.was_express,
            unsettled: self.unsettled,
            last_output: self.last_output,
        }
    }

    /// The transport's ring.
    pub fn far(&self) -> &F {
        &self.replies
    }

    fn depth(&self) -> u32 {
        self.requests.layout().depth()
    }

    /// Entry of the next request and a private copy of its line. Ring and express entry take turns if both hold a
    /// request.
    #[inline]
    fn peek_line(&self) -> Option<(u32, LineWords)> {
        let express = || {
            let seq = Seq::new(self.generation, self.express_next);
            Some((EXPRESS_ENTRY, self.requests.line(EXPRESS_ENTRY).poll(seq)?))
        };
        let ring = || {
            let seq = Seq::new(self.generation, self.next);
            let entry = self.next as u32 & (self.depth() - 1);
            Some((entry, self.requests.line(entry).poll(seq)?))
        };
        if self.was_express {
            ring().or_else(express)
        } else {
            express().or_else(ring)
        }
    }

    /// Whether a request is waiting; changes nothing.
    #[inline]
    pub fn has_request(&self) -> bool {
        self.peek_line().is_some()
    }

    /// Takes the next request, if there is one. If the request is malformed or withdrawn, answers it and returns
    /// `None`.
    #[inline]
    pub fn take(&mut self) -> Option<CheckedRequest> {
        let (entry, words) = self.peek_line()?;
        self.was_express = entry == EXPRESS_ENTRY;
        let next = if self.was_express {
            &mut self.express_next
        } else {
            &mut self.next
        };
        let seq = Seq::new(self.generation, *next);
        *next += 1;
        // The header's reply entry must be the entry of the request, so it is checked here and not used later.
        let status = match RequestHeader::decode(&words) {
            Ok(header) if header.reply_entry != entry => InvocationStatus::BadHeader,
            Ok(header)
                if header.length as usize > self.requests.layout().entry_bytes()
                    || (header.length as usize) < header.flags.span_bytes()
                    || header.output_capacity as usize > self.replies.payload_bytes() =>
            {
                InvocationStatus::BadLength
            }
            Ok(header)
                if header.flags.is_withdrawable() && !self.requests.line(entry).claim(seq, RequestClaim::Begun) =>
            {
                InvocationStatus::Withdrawn
            }
            Ok(header) => {
                if header.length as usize > INLINE_BYTES {
                    self.requests.prefetch_payload(entry, header.length as usize);
                }
                if self.last_output > 0 {
                    self.replies.prefetch_payload(entry, self.last_output);
                }
                return Some(CheckedRequest { header, entry });
            }
            Err(_) => InvocationStatus::BadHeader,
        };
        self.publish(entry, &ReplyHeader::failed(seq, status), 0);
        None
    }

    /// The request's payload, valid until the reply is published. Inline payload lies in `request`, which must outlive
    /// the use of the payload.
    #[inline]
    pub fn input(&self, request: &CheckedRequest) -> RequestPayload {
        let bytes = request.header.length as usize;
        let start = if bytes <= INLINE_BYTES {
            NonNull::from(&request.header.inline).cast()
        } else {
            self.requests.payload(request.entry)
        };
        RequestPayload { start, bytes }
    }

    /// Start of the reply entry, to which the function may write up to `request.header.output_capacity` bytes. A guard
    /// page follows the entry's end ([`WorkerChannel::output_bytes`]).
    #[inline]
    pub fn output(&self, request: &CheckedRequest) -> NonNull<u8> {
        self.replies.payload(request.entry)
    }

    /// Capacity of an output entry.
    #[inline]
    pub fn output_bytes(&self) -> usize {
        self.replies.payload_bytes()
    }

    /// Publishes a reply whose output is the first `bytes` bytes (at most [`WorkerChannel::output_bytes`]) at
    /// [`WorkerChannel::output`].
    #[inline]
    pub fn reply_with_output(&mut self, request: &CheckedRequest, status: InvocationStatus, code: i32, bytes: usize) {
        let bytes = bytes.min(self.output_bytes());
        let mut header = ReplyHeader {
            status,
            code,
            ..ReplyHeader::ok(request.header.seq, bytes as u64)
        };
        self.last_output = if bytes <= INLINE_BYTES { 0 } else { bytes };
        if bytes <= INLINE_BYTES {
            // SAFETY: the output is at least `bytes` long, and the function is done with it.
            let output = unsafe { std::slice::from_raw_parts(self.output(request).as_ptr(), bytes) };
            header.inline = Inline::from_bytes(output);
            self.publish(request.entry, &header, 0);
        } else {
            self.publish(request.entry, &header, bytes);
        }
    }

    /// Publishes a reply without ring output: a rejection, or `length` bytes written to a buffer.
    #[inline]
    pub fn reply(&mut self, request: &CheckedRequest, status: InvocationStatus, code: i32, length: u64) {
        self.last_output = 0;
        let header = ReplyHeader {
            status,
            code,
            ..ReplyHeader::ok(request.header.seq, length)
        };
        self.publish(request.entry, &header, 0);
    }

    #[inline(always)]
    fn publish(&mut self, entry: u32, header: &ReplyHeader, payload_bytes: usize) {
        self.replies.publish(entry, payload_bytes, &header.encode());
        self.unsettled = true;
        // Prefetches only if more requests wait in the ring: otherwise the prefetch would take lines away from a lone
        // client that waits for them.
        let seq = Seq::new(self.generation, self.next);
        if self
            .requests
            .line(self.next as u32 & (self.depth() - 1))
            .poll(seq)
            .is_some()
        {
            let ahead = (self.next as u32).wrapping_add(PREFETCH_ENTRIES) & (self.depth() - 1);
            self.requests.line(ahead).prefetch_read();
            self.replies.prefetch(ahead);
        }
    }

    /// Wakes the client if it sleeps. Separate from publishing, because the doorbell's fence waits until the reply has
    /// left this core, and the slot can look for the next request in that time. The slot must settle before it runs the
    /// next function, polls or sleeps.
    #[inline]
    pub fn settle(&mut self) {
        if self.unsettled {
            self.unsettled = false;
            self.replies.ring();
        }
    }
}
