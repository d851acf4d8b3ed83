//! Invocation whose thread waits for the reply: publish, poll, copy out. This is the shortest path.

use super::{Channel, Reply, Sink, Source, timed_out};
use crate::Error;
use crate::channel::{MESSAGE_BYTES, Target};
use crate::entries::State;
use crate::express;
use crate::wait::{Interrupted, give_up_at};
use hotlease_fabric::channel::TooLong;
use hotlease_wire::frame::Status;
use std::any::Any;
use std::time::{Duration, Instant};

/// Polls right after publishing, before the thread looks at the slot's doorbell and the clock: a hot slot answers
/// within them. The pause between two polls lets the slot finish its reply before its line is fetched again. Round
/// trips of 8 bytes, without / with the pause: 170 / 150 ns where the cores are near, 510 / 380 ns where they are
/// far apart.
const POLLS: u32 = 32;

/// An invocation in flight, by the entries that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Through the ring, with this number.
    Ring(u64),
    /// Through the express entry, which counts its invocations separately.
    Express(u64),
}

impl Channel {
    /// Invokes and waits. The payload must fit a request entry, a ring sink a reply entry.
    ///
    /// Returns the output's length. After a timeout the channel keeps the result of `keep` until the worker is done
    /// with it. `began` is set if the invocation did not end at once.
    #[inline]
    pub(crate) fn call(
        &self,
        target: &Target,
        payload: &[&[u8]],
        sink: Sink<'_>,
        timeout: Option<Duration>,
        keep: impl FnOnce() -> Option<Box<dyn Any + Send>>,
        began: &mut Option<Instant>,
    ) -> Result<usize, Error> {
        let Some(lane) = self.take_lane() else {
            return Err(Error::NoCredit);
        };
        // Quiet: a hot slot needs no doorbell, so no fence delays the first poll for the reply.
        if self.publish_quiet(lane, target, payload).is_err() {
            return Err(self.broken("a request longer than its entry was made"));
        }
        let awaited = match lane {
            Lane::Ring(seq) => self.ring.awaited(seq),
            Lane::Express(number) => self.ring.express().awaited(number),
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
            Err(Interrupted::Closed) => Err(self.unanswered_in(lane)),
            Err(Interrupted::TimedOut) => {
                self.give_up(lane, keep());
                Err(self.logged(self.invocation_in(lane), timed_out(timeout)))
            }
        }
    }

    /// Chooses the entries of an invocation that its thread waits for: the express entry, unless another thread
    /// holds it or the invocation would overtake an earlier one.
    #[inline]
    fn take_lane(&self) -> Option<Lane> {
        if express::hold(&self.express) && self.ring_load(1) == 0 {
            let number = self.express.begin().or_else(|| self.begin_after_abandoned());
            if let Some(number) = number {
                return Some(Lane::Express(number));
            }
        }
        self.claim().map(Lane::Ring)
    }

    /// Begins an express invocation as [`Express::begin`](crate::express::Express::begin) does, if the reply to the
    /// abandoned one has come since.
    #[cold]
    fn begin_after_abandoned(&self) -> Option<u64> {
        let abandoned = self.express.open()?;
        // The reply's content does not matter: its invocation was abandoned.
        let _ = self.ring.express().poll(abandoned)?;
        self.abandoned().remove(&Lane::Express(abandoned));
        self.express.end();
        self.express.begin()
    }

    #[inline]
    pub(super) fn publish_quiet(
        &self,
        lane: Lane,
        target: &Target,
        payload: &[&[u8]],
    ) -> Result<(), TooLong> {
        let call = self.call_of(target);
        match lane {
            Lane::Ring(seq) => self.ring.publish_quiet(seq, &call, payload),
            Lane::Express(number) => self.ring.express().publish_quiet(number, &call, payload),
        }
    }

    #[inline]
    fn source(&self, lane: Lane) -> Source<'_> {
        match lane {
            Lane::Ring(seq) => Source::Ring(self, seq),
            Lane::Express(_) => Source::Express(self),
        }
    }

    #[inline]
    fn free(&self, lane: Lane) {
        match lane {
            Lane::Ring(seq) => self.entries.free(seq),
            Lane::Express(_) => self.express.end(),
        }
    }

    /// Gives up an invocation that this thread waited for.
    #[cold]
    fn give_up(&self, lane: Lane, keep: Option<Box<dyn Any + Send>>) {
        match (lane, keep) {
            (Lane::Ring(seq), keep) => self.abandon_as(seq, State::Open, keep),
            // The express entry stays open until the reply has come.
            (Lane::Express(_), Some(keep)) => drop(self.abandoned().insert(lane, keep)),
            (Lane::Express(_), None) => {}
        }
    }

    #[inline]
    pub(super) fn finish(
        &self,
        lane: Lane,
        reply: Reply,
        sink: Sink<'_>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        match (&reply, sink) {
            (Ok(header), Sink::Ring(output))
                if header.status == Status::Ok && header.length <= output.len() as u64 =>
            {
                let length = self.source(lane).read(header, output);
                self.free(lane);
                Ok(length)
            }
            (Ok(header), Sink::Buffer(capacity))
                if header.status == Status::Ok && header.length <= capacity =>
            {
                self.free(lane);
                Ok(header.length as usize)
            }
            (_, sink) => Err(self.finish_badly(lane, reply, sink, timeout)),
        }
    }

    #[cold]
    fn finish_badly(&self, lane: Lane, reply: Reply, sink: Sink<'_>, timeout: Option<Duration>) -> Error {
        let bytes = match (&reply, &sink) {
            (Ok(header), Sink::Ring(_)) => self.source(lane).to_vec(header),
            // As long as the message in the buffer; the text itself is not known here.
            (Ok(header), Sink::Buffer(capacity)) if header.status == Status::FunctionError => {
                let length = header.length.min(*capacity).min(MESSAGE_BYTES.into());
                vec![0; length as usize]
            }
            _ => Vec::new(),
        };
        self.free(lane);
        self.failure(self.invocation_in(lane), &reply, bytes, sink.capacity(), timeout)
    }
}
