//! Direct receives: a small message that comes soon goes straight into the caller's memory, which is not lent for that.
//! This halves the time that a message of a few bytes takes within a node.

use super::patience::{IdleAction, IdlePolls};
use super::{Engine, EngineState};
use crate::error::Activity;
use crate::link::Sink;
use crate::matching::Pattern;
use crate::memory::Piece;
use crate::protocol::{MessageStatus, Protocol};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageClass};

/// Sink for the protocol, and for a receive that the protocol does not know of.
struct DirectReceive<'a> {
    protocol: &'a mut Protocol,
    context: u64,
    pattern: Pattern,
    into: &'a mut [u8],
    got: Option<MessageStatus>,
    /// Whether the message has come and is too long for this way. Then it is received in the usual way.
    is_held: bool,
}

impl Sink for DirectReceive<'_> {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        self.protocol.frame(from, frame)
    }

    fn hold(&mut self, from: Rank, frame: &MemberFrame) -> bool {
        if let MemberFrame::Eager { to, .. } = frame
            && self.got.is_none()
            && to.class == MessageClass::Message
            && to.context == self.context
            && self.protocol.is_direct(from, to, self.pattern)
        {
            self.is_held = true;
            return true;
        }
        false
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        self.protocol.body(from, bytes);
    }

    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: &mut dyn FnMut(&mut [u8])) -> Result<(), Loss> {
        if let MemberFrame::Eager { to, length } = frame
            && self.got.is_none()
            && to.class == MessageClass::Message
            && to.context == self.context
        {
            let room = self.into.len() as u64;
            if self.protocol.take_direct(from, &to, length, self.pattern, room)? {
                copy(&mut self.into[..length as usize]);
                self.got = Some(MessageStatus {
                    source: from,
                    tag: to.tag,
                    bytes: length,
                });
                return Ok(());
            }
        }
        self.protocol.whole(from, frame, copy)
    }
}

impl EngineState {
    /// Whether this receive can be direct: nothing comes first (a thread that sleeps on the link, or local work), no
    /// kept message matches it, and a message that matches can still come.
    fn is_free_for(&self, context: u64, pattern: Pattern) -> bool {
        let during = Activity::Receive {
            from: pattern.source,
            tag: pattern.tag,
        };
        let is_kept = || self.protocol.probe(MessageClass::Message, context, pattern).is_some();
        let is_hopeless = || self.protocol.receive_error(context, pattern, during).is_some();
        !self.is_asleep && !self.protocol.has_job() && !is_kept() && !is_hopeless()
    }
}

impl Engine {
    /// Receives a message that comes while this thread would poll anyway. `None` if there was none, or it is not small:
    /// it is then received in the usual way, and nothing was changed.
    pub(crate) fn receive_now(&self, context: u64, pattern: Pattern, into: &mut [u8]) -> Option<MessageStatus> {
        if self.patience.is_none() {
            return None;
        }
        let mut state = self.lock();
        let mut idle = IdlePolls::default();
        let mut has_changed = true;
        let got = loop {
            if has_changed && !state.is_free_for(context, pattern) {
                break None;
            }
            let EngineState { protocol, link, .. } = &mut *state;
            let mut direct = DirectReceive {
                protocol,
                context,
                pattern,
                into: &mut *into,
                got: None,
                is_held: false,
            };
            has_changed = link.poll(&mut direct);
            let (got, is_held) = (direct.got, direct.is_held);
            if has_changed {
                state.flush();
                self.wake_waiting(&mut state);
            }
            if got.is_some() || is_held {
                idle.end(&mut state.habit);
                break got;
            }
            match idle.next(&self.patience, &mut state.habit) {
                IdleAction::Look if self.is_wanted() => state = self.let_in(state),
                IdleAction::Look => continue,
                IdleAction::GiveWay => state = self.give_way(state),
                IdleAction::Sleep => break None,
            }
            has_changed = true;
        };
        if state.waiting > 0 && !state.is_asleep {
            self.turn.notify_one();
        }
        got
    }
}
