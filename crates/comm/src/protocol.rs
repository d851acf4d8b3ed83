//! Protocol of one member: answers calls and frames with orders to its engine. A pure state machine, without links,
//! clocks or threads.
//!
//! Calls and frames go in, [`Action`]s come out; calls and actions name the memory that is moved ([`Piece`]). A send or
//! receive ends in [`Protocol::complete`], which passes the result to the request, or to the collective of the
//! transfer.
//!
//! A message is sent at once if it is short enough and there is credit for it. Otherwise a small message waits for
//! credit, in order, and a larger message waits for the receiver's grant ([`hotlease_wire::comm::frame`]). The receiver
//! keeps a bounded amount of messages that no receive has asked for: each message costs credit, which is given back
//! when the message is taken.

mod collectives;
mod contexts;
mod credit;
mod jobs;
mod members;
mod receiving;
mod sending;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use collectives::{CollectiveStart, CollectiveWork, StartedCollective};
pub(crate) use contexts::CONTEXTS_MAX;
pub(crate) use receiving::{KeptMessage, KeptNow};

use crate::arena::{Arena, Key};
use crate::error::{Activity, Error};
use crate::link::StoreOrder;
use crate::matching::Matching;
use crate::memory::{Piece, TransferMemory};
use collectives::RunningCollective;
use contexts::Membership;
use credit::{Lender, Spender};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageClass};
use jobs::Job;
use receiving::{Landing, PostedReceive};
use sending::{OutgoingMessage, QueuedMessage};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stored::StoreState;

/// Largest number of operations of each kind that may be pending at a time.
pub(crate) const PENDING_MAX: usize = 1 << 20;

/// Description of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageStatus {
    /// Rank of the sender.
    pub source: Rank,
    /// Tag of the message.
    pub tag: u32,
    /// Length, bytes.
    pub bytes: u64,
}

/// Operation that gets the result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Request(Key),
    Collective(Key),
}

/// Order of the protocol to its engine.
#[derive(Debug)]
pub(crate) enum Action {
    /// Sends a frame without a body.
    Frame { to: Rank, frame: MemberFrame },
    /// Sends a frame and a body, which is copied now.
    Eager { to: Rank, frame: MemberFrame, body: Piece },
    /// Sends a frame and a body, and reports when the body is sent.
    Data {
        to: Rank,
        frame: MemberFrame,
        body: Piece,
        send: Key,
    },
    /// Passes an order to the link through a store.
    Store(StoreOrder),
    /// Closes the connection with a member that has failed.
    Close { rank: Rank },
}

/// State of a request.
enum RequestState {
    Pending(Activity),
    /// No caller will ask for the result.
    Forgotten,
    Done(Result<MessageStatus, Error>),
}

/// Bounds that a user may set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Longest message that waits for credit to be sent with its frame, bytes.
    pub(crate) small_bytes: u64,
    /// Longest message that is sent with its frame, if there is credit for it, bytes.
    pub(crate) eager_bytes: u64,
    /// Memory for large messages that arrive before a receive asks for them, while this member waits in a send, bytes.
    pub(crate) early_bytes: u64,
}

/// State of another member.
struct PeerState {
    /// Reason why the member is lost.
    lost: Option<Loss>,
    /// Whether the member has finished.
    has_left: bool,
    /// Whether the member has read everything that this member sent before its goodbye.
    has_read_all: bool,
    /// Credit for what is sent to the member, by class.
    spend: [Spender; 2],
    /// Credit that the member may still spend, by class.
    lend: [Lender; 2],
    /// Messages that wait for credit, by class.
    waiting: [VecDeque<QueuedMessage>; 2],
    /// Message that the body of the member's last frame belongs to.
    landing: Option<Key>,
}

/// State of one communicator.
struct ContextState {
    /// Ranks of the members; `None` until this member has opened the communicator.
    members: Option<Arc<[Rank]>>,
    /// Matching of messages and receives, by class.
    matching: [Matching<PostedReceive, KeptMessage>; 2],
    /// Number of the next collective.
    number: u32,
    /// Number of collectives that calling threads run themselves.
    direct: u32,
    /// Member that had an error in a collective, and the number of this collective. This collective and all later ones
    /// have ended.
    broken: Option<(Rank, u32)>,
    /// State of this member in the communicator.
    stay: Membership,
    /// Other members that have left the communicator.
    left: Vec<Rank>,
}

/// Protocol of one member.
pub(crate) struct Protocol {
    me: Rank,
    bounds: Bounds,
    peers: Vec<PeerState>,
    /// State of each communicator. There are few communicators, so a tree is faster than a hash table.
    contexts: BTreeMap<u64, ContextState>,
    /// Number of places that are reserved for contexts.
    reserved: usize,
    /// Contexts that this member has left, and some other members have not left yet.
    leaving: Vec<u64>,
    /// Whether something has happened for which a context in `leaving` may have waited.
    is_leaving_due: bool,
    /// Number of members that have left a context, summed over all contexts.
    leaves: usize,
    requests: Arena<RequestState>,
    sends: Arena<OutgoingMessage>,
    landings: Arena<Landing>,
    collectives: Arena<RunningCollective>,
    /// Collectives in which the transfers of the round are done.
    ready: VecDeque<Key>,
    jobs: VecDeque<Job>,
    /// Scratch memory of collectives that have ended.
    spare: Vec<TransferMemory>,
    actions: VecDeque<Action>,
    /// Memory of [`Bounds::early_bytes`] that is in use.
    early_bytes: u64,
    /// Whether this member has said goodbye.
    has_finished: bool,
    /// Member that has declared this member failed, and the reason.
    outcast: Option<(Rank, Loss)>,
    /// State of messages through a store; `None` if members are connected directly.
    stored: Option<StoreState>,
    /// Reason why the store cannot be used any more.
    severed: Option<Arc<str>>,
    /// Rises with each event that a thread may wait for.
    news: u64,
}

impl Protocol {
    pub(crate) fn new(me: Rank, size: Rank, bounds: Bounds) -> Self {
        let peer = |_| PeerState {
            lost: None,
            has_left: false,
            has_read_all: false,
            spend: [Spender::new(size), Spender::new(size)],
            lend: [Lender::new(size), Lender::new(size)],
            waiting: Default::default(),
            landing: None,
        };
        Self {
            me,
            bounds,
            peers: (0..size).map(peer).collect(),
            contexts: BTreeMap::new(),
            reserved: 0,
            leaving: Vec::new(),
            is_leaving_due: false,
            leaves: 0,
            requests: Arena::new(),
            sends: Arena::new(),
            landings: Arena::new(),
            collectives: Arena::new(),
            ready: VecDeque::new(),
            jobs: VecDeque::new(),
            spare: Vec::new(),
            actions: VecDeque::new(),
            early_bytes: 0,
            has_finished: false,
            outcast: None,
            stored: None,
            severed: None,
            news: 0,
        }
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether there are orders for the engine.
    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Number that rises with each event that a thread may wait for: the end of a request, a message to probe for, a
    /// job.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    /// Makes a request, which is pending until [`Protocol::take_result`] returns its result.
    pub(crate) fn request(&mut self, during: Activity) -> Result<Key, Error> {
        if self.requests.len() >= PENDING_MAX {
            return Err(Error::TooManyRequests { pending: PENDING_MAX });
        }
        Ok(self.requests.insert(RequestState::Pending(during)))
    }

    /// Takes the result of a request that has ended, and forgets the request.
    pub(crate) fn take_result(&mut self, key: Key) -> Option<Result<MessageStatus, Error>> {
        match self.requests.get(key)? {
            RequestState::Pending(_) | RequestState::Forgotten => None,
            RequestState::Done(_) => match self.requests.remove(key)? {
                RequestState::Done(result) => Some(result),
                RequestState::Pending(_) | RequestState::Forgotten => None,
            },
        }
    }

    /// Whether a request has ended or was forgotten.
    pub(crate) fn has_ended(&self, key: Key) -> bool {
        !matches!(self.requests.get(key), Some(RequestState::Pending(_)))
    }

    /// Ends a request whose memory is taken back, if its transfer has not begun: a receive for which no message has
    /// arrived, or a send of which nothing was sent. Returns whether the request has ended.
    pub(crate) fn cancel(&mut self, key: Key) -> bool {
        let Some(RequestState::Pending(during)) = self.requests.get(key) else {
            return false;
        };
        let during = *during;
        let owner = Owner::Request(key);
        let withdrawn = self.withdraw(|posted| posted.owner == owner) > 0 || self.withdraw_sends(owner);
        if withdrawn {
            self.complete(owner, Err(Error::Cancelled { during }));
        }
        withdrawn
    }

    /// Drops a request whose result no caller will ask for. If it cannot be cancelled, it continues, and its result is
    /// discarded.
    pub(crate) fn forget(&mut self, key: Key) {
        if self.take_result(key).is_some() {
            return;
        }
        if self.cancel(key) {
            self.take_result(key);
        } else if let Some(request) = self.requests.get_mut(key) {
            *request = RequestState::Forgotten;
        }
    }

    /// Ends an operation: stores the result in its request, or passes it to its collective.
    fn complete(&mut self, owner: Owner, result: Result<MessageStatus, Error>) {
        match owner {
            Owner::Request(key) => {
                self.news += 1;
                match self.requests.get_mut(key) {
                    Some(RequestState::Forgotten) => drop(self.requests.remove(key)),
                    Some(request) => *request = RequestState::Done(result),
                    None => {}
                }
            }
            Owner::Collective(key) => self.end_transfer(key, result),
        }
    }

    fn context(&mut self, context: u64) -> &mut ContextState {
        let contexts = self.contexts.entry(context);
        contexts.or_insert_with(|| ContextState::new(PENDING_MAX))
    }

    fn matching(&mut self, class: MessageClass, context: u64) -> &mut Matching<PostedReceive, KeptMessage> {
        &mut self.context(context).matching[class as usize]
    }

    fn peer(&mut self, rank: Rank) -> &mut PeerState {
        &mut self.peers[rank as usize]
    }

    /// Removes the posted receives that `is_meant` selects, in all communicators; returns their number.
    fn withdraw(&mut self, is_meant: impl Fn(&PostedReceive) -> bool) -> usize {
        let matchings = self.contexts.values_mut().flat_map(|context| &mut context.matching);
        let withdrawn = matchings.map(|matching| matching.withdraw(|_, posted| is_meant(posted)).len());
        withdrawn.sum()
    }
}
