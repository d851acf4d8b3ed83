//! The client's end of a channel: claim an entry, publish, wait, harvest.

pub(crate) mod cache;
mod call;
pub(crate) mod completions;
pub(crate) mod entries;
mod express;
mod failure;
pub(crate) mod wait;

use self::call::EntryUse;
use crate::Error;
use crate::channel::entries::{Entries, EntryState, OccupiedEntry};
use crate::channel::express::Express;
use crate::code::Code;
use crate::options::Completion;
use crate::session::connection::{Rings, WorkerConnection};
use crate::session::death::{Death, DeathKind};
use hotlease_fabric::channel::CallParameters;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::Port;
use hotlease_wire::DecodeError;
use hotlease_wire::frame::{Flags, ReplyHeader};
use hotlease_wire::ids::FunctionIndex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Header of a reply as it arrived, decoded from a private copy.
type Reply = Result<ReplyHeader, DecodeError>;

/// A reply that was moved out of its ring entry before its future took it.
struct SpilledReply {
    reply: Reply,
    bytes: Vec<u8>,
}

/// Place of a harvested reply's output.
pub(crate) enum ReplySource<'a> {
    /// In its ring entry.
    Ring(&'a Channel, u64),
    /// In the express entry.
    Express(&'a Channel),
    /// On the heap.
    Kept(&'a [u8]),
}

impl ReplySource<'_> {
    /// Copies the first bytes of the output; returns their number.
    pub(crate) fn read(&self, header: &ReplyHeader, output: &mut [u8]) -> usize {
        match self {
            Self::Ring(channel, id) => channel.ring.read(*id, header, output),
            Self::Express(channel) => channel.ring.express().read(header, output),
            Self::Kept(bytes) => {
                let length = bytes.len().min(output.len());
                output[..length].copy_from_slice(&bytes[..length]);
                length
            }
        }
    }

    /// The output as a vector, which is no longer than an entry.
    pub(crate) fn to_vec(&self, header: &ReplyHeader) -> Vec<u8> {
        match self {
            Self::Ring(channel, _) | Self::Express(channel) => {
                let length = usize::try_from(header.length).unwrap_or(usize::MAX);
                let mut bytes = vec![0; length.min(channel.ring.reply_bytes())];
                let read = self.read(header, &mut bytes);
                bytes.truncate(read);
                bytes
            }
            Self::Kept(bytes) => bytes.to_vec(),
        }
    }
}

/// Destination of a function's output.
pub(crate) enum OutputSink<'a> {
    /// The reply ring, and from there this slice, which is no longer than an entry.
    Ring(&'a mut [u8]),
    /// A registered buffer with this capacity.
    Buffer(u64),
}

impl OutputSink<'_> {
    #[inline]
    fn capacity(&self) -> u64 {
        match self {
            Self::Ring(output) => output.len() as u64,
            Self::Buffer(capacity) => *capacity,
        }
    }
}

/// Function to invoke, in terms that are valid on every channel of an invoker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTarget {
    /// Index among the code's functions.
    pub(crate) function: u16,
    pub(crate) flags: Flags,
    /// Timeout in microseconds; 0: none, or too long for 32 bits.
    pub(crate) timeout_us: u32,
    /// Output capacity in the ring.
    pub(crate) output_capacity: u32,
    /// Least output capacity that a request offers through the ring, even if the caller's slice is smaller: the message
    /// of a function that fails is then complete. 0 for functions that are not told their capacity.
    pub(crate) message_room: u32,
}

/// Value of [`CallTarget::message_room`]: the number of bytes of a message that an error shows.
pub(crate) const MESSAGE_BYTES: u32 = 512;

/// A private connection to one slot. `Send + Sync`; see [`entries`] for the ownership of entries.
pub(crate) struct Channel {
    pub(crate) ring: Rings,
    entries: Entries,
    express: Arc<Express>,
    connection: Arc<WorkerConnection>,
    pub(crate) doorbell: Arc<Doorbell>,
    /// Index of the code's first function in this worker.
    base: u16,
    /// Code whose function names are used in messages.
    code: Code,
    pub(crate) completion: Completion,
    /// Set after the connection's death is recorded.
    closed: AtomicBool,
    /// When the fabric was first seen broken.
    broken_since: OnceLock<Instant>,
    /// Whether the last wait was short; decides how long the next wait spins.
    pub(crate) brief: AtomicBool,
    /// Replies moved out of the ring: one for each living future whose entry another invocation needed.
    spilled: Mutex<HashMap<u64, SpilledReply>>,
    /// Memory that abandoned invocations still use in the worker; at most one for each entry.
    abandoned: Mutex<HashMap<EntryUse, Box<dyn Any + Send>>>,
}

impl Channel {
    pub(crate) fn new(
        ring: Rings,
        connection: Arc<WorkerConnection>,
        doorbell: Arc<Doorbell>,
        (base, code): (u16, Code),
        completion: Completion,
    ) -> Self {
        Self {
            entries: Entries::new(ring.depth()),
            express: Arc::default(),
            ring,
            connection,
            doorbell,
            base,
            code,
            completion,
            closed: AtomicBool::new(false),
            broken_since: OnceLock::new(),
            brief: AtomicBool::new(true),
            spilled: Mutex::default(),
            abandoned: Mutex::default(),
        }
    }

    /// Marks the channel closed; the connection has recorded the reason.
    pub(crate) fn close(&self) {
        // Release pairs with the acquire in `is_closed`: a thread that sees it closed sees the reason.
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the channel is closed. Replies that have arrived can still be harvested.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The port through which the worker is reached; `None` if it is not reached over a fabric.
    #[inline]
    pub(crate) fn port(&self) -> Option<&Arc<Port>> {
        self.ring.far().port()
    }

    /// Closes the connection if the fabric has lost the worker and the agent does not report why. The agent gets a
    /// little time to report first, because its report has more detail.
    pub(crate) fn check_link(&self) {
        let Some(why) = self.ring.far().break_reason() else {
            return;
        };
        let since = *self.broken_since.get_or_init(Instant::now);
        self.connection.close_unreachable(&why, since);
    }

    /// Whether the channel is closed, but no report says that the worker has ended.
    pub(crate) fn can_still_run(&self) -> bool {
        self.is_closed() && self.connection.death().is_none_or(|death| !death.gone)
    }

    /// The connection that the channel belongs to.
    #[inline]
    pub(crate) fn connection(&self) -> &Arc<WorkerConnection> {
        &self.connection
    }

    #[inline]
    fn call_of(&self, target: &CallTarget) -> CallParameters {
        CallParameters {
            epoch: self.connection.epoch(),
            // The session has checked that base + last function fits.
            function: FunctionIndex(self.base.wrapping_add(target.function)),
            flags: target.flags,
            timeout_us: target.timeout_us,
            output_capacity: target.output_capacity,
        }
    }

    /// Whether the reply to an invocation of the ring has arrived, or was harvested.
    #[inline]
    pub(crate) fn is_answered(&self, seq: u64) -> bool {
        self.entries.is_past(seq) || self.ring.poll(seq).is_some()
    }

    /// Reads back the payload of an invocation of the ring; the caller must still own the entry.
    #[cold]
    pub(crate) fn recall(&self, seq: u64) -> Option<Vec<u8>> {
        self.ring.recall(seq)
    }

    /// Unanswered invocations of the ring, counted up to `limit`.
    #[inline]
    fn ring_load(&self, limit: u64) -> u64 {
        let next = self.entries.next();
        let most = limit.min(next).min(u64::from(self.ring.depth()));
        // Replies arrive in order, so counting backwards ends at the first answered invocation.
        (0..most).find(|back| self.is_answered(next - 1 - back)).unwrap_or(most)
    }

    /// Unanswered invocations, counted up to `limit`.
    #[inline]
    pub(crate) fn load(&self, limit: u64) -> u64 {
        let waiting = |number| self.ring.express().poll(number).is_none();
        let express = u64::from(self.express.open().is_some_and(waiting));
        express + self.ring_load(limit.saturating_sub(express))
    }

    /// Whether a claim would succeed now.
    pub(crate) fn has_credit(&self) -> bool {
        self.entries.blocking().is_none_or(|occupied| {
            matches!(
                occupied.state,
                EntryState::Shared | EntryState::SharedBuffer | EntryState::Abandoned
            ) && self.ring.poll(occupied.seq).is_some()
        })
    }

    #[inline]
    fn claim(&self) -> Option<u64> {
        match self.entries.claim() {
            Ok(seq) => Some(seq),
            Err(occupied) => self.claim_slow(occupied),
        }
    }

    /// Frees the next entry if the reply in it has arrived. An unharvested reply moves to the heap, so that futures
    /// that are kept never block new invocations; the reply to an abandoned invocation is dropped.
    #[cold]
    fn claim_slow(&self, mut occupied: OccupiedEntry) -> Option<u64> {
        loop {
            let reply = self.ring.poll(occupied.seq);
            match (occupied.state, reply) {
                (EntryState::Shared | EntryState::SharedBuffer, Some(reply)) => self.spill(occupied, reply),
                (EntryState::Abandoned, Some(_)) => {
                    if self.entries.take_abandoned(occupied.seq) {
                        self.abandoned().remove(&EntryUse::Ring(occupied.seq));
                        self.entries.free(occupied.seq);
                    }
                }
                // No reply has arrived, or another thread is about to free the entry.
                _ => return None,
            }
            match self.entries.claim() {
                Ok(seq) => return Some(seq),
                Err(next) => occupied = next,
            }
        }
    }

    fn spill(&self, occupied: OccupiedEntry, reply: Reply) {
        // Taken under the lock: a future that finds its entry taken waits for the lock and then finds the reply in
        // the table.
        let mut spilled = self.spilled();
        if !self.entries.take(occupied.seq) {
            return;
        }
        let bytes = match (&reply, occupied.state) {
            (Ok(header), EntryState::Shared) => ReplySource::Ring(self, occupied.seq).to_vec(header),
            _ => Vec::new(),
        };
        spilled.insert(occupied.seq, SpilledReply { reply, bytes });
        self.entries.free(occupied.seq);
    }

    /// Closes the connection over a breach of the protocol.
    fn close_broken(&self, what: &str) -> Error {
        self.connection.close(Death {
            kind: DeathKind::Broken(what.to_owned()),
            gone: false,
        });
        Error::protocol(what)
    }

    /// Publishes a request without waiting; its reply belongs to a future.
    #[inline]
    pub(crate) fn submit(&self, target: &CallTarget, payload: &[&[u8]], state: EntryState) -> Result<u64, Error> {
        let seq = self.claim().ok_or(Error::NoCredit)?;
        self.entries.share(seq, state);
        match self.ring.publish(seq, &self.call_of(target), payload) {
            Ok(()) => Ok(seq),
            Err(_) => Err(self.close_broken("a request longer than its entry was made")),
        }
    }

    /// Publishes a request without waiting or waking the slot; its reply belongs to this thread.
    #[inline]
    pub(crate) fn submit_quiet(&self, target: &CallTarget, payload: &[&[u8]]) -> Result<u64, Error> {
        let seq = self.claim().ok_or(Error::NoCredit)?;
        match self.publish_quiet(EntryUse::Ring(seq), target, payload) {
            Ok(()) => Ok(seq),
            Err(_) => Err(self.close_broken("a request longer than its entry was made")),
        }
    }

    /// The reply to an invocation of `submit_quiet`, if it has arrived; copies the output.
    #[inline]
    pub(crate) fn try_finish(
        &self,
        seq: u64,
        output: &mut [u8],
        timeout: Option<Duration>,
    ) -> Option<Result<usize, Error>> {
        let reply = self.ring.poll(seq)?;
        Some(self.finish(EntryUse::Ring(seq), reply, OutputSink::Ring(output), timeout))
    }

    /// Whether a shared invocation can be harvested.
    #[inline]
    pub(crate) fn is_done(&self, seq: u64) -> bool {
        // An invocation is not done if a thread has taken its entry to withdraw the request.
        self.ring.poll(seq).is_some() || !self.entries.is_wanted(seq)
    }

    /// Withdraws a shared invocation, if its slot has not begun it; its future must then abandon the invocation. The
    /// entry is held meanwhile, because a withdrawal reads the request line twice: between the two reads another thread
    /// could move the reply of this invocation to the heap and publish its own request in the entry, and that request
    /// would be withdrawn.
    pub(crate) fn withdraw(&self, seq: u64, state: EntryState) -> bool {
        let withdrawn = self.entries.hold(seq, state, || self.ring.withdraw(seq));
        withdrawn == Some(true)
    }

    /// Reads the reply to a shared invocation, if it has arrived, and frees its entry. Only its future calls this.
    #[inline]
    pub(crate) fn harvest<R>(&self, seq: u64, read: impl FnOnce(&Reply, ReplySource<'_>) -> R) -> Option<R> {
        if let Some(reply) = self.ring.poll(seq)
            && self.entries.take(seq)
        {
            let result = read(&reply, ReplySource::Ring(self, seq));
            self.entries.free(seq);
            return Some(result);
        }
        if self.entries.is_shared(seq) {
            return None;
        }
        let spilled = self.spilled().remove(&seq)?;
        Some(read(&spilled.reply, ReplySource::Kept(&spilled.bytes)))
    }

    /// Gives up a shared invocation whose reply is not wanted any more; `keep` is dropped after the reply has arrived.
    pub(crate) fn abandon(&self, seq: u64, state: EntryState, keep: Option<Box<dyn Any + Send>>) {
        if self.harvest(seq, |_, _| ()).is_none() {
            self.abandon_as(seq, state, keep);
        }
    }

    fn abandon_as(&self, seq: u64, from: EntryState, keep: Option<Box<dyn Any + Send>>) {
        if let Some(keep) = keep {
            self.abandoned().insert(EntryUse::Ring(seq), keep);
        }
        if !self.entries.abandon(seq, from) {
            // A submitter was faster and has moved the reply to the heap.
            self.abandoned().remove(&EntryUse::Ring(seq));
            self.spilled().remove(&seq);
        }
    }

    /// Drops the memory of abandoned invocations whose replies have arrived.
    pub(crate) fn release_answered(&self) {
        self.abandoned().retain(|lane, _| match lane {
            EntryUse::Ring(seq) => self.ring.poll(*seq).is_none(),
            EntryUse::Express(number) => self.ring.express().poll(*number).is_none(),
        });
    }

    /// Gives up an invocation of `submit_quiet`.
    pub(crate) fn abandon_owned(&self, seq: u64) {
        self.abandon_as(seq, EntryState::Open, None);
    }

    fn spilled(&self) -> MutexGuard<'_, HashMap<u64, SpilledReply>> {
        self.spilled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandoned(&self) -> MutexGuard<'_, HashMap<EntryUse, Box<dyn Any + Send>>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
