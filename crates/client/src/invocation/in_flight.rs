//! Submitted invocations: every one resolves, to a result or an error.

use crate::Error;
use crate::buffer::Input;
use crate::channel::entries::EntryState;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::channel::{Channel, MESSAGE_BYTES, timed_out};
use crate::invocation::function::Function;
use crate::invocation::request::{ChannelRequest, OutputPlace, UsedMemory};
use crate::retry::CallAttempts;
use crate::retry::deadline::micros;
use crate::retry::redirect::{LazyRedirects, out_of_time};
use hotlease_wire::RunCertainty;
use hotlease_wire::frame::InvocationStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Destination of a result.
pub(crate) trait ResultDestination {
    /// Room for `length` bytes, or none if they do not fit.
    fn room(&mut self, length: usize) -> Option<&mut [u8]>;
    /// Most bytes that fit.
    fn capacity(&self) -> u64;
}

impl ResultDestination for Vec<u8> {
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        self.clear();
        self.resize(length, 0);
        Some(self)
    }
    fn capacity(&self) -> u64 {
        u64::MAX
    }
}

impl ResultDestination for &mut [u8] {
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        self.get_mut(..length)
    }
    fn capacity(&self) -> u64 {
        self.len() as u64
    }
}

/// State of an invocation after a step.
pub(crate) enum CallProgress {
    /// Resolved.
    Done(Result<usize, Error>),
    /// Not resolved yet.
    Waiting,
}

/// Data of an invocation beyond its ring entry.
struct ResubmitData {
    request: ChannelRequest,
    /// Copy of the input, if it may have to be submitted again.
    input: Option<Vec<u8>>,
    again: CallAttempts,
}

/// A submitted invocation. If it is dropped before it has resolved, its result is discarded.
pub(crate) struct InFlight {
    function: Function,
    channel: Arc<Channel>,
    seq: u64,
    /// How its entry is shared.
    state: EntryState,
    /// When it was submitted; only with a timeout of the client's, as reading the clock costs.
    since: Option<Instant>,
    /// Most output bytes.
    capacity: u64,
    kept: Option<Box<ResubmitData>>,
    /// Whether it is submitted again where that is allowed.
    moves: bool,
    resolved: bool,
    watched: bool,
    refused: LazyRedirects,
    /// Time of the next submission if no slot had a core for it: until then it is in no channel.
    parked: Option<Instant>,
}

impl InFlight {
    /// Submits an invocation. `wait`: whether to wait for a credit; `keep`: whether to keep what another submission
    /// needs, if one is allowed. The input of an invocation that may not run twice needs no copy: it stays in its
    /// ring entry until the invocation has run.
    pub(crate) fn start(
        function: &Function,
        request: ChannelRequest,
        input: &[u8],
        wait: bool,
        keep: bool,
    ) -> Result<Self, Error> {
        let state = if request.output_in_ring() {
            EntryState::Shared
        } else {
            EntryState::SharedBuffer
        };
        let (channel, seq) = publish(
            Function::channel,
            function,
            &request,
            input,
            state,
            wait.then_some(function.timeout),
        )?;
        let again = function.new_attempts();
        let may_come_back = again.can_run_twice() || function.inner.shares_cores();
        let copy = (keep && request.tail.input_in_ring && may_come_back).then(|| input.to_vec());
        let capacity = request.capacity;
        let kept = (copy.is_some() || !request.uses.is_empty()).then(|| {
            Box::new(ResubmitData {
                request,
                input: copy,
                again,
            })
        });
        Ok(Self {
            function: function.clone(),
            channel,
            seq,
            state,
            since: function.timeout.filter(|_| function.gives_up).map(|_| Instant::now()),
            capacity,
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

    /// Whether a step would not find it waiting.
    pub(crate) fn is_done(&self) -> bool {
        if let Some(until) = self.parked {
            return Instant::now() >= until || self.is_late();
        }
        self.resolved || self.channel.is_done(self.seq) || self.channel.is_closed() || self.is_late()
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
        if self.parked.is_some() && !self.function.resubmits && self.channel.is_closed() {
            self.parked = None;
            self.resolved = true;
            return Some(Err(Error::NoCore));
        }
        if let Some(until) = self.parked {
            let due = Instant::now() >= until && !self.is_late();
            let failed = due.then(|| self.unpark().err())?;
            return failed.map(Err);
        }
        let (capacity, in_ring) = (self.capacity, self.state == EntryState::Shared);
        let timeout = self.function.timeout;
        let staged = self
            .kept
            .as_ref()
            .and_then(|kept| kept.request.uses.staged_output.as_ref());
        let channel = &self.channel;
        let mut recalled = None;
        let result = channel.harvest(self.seq, |reply, source| match reply {
            Ok(header) if header.status == InvocationStatus::Ok && header.length <= capacity => {
                let length = header.length as usize;
                if !in_ring && staged.is_none() {
                    // The output is in the caller's buffer already.
                    return Ok(length);
                }
                let fits = take.capacity();
                let Some(room) = take.room(length) else {
                    return Err(Error::OutputTooLarge {
                        produced: header.length,
                        capacity: fits,
                    });
                };
                match staged {
                    Some(piece) => room.copy_from_slice(&piece[..length]),
                    None => {
                        source.read(header, room);
                    }
                }
                Ok(length)
            }
            Ok(header) if matches!(header.status, InvocationStatus::StaleEpoch | InvocationStatus::Draining) => {
                // The entry belongs to another invocation after this.
                recalled = channel.recall(self.seq);
                Err(channel.failure(channel.invocation(self.seq), reply, Vec::new(), capacity, timeout))
            }
            Ok(header) if in_ring => Err(channel.failure(
                channel.invocation(self.seq),
                reply,
                source.to_vec(header),
                capacity,
                timeout,
            )),
            reply => {
                let message = match (reply, staged) {
                    (Ok(header), Some(piece)) if header.status == InvocationStatus::FunctionError => {
                        let length = header.length.min(capacity).min(MESSAGE_BYTES.into());
                        piece[..length as usize].to_vec()
                    }
                    _ => Vec::new(),
                };
                Err(channel.failure(channel.invocation(self.seq), reply, message, capacity, timeout))
            }
        })?;
        self.resolved = true;
        match result {
            Err(Error::NoCore) if self.kept.is_some() => self.park().err().map(Err),
            // Refused by a worker that is about to end.
            Err(error @ Error::NotRun { .. }) if self.may_restart() => match self.restart(error, recalled) {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            },
            result => Some(result),
        }
    }

    /// Advances as far as possible without waiting for the function; waits only for a worker's replacement.
    pub(crate) fn step(&mut self, take: &mut impl ResultDestination) -> CallProgress {
        loop {
            if let Some(result) = self.try_result(take) {
                return CallProgress::Done(result);
            }
            if self.is_orphaned() {
                let error = self.channel.unanswered_error(self.seq);
                let recalled = self.recall(&error);
                match self.restart(error, recalled) {
                    Ok(()) => continue,
                    Err(error) => return CallProgress::Done(Err(error)),
                }
            }
            if self.is_late() {
                let never_ran = self.parked.is_some();
                self.abandon();
                let timeout = self.function.timeout;
                return CallProgress::Done(Err(match timeout {
                    Some(timeout) if never_ran => out_of_time(timeout),
                    timeout => timed_out(timeout),
                }));
            }
            if !self.is_done() {
                return CallProgress::Waiting;
            }
        }
    }

    /// Waits for the result; `None` if `limit` comes first.
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
            let (channel, seq) = (&self.channel, self.seq);
            let waited = channel.wait(|_| until, || channel.is_done(seq).then_some(()));
            if waited == Err(WaitEnd::TimedOut) && limit.is_some_and(|limit| Instant::now() >= limit) && !self.is_done()
            {
                return None;
            }
        }
    }

    /// Parks an invocation that its slot has refused because it had no core: it goes to another slot, or waits a
    /// while outside all channels.
    fn park(&mut self) -> Result<(), Error> {
        let pause = self
            .refused
            .by_a_slot(self.function.slot, &self.function.inner.plan.options)?;
        self.resolved = false;
        self.parked = Some(Instant::now() + pause);
        Ok(())
    }

    /// Time until which it is in no channel.
    pub(crate) fn parked_until(&self) -> Option<Instant> {
        self.parked
    }

    /// Submits it to another slot than the one that has refused it.
    fn unpark(&mut self) -> Result<(), Error> {
        let (left, inner) = (self.left(), &self.function.inner);
        self.parked = None;
        // Set back if the submission succeeds.
        self.resolved = true;
        let Some(kept) = &mut self.kept else {
            return Err(Error::NoCore);
        };
        let input = match (&kept.input, kept.request.tail.input_in_ring) {
            (Some(input), _) => input.as_slice(),
            (None, false) => &[],
            (None, true) => return Err(Error::NoCore),
        };
        let picked = match (self.function.slot, inner.slot_of(&self.channel)) {
            (None, Some(slot)) => inner.pick_beside(slot, left),
            _ => self.function.pick_channel(left),
        };
        let (_, channel) = picked.map_err(|error| kept.again.take_final_error(error))?;
        let payload = kept.request.tail.payload(input);
        let submitted = kept.request.uses.register(&channel);
        match submitted.and_then(|()| channel.submit(&kept.request.target, &payload, self.state)) {
            Ok(seq) => (self.channel, self.seq) = (channel, seq),
            // Other threads hold the entries; that is as good as a refusal.
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
        self.channel.recall(self.seq)
    }

    /// Submits it again after a failure of its worker, if that is allowed. `recalled`: the payload read back from
    /// its entry.
    fn restart(&mut self, error: Error, recalled: Option<Vec<u8>>) -> Result<(), Error> {
        self.resolved = true;
        if self.kept.is_none() && self.moves && recalled.is_some() {
            // An invocation without memory of its own was in the ring completely.
            let wanted = OutputPlace::Bytes(usize::try_from(self.capacity).unwrap_or(usize::MAX));
            let request = self.function.request(&Input::Bytes(&[]), wanted);
            self.kept = Some(Box::new(ResubmitData {
                request: request.map_err(|_| error.clone())?,
                input: None,
                again: self.function.new_attempts(),
            }));
        }
        let left = self.left();
        let Some(kept) = &mut self.kept else {
            return Err(error);
        };
        let left_behind = kept
            .request
            .prepare_retry(&self.channel, error, &self.function.inner.staging);
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
        let input = match (&kept.input, kept.request.tail.input_in_ring) {
            (Some(input), _) => input.as_slice(),
            (None, false) => &[],
            (None, true) => return Err(kept.again.take_final_error(error)),
        };
        kept.again.count_failure(error)?;
        if left.is_some_and(|left| left.is_zero()) {
            return Err(kept.again.take_final_error(Error::Deadline {
                timeout: self.function.timeout.unwrap_or_default(),
                ran: RunCertainty::No,
            }));
        }
        if self.since.is_some() {
            kept.request.target.timeout_us = micros(left);
        }
        let choose = Function::channel_of_living_lease;
        let published = publish(choose, &self.function, &kept.request, input, self.state, Some(left));
        let (channel, seq) = published.map_err(|error| kept.again.take_final_error(error))?;
        (self.channel, self.seq) = (channel, seq);
        self.resolved = false;
        Ok(())
    }

    /// Time left of the timeout: earlier attempts count.
    pub(crate) fn left(&self) -> Option<Duration> {
        let since = self.since?;
        Some(self.function.timeout?.saturating_sub(since.elapsed()))
    }

    /// Whether a restart may be tried when the worker is gone.
    fn may_restart(&self) -> bool {
        self.moves || self.kept.is_some()
    }

    /// Whether it will be submitted to another worker because its own is gone.
    pub(crate) fn needs_a_worker(&self) -> bool {
        self.function.resubmits && self.is_orphaned() && self.may_restart()
    }

    /// Whether the channel is closed and the reply has not arrived.
    fn is_orphaned(&self) -> bool {
        !self.resolved && self.parked.is_none() && self.channel.is_closed() && !self.channel.is_done(self.seq)
    }

    /// The channel and the number of its reply.
    pub(crate) fn place(&self) -> (Arc<Channel>, u64) {
        (self.channel.clone(), self.seq)
    }

    /// The channel, the number and the deadline for the completion thread to watch; from now on the watch is
    /// removed when this is dropped.
    pub(crate) fn begin_watch(&mut self) -> (Arc<Channel>, u64, Option<Instant>) {
        self.watched = true;
        (self.channel.clone(), self.seq, self.give_up_at())
    }

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
        self.channel.abandon(self.seq, self.state, keep);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.watched {
            self.function.inner.completions.unwatch(&self.channel, self.seq);
        }
        if !self.resolved {
            self.abandon();
        }
    }
}

/// Publishes a request on a channel that `choose` returns and that accepts it. `wait`: limit for waiting for a credit or
/// another lease; without it the call does not wait for a credit.
fn publish(
    choose: impl Fn(&Function, Option<Duration>) -> Result<Arc<Channel>, Error>,
    function: &Function,
    request: &ChannelRequest,
    input: &[u8],
    state: EntryState,
    wait: Option<Option<Duration>>,
) -> Result<(Arc<Channel>, u64), Error> {
    loop {
        let channel = choose(function, wait.unwrap_or(function.timeout))?;
        request.uses.register(&channel)?;
        match channel.submit(&request.target, &request.tail.payload(input), state) {
            Ok(seq) => return Ok((channel, seq)),
            Err(error @ Error::NoCredit) => match wait {
                Some(limit) => function.inner.wait_for_credit(function.slot, limit)?,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}
