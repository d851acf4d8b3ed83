//! Communicator: the user's object for messages and collectives between its members.

mod arguments;
mod blocking;
mod checked;
mod collectives;
pub(crate) mod group;
mod join;
mod member;
mod messages;
mod nonblocking;
mod regroup;
mod schedule_cache;
mod split;

pub use arguments::{Contribution, InPlace};
pub use collectives::MemberCollective;

use crate::error::Error;
use crate::options::LinkChoice;
use crate::route::Route;
use group::MemberGroup;
use hotlease_collectives::Rank;
use member::Member;
use schedule_cache::ScheduleCache;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Context of the first communicator of a group, which has all members.
const WORLD: u64 = 0;

/// A communicator: its members send each other messages, and each is addressed by its rank.
///
/// All calls may be made from any thread; messages from several threads to one member arrive in the order of the
/// calls. All calls that wait use the caller's memory. A message is copied only if it arrives before the receiver asks
/// for it.
///
/// [`split`](Self::split) and [`dup`](Self::dup) make communicators of the same members, over the same connections. A
/// message sent in one communicator is not received in another, and a collective of one does not wait for a collective
/// of another. All ranks, also in errors, are ranks in the communicator on which the call was made.
///
/// When dropped, the communicator finishes as [`finish`](Self::finish) does. When dropped in a panic, it aborts, and
/// the other members are told at once.
pub struct Communicator {
    group: Arc<MemberGroup>,
    member: Arc<Member>,
    /// The node of each rank, and the number of nodes.
    nodes: Vec<u32>,
    node_count: usize,
    schedules: Mutex<ScheduleCache>,
    /// Number of completed [`shrink`](Self::shrink) calls.
    rests: AtomicU32,
    /// Number of communicators that were made of each group, by [`create_group`](Self::create_group).
    made: Mutex<HashMap<u64, u32>>,
    has_finished: bool,
}

impl Communicator {
    fn of(member: Arc<Member>, group: MemberGroup) -> Self {
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
            made: Mutex::default(),
            has_finished: false,
        }
    }

    /// Rank of this member, from 0.
    pub fn rank(&self) -> Rank {
        self.group.rank
    }

    /// Number of members.
    pub fn size(&self) -> Rank {
        self.group.members.len() as Rank
    }

    /// A number for the node of each rank: members with the same number communicate over shared memory.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Name that the members joined under; a communicator made from another keeps the name.
    pub fn name(&self) -> &str {
        &self.member.options.name
    }

    /// Link of the members. If the options say `auto`: the link that was chosen for the number of members that have
    /// met.
    pub fn link(&self) -> &LinkChoice {
        &self.member.choice
    }

    /// Identity of each member's process: the id of the group that has met, and the rank in that group. All
    /// communicators of one group give a process the same identity.
    pub fn places(&self) -> ([u8; 16], &[Rank]) {
        (self.member.id.0, &self.group.members)
    }

    /// Route to each member, by rank.
    pub fn routes(&self) -> Vec<Route> {
        let outer = self.group.members.iter();
        outer.map(|rank| self.member.routes[*rank as usize]).collect()
    }

    /// Finishes the communicator. If it is this member's last communicator on its connections, the call waits until all
    /// data is sent and all other members have read the data or are gone, but at most for `linger`. Otherwise the call
    /// only announces that this member has left the communicator, and waits for no member. Messages that this member
    /// has not received are lost.
    ///
    /// # Errors
    /// [`Error::UnreadData`] if a member has not read all data in time, [`Error::Store`] if the store that members
    /// communicate through failed before the end.
    pub fn finish(mut self) -> Result<(), Error> {
        self.leave(false)
    }

    /// Makes this member a failed member in all its communicators on these connections. The other members are told at
    /// once, and the call waits for nothing.
    pub fn abort(mut self) {
        if !std::mem::replace(&mut self.has_finished, true) {
            self.member.handles.fetch_sub(1, Ordering::AcqRel);
            self.member.give_up();
        }
    }

    fn leave(&mut self, gives_up: bool) -> Result<(), Error> {
        if std::mem::replace(&mut self.has_finished, true) {
            return Ok(());
        }
        let is_last = self.member.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        match (is_last, gives_up) {
            (true, false) => self.member.finish().map_err(|error| self.group.error(error)),
            (true, true) => {
                self.member.give_up();
                Ok(())
            }
            (false, _) => {
                let context = self.group.context;
                self.member.engine.change(|protocol| protocol.leave(context, gives_up));
                Ok(())
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Err(error) = self.leave(std::thread::panicking()) {
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
