//! Messages through a store: each is one object, written when it is sent, and read when a call asks for it.
//!
//! ```text
//!   sender                    store                       receiver
//!     │ ── Put ─────────────► │                               │
//!     │                       │ ◄──────────────── Get ─────── │  a receive or a probe waits
//!     │                       │ ── head and first part ─────► │  to the call that asked for it, in the sender's order
//!     │                       │ ◄─────────────── Rest ─────── │  if there is more: straight into the call's memory
//! ```
//!
//! There is no credit, and nothing is announced: messages that no call asks for stay in the store. If a receive passes
//! over a message, because it has another tag, the first part of the message is kept here. All these parts together
//! take at most [`super::Bounds::early_bytes`], plus what is on its way.

mod ends;
mod steps;

use super::sending::OutgoingMessage;
use super::{Action, KeptMessage, MessageStatus, Owner, PostedReceive, Protocol};
use crate::arena::{Arena, Key};
use crate::error::{Activity, Error};
use crate::link::{FinalCounts, ObjectHead, ObjectName, StoreOrder};
use crate::matching::{MessageEnvelope, Pattern};
use crate::memory::Piece;
use hotlease_collectives::Rank;
use hotlease_wire::comm::frame::{ENTRY_COST, MessageAddress, MessageClass};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Largest number of messages of one sender that are asked for at a time.
const ASKED_MAX: u64 = 32;

/// Messages from one member to this member in one communicator, by their numbers.
#[derive(Default)]
struct MessageStream {
    /// Number of the next message to ask for.
    asked: u64,
    /// Number of the next message that a receive may take.
    taken: u64,
    /// Messages that arrived before their turn.
    come: BTreeMap<u64, (ObjectHead, Vec<u8>)>,
}

/// Request to the link for an object.
enum PendingGet {
    Message {
        context: u64,
        from: Rank,
        number: u64,
    },
    /// Object of a collective.
    Fetch {
        owner: Owner,
        during: Activity,
        from: Rank,
        name: ObjectName,
        into: Piece,
    },
    /// Rest of an object, and the operation that gets it.
    Rest {
        owner: Owner,
        during: Activity,
        status: MessageStatus,
    },
}

/// State of messages through a store.
#[derive(Default)]
pub(super) struct StoreState {
    /// Number of messages sent, by communicator and receiver.
    sent: HashMap<(u64, Rank), u64>,
    /// Messages received, by communicator and sender.
    streams: HashMap<(u64, Rank), MessageStream>,
    gets: Arena<PendingGet>,
    /// Number of bytes that are kept here, of messages that no receive has asked for.
    kept_bytes: u64,
    /// Final counts of members that have finished.
    partings: HashMap<Rank, FinalCounts>,
    /// Final counts of members that have left a communicator, by communicator and member: number of messages that the
    /// member has sent to this member, and number of collectives that it took part in.
    quits: HashMap<(u64, Rank), (u64, u32)>,
    /// Whether receives have changed since messages were last asked for.
    is_changed: bool,
}

impl StoreState {
    /// Number of messages that a member has sent to this member in a communicator, and number of collectives that it
    /// took part in there; `None` while the member has neither finished nor left the communicator.
    fn final_counts_of(&self, context: u64, from: Rank) -> Option<(u64, u32)> {
        let of = |parting: &FinalCounts| {
            let sent = parting.sent.get(&context).copied().unwrap_or(0);
            (sent, parting.done.get(&context).copied().unwrap_or(0))
        };
        let parting = || self.partings.get(&from).map(of);
        // The counts of a member that has finished do not cover communicators that it had left before.
        let quit = self.quits.get(&(context, from)).copied();
        quit.or_else(parting)
    }
}

impl Protocol {
    /// Makes this the protocol of members that communicate through a store.
    pub(crate) fn through_a_store(mut self) -> Self {
        self.stored = Some(StoreState::default());
        self
    }

    pub(super) fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    /// Sends a user's message.
    pub(super) fn put_message(&mut self, to: Rank, address: MessageAddress, body: Piece, owner: Owner) {
        let Some(stored) = &mut self.stored else { return };
        let sent = stored.sent.entry((address.context, to)).or_default();
        let name = ObjectName::Message {
            context: address.context,
            from: self.me,
            to,
            number: *sent,
        };
        *sent += 1;
        let during = Activity::Send { to, tag: address.tag };
        let sending = OutgoingMessage::whole(to, owner, during, &address, body.clone());
        self.put(name, sending, 1, Arc::from([to]), body);
    }

    /// Writes an object of a collective. `readers` of the `members` will read it.
    pub(super) fn publish(
        &mut self,
        name: ObjectName,
        body: Piece,
        readers: u32,
        members: Arc<[Rank]>,
        collective: Key,
    ) {
        let during = self.during_collective(collective);
        let owner = Owner::Collective(collective);
        let address = MessageAddress {
            class: MessageClass::Collective,
            context: name.context(),
            tag: 0,
        };
        let sending = OutgoingMessage::whole(self.me, owner, during, &address, body.clone());
        self.put(name, sending, readers, members, body);
    }

    fn put(&mut self, name: ObjectName, sending: OutgoingMessage, readers: u32, members: Arc<[Rank]>, body: Piece) {
        let tag = sending.tag();
        let send = self.sends.insert(sending);
        self.actions.push_back(Action::Store(StoreOrder::Put {
            name,
            tag,
            readers,
            members,
            body,
            send,
        }));
    }

    /// Reads an object of a collective, of exactly the length of `into`.
    pub(super) fn fetch(&mut self, from: Rank, name: ObjectName, into: Piece, collective: Key) {
        let during = self.during_collective(collective);
        let owner = Owner::Collective(collective);
        if self.is_unwritten(from, &name) {
            return self.complete(owner, Err(Error::MemberLeft { during, rank: from }));
        }
        self.get(
            name,
            PendingGet::Fetch {
                owner,
                during,
                from,
                name,
                into,
            },
        );
    }

    fn get(&mut self, name: ObjectName, getting: PendingGet) {
        if let Some(stored) = &mut self.stored {
            let get = stored.gets.insert(getting);
            self.actions.push_back(Action::Store(StoreOrder::Get { name, get }));
        }
    }

    /// Whether a member has left before it wrote this object of a collective.
    fn is_unwritten(&self, from: Rank, name: &ObjectName) -> bool {
        let (Some(stored), Some(number)) = (&self.stored, name.collective()) else {
            return false;
        };
        stored
            .final_counts_of(name.context(), from)
            .is_some_and(|(_, done)| number >= done)
    }

    /// Whether messages of a member that has left are still in the store, or have arrived before their turn.
    pub(super) fn can_still_come(&self, context: u64, from: Rank) -> bool {
        let Some(stored) = &self.stored else { return false };
        let Some((sent, _)) = stored.final_counts_of(context, from) else {
            return false;
        };
        let taken = stored.streams.get(&(context, from)).map_or(0, |stream| stream.taken);
        self.severed.is_none() && self.peers[from as usize].lost.is_none() && taken < sent
    }

    /// Whether the next message of a member may be asked for.
    fn can_ask(&self, context: u64, from: Rank) -> bool {
        let Some(stored) = &self.stored else { return false };
        let asked = stored.streams.get(&(context, from)).map_or(0, |stream| stream.asked);
        let all = stored.final_counts_of(context, from).map_or(u64::MAX, |(sent, _)| sent);
        from != self.me
            && self.severed.is_none()
            && self.peers[from as usize].lost.is_none()
            && asked < all
            && stored.kept_bytes < self.bounds.early_bytes
    }

    /// Asks for the next message of a member.
    fn ask(&mut self, context: u64, from: Rank) {
        let to = self.me;
        let Some(stored) = &mut self.stored else { return };
        let stream = stored.streams.entry((context, from)).or_default();
        let number = stream.asked;
        stream.asked += 1;
        let name = ObjectName::Message {
            context,
            from,
            to,
            number,
        };
        self.get(name, PendingGet::Message { context, from, number });
    }

    /// Number of messages of a member that were asked for, and that no receive could take yet.
    fn asked(&self, context: u64, from: Rank) -> u64 {
        let stream = self
            .stored
            .as_ref()
            .and_then(|stored| stored.streams.get(&(context, from)));
        stream.map_or(0, |stream| stream.asked - stream.taken)
    }

    /// Notes that receives have changed, so that [`request_awaited`](Self::request_awaited) checks them again.
    pub(super) fn note_change(&mut self) {
        if let Some(stored) = &mut self.stored {
            stored.is_changed = true;
        }
    }

    /// Asks for the messages that receives wait for.
    pub(super) fn request_awaited(&mut self) {
        match &mut self.stored {
            Some(stored) if stored.is_changed => stored.is_changed = false,
            _ => return,
        }
        let contexts: Vec<u64> = self.contexts.keys().copied().collect();
        for context in contexts {
            let members = self.contexts.get(&context).and_then(|of| of.members.clone());
            for from in members.iter().flat_map(|members| members.iter().copied()) {
                let matching = self.matching(MessageClass::Message, context);
                let wanted = (matching.waiting_for(from) as u64).min(ASKED_MAX);
                while self.asked(context, from) < wanted && self.can_ask(context, from) {
                    self.ask(context, from);
                }
            }
        }
    }

    /// Asks for the next message of each possible sender, because a thread probes for one.
    pub(crate) fn expect(&mut self, context: u64, pattern: Pattern) {
        if self.stored.is_none() {
            return;
        }
        let sources = match pattern.source {
            Some(source) => vec![source],
            None => self.members(context).to_vec(),
        };
        for from in sources {
            if self.asked(context, from) == 0 && self.can_ask(context, from) {
                self.ask(context, from);
            }
        }
    }

    /// Handles an object that was asked for: its head, and its first bytes.
    pub(crate) fn object(&mut self, get: Key, head: ObjectHead, first: Vec<u8>) {
        let Some(stored) = &mut self.stored else { return };
        match stored.gets.remove(get) {
            Some(PendingGet::Message { context, from, number }) => {
                let stream = stored.streams.entry((context, from)).or_default();
                stream.come.insert(number, (head, first));
                self.take_in(context, from);
            }
            Some(PendingGet::Fetch {
                owner,
                during,
                from,
                name,
                into,
            }) => {
                let expected = into.len() as u64;
                if head.length != expected {
                    let error = Error::Mismatch {
                        during,
                        source_rank: from,
                        sent: head.length,
                        expected,
                    };
                    return self.complete(owner, Err(error));
                }
                let status = MessageStatus {
                    source: from,
                    tag: 0,
                    bytes: expected,
                };
                self.fill(name, &first, into, owner, during, status);
            }
            // The collective of the object has failed, or the object was reported twice.
            Some(PendingGet::Rest { .. }) | None => {}
        }
    }

    /// Passes the messages that have arrived from a member to the receives that wait for them, in sending order. Keeps
    /// messages that no receive waits for.
    fn take_in(&mut self, context: u64, from: Rank) {
        let class = MessageClass::Message;
        loop {
            let Some(stored) = &mut self.stored else { return };
            let stream = stored.streams.entry((context, from)).or_default();
            let number = stream.taken;
            let Some((head, first)) = stream.come.remove(&number) else {
                break;
            };
            stream.taken += 1;
            stored.is_changed = true;
            let envelope = MessageEnvelope {
                source: from,
                tag: head.tag,
            };
            let address = MessageAddress {
                class,
                context,
                tag: head.tag,
            };
            let kept = KeptMessage::Stored {
                name: ObjectName::Message {
                    context,
                    from,
                    to: self.me,
                    number,
                },
                length: head.length,
                first,
            };
            match self.receiver_of(&address, envelope, head.length) {
                Some(posted) => self.deliver(class, envelope, kept, posted),
                None => {
                    self.keep_bytes(&kept, u64::saturating_add);
                    self.news += 1;
                    self.matching(class, context).keep(envelope, kept);
                }
            }
        }
        if self.can_still_come(context, from) {
            return;
        }
        if self.peers[from as usize].has_left {
            self.end_with(from);
        } else if self.has_left(context, from) {
            self.end_in(context, from);
        }
    }

    fn keep_bytes(&mut self, kept: &KeptMessage, count: fn(u64, u64) -> u64) {
        if let (Some(stored), KeptMessage::Stored { first, .. }) = (&mut self.stored, kept) {
            stored.kept_bytes = count(stored.kept_bytes, first.len() as u64 + ENTRY_COST);
            stored.is_changed = true;
        }
    }

    /// Notes that a kept message is received after all.
    pub(super) fn no_longer_kept(&mut self, kept: &KeptMessage) {
        self.keep_bytes(kept, u64::saturating_sub);
    }

    /// Moves an object into the memory of a receive, which is long enough.
    pub(super) fn hand(
        &mut self,
        name: ObjectName,
        envelope: MessageEnvelope,
        length: u64,
        first: &[u8],
        posted: PostedReceive,
    ) {
        let status = MessageStatus {
            source: envelope.source,
            tag: envelope.tag,
            bytes: length,
        };
        let (into, owner, during) = posted.parts();
        self.fill(name, first, into.part(0..length as usize), owner, during, status);
    }

    /// Writes the first bytes of an object into its memory, and asks for the rest if there is one.
    fn fill(
        &mut self,
        name: ObjectName,
        first: &[u8],
        into: Piece,
        owner: Owner,
        during: Activity,
        status: MessageStatus,
    ) {
        let written = into.write(|into| into[..first.len()].copy_from_slice(first));
        if written.is_none() {
            return self.complete(owner, Err(Error::MemoryReclaimed { during }));
        }
        if first.len() as u64 == status.bytes {
            return self.complete(owner, Ok(status));
        }
        let Some(stored) = &mut self.stored else { return };
        let rest = PendingGet::Rest { owner, during, status };
        let get = stored.gets.insert(rest);
        let first = first.len();
        self.actions
            .push_back(Action::Store(StoreOrder::Rest { name, first, into, get }));
    }

    /// Ends an operation whose object was read completely. `is_written` is `false` if the operation's memory was taken
    /// back before.
    pub(crate) fn end_rest(&mut self, get: Key, is_written: bool) {
        let getting = self.stored.as_mut().and_then(|stored| stored.gets.remove(get));
        if let Some(PendingGet::Rest { owner, during, status }) = getting {
            let result = if is_written {
                Ok(status)
            } else {
                Err(Error::MemoryReclaimed { during })
            };
            self.complete(owner, result);
        }
    }
}
