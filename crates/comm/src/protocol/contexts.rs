//! Contexts: communicators that begin and end on one set of connections.
//!
//! Each member leaves a communicator on its own: it tells the others ([`MemberFrame::Leave`]), after everything that it
//! has sent there, and accepts nothing more. Operations of other members that still send to it or wait for it end with
//! an error. When all members have left, no frame of the communicator can be on its way, and the communicator is
//! forgotten.

use super::{Action, ContextState, KeptMessage, Owner, Protocol};
use crate::error::{Activity, Error};
use crate::matching::{Matching, Pattern};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageAddress, MessageClass};
use std::sync::Arc;

/// Largest number of communicators on one set of connections. A communicator counts from its opening by the first
/// member until all members have left it.
pub(crate) const CONTEXTS_MAX: usize = 4096;

/// State of this member in a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    Joined,
    /// The member accepts no messages; operations that it has begun continue.
    Leaving,
    /// The other members have been told.
    Left,
}

/// Whether a collective comes before another collective of its communicator. Numbers wrap around.
pub(super) fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() < 0
}

impl ContextState {
    pub(super) fn new(posted_max: usize) -> Self {
        Self {
            members: None,
            matching: [Matching::new(posted_max), Matching::new(posted_max)],
            number: 0,
            direct: 0,
            broken: None,
            stay: Membership::Joined,
            left: Vec::new(),
        }
    }

    /// Notes an error in a collective; the first collective with an error ends all later ones.
    pub(super) fn break_from(&mut self, rank: Rank, number: u32) {
        if self.broken.is_none_or(|(_, first)| is_before(number, first)) {
            self.broken = Some((rank, number));
        }
    }
}

impl Protocol {
    /// Reserves a place for a communicator that this member may open; returns `false` if no place is free.
    pub(crate) fn reserve(&mut self) -> bool {
        let has_room = self.contexts.len() + self.reserved < CONTEXTS_MAX;
        self.reserved += usize::from(has_room);
        has_room
    }

    /// Whether the table is full, so that no frame may begin another communicator. (Each communicator that a member may
    /// have opened has a reserved place.)
    pub(super) fn is_full(&self) -> bool {
        self.contexts.len() >= CONTEXTS_MAX
    }

    /// Gives a reserved place back.
    pub(crate) fn release(&mut self) {
        self.reserved -= 1;
    }

    /// Begins a communicator of these members, which include this member. Other members may have sent something there
    /// already. Returns `false` if this member has opened the communicator before.
    pub(crate) fn open(&mut self, context: u64, members: Arc<[Rank]>) -> bool {
        let of_context = self.context(context);
        let is_new = of_context.members.is_none();
        if is_new {
            of_context.members = Some(members);
        }
        is_new
    }

    /// Ends this member's part in a communicator. If `gives_up`, this member leaves in the middle of an operation, and
    /// no other member has to wait for it.
    pub(crate) fn leave(&mut self, context: u64, gives_up: bool) {
        if self.has_finished {
            return;
        }
        let me = self.me;
        if gives_up {
            let number = self.first_running(context);
            let word = MemberFrame::Broken {
                context,
                rank: me,
                number,
            };
            self.tell_members(context, word);
            self.end_broken(context, me, number);
        }
        self.context(context).stay = Membership::Leaving;
        let withdrawn = self.matching(MessageClass::Message, context).withdraw(|_, _| true);
        for (_, posted) in withdrawn {
            self.complete(posted.owner, Err(Error::Finished));
        }
        self.drop_kept(context, MessageClass::Message);
        self.abandon_messages(context);
        self.leaving.push(context);
        self.is_leaving_due = true;
    }

    /// Ends the collectives of a communicator from `number` on, because the member `rank` had an error in the
    /// collective of this number. That member has done its part of earlier collectives.
    pub(super) fn end_broken(&mut self, context: u64, rank: Rank, number: u32) {
        self.context(context).break_from(rank, number);
        for collective in self
            .collectives
            .keys(|running| running.context() == context && !is_before(running.number(), number))
        {
            let during = self.during_collective(collective);
            self.fail_collective(collective, Error::CollectiveFailed { during, rank });
        }
    }

    /// Number of the first collective of a communicator that has not ended here.
    pub(super) fn first_running(&mut self, context: u64) -> u32 {
        let mut first = self.context(context).number;
        for key in self.collectives.keys(|running| running.context() == context) {
            if let Some(running) = self.collectives.get(key)
                && is_before(running.number(), first)
            {
                first = running.number();
            }
        }
        first
    }

    /// Tells the other members which communicators this member has left, once it has nothing more to send there.
    /// Forgets communicators that all members have left.
    pub(super) fn go_on_leaving(&mut self) {
        if !std::mem::take(&mut self.is_leaving_due) {
            return;
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|context| {
            self.tell_leave(*context);
            !self.forget_if_left(*context)
        });
        self.leaving.append(&mut leaving);
    }

    fn tell_leave(&mut self, context: u64) {
        let is_meant = |address: &MessageAddress| address.context == context;
        let mut waiting = self.peers.iter().flat_map(|peer| &peer.waiting).flatten();
        let is_busy = waiting.any(|waiting| is_meant(&waiting.address))
            || !self.collectives.keys(|running| running.context() == context).is_empty();
        let of_context = self.context(context);
        if is_busy || of_context.direct > 0 || of_context.stay != Membership::Leaving {
            return;
        }
        of_context.stay = Membership::Left;
        self.drop_kept(context, MessageClass::Collective);
        self.tell_members(context, MemberFrame::Leave { context });
    }

    /// Forgets a communicator if all members have left it; returns whether it is forgotten.
    fn forget_if_left(&mut self, context: u64) -> bool {
        let Some(of_context) = self.contexts.get(&context) else {
            return true;
        };
        let others = self.members(context).iter().filter(|rank| **rank != self.me);
        let is_over = of_context.stay == Membership::Left
            && others
                .into_iter()
                .all(|rank| of_context.left.contains(rank) || !self.is_here(*rank));
        if is_over && let Some(of_context) = self.contexts.remove(&context) {
            self.leaves -= of_context.left.len();
            self.forget_stored(context);
        }
        is_over
    }

    pub(super) fn tell_members(&mut self, context: u64, frame: MemberFrame) {
        let members = self
            .contexts
            .get(&context)
            .and_then(|of_context| of_context.members.clone());
        for rank in members.iter().flat_map(|members| members.iter()) {
            if *rank != self.me && self.is_here(*rank) {
                self.actions.push_back(Action::Frame { to: *rank, frame });
            }
        }
    }

    /// Whether this member still takes messages to this address, because it has not left the communicator.
    pub(super) fn is_accepting(&self, to: &MessageAddress) -> bool {
        let stay = self.contexts.get(&to.context).map(|of_context| of_context.stay);
        match stay {
            None | Some(Membership::Joined) => true,
            Some(Membership::Leaving) => to.class == MessageClass::Collective,
            Some(Membership::Left) => false,
        }
    }

    /// Notes that a member has left a communicator: it sends nothing more there, and accepts nothing.
    pub(super) fn note_leave(&mut self, from: Rank, context: u64) -> Result<(), Loss> {
        let is_new = !self.contexts.contains_key(&context);
        if is_new && self.is_full() {
            return Err(Loss::Protocol);
        }
        let left = &mut self.context(context).left;
        if left.contains(&from) {
            return Err(Loss::Protocol);
        }
        left.push(from);
        self.leaves += 1;
        self.is_leaving_due = true;
        self.end_in(context, from);
        Ok(())
    }

    /// Ends operations that cannot end otherwise, because a member has left a communicator. What the member sent before
    /// can still be received.
    pub(super) fn end_in(&mut self, context: u64, from: Rank) {
        let mut ended: Vec<(Owner, Option<Activity>)> = Vec::new();
        for waiting in &mut self.peers[from as usize].waiting {
            let is_meant = |owner: &super::QueuedMessage| owner.address.context == context;
            ended.extend(
                waiting
                    .iter()
                    .filter(|waiting| is_meant(waiting))
                    .map(|waiting| (waiting.owner, None)),
            );
            waiting.retain(|waiting| !is_meant(waiting));
        }
        // Messages that were granted are still sent, and messages that are being written to a store are still written.
        let is_stored = self.is_stored();
        let announced = self
            .sends
            .keys(|sending| !is_stored && sending.to == from && sending.context == context && sending.is_announced());
        for send in announced {
            let sending = self.sends.remove(send);
            ended.extend(sending.map(|sending| (sending.owner, Some(sending.during))));
        }
        let any = Activity::Receive { from: None, tag: None };
        let is_of_any = self.receive_error(context, Pattern::ANY, any).is_some();
        let may_come = self.can_still_come(context, from);
        let matching = &mut self.context(context).matching;
        let is_over = |pattern: Pattern| pattern.source.map_or(is_of_any, |source| source == from && !may_come);
        let posted = matching
            .iter_mut()
            .flat_map(|matching| matching.withdraw(|pattern, _| is_over(*pattern)));
        ended.extend(posted.map(|(_, posted)| (posted.owner, Some(posted.during))));
        for (owner, during) in ended {
            let during = during.unwrap_or_else(|| self.during_of(owner));
            self.complete(owner, Err(Error::MemberLeft { during, rank: from }));
        }
    }

    /// Forgets messages that no receive will ask for, and gives their credit back to the senders.
    fn drop_kept(&mut self, context: u64, class: MessageClass) {
        for (source, kept) in self.matching(class, context).drain() {
            match kept {
                KeptMessage::Announced { .. } => self.repay_credit(source, class, 0),
                KeptMessage::Landing(key) => self.drop_landing(key),
                KeptMessage::Own { owner, .. } => self.complete(owner, Err(Error::Finished)),
                KeptMessage::Stored { .. } => self.no_longer_kept(&kept),
            }
        }
    }
}
