//! Pipeline of many small invocations on one slot, at the least cost for each.

mod waiting;

pub use waiting::AwaitedCall;

use crate::Error;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::channel::{CallTarget, Channel};
use crate::invocation::function::Function;
use crate::lease::slots::LeasedSlots;
use hotlease_fabric::forks::ProcessMark;
use hotlease_wire::RunCertainty;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that are written before a slot that may sleep is woken.
const QUIET_MAX: u32 = 16;

/// Invocations on one slot, whose results are taken in order. An invocation costs no allocation, no reference count
/// and, while the slot is busy, no fence. Made by [`Function::pipeline`]; `Send`, used by one thread at a time.
///
/// Requests reach a polling slot at once. A sleeping slot is woken by the first request of an idle pipeline, by
/// every 16th, by [`Pipeline::flush`], and by each wait for a result.
///
/// When the worker dies, each invocation in flight yields its error, in order; nothing is run again. The first
/// [`Pipeline::push`] after these results are taken goes to a new worker. In a fork of the process that made it, a
/// pipeline returns errors.
///
/// ```no_run
/// # use hotlease_client::*;
/// # fn f(function: &Function, inputs: &[[u8; 8]]) -> Result<(), Error> {
/// let (mut pipeline, mut output) = (function.pipeline()?, [0; 8]);
/// for input in inputs {
///     if pipeline.is_full() {
///         pipeline.pop(&mut output)?;
///     }
///     pipeline.push(input)?;
/// }
/// while pipeline.pop(&mut output)?.is_some() {}
/// # Ok(()) }
/// ```
pub struct Pipeline {
    function: Function,
    slot: Option<usize>,
    channel: Arc<Channel>,
    in_flight: VecDeque<u64>,
    depth: usize,
    /// Number of requests since the slot was last woken.
    quiet: u32,
    /// Start of each invocation in flight; recorded only if there is a timeout, because reading the clock costs time.
    since: VecDeque<Instant>,
    made_by: ProcessMark,
}

impl Function {
    /// A pipeline of invocations on one slot: the cheapest way to make many small invocations.
    ///
    /// # Errors
    /// Errors of repairing the slot, if its worker is dead: see [`Pipeline::repair`].
    pub fn pipeline(&self) -> Result<Pipeline, Error> {
        Pipeline::new(self.clone())
    }
}

impl Pipeline {
    pub(crate) fn new(function: Function) -> Result<Self, Error> {
        let (slot, channel) = function.inner.pick(function.slot, function.timeout)?;
        let depth = channel.ring.depth() as usize;
        Ok(Self {
            slot: Some(slot),
            channel,
            in_flight: VecDeque::with_capacity(depth),
            depth,
            quiet: 0,
            since: VecDeque::new(),
            made_by: ProcessMark::here(),
            function,
        })
    }

    /// Number of invocations in flight.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether a result must be taken before the next push.
    pub fn is_full(&self) -> bool {
        self.in_flight.len() == self.depth
    }

    /// Starts an invocation. The input must fit a ring entry (`request_bytes` of the lease).
    ///
    /// # Errors
    /// [`Error::NoCredit`] if the pipeline is full, or other threads use the slot's entries; [`Error::InputTooLarge`];
    /// the error of the worker's end, if the worker has died and results are still to be taken.
    #[inline]
    pub fn push(&mut self, input: &[u8]) -> Result<(), Error> {
        if input.len() > self.function.request_bytes {
            return Err(self.too_large(input.len()));
        }
        if self.channel.is_closed() || self.made_by.is_foreign() {
            self.reopen(self.function.timeout)?;
        }
        self.publish(input)
    }

    /// Starts an invocation as [`Pipeline::push`] does, but never waits: a worker that is gone is not replaced.
    ///
    /// # Errors
    /// Errors of [`Pipeline::push`]; [`Error::NoCredit`] also if the worker is gone.
    #[inline]
    pub fn push_open(&mut self, input: &[u8]) -> Result<(), Error> {
        if input.len() > self.function.request_bytes {
            return Err(self.too_large(input.len()));
        }
        if self.channel.is_closed() || self.made_by.is_foreign() {
            self.function.inner.check_own()?;
            return Err(Error::NoCredit);
        }
        self.publish(input)
    }

    #[inline]
    fn publish(&mut self, input: &[u8]) -> Result<(), Error> {
        let target = CallTarget {
            output_capacity: self.function.reply_bytes as u32,
            ..self.function.target
        };
        let seq = self.channel.submit_quiet(&target, &[input])?;
        if self.function.timeout.is_some() {
            self.since.push_back(Instant::now());
        }
        self.quiet += 1;
        if self.in_flight.is_empty() || self.quiet >= QUIET_MAX {
            self.flush();
        }
        self.in_flight.push_back(seq);
        Ok(())
    }

    /// Wakes the slot for the pushed requests, if it sleeps.
    pub fn flush(&mut self) {
        self.quiet = 0;
        if !self.made_by.is_foreign() {
            self.channel.ring.ring();
        }
    }

    /// Waits for the oldest result, copies it to `output` and returns its length; returns `None` if nothing is in
    /// flight. After an error the next call returns the next result.
    #[inline]
    pub fn pop(&mut self, output: &mut [u8]) -> Result<Option<usize>, Error> {
        let Some(&seq) = self.in_flight.front() else {
            return Ok(None);
        };
        let result = match self.made_by.is_foreign() {
            true => Err(LeasedSlots::foreign_invocation()),
            false => match self.channel.try_finish(seq, output, self.function.timeout) {
                Some(result) => result,
                None => self.wait(seq, output),
            },
        };
        self.in_flight.pop_front();
        self.since.pop_front();
        result.map(Some)
    }

    /// Takes the oldest result as [`Pipeline::pop`] does, but also returns `None` while that result has not arrived.
    #[inline]
    pub fn try_pop(&mut self, output: &mut [u8]) -> Result<Option<usize>, Error> {
        match self.in_flight.front() {
            Some(&seq) if self.channel.is_answered(seq) || self.channel.is_closed() || self.made_by.is_foreign() => {
                self.pop(output)
            }
            _ => {
                // A slot that has gone to sleep must be woken for the requests that it has not answered.
                if self.quiet > 0 {
                    self.flush();
                }
                Ok(None)
            }
        }
    }

    /// Withdraws the latest invocation in flight: it does not run, and has no result. Returns `false` if the slot has
    /// begun the invocation, or if the invocation cannot be withdrawn: over a fabric, without
    /// [`Function::withdrawable`], or in a fork of the process that made it.
    pub fn withdraw_last(&mut self) -> bool {
        if self.made_by.is_foreign() {
            return false;
        }
        let last = self.in_flight.back().copied();
        let Some(seq) = last.filter(|seq| self.channel.ring.withdraw(*seq)) else {
            return false;
        };
        self.in_flight.pop_back();
        self.since.pop_back();
        self.channel.abandon_owned(seq);
        true
    }

    #[cold]
    fn wait(&mut self, seq: u64, output: &mut [u8]) -> Result<usize, Error> {
        if self.quiet > 0 {
            self.flush();
        }
        let (channel, timeout) = (&self.channel, self.function.timeout);
        let since = self.since.front().copied();
        let until = |start| give_up_at(since.unwrap_or(start), timeout);
        match channel.wait(until, || channel.try_finish(seq, output, timeout)) {
            Ok(result) => result,
            Err(WaitEnd::Closed) => Err(channel.unanswered_error(seq)),
            Err(WaitEnd::TimedOut) => {
                channel.abandon_owned(seq);
                Err(Error::deadline(timeout, RunCertainty::Unknown))
            }
        }
    }

    #[cold]
    fn reopen(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        self.function.inner.check_own()?;
        if let Some(&seq) = self.in_flight.front() {
            return Err(self.channel.unanswered_error(seq));
        }
        let function = &self.function;
        let (slot, channel) = function.inner.pick(function.slot.or(self.slot), limit)?;
        (self.slot, self.channel) = (Some(slot), channel);
        Ok(())
    }

    #[cold]
    fn too_large(&self, size: usize) -> Error {
        Error::InputTooLarge {
            size: size as u64,
            limit: self.function.request_bytes as u64,
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.made_by.is_foreign() {
            // The connection is the parent's, and so are its invocations.
            return std::mem::forget(self.channel.clone());
        }
        if self.quiet > 0 {
            self.flush();
        }
        for seq in self.in_flight.drain(..) {
            self.channel.abandon_owned(seq);
        }
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("function", &self.function.name())
            .field("in_flight", &self.in_flight.len())
            .finish()
    }
}
