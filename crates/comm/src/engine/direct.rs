//! Direct transfers: the calling thread copies small messages that arrive soon straight into the caller's memory,
//! without lending this memory to the protocol. Messages that arrive later or are not small are left to the protocol.
//!
//! Direct transfers more than halve the time of a message of a few bytes within a node, or of a collective of such
//! messages.

mod collective;
mod receive;

pub(crate) use collective::SmallCollective;

use super::patience::{IdleAction, IdlePolls};
use super::{Engine, EngineState};
use std::sync::MutexGuard;

/// State of a direct transfer after a check of what has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectState {
    /// Some messages have not arrived.
    Waiting,
    /// All messages have arrived.
    Complete,
    /// The protocol has to do the rest.
    LeftToProtocol,
}

/// Messages that a thread receives directly while it polls.
trait DirectTransfer {
    /// Takes messages that the protocol has kept, and checks whether the rest can still be received directly. Called
    /// first, and again whenever frames or other threads may have changed the protocol.
    fn check(&mut self, state: &mut EngineState) -> DirectState;
    /// Polls the link with a sink that takes arriving messages. Also returns whether anything has arrived.
    fn poll(&mut self, state: &mut EngineState) -> (bool, DirectState);
}

impl Engine {
    /// Polls until a direct transfer is complete or is left to the protocol, at the latest when the thread would sleep.
    fn poll_directly<'a>(
        &'a self,
        mut state: MutexGuard<'a, EngineState>,
        transfer: &mut impl DirectTransfer,
    ) -> (MutexGuard<'a, EngineState>, DirectState) {
        let mut idle = IdlePolls::default();
        let mut has_changed = true;
        loop {
            if has_changed {
                let checked = transfer.check(&mut state);
                // Taking kept messages may have freed credit. It is returned at once, because without credit the
                // senders might not send the rest.
                if state.protocol.has_actions() {
                    state.flush();
                    self.wake_waiting(&mut state);
                    if checked == DirectState::Waiting {
                        continue;
                    }
                }
                if checked != DirectState::Waiting {
                    return (state, checked);
                }
            }
            let (any, polled) = transfer.poll(&mut state);
            if any {
                state.vain_polls = 0;
                state.flush();
                self.wake_waiting(&mut state);
                idle.end(&mut state.processor);
            }
            if polled != DirectState::Waiting {
                return (state, polled);
            }
            has_changed = any;
            if any {
                state = self.let_in(state);
                continue;
            }
            match idle.next(&self.patience, &mut state.processor) {
                IdleAction::Look if !self.is_wanted() => continue,
                IdleAction::Look => state = self.let_in(state),
                IdleAction::GiveWay => state = self.give_way(state),
                IdleAction::Sleep => return (state, DirectState::LeftToProtocol),
            }
            has_changed = true;
        }
    }

    /// Releases the state after a direct transfer; one of the waiting threads, if any, drives the engine from now on.
    fn end_direct(&self, mut state: MutexGuard<'_, EngineState>) {
        // Orders of a receive that was checked without a poll (`receive_arrived`).
        if state.protocol.has_actions() {
            state.flush();
            self.wake_waiting(&mut state);
        }
        if state.waiting > 0 && !state.is_asleep {
            self.turn.notify_one();
        }
    }
}
