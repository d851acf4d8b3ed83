//! Handles to functions, the channels on which they are invoked, and one attempt of an invocation.

use crate::buffer::Input;
use crate::channel::cache;
use crate::channel::{CallTarget, Channel, MESSAGE_BYTES, OutputSink};
use crate::invocation::request::{ChannelRequest, OutputPlace, micros};
use crate::lease::slots::LeasedSlots;
use crate::{Error, Interface};
use hotlease_wire::frame::Flags;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A handle to a function on an invoker's workers. Cheap to clone; `Send + Sync`.
///
/// Every call may fail with [`Error::WorkerDied`], [`Error::LeaseEnded`], [`Error::Deadline`], [`Error::Function`] and
/// the errors of taking a new lease; [`Error::ran`] says whether the function ran. If the worker of an idempotent
/// function died, the function is run again on another worker, at most [`crate::LeaseOptions::retries`] times. Any
/// invocation that provably did not run is submitted again, idempotent or not.
#[derive(Clone)]
pub struct Function {
    pub(crate) inner: Arc<LeasedSlots>,
    /// Copy of `inner.id`, close to the other fields.
    pub(crate) invoker: u64,
    pub(crate) target: CallTarget,
    interface: Interface,
    pub(crate) idempotent: bool,
    pub(crate) timeout: Option<Duration>,
    /// `gives_up`: whether the client itself gives up a late invocation. `resubmits`: whether the client repeats the
    /// submission of an invocation that did not run.
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
                    // A plain function is not told its output capacity, so it gets no room for a message in addition to
                    // the caller's capacity. If it writes more, it reaches the guard page behind the entry.
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

    /// Declares whether running the function twice does no harm. Default: the declaration in its library
    /// (`HOTLEASE_IDEMPOTENT`).
    #[must_use]
    pub fn idempotent(mut self, yes: bool) -> Self {
        self.idempotent = yes;
        self
    }

    /// Sets the time that each invocation has. The slot counts the time from the moment when it begins the invocation.
    /// The client counts from the call, although the invocation may wait behind others: at the latest 400 ms after the
    /// time is over, the client resolves the invocation with [`Error::Deadline`]. Default: the lease's timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self.target.timeout_us = micros(timeout);
        self
    }

    /// Leaves the timeout to the slot: a submitted invocation that waits behind others still has its whole time when it
    /// begins. The slot ends a late invocation, or the agent ends the worker. The client does not give up the
    /// invocation by itself, so that the worker no longer uses the memory of a resolved invocation. Applies to `submit`
    /// and its variants.
    #[must_use]
    pub fn timed_by_slot(mut self) -> Self {
        self.gives_up = false;
        self
    }

    /// Leaves it to the caller to submit an invocation again if its worker did not run it: a submitted invocation fails
    /// when its worker dies, even if another worker could run it, and fails at once if the worker was gone before.
    /// Applies to `submit` and its variants, with a slot ([`Function::on_slot`]). For callers that must prepare the new
    /// worker first; [`crate::Pipeline::repair`] connects to it.
    #[must_use]
    pub fn without_resubmission(mut self) -> Self {
        self.resubmits = false;
        self
    }

    /// Lets the caller withdraw submitted invocations that their slot has not begun
    /// ([`crate::Pipeline::withdraw_last`], [`crate::Invocation::withdraw`]). Each invocation then costs the slot an
    /// atomic exchange.
    #[must_use]
    pub fn withdrawable(mut self) -> Self {
        self.target.flags = Flags::WITHDRAWABLE;
        self
    }

    /// Uses only this slot. Default: the first idle slot; the search begins with the slot that the thread used last.
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

    /// Sets the output capacity of `call`, `submit`, `map` and their variants, in bytes. Default: the lease's
    /// `reply_bytes`. A larger output goes through registered memory that the library allocates.
    #[must_use]
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes = bytes;
        self
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.inner.plan.code.functions()[usize::from(self.target.function)].name
    }

    /// The interface by which the library exports the function.
    pub fn interface(&self) -> Interface {
        self.interface
    }

    /// Whether the function may be run twice.
    pub fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    /// Makes one attempt on a channel, and waits for its end. `began` is set if the attempt did not end at once.
    pub(crate) fn attempt(
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
        // A timeout is final, so the caller no longer needs the memory, which is then kept for the worker.
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

    /// A channel to submit on, whose lease is not known to be lost. The channel that this thread used last may be of a
    /// lost lease: a channel is open until its worker is known to have ended, and the workers of a lost lease end one
    /// after the other. The first submission of an invocation skips this check, because the check costs time. A later
    /// submission makes it, because a second failure by the same loss would use up the invocation's last retry.
    pub(crate) fn channel_of_living_lease(&self, limit: Option<Duration>) -> Result<Arc<Channel>, Error> {
        let (slot, channel) = self.pick_channel(limit)?;
        cache::remember(self.invoker, slot, &channel);
        Ok(channel)
    }

    /// The number of a slot to submit to, and its channel.
    pub(crate) fn pick_channel(&self, limit: Option<Duration>) -> Result<(usize, Arc<Channel>), Error> {
        self.inner.check_own()?;
        if !self.resubmits
            && let Some(slot) = self.slot
            && let Some(channel) = self.inner.last_channel(slot)
        {
            return Ok((slot, channel));
        }
        self.inner.pick(self.slot, limit)
    }

    /// Whether to submit on this channel, which the thread used last, without a search for another slot.
    #[inline]
    pub(crate) fn suits(&self, channel: &Channel) -> bool {
        self.slot.is_some() || self.inner.slots() == 1 || channel.load(1) == 0
    }

    #[inline]
    pub(crate) fn request(&self, input: &Input<'_>, wanted: OutputPlace<'_>) -> Result<ChannelRequest, Error> {
        let (request, reply) = (self.request_bytes, self.reply_bytes);
        ChannelRequest::new(self.target, input, wanted, request, reply, &self.inner.staging)
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
