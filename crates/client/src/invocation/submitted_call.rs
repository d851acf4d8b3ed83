//! One submission of an invocation: on one channel, from the publication of its request until its reply is read.

use crate::Error;
use crate::buffer::staging::StagedPiece;
use crate::channel::entries::EntryState;
use crate::channel::wait::WaitEnd;
use crate::channel::{Channel, MESSAGE_BYTES};
use crate::invocation::function::Function;
use crate::invocation::pipeline::AwaitedCall;
use crate::invocation::request::ChannelRequest;
use hotlease_wire::DecodeError;
use hotlease_wire::frame::{InvocationStatus, ReplyHeader};
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Destination of a result.
pub(crate) trait ResultDestination {
    /// Room for `length` bytes; `None` if they do not fit.
    fn room(&mut self, length: usize) -> Option<&mut [u8]>;
    /// Largest number of bytes that fit.
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

/// Length of the output, or the error; and the payload of the request, if the slot refused it because its lease ends.
pub(crate) type TakenResult = (Result<usize, Error>, Option<Vec<u8>>);

/// An invocation that was submitted to a channel. Its owner reads the result once, or gives up the invocation.
pub(crate) struct SubmittedCall {
    pub(crate) channel: Arc<Channel>,
    pub(crate) seq: u64,
    /// State in which the ring entry is shared.
    state: EntryState,
    /// Largest number of output bytes.
    pub(crate) capacity: u64,
}

impl SubmittedCall {
    /// Publishes a request on a channel that `choose` returns and that accepts it. `wait`: limit for waiting for a
    /// credit or another lease; if it is `None`, the call does not wait for a credit.
    #[inline]
    pub(crate) fn publish(
        choose: impl Fn(&Function, Option<Duration>) -> Result<Arc<Channel>, Error>,
        function: &Function,
        request: &ChannelRequest,
        input: &[u8],
        wait: Option<Option<Duration>>,
    ) -> Result<Self, Error> {
        loop {
            let channel = choose(function, wait.unwrap_or(function.timeout))?;
            match (Self::publish_on(channel, request, input), wait) {
                (Err(Error::NoCredit), Some(limit)) => function.inner.wait_for_credit(function.slot, limit)?,
                (submitted, _) => return submitted,
            }
        }
    }

    /// Publishes a request on this channel.
    #[inline]
    pub(crate) fn publish_on(channel: Arc<Channel>, request: &ChannelRequest, input: &[u8]) -> Result<Self, Error> {
        request.uses.register(&channel)?;
        let state = if request.output_in_ring() {
            EntryState::Shared
        } else {
            EntryState::SharedBuffer
        };
        let seq = channel.submit(&request.target, &request.tail.payload(input), state)?;
        Ok(Self {
            channel,
            seq,
            state,
            capacity: request.capacity,
        })
    }

    /// The invocation, to be watched without this handle.
    pub(crate) fn awaited(&self) -> AwaitedCall {
        AwaitedCall::new(self.channel.clone(), self.seq)
    }

    /// Whether the reply has arrived.
    pub(crate) fn is_done(&self) -> bool {
        self.channel.is_done(self.seq)
    }

    /// Whether the channel is closed, and the reply has not arrived.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.channel.is_closed() && !self.is_done()
    }

    /// The error of an orphaned invocation.
    pub(crate) fn unanswered_error(&self) -> Error {
        self.channel.unanswered_error(self.seq)
    }

    /// Waits until the reply has arrived or the channel is closed.
    pub(crate) fn wait(&self, until: Option<Instant>) -> Result<(), WaitEnd> {
        self.channel.wait(|_| until, || self.is_done().then_some(()))
    }

    /// Takes the result, if the reply has arrived. Afterwards the entry belongs to another invocation. `staged`: memory
    /// of the library that contains the output.
    #[inline]
    pub(crate) fn try_result(
        &self,
        staged: Option<&StagedPiece>,
        timeout: Option<Duration>,
        take: &mut impl ResultDestination,
    ) -> Option<TakenResult> {
        let (channel, seq, capacity) = (&self.channel, self.seq, self.capacity);
        let in_ring = self.state == EntryState::Shared;
        let failure = |reply: &Result<ReplyHeader, DecodeError>, message: Vec<u8>| {
            channel.failure(channel.invocation(seq), reply, message, capacity, timeout)
        };
        let mut recalled = None;
        let result = channel.harvest(seq, |reply, source| match reply {
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
                recalled = channel.recall(seq);
                Err(failure(reply, Vec::new()))
            }
            Ok(header) if in_ring => Err(failure(reply, source.to_vec(header))),
            reply => {
                let message = match (reply, staged) {
                    (Ok(header), Some(piece)) if header.status == InvocationStatus::FunctionError => {
                        let length = header.length.min(capacity).min(MESSAGE_BYTES.into());
                        piece[..length as usize].to_vec()
                    }
                    _ => Vec::new(),
                };
                Err(failure(reply, message))
            }
        })?;
        Some((result, recalled))
    }

    /// Reads back the payload of an invocation that did not run.
    pub(crate) fn recall(&self) -> Option<Vec<u8>> {
        self.channel.recall(self.seq)
    }

    /// Withdraws the invocation, if its slot has not begun it; after `true` the caller must abandon the invocation.
    pub(crate) fn withdraw(&self) -> bool {
        self.channel.withdraw(self.seq, self.state)
    }

    /// Gives the invocation up; `keep` is dropped after the reply has arrived.
    pub(crate) fn abandon(&self, keep: Option<Box<dyn Any + Send>>) {
        self.channel.abandon(self.seq, self.state, keep);
    }
}
