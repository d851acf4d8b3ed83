//! Invocation whose thread waits for the reply: publish, poll, copy out. This is the shortest path.

use super::{Channel, OutputSink, Reply, ReplySource};
use crate::Error;
use crate::channel::entries::EntryState;
use crate::channel::express;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::channel::{CallTarget, MESSAGE_BYTES};
use hotlease_fabric::channel::PayloadTooLong;
use hotlease_wire::RunCertainty;
use hotlease_wire::frame::InvocationStatus;
use std::any::Any;
use std::time::{Duration, Instant};

/// Number of polls right after publishing, before the thread checks the slot's doorbell and the clock. A hot slot
/// answers during these polls. The pause between two polls lets the slot finish its reply before the reply's line is
/// fetched again. Round trips of 8 bytes, without / with the pause: 170 / 150 ns if the cores are near, 510 / 380 ns if
/// they are far apart.
const POLLS: u32 = 32;

/// An invocation in flight, by the entries that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EntryUse {
    /// Through the ring, with this number.
    Ring(u64),
    /// Through the express entry, which counts its invocations separately.
    Express(u64),
}

impl Channel {
    /// Invokes and waits. The payload must fit a request entry, and the slice of a ring sink must fit a reply entry.
    ///
    /// Returns the output's length. After a timeout the channel keeps the result of `keep` until the worker has
    /// finished with it. `began` is set to the start if the invocation did not end at once.
    #[inline]
    pub(crate) fn call(
        &self,
        target: &CallTarget,
        payload: &[&[u8]],
        sink: OutputSink<'_>,
        timeout: Option<Duration>,
        keep: impl FnOnce() -> Option<Box<dyn Any + Send>>,
        began: &mut Option<Instant>,
    ) -> Result<usize, Error> {
        let Some(lane) = self.claim_entry() else {
            return Err(Error::NoCredit);
        };
        // Quiet: a hot slot needs no doorbell, so no fence delays the first poll for the reply.
        if self.publish_quiet(lane, target, payload).is_err() {
            return Err(self.close_broken("a request longer than its entry was made"));
        }
        let awaited = match lane {
            EntryUse::Ring(seq) => self.ring.awaited(seq),
            EntryUse::Express(number) => self.ring.express().awaited(number),
        };
        for _ in 0..POLLS {
            if let Some(reply) = awaited.poll() {
                return self.finish(lane, reply, sink, timeout);
            }
            std::hint::spin_loop();
        }
        self.ring.ring();
        let until = |start| {
            *began = Some(start);
            give_up_at(start, timeout)
        };
        match self.wait(until, || awaited.poll()) {
            Ok(reply) => self.finish(lane, reply, sink, timeout),
            Err(WaitEnd::Closed) => Err(self.unanswered_in(lane)),
            Err(WaitEnd::TimedOut) => {
                self.give_up(lane, keep());
                let error = Error::deadline(timeout, RunCertainty::Unknown);
                Err(self.log_failure(self.invocation_in(lane), error))
            }
        }
    }

    /// Chooses the entries of an invocation that its thread waits for: the express entry, unless another thread holds
    /// it or the invocation would overtake an earlier invocation.
    #[inline]
    fn claim_entry(&self) -> Option<EntryUse> {
        if express::try_hold(&self.express) && self.ring_load(1) == 0 {
            let number = self.express.begin().or_else(|| self.begin_after_abandoned());
            if let Some(number) = number {
                return Some(EntryUse::Express(number));
            }
        }
        self.claim().map(EntryUse::Ring)
    }

    /// Begins an express invocation like [`Express::begin`](express::Express::begin), if the reply to the abandoned
    /// invocation has arrived since.
    #[cold]
    fn begin_after_abandoned(&self) -> Option<u64> {
        let abandoned = self.express.open()?;
        // The reply's content does not matter: its invocation was abandoned.
        let _ = self.ring.express().poll(abandoned)?;
        self.abandoned().remove(&EntryUse::Express(abandoned));
        self.express.end();
        self.express.begin()
    }

    #[inline]
    pub(super) fn publish_quiet(
        &self,
        lane: EntryUse,
        target: &CallTarget,
        payload: &[&[u8]],
    ) -> Result<(), PayloadTooLong> {
        let call = self.call_of(target);
        match lane {
            EntryUse::Ring(seq) => self.ring.publish_quiet(seq, &call, payload),
            EntryUse::Express(number) => self.ring.express().publish_quiet(number, &call, payload),
        }
    }

    #[inline]
    fn source(&self, lane: EntryUse) -> ReplySource<'_> {
        match lane {
            EntryUse::Ring(seq) => ReplySource::Ring(self, seq),
            EntryUse::Express(_) => ReplySource::Express(self),
        }
    }

    #[inline]
    fn free(&self, lane: EntryUse) {
        match lane {
            EntryUse::Ring(seq) => self.entries.free(seq),
            EntryUse::Express(_) => self.express.end(),
        }
    }

    /// Gives up an invocation that this thread waited for.
    #[cold]
    fn give_up(&self, lane: EntryUse, keep: Option<Box<dyn Any + Send>>) {
        match (lane, keep) {
            (EntryUse::Ring(seq), keep) => self.abandon_as(seq, EntryState::Open, keep),
            // The express entry stays open until the reply has arrived.
            (EntryUse::Express(_), Some(keep)) => drop(self.abandoned().insert(lane, keep)),
            (EntryUse::Express(_), None) => {}
        }
    }

    #[inline]
    pub(super) fn finish(
        &self,
        lane: EntryUse,
        reply: Reply,
        sink: OutputSink<'_>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        match (&reply, sink) {
            (Ok(header), OutputSink::Ring(output))
                if header.status == InvocationStatus::Ok && header.length <= output.len() as u64 =>
            {
                let length = self.source(lane).read(header, output);
                self.free(lane);
                Ok(length)
            }
            (Ok(header), OutputSink::Buffer(capacity))
                if header.status == InvocationStatus::Ok && header.length <= capacity =>
            {
                self.free(lane);
                Ok(header.length as usize)
            }
            (_, sink) => Err(self.finish_badly(lane, reply, sink, timeout)),
        }
    }

    #[cold]
    fn finish_badly(&self, lane: EntryUse, reply: Reply, sink: OutputSink<'_>, timeout: Option<Duration>) -> Error {
        let bytes = match (&reply, &sink) {
            (Ok(header), OutputSink::Ring(_)) => self.source(lane).to_vec(header),
            // The message is in the caller's buffer, and its text is not known here: zeros of the same length stand for
            // it.
            (Ok(header), OutputSink::Buffer(capacity)) if header.status == InvocationStatus::FunctionError => {
                let length = header.length.min(*capacity).min(MESSAGE_BYTES.into());
                vec![0; length as usize]
            }
            _ => Vec::new(),
        };
        self.free(lane);
        self.failure(self.invocation_in(lane), &reply, bytes, sink.capacity(), timeout)
    }
}
