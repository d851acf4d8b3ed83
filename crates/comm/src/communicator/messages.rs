//! Messages from one member to another.

use super::{Communicator, WORLD};
use crate::error::{During, Error};
use crate::matching::{Envelope, Pattern};
use crate::memory::Memory;
use crate::protocol::{Owner, Status};
use crate::request::{Receiving, Request};
use crate::schedule::Rank;
use hotlease_fabric::lent::{Lent, LentMut, lend, lend_mut};
use hotlease_wire::comm::frame::{Address, Class};
use std::time::Instant;

impl Communicator {
    fn check(&self, rank: Rank) -> Result<(), Error> {
        let size = self.size;
        if rank < size {
            return Ok(());
        }
        Err(Error::NoSuchRank { rank, size })
    }

    fn checked(&self, pattern: Pattern) -> Result<Pattern, Error> {
        pattern.source.map_or(Ok(()), |source| self.check(source))?;
        Ok(pattern)
    }

    /// Sends a message, and returns when `bytes` may be used again: the message is on its way, or has been taken. A
    /// large one is not before its receiver asks for it, or waits in a send itself.
    ///
    /// # Errors
    /// [`Error::MemberLost`] and [`Error::MemberLeft`] of the receiver, [`Error::NoSuchRank`].
    pub fn send(&self, bytes: &[u8], to: Rank, tag: u32) -> Result<(), Error> {
        self.check(to)?;
        if self.engine.send_now(to, message(tag), bytes)? {
            return Ok(());
        }
        lend(bytes, |lent| self.isend_lent(lent, to, tag)?.wait())?;
        Ok(())
    }

    /// Receives a message into `bytes`; how long it is, is in the status.
    ///
    /// # Errors
    /// [`Error::Truncated`] if it is longer than `bytes`: it stays, to be received with more. [`Error::MemberLost`] and
    /// [`Error::MemberLeft`] of the sender, or of any if none is named.
    pub fn receive(&self, bytes: &mut [u8], pattern: Pattern) -> Result<Status, Error> {
        let pattern = self.checked(pattern)?;
        if let Some(status) = self.engine.receive_now(WORLD, pattern, bytes) {
            return Ok(status);
        }
        lend_mut(bytes, |lent| self.irecv_lent(lent, pattern)?.wait())
    }

    /// Sends and receives at once, so that two, or all in a ring, can do so with each other.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn sendrecv(
        &self,
        bytes: &[u8],
        to: Rank,
        tag: u32,
        into: &mut [u8],
        pattern: Pattern,
    ) -> Result<Status, Error> {
        lend_mut(into, |into| {
            let receive = self.irecv_lent(into, pattern)?;
            self.send(bytes, to, tag)?;
            receive.wait()
        })
    }

    /// Begins to send a message of its own.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn isend(&self, bytes: Vec<u8>, to: Rank, tag: u32) -> Result<Request, Error> {
        self.isend_memory(&Memory::of(bytes), to, tag)
    }

    /// Begins to send lent memory, which is to stay until the request has ended: if it is taken back in the middle of the message,
    /// the connection with the receiver ends, because nothing that makes sense could follow.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn isend_lent(&self, lent: &Lent, to: Rank, tag: u32) -> Result<Request, Error> {
        self.isend_memory(&Memory::Lent(lent.clone()), to, tag)
    }

    fn isend_memory(&self, memory: &Memory, to: Rank, tag: u32) -> Result<Request, Error> {
        self.check(to)?;
        let key = self.engine.begin(During::Send { to, tag }, |protocol, key| {
            protocol.send(to, message(tag), memory.whole(), Owner::Request(key));
        })?;
        Ok(Request::new(&self.engine, key, true))
    }

    /// Begins to receive a message of up to so many bytes.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn irecv(&self, bytes_max: usize, pattern: Pattern) -> Result<Receiving, Error> {
        let memory = Memory::zeroed(bytes_max);
        let request = self.irecv_memory(&memory, pattern)?;
        Ok(Receiving::new(request, memory))
    }

    /// Begins to receive a message into lent memory. What comes after it was taken back is lost.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::TooManyRequests`].
    pub fn irecv_lent(&self, lent: &LentMut, pattern: Pattern) -> Result<Request, Error> {
        self.irecv_memory(&Memory::LentMut(lent.clone()), pattern)
    }

    fn irecv_memory(&self, memory: &Memory, pattern: Pattern) -> Result<Request, Error> {
        let pattern = self.checked(pattern)?;
        let during = During::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let key = self.engine.begin(during, |protocol, key| {
            let into = memory.whole();
            protocol.receive(Class::Message, WORLD, pattern, into, Owner::Request(key));
        })?;
        Ok(Request::new(&self.engine, key, false))
    }

    /// Waits for a message without receiving it.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive).
    pub fn probe(&self, pattern: Pattern) -> Result<Status, Error> {
        let pattern = self.checked(pattern)?;
        let during = During::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let found = self.engine.until(false, None, |state| {
            let found = state.protocol.probe(Class::Message, WORLD, pattern).map(status);
            let hopeless = || state.protocol.hopeless(WORLD, pattern, during);
            found.map(Ok).or_else(|| hopeless().map(Err))
        });
        // Without a deadline there is an answer.
        found.unwrap_or(Err(Error::Finished))
    }

    /// Whether there is a message that a receive would take, and how long it is.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`].
    pub fn iprobe(&self, pattern: Pattern) -> Result<Option<Status>, Error> {
        let pattern = self.checked(pattern)?;
        Ok(self.engine.until(false, Some(Instant::now()), |state| {
            state.protocol.probe(Class::Message, WORLD, pattern).map(status)
        }))
    }
}

fn message(tag: u32) -> Address {
    Address {
        class: Class::Message,
        context: WORLD,
        tag,
    }
}

fn status((envelope, bytes): (Envelope, u64)) -> Status {
    Status {
        source: envelope.source,
        tag: envelope.tag,
        bytes,
    }
}
