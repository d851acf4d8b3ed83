//! Direct receives: one small message.

use super::{DirectState, DirectTransfer};
use crate::engine::{Engine, EngineState};
use crate::error::Activity;
use crate::link::{CopyBody, Sink};
use crate::matching::Pattern;
use crate::memory::Piece;
use crate::protocol::{KeptNow, MessageStatus, Protocol};
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{MemberFrame, MessageClass};
use std::sync::MutexGuard;

/// Number of polls that find nothing after which receives begin without a poll: programs often begin many receives
/// before any message arrives.
const VAIN_POLLS_MAX: u32 = 16;

/// Receive that is not posted at the protocol.
struct DirectReceive<'a> {
    context: u64,
    pattern: Pattern,
    into: &'a mut [u8],
    got: Option<MessageStatus>,
}

/// Sink for the protocol, and for a direct receive.
struct ReceiveSink<'a, 'b> {
    protocol: &'a mut Protocol,
    receive: &'a mut DirectReceive<'b>,
    /// Whether the message has arrived only in part. Then it is received in the usual way.
    is_held: bool,
}

impl ReceiveSink<'_, '_> {
    /// Whether a frame may begin the message.
    fn is_candidate(&self, frame: &MemberFrame) -> bool {
        let receive = &self.receive;
        matches!(frame, MemberFrame::Eager { to, .. }
            if receive.got.is_none() && to.class == MessageClass::Message && to.context == receive.context)
    }
}

impl Sink for ReceiveSink<'_, '_> {
    fn frame(&mut self, from: Rank, frame: MemberFrame) -> Result<Option<Piece>, Loss> {
        self.protocol.frame(from, frame)
    }

    fn hold(&mut self, from: Rank, frame: &MemberFrame) -> bool {
        if let MemberFrame::Eager { to, .. } = frame
            && self.is_candidate(frame)
            && self.protocol.is_direct(from, to, self.receive.pattern)
        {
            self.is_held = true;
            return true;
        }
        false
    }

    fn body(&mut self, from: Rank, bytes: u64) {
        self.protocol.body(from, bytes);
    }

    fn whole(&mut self, from: Rank, frame: MemberFrame, copy: CopyBody<'_>) -> Result<(), Loss> {
        if let MemberFrame::Eager { to, length } = frame
            && self.is_candidate(&frame)
        {
            let receive = &mut *self.receive;
            let room = receive.into.len() as u64;
            if self.protocol.take_direct(from, &to, length, receive.pattern, room)? {
                copy(&mut receive.into[..length as usize])?;
                receive.got = Some(MessageStatus {
                    source: from,
                    tag: to.tag,
                    bytes: length,
                });
                return Ok(());
            }
        }
        self.protocol.whole(from, frame, copy)
    }

    fn is_satisfied(&self) -> bool {
        self.receive.got.is_some()
    }
}

impl DirectTransfer for DirectReceive<'_> {
    fn check(&mut self, state: &mut EngineState) -> DirectState {
        let protocol = &mut state.protocol;
        // Not possible while a thread sleeps on the link, or local work is pending.
        if state.is_asleep || protocol.has_job() {
            return DirectState::LeftToProtocol;
        }
        let room = 0..=self.into.len() as u64;
        match protocol.take_kept_now(MessageClass::Message, self.context, self.pattern, room, |bytes| {
            self.into[..bytes.len()].copy_from_slice(bytes);
        }) {
            KeptNow::Taken(status) => {
                self.got = Some(status);
                return DirectState::Complete;
            }
            KeptNow::Unsuitable => return DirectState::LeftToProtocol,
            KeptNow::Absent => {}
        }
        let during = Activity::Receive {
            from: self.pattern.source,
            tag: self.pattern.tag,
        };
        match protocol.receive_error(self.context, self.pattern, during) {
            None => DirectState::Waiting,
            Some(_) => DirectState::LeftToProtocol,
        }
    }

    fn poll(&mut self, state: &mut EngineState) -> (bool, DirectState) {
        let EngineState { protocol, link, .. } = state;
        let mut sink = ReceiveSink {
            protocol,
            receive: self,
            is_held: false,
        };
        let any = link.poll(&mut sink);
        let state = match sink.is_held {
            _ if sink.receive.got.is_some() => DirectState::Complete,
            true => DirectState::LeftToProtocol,
            false => DirectState::Waiting,
        };
        (any, state)
    }
}

impl Engine {
    /// Receives a small message that has arrived, without waiting. Returns `None`, and receives nothing, if no message
    /// has arrived or it is not small.
    pub(crate) fn receive_arrived(&self, context: u64, pattern: Pattern, into: &mut [u8]) -> Option<MessageStatus> {
        self.receive_directly(context, pattern, into, |mut state, receive| {
            if receive.check(&mut state) == DirectState::Waiting && state.vain_polls < VAIN_POLLS_MAX {
                state.vain_polls += 1;
                if receive.poll(&mut state).0 {
                    state.vain_polls = 0;
                    state.flush();
                    self.wake_waiting(&mut state);
                }
            }
            state
        })
    }

    /// Receives a small message that arrives while this thread would poll anyway. Returns `None`, and receives nothing,
    /// if no message arrives or it is not small: the caller then receives in the usual way.
    pub(crate) fn receive_now(&self, context: u64, pattern: Pattern, into: &mut [u8]) -> Option<MessageStatus> {
        self.receive_directly(context, pattern, into, |state, receive| {
            self.poll_directly(state, receive).0
        })
    }

    fn receive_directly<'a>(
        &'a self,
        context: u64,
        pattern: Pattern,
        into: &mut [u8],
        take: impl FnOnce(MutexGuard<'a, EngineState>, &mut DirectReceive<'_>) -> MutexGuard<'a, EngineState>,
    ) -> Option<MessageStatus> {
        if self.patience.is_none() {
            return None;
        }
        let mut receive = DirectReceive {
            context,
            pattern,
            into,
            got: None,
        };
        let state = take(self.lock(), &mut receive);
        self.end_direct(state);
        receive.got
    }
}
