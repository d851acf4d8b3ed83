//! The user's object: some members, and what they can say to each other.

use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::{During, Error};
use crate::link::mesh::{Plan, connect};
use crate::link::tcp::Tcp;
use crate::matching::{Envelope, Pattern};
use crate::memory::Memory;
use crate::operator::Reduction;
use crate::options::Options;
use crate::protocol::{Bounds, Owner, Protocol, Start, Status};
use crate::rendezvous::client;
use crate::request::{Receiving, Request};
use crate::schedule::{Rank, Schedule};
use hotlease_fabric::lent::{Lent, LentMut, lend, lend_mut};
use hotlease_wire::comm::frame::{Address, Class};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The context of the communicator that all members of a group begin with.
const WORLD: u64 = 0;
/// How long whoever gives up may take to say so.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A communicator: its members know each other by rank, and send each other messages.
///
/// All calls may be made from any thread; messages of several threads to one member come in the order in which the calls
/// were made. Memory is the caller's in all calls that wait, and is not copied but where a message comes before it is
/// asked for.
///
/// Dropped, it finishes as by [`finish`](Self::finish); in a panic it gives up, which the others learn at once.
pub struct Communicator {
    engine: Arc<Engine>,
    name: String,
    rank: Rank,
    size: Rank,
    linger: Duration,
    /// None when it has finished.
    keeper: Option<Keeper>,
}

impl Communicator {
    /// Meets the other members at the rendezvous, and connects with all of them.
    ///
    /// # Errors
    /// [`Error::Options`]; [`Error::NoRendezvous`], [`Error::OtherSecret`], [`Error::NotLetIn`] of the rendezvous;
    /// [`Error::NotTogether`] where it says that a member is missing, a rank taken, or a size another one;
    /// [`Error::Unreachable`] of a member.
    pub fn join(options: &Options) -> Result<Self, Error> {
        options.check()?;
        let began = Instant::now();
        let met = client::meet(options, began)?;
        let plan = Plan {
            name: &options.name,
            secret: &options.secret,
            group: met.group,
            me: met.rank,
            members: &met.members,
            is_sealed: options.is_sealed,
            deadline: began + options.join_timeout,
        };
        let joined = connect(&plan, met.port)?;
        let link = Tcp::new(joined).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(met.rank, options.size, bounds);
        protocol.open(WORLD, (0..options.size).collect());
        let engine = Arc::new(Engine::new(protocol, Box::new(link), options.spin));
        let keeper = Keeper::start(Arc::clone(&engine), met.rank, options.size, options.failure_bound);
        Ok(Self {
            keeper: Some(keeper.map_err(Error::local("start a thread"))?),
            engine,
            name: options.name.clone(),
            rank: met.rank,
            size: options.size,
            linger: options.linger,
        })
    }

    /// This member's rank, from 0.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many members there are.
    pub fn size(&self) -> Rank {
        self.size
    }

    /// The name that it was joined by.
    pub fn name(&self) -> &str {
        &self.name
    }

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

    /// Runs this member's part of a collective: all members have to, in the same order. `element` is the size of an element, of which
    /// `reduction` is ([`Operator::of`](crate::Operator::of)), where the schedule reduces; in place, `input` is empty.
    ///
    /// # Errors
    /// [`Error::Schedule`], [`Error::Mismatch`], [`Error::Broken`], [`Error::OperatorPanicked`]: no collective of this
    /// communicator succeeds after them. [`Error::MemberLost`] and [`Error::MemberLeft`] of any member.
    pub fn run(
        &self,
        schedule: Arc<Schedule>,
        element: usize,
        input: &[u8],
        output: &mut [u8],
        reduction: Option<Reduction>,
    ) -> Result<(), Error> {
        lend(input, |input| {
            lend_mut(output, |output| {
                self.start_lent(schedule, element, input, output, reduction)?
                    .wait()
                    .map(drop)
            })
        })
    }

    /// Begins it, on lent memory, which is to stay until the request has ended.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`]; the others are the request's.
    pub fn start_lent(
        &self,
        schedule: Arc<Schedule>,
        element: usize,
        input: &Lent,
        output: &LentMut,
        reduction: Option<Reduction>,
    ) -> Result<Request, Error> {
        let start = Start {
            schedule,
            element,
            input: Memory::Lent(input.clone()),
            output: Memory::LentMut(output.clone()),
            reduction,
        };
        let key = self.engine.collective(WORLD, start)?;
        Ok(Request::new(&self.engine, key, false))
    }

    /// Finishes: waits until everything is sent, and until all others have read it or are gone, at most as long as `linger` says.
    /// Messages that this member has not received are lost.
    ///
    /// # Errors
    /// [`Error::NotRead`] if somebody has not read everything in time.
    pub fn finish(mut self) -> Result<(), Error> {
        self.part()
    }

    fn part(&mut self) -> Result<(), Error> {
        let Some(keeper) = self.keeper.take() else {
            return Ok(());
        };
        let deadline = Instant::now() + self.linger;
        let sent = self.engine.until(true, Some(deadline), |state| {
            (!state.protocol.is_sending() && !state.link.is_sending()).then_some(())
        });
        self.engine.change(Protocol::finish);
        let read = self.engine.until(false, Some(deadline), |state| {
            (state.protocol.has_parted() && !state.link.is_sending()).then_some(())
        });
        let waits_for = self.engine.lock().protocol.not_parted();
        drop(keeper);
        self.close();
        match (sent, read, waits_for) {
            (Some(()), Some(()), _) | (_, _, None) => Ok(()),
            (_, _, Some(rank)) => Err(Error::NotRead {
                rank,
                waited: self.linger,
            }),
        }
    }

    fn give_up(&mut self) {
        let Some(keeper) = self.keeper.take() else {
            return;
        };
        self.engine.change(Protocol::give_up);
        let deadline = Instant::now() + LAST_WORDS;
        self.engine.until(false, Some(deadline), |state| {
            (!state.link.is_sending()).then_some(())
        });
        drop(keeper);
        self.close();
    }

    fn close(&self) {
        let mut state = self.engine.lock();
        for rank in 0..self.size {
            state.link.close(rank);
        }
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

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_up();
        } else if let Err(error) = self.part() {
            tracing::warn!(name = self.name, %error, "a communicator was dropped");
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Communicator({:?}, rank {} of {})",
            self.name, self.rank, self.size
        )
    }
}
