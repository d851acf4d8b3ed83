//! Ends through a store: failed collectives, members that finish, and a store that cannot be used any more.

use super::PendingGet;
use crate::error::{Activity, Error};
use crate::link::{FinalCounts, StoreOrder};
use crate::protocol::{Action, Owner, Protocol};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use std::sync::Arc;

impl Protocol {
    /// Forgets the requests for objects whose owner gives up; returns their number.
    pub(in crate::protocol) fn abandon_gets(&mut self, gives_up: impl Fn(Owner) -> bool) -> usize {
        let Some(stored) = &mut self.stored else { return 0 };
        let meant = stored.gets.keys(|getting| match getting {
            PendingGet::Fetch { owner, .. } | PendingGet::Rest { owner, .. } => gives_up(*owner),
            PendingGet::Message { .. } => false,
        });
        for get in &meant {
            stored.gets.remove(*get);
            self.actions.push_back(Action::Store(StoreOrder::Forget { get: *get }));
        }
        meant.len()
    }

    /// Tells the link that this member has finished its part of a collective.
    pub(in crate::protocol) fn done_with(&mut self, context: u64, collective: u32) {
        if self.is_stored() {
            self.actions
                .push_back(Action::Store(StoreOrder::Done { context, collective }));
        }
    }

    /// Notes that a member has finished. What it has written stays in the store for a while.
    pub(crate) fn member_finished(&mut self, from: Rank, parting: FinalCounts) {
        if !self.is_here(from) {
            return;
        }
        let Some(stored) = &mut self.stored else { return };
        stored.partings.insert(from, parting);
        stored.is_changed = true;
        self.peer(from).has_left = true;
        // The member reads nothing any more.
        self.peer(from).has_read_all = true;
        self.is_leaving_due = true;
        self.end_with(from);
        self.end_missed(from);
    }

    /// Notes that a member has left a communicator. `sent`: number of messages that it has sent there to this member;
    /// `done`: number of collectives that it has done there.
    pub(crate) fn member_left(&mut self, from: Rank, context: u64, sent: u64, done: u32) {
        let is_known = !self.is_full() || self.contexts.contains_key(&context);
        let Some(stored) = &mut self.stored else { return };
        // In these two cases the member breaks the protocol. Over a connection it would be dropped; here the report is
        // ignored.
        if !is_known || stored.quits.insert((context, from), (sent, done)).is_some() {
            return;
        }
        stored.is_changed = true;
        if self.note_leave(from, context).is_ok() {
            self.end_missed(from);
        }
    }

    /// Forgets the requests for messages of a communicator from which this member takes no more messages.
    pub(in crate::protocol) fn abandon_messages(&mut self, of: u64) {
        let Some(stored) = &mut self.stored else { return };
        let is_meant = |getting: &PendingGet| matches!(getting, PendingGet::Message { context, .. } if *context == of);
        for get in stored.gets.keys(is_meant) {
            stored.gets.remove(get);
            self.actions.push_back(Action::Store(StoreOrder::Forget { get }));
        }
    }

    /// Forgets a communicator that all members have left.
    pub(in crate::protocol) fn forget_stored(&mut self, context: u64) {
        if let Some(stored) = &mut self.stored {
            stored.sent.retain(|(of, _), _| *of != context);
            stored.streams.retain(|(of, _), _| *of != context);
            stored.quits.retain(|(of, _), _| *of != context);
            self.actions
                .push_back(Action::Store(StoreOrder::CommunicatorEnded { context }));
        }
    }

    /// Ends operations that wait for an object that a member did not write before it left.
    fn end_missed(&mut self, from: Rank) {
        let mut missed = Vec::new();
        if let Some(stored) = &self.stored {
            let of = |getting: &PendingGet| match getting {
                PendingGet::Fetch { from: of, name, .. } => *of == from && self.is_unwritten(from, name),
                _ => false,
            };
            missed = stored.gets.keys(of);
        }
        for get in missed {
            let getting = self.stored.as_mut().and_then(|stored| stored.gets.remove(get));
            if let Some(PendingGet::Fetch { owner, during, .. }) = getting {
                self.actions.push_back(Action::Store(StoreOrder::Forget { get }));
                self.complete(owner, Err(Error::MemberLeft { during, rank: from }));
            }
        }
    }

    /// Returns an error if the store cannot be used any more.
    pub(crate) fn store_error(&self) -> Option<Error> {
        let why = self.severed.as_ref()?.to_string();
        let during = Activity::Finish;
        Some(Error::Store { during, why })
    }

    /// Ends everything, because the store cannot be used any more.
    pub(crate) fn sever(&mut self, why: Arc<str>) {
        if self.severed.is_some() {
            return;
        }
        self.severed = Some(why);
        self.news += 1;
        for rank in 0..self.peers.len() as Rank {
            self.fail(rank, Loss::Declared, false);
        }
        for rank in 0..self.peers.len() as Rank {
            self.end_with(rank);
        }
        let mut owners = self.take_own();
        if let Some(stored) = &self.stored {
            for get in stored.gets.keys(|_| true) {
                if let Some(PendingGet::Rest { owner, .. }) = stored.gets.get(get) {
                    owners.push(*owner);
                }
            }
        }
        self.abandon_gets(|_| true);
        for owner in owners {
            self.complete_gone(owner, self.me, None);
        }
    }
}
