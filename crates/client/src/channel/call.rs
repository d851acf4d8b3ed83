//! An invocation that its thread waits for: publish, poll, copy out. The shortest way there is.

use super::{Channel, Reply, Sink, Source, timed_out};
use crate::Error;
use crate::channel::Target;
use crate::entries::State;
use crate::wait::{Interrupted, give_up_at};
use hotlease_fabric::channel::TooLong;
use hotlease_wire::frame::Status;
use std::any::Any;
use std::time::Duration;

/// Polls right after publishing, without a pause or a clock: a hot slot answers within them.
const TIGHT_POLLS: u32 = 256;

/// Which entry an invocation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// That of its number, in the ring.
    Ring,
    /// The express entry.
    Express,
}

impl Channel {
    /// Invokes and waits. The payload fits a request entry, a ring sink a reply entry.
    ///
    /// Returns the output's length, and after a timeout gives `keep` to the channel until the worker is
    /// done with it.
    #[inline]
    pub(crate) fn call(
        &self,
        target: &Target,
        payload: &[&[u8]],
        sink: Sink<'_>,
        timeout: Option<Duration>,
        keep: impl FnOnce() -> Option<Box<dyn Any + Send>>,
    ) -> Result<usize, Error> {
        let Some(seq) = self.claim() else {
            return Err(Error::NoCredit);
        };
        let lane = self.lane_of(seq);
        // Quiet: a hot slot needs no ring, and so no fence stands between us and the reply.
        if self.publish_quiet(lane, seq, target, payload).is_err() {
            return Err(self.broken("a request longer than its entry was made"));
        }
        let awaited = match lane {
            Lane::Ring => self.ring.awaited(seq),
            Lane::Express => self.ring.express().awaited(seq),
        };
        for _ in 0..TIGHT_POLLS {
            if let Some(reply) = awaited.poll() {
                return self.finish(lane, seq, reply, sink, timeout);
            }
        }
        self.ring.ring();
        match self.wait(|start| give_up_at(start, timeout), || awaited.poll()) {
            Ok(reply) => self.finish(lane, seq, reply, sink, timeout),
            Err(Interrupted::Closed) => Err(self.unanswered(seq)),
            Err(Interrupted::TimedOut) => {
                self.give_up(lane, seq, keep());
                Err(timed_out(timeout))
            }
        }
    }

    /// The way of a claimed invocation that its thread waits for.
    #[inline]
    fn lane_of(&self, seq: u64) -> Lane {
        if self.entries.take_express(seq) || self.take_abandoned_express(seq) {
            Lane::Express
        } else {
            Lane::Ring
        }
    }

    #[cold]
    fn take_abandoned_express(&self, seq: u64) -> bool {
        let Some(abandoned) = self.entries.abandoned_in_express() else {
            return false;
        };
        if self.poll(Lane::Express, abandoned).is_none() || !self.entries.free_abandoned_express(abandoned) {
            return false;
        }
        self.abandoned().remove(&abandoned);
        self.entries.take_express(seq)
    }

    #[inline]
    pub(super) fn publish_quiet(
        &self,
        lane: Lane,
        seq: u64,
        target: &Target,
        payload: &[&[u8]],
    ) -> Result<(), TooLong> {
        let call = self.call_of(target);
        match lane {
            Lane::Ring => self.ring.publish_quiet(seq, &call, payload),
            Lane::Express => self.ring.express().publish_quiet(seq, &call, payload),
        }
    }

    #[inline]
    pub(super) fn poll(&self, lane: Lane, seq: u64) -> Option<Reply> {
        match lane {
            Lane::Ring => self.ring.poll(seq),
            Lane::Express => self.ring.express().poll(seq),
        }
    }

    #[inline]
    fn source(&self, lane: Lane, seq: u64) -> Source<'_> {
        match lane {
            Lane::Ring => Source::Ring(self, seq),
            Lane::Express => Source::Express(self),
        }
    }

    #[inline]
    fn free(&self, lane: Lane, seq: u64) {
        match lane {
            Lane::Ring => self.entries.free(seq),
            Lane::Express => self.entries.free_express(),
        }
    }

    /// Gives up an invocation that this thread waited for.
    #[cold]
    fn give_up(&self, lane: Lane, seq: u64, keep: Option<Box<dyn Any + Send>>) {
        match lane {
            Lane::Ring => self.abandon_as(seq, State::Open, keep),
            Lane::Express => {
                if let Some(keep) = keep {
                    self.abandoned().insert(seq, keep);
                }
                self.entries.abandon_express(seq);
            }
        }
    }

    #[inline]
    pub(super) fn finish(
        &self,
        lane: Lane,
        seq: u64,
        reply: Reply,
        sink: Sink<'_>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        match (&reply, sink) {
            (Ok(header), Sink::Ring(output))
                if header.status == Status::Ok && header.length <= output.len() as u64 =>
            {
                let length = self.source(lane, seq).read(header, output);
                self.free(lane, seq);
                Ok(length)
            }
            (Ok(header), Sink::Buffer(capacity))
                if header.status == Status::Ok && header.length <= capacity =>
            {
                self.free(lane, seq);
                Ok(header.length as usize)
            }
            (_, sink) => Err(self.finish_badly(lane, seq, reply, sink, timeout)),
        }
    }

    #[cold]
    fn finish_badly(
        &self,
        lane: Lane,
        seq: u64,
        reply: Reply,
        sink: Sink<'_>,
        timeout: Option<Duration>,
    ) -> Error {
        let bytes = match (&reply, &sink) {
            (Ok(header), Sink::Ring(_)) => self.source(lane, seq).to_vec(header),
            _ => Vec::new(),
        };
        self.free(lane, seq);
        self.failure(&reply, bytes, sink.capacity(), timeout)
    }
}
