//! Failures of collectives, at this member or at all members.

use crate::arena::Key;
use crate::error::Error;
use crate::protocol::{Action, Owner, Protocol};
use hotlease_wire::comm::frame::MemberFrame;
use std::sync::Arc;

impl Protocol {
    /// Ends a collective with an error: at once, unless pieces of its messages are being sent. The collective then
    /// waits for them, because their memory must stay valid.
    pub(in crate::protocol) fn fail_collective(&mut self, key: Key, error: Error) {
        let Some(running) = self.collectives.get_mut(key) else {
            return;
        };
        if running.error.is_some() {
            return;
        }
        let (context, number) = (running.context, running.number);
        let is_idle = running.outstanding == 0 && !running.is_at_work;
        // Other members do not notice these errors by themselves.
        let is_own = matches!(
            error,
            Error::Mismatch { .. }
                | Error::Schedule { .. }
                | Error::OperatorPanicked { .. }
                | Error::MemberLeft { .. }
                | Error::MemoryReclaimed { .. }
                | Error::TooManyRequests { .. }
        );
        running.error = Some(error);
        let members = Arc::clone(&running.members);
        let owner = Owner::Collective(key);
        let ended = self.withdraw(|posted| posted.owner == owner)
            + self.abandon(owner)
            + self.withdraw_waiting(owner)
            + self.withdraw_announced(owner)
            + self.abandon_gets(|of| of == owner);
        if is_own {
            let me = self.me;
            self.context(context).break_from(me, number);
            for rank in members.iter().filter(|rank| **rank != me) {
                let peer = &self.peers[*rank as usize];
                if peer.lost.is_none() && !peer.has_left {
                    let frame = MemberFrame::Broken {
                        context,
                        rank: me,
                        number,
                    };
                    self.actions.push_back(Action::Frame { to: *rank, frame });
                }
            }
        }
        if let Some(running) = self.collectives.get_mut(key) {
            running.outstanding -= ended;
            if is_idle || (ended > 0 && running.outstanding == 0) {
                self.ready.push_back(key);
            }
        }
    }
}
