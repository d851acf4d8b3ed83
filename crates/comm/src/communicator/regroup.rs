//! Communicators without the members that have failed, and with members that join later.
//!
//! Without knowing which members are alive, members cannot agree by messages on the members of a new communicator. So
//! the rendezvous decides: all remaining members meet there again, and the group that the rendezvous forms is the new
//! communicator, over new connections. A member that fails after that is a failed member of the new communicator, and
//! is reported to the others in the usual way.

use super::Communicator;
use crate::error::{Activity, Error};
use crate::options::Options;
use crate::rendezvous::client::{self, MeetingRequest};
use hotlease_collectives::Rank;
use hotlease_wire::comm::RANKS_MAX;
use hotlease_wire::comm::rendezvous::{LOST_MAX, Meeting};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Communicator {
    /// Makes a communicator of the remaining members, in the order of their ranks, over new connections. All remaining
    /// members must call this, also members that have had no error. The calls wait for each other, but not for a member
    /// that one of the callers reports as lost or gone. They wait for `join_timeout` at most: a member that has not
    /// arrived by then is left out.
    ///
    /// Works in any state of this communicator, and leaves it unchanged. Needs the rendezvous.
    ///
    /// # Errors
    /// [`Error::Outcast`] if the others consider this member failed; [`Error::RendezvousRefused`] if the others have
    /// met without this member; [`Error::NoRendezvous`] and [`Error::Rejection`]; [`Error::Store`] if the store that
    /// members communicate through cannot be used any more: join again.
    pub fn shrink(&self) -> Result<Self, Error> {
        let began = Instant::now();
        self.check_not_outcast()?;
        let number = self.rests.load(Ordering::Acquire);
        let meeting = || {
            let mut lost = self.missing();
            lost.truncate(LOST_MAX);
            Meeting::Rest {
                of: self.member.id,
                context: self.group.context,
                number,
                lost,
            }
        };
        let options = Options {
            rank: None,
            is_newcomer: false,
            ..self.member.options.clone()
        };
        let errand = MeetingRequest {
            options: &options,
            size: self.size(),
            rank: Some(self.rank()),
            meeting: &meeting,
        };
        let met = client::meet(&errand, began)?;
        // The number is raised only now: a member that tries again after an error must ask for the same meeting.
        self.rests.store(number.wrapping_add(1), Ordering::Release);
        let choice = options.choose_link(met.members.len() as Rank)?;
        Self::assemble((&options, choice), Arc::clone(&self.member.table), met, began, true)
    }

    /// Makes a communicator of these members, which keep their ranks, and of `joining` newcomers, which get the next
    /// ranks, over new connections. All members must call this. Newcomers call [`Communicator::join`] with the same
    /// name, [`Options::is_newcomer`] and the new size.
    ///
    /// # Errors
    /// [`Error::MemberLost`] and [`Error::MemberLeft`] if some members are gone: call [`shrink`](Self::shrink) first.
    /// [`Error::RendezvousRefused`] with the ranks that have not arrived within `join_timeout`; then this communicator
    /// is unchanged. [`Error::Options`] if the size is too large; [`Error::NoRendezvous`] and [`Error::Rejection`].
    pub fn grow(&self, joining: Rank) -> Result<Self, Error> {
        let began = Instant::now();
        self.check_not_outcast()?;
        if let Some(rank) = self.missing().first() {
            let outer = self.group.rank_on_connections(*rank)?;
            let gone = self.group.engine.lock().protocol.departure(outer, Activity::Meeting);
            // Used if the member has left only this communicator, and not its connections.
            let left = Error::MemberLeft {
                during: Activity::Meeting,
                rank: *rank,
            };
            return Err(gone.map_or(left, |error| self.group.error(error)));
        }
        let size = self.size().saturating_add(joining);
        if size > RANKS_MAX {
            let what = format!("a communicator of {size}; it can have {RANKS_MAX} members at most");
            return Err(Error::Options { what });
        }
        let options = Options {
            size,
            rank: None,
            is_newcomer: false,
            ..self.member.options.clone()
        };
        let choice = options.choose_link(size)?;
        let errand = MeetingRequest {
            options: &options,
            size,
            rank: Some(self.rank()),
            meeting: &|| Meeting::Growth,
        };
        let met = client::meet(&errand, began)?;
        Self::assemble((&options, choice), Arc::clone(&self.member.table), met, began, true)
    }

    /// Returns an error if the others consider this member failed: they would not meet with this member.
    fn check_not_outcast(&self) -> Result<(), Error> {
        let own = self.group.rank_on_connections(self.rank())?;
        let gone = self.group.engine.lock().protocol.departure(own, Activity::Meeting);
        gone.map_or(Ok(()), |error| Err(self.group.error(error)))
    }

    /// Ranks that are lost or have left.
    fn missing(&self) -> Vec<Rank> {
        let state = self.group.engine.lock();
        let members = (0..).zip(self.group.members.iter());
        let missing = members.filter(|(_, outer)| !state.protocol.is_in(self.group.context, **outer));
        missing.map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Server;
    use crate::secret::Secret;
    use std::time::Duration;

    #[test]
    fn a_member_that_has_met_the_others_and_cannot_be_reached_has_failed() {
        let secret = Secret::new(b"the secret of these tests").expect("25 bytes");
        let server = Server::start("127.0.0.1:0", vec![secret.clone()], Default::default());
        let server = server.expect("a rendezvous");
        let mut options = Options::new("rest", 3, server.address().to_string(), secret);
        options.failure_bound = Duration::from_secs(4);
        let member = |rank| {
            let mut options = options.clone();
            options.rank = Some(rank);
            let all = Communicator::join(&options).expect("all come");
            if rank == 2 {
                let meeting = || Meeting::Rest {
                    of: all.member.id,
                    context: all.group.context,
                    number: 0,
                    lost: Vec::new(),
                };
                let errand = MeetingRequest {
                    options: &options,
                    size: 3,
                    rank: Some(2),
                    meeting: &meeting,
                };
                // This member's port closes before another member has connected.
                client::meet(&errand, Instant::now()).expect("all meet");
                return;
            }
            let with = all.shrink().expect("all meet");
            assert_eq!((with.rank(), with.size()), (rank, 3));
            let error = with.barrier().expect_err("one cannot be reached");
            assert!(matches!(error, Error::MemberLost { rank: 2, .. }), "{error}");
            let left = with.shrink().expect("two are left");
            assert_eq!((left.rank(), left.size()), (rank, 2));
            left.barrier().expect("they are well");
        };
        std::thread::scope(|scope| {
            let member = &member;
            let members = [0, 1, 2].map(|rank| scope.spawn(move || member(rank)));
            for member in members {
                member.join().expect("no panic");
            }
        });
    }
}
