//! State that all communicators of a member on the same connections share. The last communicator closes the
//! connections.

use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::options::{LinkChoice, Options};
use crate::protocol::Protocol;
use crate::route::Route;
use hotlease_collectives::{LinkKind, Rank, Table};
use hotlease_wire::comm::GroupId;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time that a member takes to tell the other members that it aborts.
const ABORT_TIMEOUT: Duration = Duration::from_millis(100);

/// State that all communicators of a member on the same connections share.
pub(super) struct Member {
    pub(super) engine: Arc<Engine>,
    /// `None` after the member has finished.
    pub(super) keeper: Mutex<Option<Keeper>>,
    /// Options that the member joined with.
    pub(super) options: Options,
    /// Link of the members; if the options say `auto`, the link that was chosen.
    pub(super) choice: LinkChoice,
    pub(super) id: GroupId,
    /// Number of members on these connections.
    pub(super) size: Rank,
    /// Kind of the link between nodes.
    pub(super) link: LinkKind,
    /// Route to each member.
    pub(super) routes: Vec<Route>,
    /// The node of each member.
    pub(super) nodes: Vec<u32>,
    /// Whether a node has more of these members than processors.
    pub(super) is_crowded: bool,
    pub(super) table: Arc<Table>,
    /// Whether checked mode is on: members compare their calls before each collective.
    pub(super) is_checked: bool,
    /// Number of communicators.
    pub(super) handles: AtomicUsize,
}

impl Member {
    fn keeper(&self) -> Option<Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until all data is sent and read, then closes the connections.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let linger = self.options.linger;
        let deadline = Instant::now() + linger;
        self.engine.begin_to_part();
        let sent = self.engine.drive_until(true, Some(deadline), |state| {
            (!state.protocol.is_sending() && !state.link.is_sending()).then_some(())
        });
        self.engine.change(Protocol::finish);
        let read = self.engine.drive_until(false, Some(deadline), |state| {
            (state.protocol.has_parted() && !state.link.is_sending()).then_some(())
        });
        let waits_for = self.engine.lock().protocol.unparted_member();
        self.close(deadline);
        if let Some(error) = self.engine.lock().protocol.store_error() {
            return Err(error);
        }
        match (sent, read, waits_for) {
            (Some(()), Some(()), _) | (_, _, None) => Ok(()),
            (_, _, Some(rank)) => Err(Error::UnreadData { rank, waited: linger }),
        }
    }

    /// Tells the other members that this member aborts, and waits for none of them.
    pub(super) fn give_up(&self) {
        self.engine.change(Protocol::give_up);
        let deadline = Instant::now() + ABORT_TIMEOUT;
        self.engine
            .drive_until(false, Some(deadline), |state| (!state.link.is_sending()).then_some(()));
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
