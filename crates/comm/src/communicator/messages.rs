//! Messages from one member to another.

use super::Communicator;
use crate::error::{Activity, Error};
use crate::matching::{MessageEnvelope, Pattern};
use crate::memory::TransferMemory;
use crate::protocol::{MessageStatus, Owner};
use crate::request::{ReceiveRequest, Request};
use hotlease_collectives::Rank;
use hotlease_fabric::loan::{LentBytes, LentBytesMut, lend, lend_mut};
use hotlease_wire::comm::frame::{MessageAddress, MessageClass};
use std::time::{Duration, Instant};

impl Communicator {
    fn address(&self, tag: u32) -> MessageAddress {
        MessageAddress {
            class: MessageClass::Message,
            context: self.group.context,
            tag,
        }
    }

    /// Sends a message, and returns when `bytes` may be used again: the message is on its way, or has been received.
    /// Two kinds of messages wait until the receiver asks for them or itself waits in a send: messages over 256 KiB
    /// ([`Options::eager_bytes`](crate::Options::eager_bytes)), and messages to a receiver that has not yet received
    /// enough of the earlier messages.
    ///
    /// # Errors
    /// [`Error::MemberLost`] and [`Error::MemberLeft`] of the receiver, [`Error::NoSuchRank`].
    pub fn send(&self, bytes: &[u8], to: Rank, tag: u32) -> Result<(), Error> {
        if self.try_send(bytes, to, tag)? {
            return Ok(());
        }
        lend(bytes, |lent| self.isend_lent(lent, to, tag)?.wait())?;
        Ok(())
    }

    /// Sends a message if it can be sent at once, that is, if it is small and the receiver keeps up. Returns whether
    /// the message was sent.
    ///
    /// # Errors
    /// Errors of [`send`](Self::send).
    pub fn try_send(&self, bytes: &[u8], to: Rank, tag: u32) -> Result<bool, Error> {
        let outer = self.group.rank_on_connections(to)?;
        let sent = self.group.engine.send_now(outer, self.address(tag), bytes);
        sent.map_err(|error| self.group.error(error))
    }

    /// Receives a message into `bytes`; the status has the message's length.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the message is longer than `bytes`: it is kept, and can be received with more memory.
    /// [`Error::MemberLost`] and [`Error::MemberLeft`] of the sender, or of any member if no sender is named.
    pub fn receive(&self, bytes: &mut [u8], pattern: Pattern) -> Result<MessageStatus, Error> {
        let (context, outer) = (self.group.context, self.group.pattern(pattern)?);
        if let Some(status) = self.group.engine.receive_now(context, outer, bytes) {
            return Ok(self.group.status(status));
        }
        lend_mut(bytes, |lent| self.irecv_lent(lent, pattern)?.wait())
    }

    /// Receives a small message if it has arrived, without waiting. Returns `None` if no matching message has arrived,
    /// or if the first matching message has not arrived completely or is too long for this call. Then begin a receive
    /// ([`irecv_lent`](Self::irecv_lent)): without a receive, this call may return `None` for some hundred
    /// milliseconds.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn try_receive(&self, bytes: &mut [u8], pattern: Pattern) -> Result<Option<MessageStatus>, Error> {
        let outer = self.group.pattern(pattern)?;
        let got = self.group.engine.receive_arrived(self.group.context, outer, bytes);
        Ok(got.map(|status| self.group.status(status)))
    }

    /// Sends and receives at the same time, so that two members, or all members in a ring, can exchange messages.
    ///
    /// # Errors
    /// Errors of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn sendrecv(
        &self,
        bytes: &[u8],
        to: Rank,
        tag: u32,
        into: &mut [u8],
        pattern: Pattern,
    ) -> Result<MessageStatus, Error> {
        lend_mut(into, |into| {
            let receive = self.irecv_lent(into, pattern)?;
            self.send(bytes, to, tag)?;
            receive.wait()
        })
    }

    /// Begins to send a message that the request owns.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn isend(&self, bytes: Vec<u8>, to: Rank, tag: u32) -> Result<Request, Error> {
        self.isend_memory(&TransferMemory::of(bytes), to, tag)
    }

    /// Begins to send lent memory, which must stay lent until the request has ended. If the memory is taken back in the
    /// middle of the message, the connection with the receiver ends, because the rest of the message cannot follow.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn isend_lent(&self, lent: &LentBytes, to: Rank, tag: u32) -> Result<Request, Error> {
        self.isend_memory(&TransferMemory::Lent(lent.clone()), to, tag)
    }

    /// Begins to send lent memory as [`isend_lent`](Self::isend_lent) does; the request ends when a receive has asked for
    /// the message.
    ///
    /// # Errors
    /// Errors of [`isend_lent`](Self::isend_lent); [`Error::Options`] if the members communicate through a store: there a
    /// sender does not learn that a receive has asked for its message.
    pub fn issend_lent(&self, lent: &LentBytes, to: Rank, tag: u32) -> Result<Request, Error> {
        if self.member.choice.is_mediated() {
            let what = format!("a synchronous send over {}: send, and receive an answer", self.link());
            return Err(Error::Options { what });
        }
        let outer = self.group.rank_on_connections(to)?;
        let key = self
            .group
            .engine
            .begin(Activity::Send { to: outer, tag }, |protocol, key| {
                let body = TransferMemory::Lent(lent.clone()).whole();
                protocol.send_synchronously(outer, self.address(tag), body, Owner::Request(key));
            })?;
        Ok(Request::new(&self.group, key, true))
    }

    fn isend_memory(&self, memory: &TransferMemory, to: Rank, tag: u32) -> Result<Request, Error> {
        let to = self.group.rank_on_connections(to)?;
        let key = self.group.engine.begin(Activity::Send { to, tag }, |protocol, key| {
            protocol.send(to, self.address(tag), memory.whole(), Owner::Request(key));
        })?;
        Ok(Request::new(&self.group, key, true))
    }

    /// Begins to receive a message of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn irecv(&self, bytes_max: usize, pattern: Pattern) -> Result<ReceiveRequest, Error> {
        let memory = TransferMemory::zeroed(bytes_max);
        let request = self.irecv_memory(&memory, pattern)?;
        Ok(ReceiveRequest::new(request, memory))
    }

    /// Begins to receive a message of any length.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn irecv_any_length(&self, pattern: Pattern) -> Result<ReceiveRequest, Error> {
        let memory = TransferMemory::fitting();
        let request = self.irecv_memory(&memory, pattern)?;
        Ok(ReceiveRequest::new(request, memory))
    }

    /// Begins to receive a message of any length if one that matches has arrived; otherwise returns `None`.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn try_recv_any_length(&self, pattern: Pattern) -> Result<Option<ReceiveRequest>, Error> {
        if self.iprobe(pattern)?.is_none() {
            return Ok(None);
        }
        let outer = self.group.pattern(pattern)?;
        let (context, class) = (self.group.context, MessageClass::Message);
        let during = Activity::Receive {
            from: outer.source,
            tag: outer.tag,
        };
        let memory = TransferMemory::fitting();
        let key = self.group.engine.change(|protocol| -> Result<_, Error> {
            // Another thread may have received the message.
            if protocol.probe(class, context, outer).is_none() {
                return Ok(None);
            }
            let key = protocol.request(during)?;
            protocol.receive(class, context, outer, memory.whole(), Owner::Request(key));
            Ok(Some(key))
        })?;
        let request = key.map(|key| Request::new(&self.group, key, false));
        Ok(request.map(|request| ReceiveRequest::new(request, memory)))
    }

    /// Begins to receive a message into lent memory. Data that arrives after the memory was taken back is lost.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn irecv_lent(&self, lent: &LentBytesMut, pattern: Pattern) -> Result<Request, Error> {
        self.irecv_memory(&TransferMemory::LentMut(lent.clone()), pattern)
    }

    fn irecv_memory(&self, memory: &TransferMemory, pattern: Pattern) -> Result<Request, Error> {
        let pattern = self.group.pattern(pattern)?;
        let during = Activity::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let context = self.group.context;
        let key = self.group.engine.begin(during, |protocol, key| {
            let into = memory.whole();
            protocol.receive(MessageClass::Message, context, pattern, into, Owner::Request(key));
        })?;
        Ok(Request::new(&self.group, key, false))
    }

    /// Waits for a message without receiving it.
    ///
    /// # Errors
    /// Errors of [`receive`](Self::receive).
    pub fn probe(&self, pattern: Pattern) -> Result<MessageStatus, Error> {
        // Without a deadline, the wait always ends with an answer.
        self.probed(pattern, None)?.ok_or(Error::Finished)
    }

    /// Waits at most for `at_most` for a message, without receiving it. Returns `None` if no message has arrived.
    ///
    /// # Errors
    /// Errors of [`receive`](Self::receive).
    pub fn probe_for(&self, pattern: Pattern, at_most: Duration) -> Result<Option<MessageStatus>, Error> {
        self.probed(pattern, Some(Instant::now() + at_most))
    }

    fn probed(&self, pattern: Pattern, deadline: Option<Instant>) -> Result<Option<MessageStatus>, Error> {
        let pattern = self.group.pattern(pattern)?;
        let during = Activity::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let context = self.group.context;
        let found = self.group.engine.drive_until(false, deadline, |state| {
            state.protocol.expect(context, pattern);
            let found = state.protocol.probe(MessageClass::Message, context, pattern);
            let hopeless = || state.protocol.receive_error(context, pattern, during);
            found.map(Ok).or_else(|| hopeless().map(Err))
        });
        match found {
            Some(Ok(found)) => Ok(Some(self.status(found))),
            Some(Err(error)) => Err(self.group.error(error)),
            None => Ok(None),
        }
    }

    /// Returns the status of a message that a receive would match, without waiting or receiving it.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn iprobe(&self, pattern: Pattern) -> Result<Option<MessageStatus>, Error> {
        let pattern = self.group.pattern(pattern)?;
        let context = self.group.context;
        let found = self.group.engine.drive_until(false, Some(Instant::now()), |state| {
            state.protocol.expect(context, pattern);
            state.protocol.probe(MessageClass::Message, context, pattern)
        });
        Ok(found.map(|found| self.status(found)))
    }

    fn status(&self, (envelope, bytes): (MessageEnvelope, u64)) -> MessageStatus {
        self.group.status(MessageStatus {
            source: envelope.source,
            tag: envelope.tag,
            bytes,
        })
    }
}
