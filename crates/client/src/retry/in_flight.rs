//! Submitted invocations: every one resolves, to a result or an error, after as many submissions as are allowed.

use crate::Error;
use crate::buffer::Input;
use crate::channel::Channel;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::invocation::function::Function;
use crate::invocation::pipeline::AwaitedCall;
use crate::invocation::request::{ChannelRequest, OutputPlace, UsedMemory, micros};
use crate::invocation::submitted_call::{ResultDestination, SubmittedCall};
use crate::lease::slots::LeasedSlots;
use crate::retry::CallAttempts;
use crate::retry::redirect::LazyRedirects;
use hotlease_wire::RunCertainty;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// State of an invocation after a step.
pub(crate) enum CallProgress {
    /// Resolved.
    Done(Result<usize, Error>),
    /// Not resolved yet.
    Waiting,
}

/// Data from which an invocation can be submitted again.
struct ResubmitData {
    request: ChannelRequest,
    /// Copy of the input, if the invocation may run twice.
    input: Option<Vec<u8>>,
    again: CallAttempts,
}

impl ResubmitData {
    /// Input bytes that go through the ring: empty if the input is in registered memory, `None` if no copy was kept.
    fn input(&self) -> Option<&[u8]> {
        match &self.input {
            Some(input) => Some(input),
            None => (!self.request.tail.input_in_ring).then_some(&[]),
        }
    }
}

/// A submitted invocation. If it is dropped before it has resolved, its result is discarded.
pub(crate) struct InFlight {
    function: Function,
    /// The latest submission.
    call: SubmittedCall,
    /// Time of the first submission; set only if the client enforces a timeout, because reading the clock costs time.
    since: Option<Instant>,
    kept: Option<Box<ResubmitData>>,
    /// Whether the invocation may be submitted to another worker.
    moves: bool,
    /// Whether the invocation has ended: with a result, with an error, or given up.
    resolved: bool,
    /// Whether the completion thread watches the invocation.
    watched: bool,
    /// Refusals by slots that had no core, and the pauses that follow from them.
    refused: LazyRedirects,
    /// Time of the next submission if no slot had a core for the invocation: until then it is in no channel.
    parked: Option<Instant>,
}

impl InFlight {
    /// Submits an invocation. `wait`: whether to wait for a credit; `keep`: whether to keep the data for another
    /// submission, if another is allowed. The input of an invocation that may not run twice needs no copy: it stays in
    /// its ring entry until the invocation has run.
    pub(crate) fn start(
        function: &Function,
        request: ChannelRequest,
        input: &[u8],
        wait: bool,
        keep: bool,
    ) -> Result<Self, Error> {
        let wanted = wait.then_some(function.timeout);
        let call = SubmittedCall::publish(Function::channel, function, &request, input, wanted)?;
        let again = function.new_attempts();
        let may_come_back = again.can_run_twice() || function.inner.shares_cores();
        let copy = (keep && request.tail.input_in_ring && may_come_back).then(|| input.to_vec());
        let kept = (copy.is_some() || !request.uses.is_empty()).then(|| {
            Box::new(ResubmitData {
                request,
                input: copy,
                again,
            })
        });
        Ok(Self {
            function: function.clone(),
            call,
            since: function.timeout.filter(|_| function.gives_up).map(|_| Instant::now()),
            kept,
            moves: keep && function.resubmits,
            resolved: false,
            watched: false,
            refused: LazyRedirects::default(),
            parked: None,
        })
    }

    pub(crate) fn function(&self) -> &Function {
        &self.function
    }

    /// Whether a step would do something now, and not only wait.
    pub(crate) fn is_done(&self) -> bool {
        if let Some(until) = self.parked {
            return Instant::now() >= until || self.is_late();
        }
        self.resolved
            || self.call.is_done()
            || self.call.channel.is_closed()
            || self.is_late()
            || self.function.inner.is_foreign()
    }

    fn give_up_at(&self) -> Option<Instant> {
        give_up_at(self.since?, self.function.timeout)
    }

    fn is_late(&self) -> bool {
        self.give_up_at().is_some_and(|until| Instant::now() >= until)
    }

    /// The result, if the reply has arrived.
    pub(crate) fn try_result(&mut self, take: &mut impl ResultDestination) -> Option<Result<usize, Error>> {
        if self.resolved {
            return Some(Err(Error::protocol("the invocation's result was taken already")));
        }
        if self.function.inner.is_foreign() {
            self.resolved = true;
            return Some(Err(LeasedSlots::foreign_invocation()));
        }
        if self.parked.is_some() && !self.function.resubmits && self.call.channel.is_closed() {
            self.parked = None;
            self.resolved = true;
            return Some(Err(Error::NoCore));
        }
        if let Some(until) = self.parked {
            let due = Instant::now() >= until && !self.is_late();
            let failed = due.then(|| self.unpark().err())?;
            return failed.map(Err);
        }
        let kept = self.kept.as_ref();
        let staged = kept.and_then(|kept| kept.request.uses.staged_output.as_ref());
        let (result, recalled) = self.call.try_result(staged, self.function.timeout, take)?;
        self.resolved = true;
        match result {
            Err(Error::NoCore) if self.kept.is_some() => {
                let failed = self.park().err()?;
                Some(Err(self.take_final_error(failed)))
            }
            // Refused by a worker that is about to end.
            Err(error @ Error::NotRun { .. }) if self.may_restart() => match self.restart(error, recalled) {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            },
            result => Some(result.map_err(|error| self.take_final_error(error))),
        }
    }

    /// Error to report when `error` ends the attempts: it takes into account that an earlier attempt may have run.
    fn take_final_error(&mut self, error: Error) -> Error {
        match &mut self.kept {
            Some(kept) => kept.again.take_final_error(error),
            None => error,
        }
    }

    /// Advances as far as possible without waiting for the function; waits only for a worker's replacement.
    pub(crate) fn step(&mut self, take: &mut impl ResultDestination) -> CallProgress {
        loop {
            if let Some(result) = self.try_result(take) {
                return CallProgress::Done(result);
            }
            if self.is_orphaned() {
                let error = self.call.unanswered_error();
                let recalled = self.recall(&error);
                match self.restart(error, recalled) {
                    Ok(()) => continue,
                    Err(error) => return CallProgress::Done(Err(error)),
                }
            }
            if self.is_late() {
                let ran = match self.parked {
                    Some(_) => RunCertainty::No,
                    None => RunCertainty::Unknown,
                };
                let late = self.take_final_error(Error::deadline(self.function.timeout, ran));
                self.abandon();
                return CallProgress::Done(Err(late));
            }
            if !self.is_done() {
                return CallProgress::Waiting;
            }
        }
    }

    /// Waits for the result; returns `None` if `limit` passes first.
    pub(crate) fn wait(
        &mut self,
        take: &mut impl ResultDestination,
        limit: Option<Instant>,
    ) -> Option<Result<usize, Error>> {
        loop {
            if let CallProgress::Done(result) = self.step(take) {
                return Some(result);
            }
            let until = self.give_up_at().into_iter().chain(limit).min();
            if let Some(parked) = self.parked {
                let now = Instant::now();
                if limit.is_some_and(|limit| now >= limit) {
                    return None;
                }
                let until = until.map_or(parked, |until| until.min(parked));
                std::thread::sleep(until.saturating_duration_since(now));
                continue;
            }
            let waited = self.call.wait(until);
            if waited == Err(WaitEnd::TimedOut) && limit.is_some_and(|limit| Instant::now() >= limit) && !self.is_done()
            {
                return None;
            }
        }
    }

    /// Parks an invocation after its slot had no core and refused it: the invocation goes to another slot, or waits a
    /// while outside all channels.
    fn park(&mut self) -> Result<(), Error> {
        let pause = self
            .refused
            .by_a_slot(self.function.slot, &self.function.inner.plan.options)?;
        self.resolved = false;
        self.parked = Some(Instant::now() + pause);
        Ok(())
    }

    /// Time until which the invocation is in no channel.
    pub(crate) fn parked_until(&self) -> Option<Instant> {
        self.parked
    }

    /// Submits a parked invocation to a slot other than the one that refused it; parks it again if there is no credit.
    fn unpark(&mut self) -> Result<(), Error> {
        let (left, inner) = (self.time_left(), &self.function.inner);
        self.parked = None;
        // Cleared again if the submission succeeds.
        self.resolved = true;
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.input().is_some()) else {
            return Err(Error::NoCore);
        };
        let picked = match (self.function.slot, inner.slot_of(&self.call.channel)) {
            (None, Some(slot)) => inner.pick_beside(slot, left),
            _ => self.function.pick_channel(left),
        };
        let (_, channel) = picked.map_err(|error| kept.again.take_final_error(error))?;
        let input = kept.input().unwrap_or_default();
        match SubmittedCall::publish_on(channel, &kept.request, input) {
            Ok(call) => self.call = call,
            // Other threads hold all ring entries: treated like a refusal.
            Err(Error::NoCredit) => return self.park(),
            Err(error) => return Err(kept.again.take_final_error(error)),
        }
        self.resolved = false;
        Ok(())
    }

    /// Reads back the input of an invocation that did not run, if no copy was kept.
    fn recall(&self, error: &Error) -> Option<Vec<u8>> {
        let copied = self.kept.as_ref().is_some_and(|kept| kept.input.is_some());
        if copied || !self.moves || error.ran() != RunCertainty::No {
            return None;
        }
        self.call.recall()
    }

    /// Submits an invocation again after a failure of its worker, if that is allowed; otherwise returns the error to
    /// report. `recalled`: the payload read back from its ring entry.
    fn restart(&mut self, error: Error, recalled: Option<Vec<u8>>) -> Result<(), Error> {
        self.resolved = true;
        if self.kept.is_none() && self.moves && recalled.is_some() {
            // Nothing was kept, so the invocation uses no registered memory: all of it was in the ring.
            let wanted = OutputPlace::Bytes(usize::try_from(self.call.capacity).unwrap_or(usize::MAX));
            let request = self.function.request(&Input::Bytes(&[]), wanted);
            self.kept = Some(Box::new(ResubmitData {
                request: request.map_err(|_| error.clone())?,
                input: None,
                again: self.function.new_attempts(),
            }));
        }
        let left = self.time_left();
        let Some(kept) = &mut self.kept else {
            return Err(error);
        };
        let left_behind = kept
            .request
            .prepare_retry(&self.call.channel, error, &self.function.inner.staging);
        let error = left_behind.map_err(|error| kept.again.take_final_error(error))?;
        if !self.function.resubmits {
            return Err(kept.again.take_final_error(error));
        }
        if kept.input.is_none() && kept.request.tail.input_in_ring {
            let spans = kept.request.tail.payload(&[])[1].len();
            kept.input = recalled.and_then(|mut payload| {
                let length = payload.len().checked_sub(spans)?;
                payload.truncate(length);
                Some(payload)
            });
        }
        if kept.input().is_none() {
            return Err(kept.again.take_final_error(error));
        }
        kept.again.count_failure(error)?;
        if left.is_some_and(|left| left.is_zero()) {
            let late = Error::deadline(self.function.timeout, RunCertainty::No);
            return Err(kept.again.take_final_error(late));
        }
        if self.since.is_some() {
            kept.request.target.timeout_us = micros(left);
        }
        let choose = Function::channel_of_living_lease;
        let input = kept.input().unwrap_or_default();
        let published = SubmittedCall::publish(choose, &self.function, &kept.request, input, Some(left));
        self.call = published.map_err(|error| kept.again.take_final_error(error))?;
        self.resolved = false;
        Ok(())
    }

    /// Time left of the timeout, which covers all attempts together.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let since = self.since?;
        Some(self.function.timeout?.saturating_sub(since.elapsed()))
    }

    /// Whether a restart may be tried when the worker is gone.
    fn may_restart(&self) -> bool {
        self.moves || self.kept.is_some()
    }

    /// Whether the invocation will be submitted to another worker because its own worker is gone.
    pub(crate) fn needs_a_worker(&self) -> bool {
        self.function.resubmits && self.is_orphaned() && self.may_restart()
    }

    /// Whether the channel is closed and the reply has not arrived.
    fn is_orphaned(&self) -> bool {
        !self.resolved && self.parked.is_none() && self.call.is_orphaned() && !self.function.inner.is_foreign()
    }

    /// The submission whose reply the invocation waits for now.
    pub(crate) fn awaited(&self) -> AwaitedCall {
        self.call.awaited()
    }

    /// Returns the channel, the number and the deadline that the completion thread is to watch; from now on dropping
    /// this handle removes the watch.
    pub(crate) fn begin_watch(&mut self) -> (Arc<Channel>, u64, Option<Instant>) {
        self.watched = true;
        (self.call.channel.clone(), self.call.seq, self.give_up_at())
    }

    /// Withdraws the invocation, if its slot has not begun it; it then has no result. Returns `false` in a fork, where
    /// the invocation is the parent's.
    pub(crate) fn withdraw(&mut self) -> bool {
        let waits = !self.resolved && self.parked.is_none() && !self.function.inner.is_foreign();
        let is_withdrawn = waits && self.call.withdraw();
        if is_withdrawn {
            self.abandon();
        }
        is_withdrawn
    }

    /// Gives the result up. Memory that the invocation uses is kept until its worker has finished with it.
    fn abandon(&mut self) {
        self.resolved = true;
        if self.parked.take().is_some() {
            self.kept = None;
            return;
        }
        let uses = self
            .kept
            .take()
            .map(|kept| kept.request.uses)
            .filter(|uses: &UsedMemory| !uses.is_empty());
        let keep = uses.map(|uses| Box::new(uses) as _);
        self.call.abandon(keep);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.function.inner.is_foreign() {
            // The connection, the watch and the memory that the worker uses are the parent's.
            return std::mem::forget((self.call.channel.clone(), self.kept.take()));
        }
        if self.watched {
            let (channel, seq) = (&self.call.channel, self.call.seq);
            self.function.inner.completions.unwatch(channel, seq);
        }
        if !self.resolved {
            self.abandon();
        }
    }
}
