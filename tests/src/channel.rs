//! The client's side of the rings, written by hand: tests can write any words into any entry.

use crate::platform::LIMIT;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ring::FarRing;
use hotlease_fabric::shm::{NearRing, ShmRing};
use hotlease_wire::frame::{
    EXPRESS_ENTRY, Flags, Inline, InvocationStatus, LineWords, ReplyHeader, RequestHeader, Seq, Span,
};
use hotlease_wire::ids::{Epoch, FunctionIndex};
use hotlease_wire::limits::INLINE_BYTES;
use std::time::{Duration, Instant};

/// One channel; checks nothing that it writes.
pub struct RawChannel {
    requests: ShmRing,
    replies: NearRing,
    doorbell: Doorbell,
    generation: u32,
    next: u64,
    express_next: u64,
}

impl RawChannel {
    /// Makes a channel over rings that both ends have mapped.
    pub fn new(requests: ShmRing, replies: NearRing, doorbell: Doorbell, generation: u32) -> Self {
        Self {
            requests,
            replies,
            doorbell,
            generation,
            next: 0,
            express_next: 0,
        }
    }

    /// The sequence word that the worker waits for.
    pub fn seq(&self) -> Seq {
        Seq::new(self.generation, self.next)
    }

    /// Makes a correct request with a payload; a test may forge it before it is sent.
    pub fn request(&self, epoch: Epoch, function: FunctionIndex, payload: &[u8]) -> RequestHeader {
        let mut header = RequestHeader {
            seq: self.seq(),
            epoch,
            function,
            flags: Flags::NONE,
            length: payload.len() as u32,
            reply_entry: self.ring_entry(self.next),
            timeout_us: 0,
            output_capacity: self.replies.layout().entry_bytes() as u32,
            inline: Inline::default(),
        };
        if payload.len() <= INLINE_BYTES {
            header.inline = Inline::from_bytes(payload);
        } else {
            self.write(payload);
        }
        header
    }

    /// Makes a correct request with a small payload for the express entry, which has a separate counter.
    pub fn express_request(&self, epoch: Epoch, function: FunctionIndex, payload: &[u8]) -> RequestHeader {
        assert!(payload.len() <= INLINE_BYTES);
        RequestHeader {
            seq: Seq::new(self.generation, self.express_next),
            reply_entry: EXPRESS_ENTRY,
            ..self.request(epoch, function, payload)
        }
    }

    /// Makes a correct request whose input and output are in buffers.
    pub fn span_request(&self, epoch: Epoch, function: FunctionIndex, input: Span, output: Span) -> RequestHeader {
        let payload = [input.encode(), output.encode()].concat();
        RequestHeader {
            flags: Flags::INPUT_BUFFER.with(Flags::OUTPUT_BUFFER),
            ..self.request(epoch, function, &payload)
        }
    }

    /// Writes bytes to the payload area of the next entry.
    fn write(&self, payload: &[u8]) {
        self.overwrite_payload(self.ring_entry(self.next), payload);
    }

    /// Counts a request that was written by [`RawChannel::write_words`].
    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Writes bytes to the payload area of an entry, even if it is in use.
    pub fn overwrite_payload(&self, entry: u32, payload: &[u8]) {
        assert!(payload.len() <= self.requests.payload_bytes());
        // SAFETY: the entry's payload is at least that long, and a borrowed slice does not overlap a foreign mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(payload.as_ptr(), self.requests.payload(entry).as_ptr(), payload.len());
        }
    }

    /// Writes any words to the line of any entry and wakes the slot. Does not advance the counter.
    pub fn write_words(&self, entry: u32, words: &LineWords) {
        self.requests.publish(entry, 0, words);
        self.requests.ring();
    }

    /// Sends a request without waiting for its answer. Does not advance the counter.
    pub fn publish(&self, request: &RequestHeader) {
        self.write_words(self.ring_entry(self.next), &request.encode());
    }

    /// Writes words into the next entry and waits for the answer.
    ///
    /// # Panics
    /// If there is no answer, or it is malformed.
    pub fn send(&mut self, words: &LineWords) -> ReplyHeader {
        self.try_send(words, LIMIT).expect("the slot answers")
    }

    /// As [`RawChannel::send`]; `None` if there is no answer within `limit`.
    pub fn try_send(&mut self, words: &LineWords, limit: Duration) -> Option<ReplyHeader> {
        let (seq, entry) = (self.seq(), self.ring_entry(self.next));
        self.skip();
        self.write_words(entry, words);
        self.reply_in(entry, seq, limit)
    }

    /// As [`RawChannel::send`], in the express entry.
    ///
    /// # Panics
    /// If there is no answer, or it is malformed.
    pub fn send_express(&mut self, words: &LineWords) -> ReplyHeader {
        let seq = Seq::new(self.generation, self.express_next);
        self.express_next += 1;
        self.write_words(EXPRESS_ENTRY, words);
        self.reply_in(EXPRESS_ENTRY, seq, LIMIT).expect("the slot answers")
    }

    fn ring_entry(&self, number: u64) -> u32 {
        number as u32 & (self.replies.layout().depth() - 1)
    }

    /// Waits for the answer to a request of the ring.
    ///
    /// # Panics
    /// If the answer is malformed.
    pub fn reply(&self, seq: Seq, limit: Duration) -> Option<ReplyHeader> {
        self.reply_in(self.ring_entry(seq.word()), seq, limit)
    }

    fn reply_in(&self, entry: u32, seq: Seq, limit: Duration) -> Option<ReplyHeader> {
        let start = Instant::now();
        let line = self.replies.line(entry);
        loop {
            if let Some(words) = line.poll(seq) {
                return Some(ReplyHeader::decode(&words).expect("the reply is well formed"));
            }
            if start.elapsed() > limit {
                return None;
            }
            // Leaves the core to the slot: there are only as many cores as slots.
            self.doorbell
                .sleep_unless(|| line.poll(seq).is_some(), Some(Duration::from_millis(20)));
        }
    }

    /// Runs a function that echoes its input, and checks the echo.
    ///
    /// # Panics
    /// If the input is not echoed.
    pub fn echo(&mut self, epoch: Epoch, echo: FunctionIndex, input: &[u8]) {
        assert!(input.len() <= INLINE_BYTES);
        let request = self.request(epoch, echo, input);
        let reply = self.send(&request.encode());
        assert_eq!(
            (reply.status, reply.length),
            (InvocationStatus::Ok, input.len() as u64),
            "{reply:?}"
        );
        assert_eq!(&reply.inline.to_bytes()[..input.len()], input);
    }
}
