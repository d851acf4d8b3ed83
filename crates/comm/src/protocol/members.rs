//! Failures of members, and members that finish.
//!
//! When a link finds a failure, this member tells all others. So all members learn of the failure and its cause, even
//! members that could still reach the failed member. A failure ends all operations that involve the failed member:
//! sends to it, receives from it or from any rank, and every collective of its communicators. Messages that arrived
//! from it before can still be received.

use super::{Action, Membership, Owner, PeerState, Protocol};
use crate::error::{Activity, Error};
use crate::matching::Pattern;
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;

impl PeerState {
    fn is_here(&self) -> bool {
        self.lost.is_none() && !self.has_left
    }
}

impl Protocol {
    /// Returns the reason why no operation with a member can succeed, or `None` if operations are possible.
    pub(crate) fn departure(&self, rank: Rank, during: Activity) -> Option<Error> {
        if let Some(why) = &self.severed {
            let why = why.to_string();
            return Some(Error::Store { during, why });
        }
        if let Some((by, loss)) = self.outcast {
            return Some(Error::Outcast {
                during,
                rank: self.me,
                reporter: Some(by),
                loss,
            });
        }
        if self.has_finished {
            return Some(Error::Finished);
        }
        let peer = &self.peers[rank as usize];
        match peer.lost {
            Some(loss) => Some(Error::MemberLost { during, rank, loss }),
            None if peer.has_left => Some(Error::MemberLeft { during, rank }),
            None => None,
        }
    }

    /// Returns the reason why no operation with a member can succeed in a communicator, which the member may have left.
    pub(super) fn departure_in(&self, context: u64, rank: Rank, during: Activity) -> Option<Error> {
        let gone = self.departure(rank, during);
        // Most of the time no member has left any communicator.
        if gone.is_some() || self.leaves == 0 {
            return gone;
        }
        let has_left = self.has_left(context, rank);
        has_left.then_some(Error::MemberLeft { during, rank })
    }

    /// Whether a member takes part in a communicator.
    pub(crate) fn is_in(&self, context: u64, rank: Rank) -> bool {
        rank == self.me || self.peers[rank as usize].lost.is_none() && !self.has_left(context, rank)
    }

    pub(super) fn has_left(&self, context: u64, rank: Rank) -> bool {
        let of_context = self.contexts.get(&context);
        self.peers[rank as usize].has_left || of_context.is_some_and(|context| context.left.contains(&rank))
    }

    /// Returns the reason why no message can arrive for this receive, or `None` if a message may arrive.
    pub(crate) fn receive_error(&self, context: u64, pattern: Pattern, during: Activity) -> Option<Error> {
        if let Some(source) = pattern.source {
            let may_come = self.can_still_come(context, source);
            return self.departure_in(context, source, during).filter(|_| !may_come);
        }
        if let Some(error) = self.departure(self.me, during) {
            return Some(error);
        }
        let members = self.members(context);
        let lost = members.iter().find(|rank| self.peers[**rank as usize].lost.is_some());
        if let Some(rank) = lost {
            return self.departure(*rank, during);
        }
        let others = || members.iter().filter(|rank| **rank != self.me);
        let last = others().next_back()?;
        let has_left = |rank: &Rank| self.has_left(context, *rank) && !self.can_still_come(context, *rank);
        let all_have_left = others().all(has_left);
        if all_have_left {
            self.departure_in(context, *last, during)
        } else {
            None
        }
    }

    pub(super) fn members(&self, context: u64) -> &[Rank] {
        let members = self.contexts.get(&context).and_then(|context| context.members.as_ref());
        members.map_or(&[], |members| members)
    }

    /// Handles the loss of a member, which a link has found.
    pub(crate) fn handle_loss(&mut self, rank: Rank, loss: Loss) {
        // A member that has said goodbye may close its connection.
        if self.peers[rank as usize].has_left {
            self.peer(rank).has_read_all = true;
            return;
        }
        self.fail(rank, loss, true);
    }

    /// Whether a member has neither failed nor finished.
    pub(crate) fn is_here(&self, rank: Rank) -> bool {
        self.peers[rank as usize].is_here()
    }

    pub(super) fn fail(&mut self, rank: Rank, loss: Loss, is_news: bool) {
        if rank == self.me || self.peers[rank as usize].lost.is_some() {
            return;
        }
        self.peer(rank).lost = Some(loss);
        // A thread that only waits until other members have parted also needs this news.
        self.news += 1;
        self.is_leaving_due = true;
        if is_news && self.outcast.is_none() {
            self.tell_all(MemberFrame::Lost { rank, loss });
        }
        if is_news {
            // The member may be alive, and only out of reach or stopped for a while: the frame tells it why no member
            // talks to it.
            let frame = MemberFrame::Lost { rank, loss };
            self.actions.push_back(Action::Frame { to: rank, frame });
        }
        self.actions.push_back(Action::Close { rank });
        self.end_with(rank);
        let concerned = self.collectives.keys(|running| running.members().contains(&rank));
        for collective in concerned {
            let during = self.during_collective(collective);
            if let Some(error) = self.departure(rank, during) {
                self.fail_collective(collective, error);
            }
        }
    }

    /// Ends every send to a member that is gone, and every receive that can match only its messages.
    pub(super) fn end_with(&mut self, rank: Rank) {
        for waiting in std::mem::take(&mut self.peer(rank).waiting) {
            for waiting in waiting {
                // The request has the description of the operation.
                self.complete_gone(waiting.owner, rank, None);
            }
        }
        for send in self.sends.keys(|sending| sending.to == rank) {
            if let Some(sending) = self.sends.remove(send) {
                self.complete_gone(sending.owner, rank, Some(sending.during));
            }
        }
        for posted in self.cut_off(rank) {
            self.complete_gone(posted.owner, rank, Some(posted.during));
        }
        let contexts: Vec<u64> = self.contexts.keys().copied().collect();
        for context in contexts {
            let is_of_any = {
                let during = Activity::Receive { from: None, tag: None };
                let is_member = self.members(context).contains(&rank);
                is_member && self.receive_error(context, Pattern::ANY, during).is_some()
            };
            let may_come = self.can_still_come(context, rank);
            let Some(of_context) = self.contexts.get_mut(&context) else {
                continue;
            };
            let withdrawn: Vec<_> = of_context
                .matching
                .iter_mut()
                .flat_map(|matching| {
                    matching.withdraw(|pattern, _| match pattern.source {
                        Some(source) => source == rank && !may_come,
                        None => is_of_any,
                    })
                })
                .collect();
            for (_, posted) in withdrawn {
                self.complete_gone(posted.owner, rank, Some(posted.during));
            }
        }
    }

    pub(super) fn complete_gone(&mut self, owner: Owner, rank: Rank, during: Option<Activity>) {
        let during = during.unwrap_or_else(|| self.during_of(owner));
        if let Some(error) = self.departure(rank, during) {
            self.complete(owner, Err(error));
        }
    }

    /// Description of an operation for errors.
    pub(super) fn during_of(&self, owner: Owner) -> Activity {
        match owner {
            Owner::Request(key) => self.during(key),
            Owner::Collective(key) => self.during_collective(key),
        }
    }

    fn tell_all(&mut self, frame: MemberFrame) {
        let me = self.me as usize;
        let others = self.peers.iter().enumerate();
        let others = others.filter(|(rank, peer)| *rank != me && peer.is_here());
        let frames = others.map(|(rank, _)| Action::Frame {
            to: rank as Rank,
            frame,
        });
        self.actions.extend(frames);
    }

    /// Handles a report of a member on itself, on another member, or on a communicator.
    pub(super) fn handle_notice(&mut self, from: Rank, frame: MemberFrame) -> Result<(), Loss> {
        match frame {
            MemberFrame::Goodbye if self.peers[from as usize].is_here() => {
                self.peer(from).has_left = true;
                self.is_leaving_due = true;
                let frame = MemberFrame::Farewell;
                self.actions.push_back(Action::Frame { to: from, frame });
                self.end_with(from);
            }
            MemberFrame::Farewell => {
                self.news += 1;
                self.peer(from).has_read_all = true;
            }
            MemberFrame::Lost { rank, loss } if rank == self.me => self.cast_out(from, loss),
            MemberFrame::Lost { rank, loss } if rank == from => self.fail(from, loss, true),
            MemberFrame::Lost { rank, loss } if (rank as usize) < self.peers.len() => self.fail(rank, loss, false),
            MemberFrame::Leave { context } => return self.note_leave(from, context),
            // A member that opens a communicator has reserved a place for it.
            MemberFrame::Broken { context, .. } if !self.contexts.contains_key(&context) && self.is_full() => {
                return Err(Loss::Protocol);
            }
            MemberFrame::Broken { context, rank, number } => self.end_broken(context, rank, number),
            _ => {}
        }
        Ok(())
    }

    /// Notes that other members consider this member failed: none of them will talk to it any more.
    fn cast_out(&mut self, by: Rank, loss: Loss) {
        if self.outcast.is_some() || self.has_finished {
            return;
        }
        self.outcast = Some((by, loss));
        for rank in 0..self.peers.len() as Rank {
            self.fail(rank, Loss::Declared, false);
        }
        for owner in self.take_own() {
            self.complete_gone(owner, self.me, None);
        }
    }

    /// Tells all other members the failures that this member has recorded. Called before this member leaves: members
    /// without these reports would take the leaving for the cause of later errors.
    fn tell_causes(&mut self) {
        let lost = self.peers.iter().enumerate();
        let lost = lost.filter_map(|(rank, peer)| Some((rank as Rank, peer.lost?)));
        let broken = self.contexts.iter();
        let broken = broken.filter(|(_, of_context)| of_context.stay == Membership::Joined);
        let broken = broken.filter_map(|(context, of_context)| Some((*context, of_context.broken?)));
        let lost = lost.map(|(rank, loss)| MemberFrame::Lost { rank, loss });
        let broken = broken.map(|(context, (rank, number))| MemberFrame::Broken { context, rank, number });
        let causes: Vec<MemberFrame> = lost.chain(broken).collect();
        if self.outcast.is_none() {
            causes.into_iter().for_each(|cause| self.tell_all(cause));
        }
    }

    /// Gives up, and tells the others so that they do not only see a closed connection.
    pub(crate) fn give_up(&mut self) {
        self.tell_causes();
        let frame = MemberFrame::Lost {
            rank: self.me,
            loss: Loss::GaveUp,
        };
        self.tell_all(frame);
        self.has_finished = true;
    }

    /// Finishes: this member has nothing more to send, and accepts nothing more.
    pub(crate) fn finish(&mut self) {
        if self.has_finished {
            return;
        }
        self.tell_causes();
        self.has_finished = true;
        self.tell_all(MemberFrame::Goodbye);
        let mut withdrawn = Vec::new();
        for context in self.contexts.values_mut() {
            for matching in &mut context.matching {
                withdrawn.extend(matching.withdraw(|_, _| true));
            }
        }
        let withdrawn = withdrawn.into_iter().map(|(_, posted)| posted.owner);
        for owner in withdrawn.chain(self.take_own()) {
            self.complete(owner, Err(Error::Finished));
        }
    }

    /// Whether every other member is gone, or has read everything that this member sent before it finished.
    pub(crate) fn has_parted(&self) -> bool {
        self.unparted_member().is_none()
    }

    /// Returns a member that is not gone, and has not read everything that this member sent before it finished.
    pub(crate) fn unparted_member(&self) -> Option<Rank> {
        let others = self.peers.iter().enumerate();
        let mut others = others.filter(|(rank, _)| *rank != self.me as usize);
        let is_waited_for = |peer: &PeerState| peer.lost.is_none() && !peer.has_read_all;
        let found = others.find(|(_, peer)| is_waited_for(peer));
        found.map(|(rank, _)| rank as Rank)
    }
}
