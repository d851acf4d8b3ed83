//! The user's object: some members, and what they can say to each other.

mod collectives;
mod join;
mod messages;

use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::protocol::Protocol;
use crate::schedule::Rank;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The context of the communicator that all members of a group begin with.
const WORLD: u64 = 0;
/// How long whoever gives up may take to say so.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A communicator: its members know each other by rank, and send each other messages.
///
/// All calls may be made from any thread; messages of several threads to one member come in the order in which the calls
/// were made. Memory is the caller's in all calls that wait, and is not copied but where a message comes before it is
/// asked for.
///
/// Dropped, it finishes as by [`finish`](Self::finish); in a panic it gives up, which the others learn at once.
pub struct Communicator {
    engine: Arc<Engine>,
    name: String,
    rank: Rank,
    size: Rank,
    /// A number for the node of each rank: those of one share memory.
    nodes: Vec<u32>,
    linger: Duration,
    /// None when it has finished.
    keeper: Option<Keeper>,
}

impl Communicator {
    /// This member's rank, from 0.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many members there are.
    pub fn size(&self) -> Rank {
        self.size
    }

    /// A number for the node of each rank, from 0: members of the same one talk over shared memory.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The name that it was joined by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Finishes: waits until everything is sent, and until all others have read it or are gone, at most as long as `linger` says.
    /// Messages that this member has not received are lost.
    ///
    /// # Errors
    /// [`Error::NotRead`] if somebody has not read everything in time.
    pub fn finish(mut self) -> Result<(), Error> {
        self.part()
    }

    fn part(&mut self) -> Result<(), Error> {
        let Some(keeper) = self.keeper.take() else {
            return Ok(());
        };
        let deadline = Instant::now() + self.linger;
        let sent = self.engine.until(true, Some(deadline), |state| {
            (!state.protocol.is_sending() && !state.link.is_sending()).then_some(())
        });
        self.engine.change(Protocol::finish);
        let read = self.engine.until(false, Some(deadline), |state| {
            (state.protocol.has_parted() && !state.link.is_sending()).then_some(())
        });
        let waits_for = self.engine.lock().protocol.not_parted();
        drop(keeper);
        self.close();
        match (sent, read, waits_for) {
            (Some(()), Some(()), _) | (_, _, None) => Ok(()),
            (_, _, Some(rank)) => Err(Error::NotRead {
                rank,
                waited: self.linger,
            }),
        }
    }

    fn give_up(&mut self) {
        let Some(keeper) = self.keeper.take() else {
            return;
        };
        self.engine.change(Protocol::give_up);
        let deadline = Instant::now() + LAST_WORDS;
        self.engine.until(false, Some(deadline), |state| {
            (!state.link.is_sending()).then_some(())
        });
        drop(keeper);
        self.close();
    }

    fn close(&self) {
        let mut state = self.engine.lock();
        for rank in 0..self.size {
            state.link.close(rank);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_up();
        } else if let Err(error) = self.part() {
            tracing::warn!(name = self.name, %error, "a communicator was dropped");
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Communicator({:?}, rank {} of {})",
            self.name, self.rank, self.size
        )
    }
}
