//! What one member does with frames: a pure state machine, without links, clocks or threads.
//!
//! Calls and frames go in, [`Action`]s come out; what is moved is memory that both name ([`Piece`]). Sends and receives end
//! by [`Protocol::complete`], which tells a request, or the collective that they are a step of.
//!
//! A message is sent at once if it is not too long for that and there is credit for it. Else a small one waits for credit, in order, and a
//! larger one for the receiver's grant ([`hotlease_wire::comm::frame`]). What a receiver keeps of messages that nobody has
//! asked for is bounded: each costs credit, which comes back when it is taken.

mod collectives;
mod contexts;
mod credit;
mod members;
mod receiving;
mod sending;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use collectives::{Check, Job, Start};
pub(crate) use contexts::CONTEXTS_MAX;
pub(crate) use receiving::Kept;
pub(crate) use stored::Parting;

use crate::error::{During, Error};
use crate::link::store::Order;
use crate::matching::Matching;
use crate::memory::{Memory, Piece};
use crate::schedule::Rank;
use crate::slots::{Key, Slots};
use collectives::Running;
use contexts::Stay;
use credit::{Lender, Spender};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{Class, Frame};
use receiving::{Landing, Posted};
use sending::{Sending, Waiting};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stored::Stored;

/// Operations that may be pending at a time, of each kind.
pub(crate) const PENDING_MAX: usize = 1 << 20;

/// How a message was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    /// Who sent it.
    pub source: Rank,
    /// The sender's.
    pub tag: u32,
    /// Its length.
    pub bytes: u64,
}

/// Whom the end of an operation is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Request(Key),
    Collective(Key),
}

/// What is to be done outside.
#[derive(Debug)]
pub(crate) enum Action {
    /// To send a frame without a body.
    Frame { to: Rank, frame: Frame },
    /// To send a frame and, copied now, its body.
    Eager { to: Rank, frame: Frame, body: Piece },
    /// To send a frame and its body, and to say so when the body is gone.
    Data {
        to: Rank,
        frame: Frame,
        body: Piece,
        send: Key,
    },
    /// Of members that talk through a store.
    Store(Order),
    /// To close the connection with a member that has failed.
    Close { rank: Rank },
}

/// How far a request is.
enum Request {
    Pending(During),
    /// Nobody will ask for its result.
    Forgotten,
    Done(Result<Status, Error>),
}

/// What may be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The longest message that waits for credit to be sent with its frame.
    pub(crate) small_bytes: u64,
    /// The longest message that is sent with its frame, if there is credit for it.
    pub(crate) eager_bytes: u64,
    /// For large messages that come before anybody asks for them, while this member waits in a send.
    pub(crate) early_bytes: u64,
}

/// What is known of a member.
struct Peer {
    /// Why it is no more.
    lost: Option<Loss>,
    /// It has finished.
    has_left: bool,
    /// It has read everything that came before this member's goodbye.
    has_read_all: bool,
    /// What may still be sent to it, by class.
    spend: [Spender; 2],
    /// What it may still send.
    lend: [Lender; 2],
    /// What waits for credit.
    waiting: [VecDeque<Waiting>; 2],
    /// Where the body of its last frame goes.
    landing: Option<Key>,
}

/// Of one communicator.
struct Context {
    /// None until this member has opened it.
    members: Option<Arc<[Rank]>>,
    /// Of each class.
    matching: [Matching<Posted, Kept>; 2],
    /// The next collective.
    number: u32,
    /// Who had an error in a collective, and in which: it and those after it have ended.
    broken: Option<(Rank, u32)>,
    /// This member's.
    stay: Stay,
    /// Others that have left it.
    left: Vec<Rank>,
}

/// See the module.
pub(crate) struct Protocol {
    me: Rank,
    bounds: Bounds,
    peers: Vec<Peer>,
    /// Few: found faster than by a hash.
    contexts: BTreeMap<u64, Context>,
    /// Places kept for contexts.
    reserved: usize,
    /// Contexts that this member has left, until all have.
    leaving: Vec<u64>,
    /// Something has happened that those may have waited for.
    is_leaving_due: bool,
    /// Members that have left contexts, in all.
    leaves: usize,
    requests: Slots<Request>,
    sends: Slots<Sending>,
    landings: Slots<Landing>,
    collectives: Slots<Running>,
    /// Collectives whose round's transfers are done.
    ready: VecDeque<Key>,
    jobs: VecDeque<Job>,
    /// Scratch memory of collectives that have ended.
    spare: Vec<Memory>,
    actions: VecDeque<Action>,
    /// Of [`Bounds::early_bytes`].
    early_bytes: u64,
    /// This member has said goodbye.
    has_finished: bool,
    /// Who holds that this member has failed, and why.
    outcast: Option<(Rank, Loss)>,
    /// Of members that talk through a store.
    stored: Option<Stored>,
    /// Why that store cannot be used any more.
    severed: Option<Arc<str>>,
    /// Rises with everything that somebody may wait for.
    news: u64,
}

impl Protocol {
    pub(crate) fn new(me: Rank, size: Rank, bounds: Bounds) -> Self {
        let peer = |_| Peer {
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
            requests: Slots::new(),
            sends: Slots::new(),
            landings: Slots::new(),
            collectives: Slots::new(),
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

    /// Work of collectives that takes time: to be done by whoever drives, without the lock.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// Whether there is such work.
    pub(crate) fn has_job(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Rises with everything that somebody may wait for: ends of requests, messages to probe for, work to do.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    /// A new request, pending until [`Protocol::result`] gives its result.
    pub(crate) fn request(&mut self, during: During) -> Result<Key, Error> {
        if self.requests.len() >= PENDING_MAX {
            return Err(Error::TooManyRequests { pending: PENDING_MAX });
        }
        Ok(self.requests.insert(Request::Pending(during)))
    }

    /// The result of a request that has ended, which is forgotten with it.
    pub(crate) fn result(&mut self, key: Key) -> Option<Result<Status, Error>> {
        match self.requests.get(key)? {
            Request::Pending(_) | Request::Forgotten => None,
            Request::Done(_) => match self.requests.remove(key)? {
                Request::Done(result) => Some(result),
                Request::Pending(_) | Request::Forgotten => None,
            },
        }
    }

    /// Whether a request has ended, or was before.
    pub(crate) fn has_ended(&self, key: Key) -> bool {
        !matches!(self.requests.get(key), Some(Request::Pending(_)))
    }

    /// Ends a request whose memory is taken back, as far as it can be ended: a receive that nothing has come for, a send that has
    /// not begun. Whether it was.
    pub(crate) fn cancel(&mut self, key: Key) -> bool {
        let Some(Request::Pending(during)) = self.requests.get(key) else {
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

    /// Nobody will ask for this result: as far as it cannot be cancelled, it goes on by itself.
    pub(crate) fn forget(&mut self, key: Key) {
        if self.result(key).is_some() {
            return;
        }
        if self.cancel(key) {
            self.result(key);
        } else if let Some(request) = self.requests.get_mut(key) {
            *request = Request::Forgotten;
        }
    }

    /// An operation has ended.
    fn complete(&mut self, owner: Owner, result: Result<Status, Error>) {
        match owner {
            Owner::Request(key) => {
                self.news += 1;
                match self.requests.get_mut(key) {
                    Some(Request::Forgotten) => drop(self.requests.remove(key)),
                    Some(request) => *request = Request::Done(result),
                    None => {}
                }
            }
            Owner::Collective(key) => self.transferred(key, result),
        }
    }

    fn context(&mut self, context: u64) -> &mut Context {
        let contexts = self.contexts.entry(context);
        contexts.or_insert_with(|| Context::new(PENDING_MAX))
    }

    fn matching(&mut self, class: Class, context: u64) -> &mut Matching<Posted, Kept> {
        &mut self.context(context).matching[class as usize]
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        &mut self.peers[rank as usize]
    }

    /// Takes posted receives out, of all communicators; how many.
    fn withdraw(&mut self, is_meant: impl Fn(&Posted) -> bool) -> usize {
        let matchings = self
            .contexts
            .values_mut()
            .flat_map(|context| &mut context.matching);
        let withdrawn = matchings.map(|matching| matching.withdraw(|_, posted| is_meant(posted)).len());
        withdrawn.sum()
    }
}
