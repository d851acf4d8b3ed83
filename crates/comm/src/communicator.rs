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

/// Context of the communicator that all members of a group begin with.
const WORLD: u64 = 0;

/// A communicator: its members know each other by rank and send each other messages.
///
/// All calls may be made from any thread; messages from several threads to one member arrive in the order of the
/// calls. In all calls that wait, the memory is the caller's. It is copied only if a message arrives before the
/// receiver asks for it.
///
/// [`split`](Self::split) and [`dup`](Self::dup) make communicators of the same members, over the same connections. A
/// message sent in one communicator is not received in another, and a collective of one does not wait for a collective
/// of another. Ranks, including those in errors, are ranks in the communicator that was called.
///
/// When dropped, the communicator finishes as by [`finish`](Self::finish). When dropped in a panic, it aborts, and the
/// other members learn of that at once.
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

    /// Link of the members. If the options say `auto`, the link chosen for the number of members that have met.
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

    /// Finishes the communicator. The last communicator of this member on its connections waits until all data is
    /// sent, and until all other members have read it or are gone, at most for `linger`. Any other communicator only
    /// announces that this member has left it, and waits for no member. Messages that this member has not received are
    /// lost.
    ///
    /// # Errors
    /// [`Error::UnreadData`] if a member has not read all data in time, [`Error::Store`] if the store that members
    /// communicate through failed before the end.
    pub fn finish(mut self) -> Result<(), Error> {
        self.leave(false)
    }

    /// Aborts, as a failed member, in all communicators of this member on its connections: the other members are told
    /// at once, and nothing is waited for.
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
