//! Functions as a caller has them, and their calls at once.

use crate::buffer::{Input, Output};
use crate::channel::cache;
use crate::channel::{CallTarget, Channel, MESSAGE_BYTES, OutputSink};
use crate::invocation::request::{ChannelRequest, OutputPlace};
use crate::lease::slots::LeasedSlots;
use crate::retry::CallAttempts;
use crate::retry::deadline::{Deadline, micros};
use crate::retry::redirect::{self, LazyRedirects};
use crate::{Error, Interface};
use hotlease_wire::frame::Flags;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// A handle to a function on an invoker's workers. Cheap to clone; `Send + Sync`.
///
/// Every call may fail with [`Error::WorkerDied`], [`Error::LeaseEnded`], [`Error::Deadline`], [`Error::Function`]
/// and the errors of taking a new lease; [`Error::ran`] says whether the function ran. If the worker of an
/// idempotent function died, the function is run again on another worker, as often as
/// [`crate::LeaseOptions::retries`] says. Any invocation that provably did not run is submitted again, idempotent
/// or not.
#[derive(Clone)]
pub struct Function {
    pub(crate) inner: Arc<LeasedSlots>,
    /// Copy of `inner.id`, close to the other fields.
    invoker: u64,
    pub(crate) target: CallTarget,
    interface: Interface,
    pub(crate) idempotent: bool,
    pub(crate) timeout: Option<Duration>,
    /// Whether the client itself gives up an invocation that is late, and submits again an invocation that did not
    /// run.
    pub(crate) gives_up: bool,
    pub(crate) resubmits: bool,
    pub(crate) slot: Option<usize>,
    /// Output capacity if the caller does not pass a destination.
    pub(crate) output_bytes: usize,
    pub(crate) request_bytes: usize,
    pub(crate) reply_bytes: usize,
}

impl Function {
    pub(crate) fn new(inner: &Arc<LeasedSlots>, name: &str) -> Result<Self, Error> {
        let (code, options) = (&inner.plan.code, &inner.plan.options);
        let index = code.index_of(name)?;
        let function = &code.functions()[index];
        let function = Self {
            inner: inner.clone(),
            invoker: inner.id,
            target: CallTarget {
                // No library has more than FUNCTIONS_MAX functions.
                function: index as u16,
                flags: Flags::NONE,
                timeout_us: 0,
                output_capacity: options.reply_bytes,
                message_room: match function.interface {
                    Interface::Context => MESSAGE_BYTES.min(options.reply_bytes),
                    // Its capacity is exactly the caller's, and a guard page follows.
                    Interface::Plain => 0,
                },
            },
            interface: function.interface,
            idempotent: function.idempotent,
            timeout: None,
            gives_up: true,
            resubmits: true,
            slot: None,
            output_bytes: options.reply_bytes as usize,
            request_bytes: options.request_bytes as usize,
            reply_bytes: options.reply_bytes as usize,
        };
        Ok(function.timeout(options.timeout))
    }

    /// Declares whether running the function twice does no harm. Default: what its library declares
    /// (`HOTLEASE_IDEMPOTENT`).
    #[must_use]
    pub fn idempotent(mut self, yes: bool) -> Self {
        self.idempotent = yes;
        self
    }

    /// Sets the time that each invocation has. The slot counts it from when it begins to work on the invocation.
    /// The client, which also waits behind other invocations, resolves the invocation with [`Error::Deadline`] at
    /// the latest 400 ms after this time has passed since the call. Default: the lease's.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self.target.timeout_us = micros(timeout);
        self
    }

    /// Leaves the timeout to the slot: a submitted invocation that waits behind others has its whole time, however
    /// long it waits. The slot ends it, or the agent ends its worker. The client does not give it up by itself, so
    /// that the worker no longer uses the memory of an invocation that has resolved. Applies to `submit` and its
    /// variants.
    #[must_use]
    pub fn ended_by_its_slot(mut self) -> Self {
        self.gives_up = false;
        self
    }

    /// Leaves it to the caller to submit again what a worker did not run: a submitted invocation fails with its
    /// worker, even if it could go to another one, and fails at once if its worker was gone before. Applies to
    /// `submit` and its variants, with a slot ([`Function::on_slot`]). For callers that must prepare a new worker
    /// first, which they get by [`crate::Pipeline::repair`].
    #[must_use]
    pub fn submitted_once(mut self) -> Self {
        self.resubmits = false;
        self
    }

    /// Uses only this slot. Default: the first idle one, beginning with the one that the thread used last.
    ///
    /// # Errors
    /// [`Error::NoSuchSlot`].
    pub fn on_slot(mut self, slot: usize) -> Result<Self, Error> {
        let slots = self.inner.slots();
        if slot >= slots {
            return Err(Error::NoSuchSlot { index: slot, slots });
        }
        self.slot = Some(slot);
        Ok(self)
    }

    /// Sets the output bytes that `call`, `submit`, `map` and their variants have room for. Default: the lease's
    /// `reply_bytes`. A larger output goes through registered memory of the library's own.
    #[must_use]
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes = bytes;
        self
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.inner.plan.code.functions()[usize::from(self.target.function)].name
    }

    /// The interface by which the library exports it.
    pub fn interface(&self) -> Interface {
        self.interface
    }

    /// Whether it may be run twice.
    pub fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    /// Invokes the function and waits; returns the output's length. This is the hot path: no allocation, no lock,
    /// no system call if the slot is polling, as long as input and output fit ring entries.
    #[inline]
    pub fn invoke(&self, input: &[u8], output: &mut [u8]) -> Result<usize, Error> {
        if input.len() <= self.request_bytes
            && output.len() <= self.reply_bytes
            && let Some(last) = cache::take(self.invoker, self.slot)
        {
            let mut began = None;
            let result = if self.suits(&last.channel) {
                let target = CallTarget {
                    output_capacity: (output.len() as u32).max(self.target.message_room),
                    ..self.target
                };
                let sink = OutputSink::Ring(&mut *output);
                last.channel
                    .call(&target, &[input], sink, self.timeout, || None, &mut began)
            } else {
                Err(Error::NoCredit)
            };
            cache::put_back(last);
            return match result {
                Ok(length) => Ok(length),
                Err(error) => self.invoke_after(error, began, input, output),
            };
        }
        self.invoke_anywhere(Input::Bytes(input), Output::Bytes(output), self.attempts())
    }

    #[cold]
    fn invoke_after(
        &self,
        error: Error,
        began: Option<Instant>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Error> {
        let (mut again, mut deadline) = self.attempts();
        match error {
            Error::NoCredit => {}
            // Try another slot first.
            Error::NoCore => cache::forget(self.invoker),
            error => {
                again.count_failure(error)?;
                deadline.begin(began.unwrap_or_else(Instant::now));
            }
        }
        self.invoke_anywhere(Input::Bytes(input), Output::Bytes(output), (again, deadline))
    }

    /// Invokes the function again after a failed attempt, which `again` has counted; returns its output.
    pub(crate) fn call_again(&self, input: &[u8], mut again: CallAttempts) -> Result<Vec<u8>, Error> {
        let mut output = zeroed(self.output_bytes).map_err(|error| again.take_final_error(error))?;
        let left = (again, Deadline::new(self.timeout));
        let length = self.invoke_anywhere(Input::Bytes(input), Output::Bytes(&mut output), left)?;
        output.truncate(length);
        Ok(output)
    }

    /// Invokes the function and waits; returns its output.
    pub fn call(&self, input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut output = zeroed(self.output_bytes)?;
        let length = self.invoke(input, &mut output)?;
        output.truncate(length);
        Ok(output)
    }

    /// Invokes the function with its input, output or both in registered buffers, without copying them; waits, and
    /// returns the output's length in bytes.
    ///
    /// ```no_run
    /// # use hotlease_client::*;
    /// # fn f(invoker: &Invoker) -> Result<(), Error> {
    /// let (mut input, mut output) = (invoker.buffer::<f32>(1000)?, invoker.buffer::<f32>(1000)?);
    /// input.fill(2.0);
    /// invoker.function("square")?.invoke_buffer(&input, &mut output)?;
    /// // A part, and bytes on one side:
    /// invoker.function("sum")?.invoke_buffer(input.slice(..10), &mut [0; 4][..])?;
    /// // Several parts, which the function sees as one:
    /// let ends = [input.slice(..10), input.slice(990..)];
    /// invoker.function("square")?.invoke_buffer(&ends[..], output.slice_mut(..20))?;
    /// # Ok(()) }
    /// ```
    pub fn invoke_buffer<'a, 'b>(
        &self,
        input: impl Into<Input<'a>>,
        output: impl Into<Output<'b>>,
    ) -> Result<usize, Error> {
        self.invoke_anywhere(input.into(), output.into(), self.attempts())
    }

    fn invoke_anywhere(
        &self,
        input: Input<'_>,
        output: Output<'_>,
        (mut again, mut deadline): (CallAttempts, Deadline),
    ) -> Result<usize, Error> {
        let wanted = match &output {
            Output::Bytes(output) => OutputPlace::Bytes(output.len()),
            Output::Buffer(slice) => OutputPlace::Buffer(slice.as_slice()),
            Output::Parts(parts) => OutputPlace::Parts(parts),
        };
        let request = self.request(&input, wanted);
        let mut request = request.map_err(|error| again.take_final_error(error))?;
        let bytes = ring_bytes(&input);
        let mut into: &mut [u8] = match output {
            Output::Bytes(output) => output,
            Output::Buffer(_) | Output::Parts(_) => &mut [],
        };
        let mut refused = LazyRedirects::default();
        let mut refused_by = None;
        let mut since = None;
        loop {
            let left = deadline.left().map_err(|error| again.take_final_error(error))?;
            let picked = match refused_by.take().filter(|_| self.slot.is_none()) {
                Some(slot) => self.inner.pick_beside(slot, left),
                None => self.inner.pick(self.slot, left),
            };
            let (slot, channel) = picked.map_err(|error| again.take_final_error(error))?;
            let left = if deadline.has_begun() {
                let left = deadline.left().map_err(|error| again.take_final_error(error))?;
                request.target.timeout_us = micros(left);
                left
            } else {
                left
            };
            let mut began = None;
            match self.attempt(&channel, &mut request, bytes, into, (left, &mut began)) {
                Ok(length) => {
                    cache::remember(self.invoker, slot, &channel);
                    if let Some(piece) = &request.uses.staged_output {
                        into[..length].copy_from_slice(&piece[..length]);
                    }
                    return Ok(length);
                }
                Err(Error::NoCredit) => {
                    let waited = self.inner.wait_for_credit(self.slot, left);
                    waited.map_err(|error| again.take_final_error(error))?;
                }
                Err(Error::NoCore) => {
                    let since = *since.get_or_insert_with(Instant::now);
                    let paused = refused.by_a_slot(self.slot, &self.inner.plan.options);
                    let paused = paused.and_then(|time| redirect::pause(time, since, self.timeout));
                    paused.map_err(|error| again.take_final_error(error))?;
                    refused_by = Some(slot);
                }
                Err(error) => {
                    deadline.begin(began.unwrap_or_else(Instant::now));
                    match request.prepare_retry(&channel, error, &self.inner.staging) {
                        Ok(error) => again.count_failure(error)?,
                        Err(error) => return Err(again.take_final_error(error)),
                    }
                }
            }
            into = &mut *into;
        }
    }

    fn attempt(
        &self,
        channel: &Channel,
        request: &mut ChannelRequest,
        input: &[u8],
        output: &mut [u8],
        (timeout, began): (Option<Duration>, &mut Option<Instant>),
    ) -> Result<usize, Error> {
        request.uses.register(channel)?;
        let sink = if request.output_in_ring() {
            OutputSink::Ring(output)
        } else {
            OutputSink::Buffer(request.capacity)
        };
        let uses = &mut request.uses;
        // A timeout is final, so the caller does not miss the memory that is then kept for the worker.
        let keep = || (!uses.is_empty()).then(|| Box::new(std::mem::take(uses)) as _);
        let payload = request.tail.payload(input);
        let mut result = channel.call(&request.target, &payload, sink, timeout, keep, began);
        if !request.output_in_ring()
            && let Err(Error::Function { output, .. }) = &mut result
        {
            match &request.uses.staged_output {
                Some(piece) => {
                    let length = output.len();
                    output.copy_from_slice(&piece[..length]);
                }
                // The output is in the caller's buffer.
                None => output.clear(),
            }
        }
        result
    }

    /// A channel to submit on.
    #[inline]
    pub(crate) fn channel(&self, limit: Option<Duration>) -> Result<Arc<Channel>, Error> {
        if let Some(last) = cache::take(self.invoker, self.slot) {
            let channel = self.suits(&last.channel).then(|| last.channel.clone());
            cache::put_back(last);
            if let Some(channel) = channel {
                return Ok(channel);
            }
        }
        self.channel_of_living_lease(limit)
    }

    /// A channel to submit on, of a lease that is not known to be lost. The channel that this thread used last may be of
    /// a lost lease: it is open until its worker is known to have ended, and the workers of a lost lease end one after
    /// the other. The first submission of an invocation is not worth the time of that check; a later one is, because a
    /// second failure by the same loss would use up its last retry.
    pub(crate) fn channel_of_living_lease(&self, limit: Option<Duration>) -> Result<Arc<Channel>, Error> {
        let (slot, channel) = self.pick_channel(limit)?;
        cache::remember(self.invoker, slot, &channel);
        Ok(channel)
    }

    /// The channel of a slot to submit to, and the slot.
    pub(crate) fn pick_channel(&self, limit: Option<Duration>) -> Result<(usize, Arc<Channel>), Error> {
        if !self.resubmits
            && let Some(slot) = self.slot
            && let Some(channel) = self.inner.last_channel(slot)
        {
            return Ok((slot, channel));
        }
        self.inner.pick(self.slot, limit)
    }

    /// Whether there is no reason to look for another slot than the one that this thread used last.
    #[inline]
    fn suits(&self, channel: &Channel) -> bool {
        self.slot.is_some() || self.inner.slots() == 1 || channel.load(1) == 0
    }

    pub(crate) fn new_attempts(&self) -> CallAttempts {
        CallAttempts::new(self.idempotent, self.inner.plan.options.retries)
    }

    fn attempts(&self) -> (CallAttempts, Deadline) {
        (self.new_attempts(), Deadline::new(self.timeout))
    }

    #[inline]
    pub(crate) fn request(&self, input: &Input<'_>, wanted: OutputPlace<'_>) -> Result<ChannelRequest, Error> {
        let (request, reply) = (self.request_bytes, self.reply_bytes);
        ChannelRequest::new(self.target, input, wanted, request, reply, &self.inner.staging)
    }
}

/// Memory for an output. The caller may have requested any size, so a failed allocation is an ordinary error.
pub(crate) fn zeroed(bytes: usize) -> Result<Vec<u8>, Error> {
    // Only tests whether the memory is available: filling what was reserved would touch every page of it, while
    // zeroed memory from the allocator is not touched before it is used.
    if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
        let source = io::Error::from(io::ErrorKind::OutOfMemory);
        return Err(Error::local("get the memory for an output of `output_bytes`")(source));
    }
    Ok(vec![0; bytes])
}

/// The input bytes that may go through the ring.
#[inline]
pub(super) fn ring_bytes<'a>(input: &Input<'a>) -> &'a [u8] {
    match input {
        Input::Bytes(bytes) => bytes,
        Input::Buffer(_) | Input::Parts(_) => &[],
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name())
            .field("interface", &self.interface)
            .field("idempotent", &self.idempotent)
            .field("timeout", &self.timeout)
            .field("slot", &self.slot)
            .finish()
    }
}
