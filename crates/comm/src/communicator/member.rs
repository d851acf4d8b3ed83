//! What all communicators of a member on the same connections share: the last of them closes the connections.

use crate::choice::{LinkKind, Table};
use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::options::{LinkChoice, Options};
use crate::protocol::Protocol;
use crate::route::Route;
use crate::schedule::Rank;
use hotlease_wire::comm::GroupId;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long whoever gives up may take to say so.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Member {
    pub(super) engine: Arc<Engine>,
    /// None when it has finished.
    pub(super) keeper: Mutex<Option<Keeper>>,
    /// With which it was joined.
    pub(super) options: Options,
    /// What members talk over: where that is `auto`, what it chose.
    pub(super) choice: LinkChoice,
    pub(super) id: GroupId,
    /// Members on these connections.
    pub(super) size: Rank,
    /// Between nodes.
    pub(super) link: LinkKind,
    /// On which way each member is reached.
    pub(super) routes: Vec<Route>,
    /// The node of each member.
    pub(super) nodes: Vec<u32>,
    /// Whether a node has more of these members than processors.
    pub(super) is_crowded: bool,
    pub(super) table: Arc<Table>,
    /// Of collectives, whether all members mean the same.
    pub(super) is_checked: bool,
    /// Communicators.
    pub(super) handles: AtomicUsize,
}

impl Member {
    fn keeper(&self) -> Option<Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until all is sent and read.
    pub(super) fn part(&self) -> Result<(), Error> {
        let linger = self.options.linger;
        let deadline = Instant::now() + linger;
        self.engine.begin_to_part();
        let sent = self.engine.until(true, Some(deadline), |state| {
            (!state.protocol.is_sending() && !state.link.is_sending()).then_some(())
        });
        self.engine.change(Protocol::finish);
        let read = self.engine.until(false, Some(deadline), |state| {
            (state.protocol.has_parted() && !state.link.is_sending()).then_some(())
        });
        let waits_for = self.engine.lock().protocol.not_parted();
        self.close(deadline);
        if let Some(error) = self.engine.lock().protocol.severance() {
            return Err(error);
        }
        match (sent, read, waits_for) {
            (Some(()), Some(()), _) | (_, _, None) => Ok(()),
            (_, _, Some(rank)) => Err(Error::NotRead { rank, waited: linger }),
        }
    }

    /// Says so, and waits for nobody.
    pub(super) fn give_up(&self) {
        self.engine.change(Protocol::give_up);
        let deadline = Instant::now() + LAST_WORDS;
        self.engine.until(false, Some(deadline), |state| {
            (!state.link.is_sending()).then_some(())
        });
        self.close(deadline);
    }

    fn close(&self, deadline: Instant) {
        drop(self.keeper());
        let mut state = self.engine.lock();
        for rank in 0..self.size {
            state.link.close(rank);
        }
        state.link.end(deadline);
    }
}
