//! The user's object: some members, and what they can say to each other.

mod ask;
mod checked;
mod collectives;
pub(crate) mod group;
mod join;
mod member;
mod messages;
mod owned;
mod rest;
mod schedules;
mod split;
mod typed;

pub use ask::{Ask, Given, InPlace};
pub(crate) use checked::{Card, differ};

use crate::error::Error;
use crate::options::LinkChoice;
use crate::route::Route;
use crate::schedule::Rank;
use group::Group;
use member::Member;
use schedules::Schedules;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The context of the communicator that all members of a group begin with.
const WORLD: u64 = 0;

/// A communicator: its members know each other by rank, and send each other messages.
///
/// All calls may be made from any thread; messages of several threads to one member come in the order in which the calls
/// were made. Memory is the caller's in all calls that wait, and is not copied but where a message comes before it is
/// asked for.
///
/// [`split`](Self::split) and [`dup`](Self::dup) make others of the same members, over the same connections: what is sent in one is
/// not received in another, and a collective of one waits for none of another. Ranks, also those in errors, are those of the
/// communicator that was called.
///
/// Dropped, it finishes as by [`finish`](Self::finish); in a panic it gives up, which the others learn at once.
pub struct Communicator {
    group: Arc<Group>,
    member: Arc<Member>,
    /// The node of each rank, and how many there are.
    nodes: Vec<u32>,
    node_count: usize,
    schedules: Mutex<Schedules>,
    /// How often those that are left of it have met.
    rests: AtomicU32,
    has_finished: bool,
}

impl Communicator {
    fn of(member: Arc<Member>, group: Group) -> Self {
        member.handles.fetch_add(1, Ordering::Relaxed);
        let outer = group.members.iter();
        let nodes: Vec<u32> = outer.map(|outer| member.nodes[*outer as usize]).collect();
        Self {
            node_count: nodes.iter().collect::<HashSet<_>>().len(),
            nodes,
            group: Arc::new(group),
            member,
            schedules: Mutex::default(),
            rests: AtomicU32::new(0),
            has_finished: false,
        }
    }

    /// This member's rank, from 0.
    pub fn rank(&self) -> Rank {
        self.group.rank
    }

    /// How many members there are.
    pub fn size(&self) -> Rank {
        self.group.members.len() as Rank
    }

    /// A number for the node of each rank: members of the same one talk over shared memory.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The name that it, or what it was made of, was joined by.
    pub fn name(&self) -> &str {
        &self.member.options.name
    }

    /// What its members talk over. Where that was to be `auto`, what was chosen for as many as have met.
    pub fn link(&self) -> &LinkChoice {
        &self.member.choice
    }

    /// On which way each member is reached, by rank.
    pub fn routes(&self) -> Vec<Route> {
        let outer = self.group.members.iter();
        outer.map(|rank| self.member.routes[*rank as usize]).collect()
    }

    /// Finishes. The last communicator that this member has on its connections waits until everything is sent, and until all others
    /// have read it or are gone, at most as long as `linger` says. Others say that this member takes no part in them any more, which
    /// nobody waits for. Messages that this member has not received are lost.
    ///
    /// # Errors
    /// [`Error::NotRead`] if somebody has not read everything in time, [`Error::Store`] if the store that members talk through could not
    /// be used to the end.
    pub fn finish(mut self) -> Result<(), Error> {
        self.part(false)
    }

    /// Gives up, as a member that has failed, in all communicators that this member has on its connections: others are told at
    /// once, and nothing is waited for.
    pub fn abort(mut self) {
        if !std::mem::replace(&mut self.has_finished, true) {
            self.member.handles.fetch_sub(1, Ordering::AcqRel);
            self.member.give_up();
        }
    }

    fn part(&mut self, gives_up: bool) -> Result<(), Error> {
        if std::mem::replace(&mut self.has_finished, true) {
            return Ok(());
        }
        let is_last = self.member.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        match (is_last, gives_up) {
            (true, false) => self.member.part().map_err(|error| self.group.error(error)),
            (true, true) => {
                self.member.give_up();
                Ok(())
            }
            (false, _) => {
                let context = self.group.context;
                self.member
                    .engine
                    .change(|protocol| protocol.leave(context, gives_up));
                Ok(())
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Err(error) = self.part(std::thread::panicking()) {
            tracing::warn!(name = self.name(), %error, "a communicator was dropped");
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, rank, size) = (self.name(), self.rank(), self.size());
        write!(f, "Communicator({name:?}, rank {rank} of {size})")
    }
}
