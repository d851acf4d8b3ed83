//! Remote results: results that stay with their workers on other hosts because only other tasks need them. The workers
//! of those tasks fetch the results directly from the workers that made them; no byte passes through the client.
//!
//! ```text
//!   LEFT reply from worker       needed at the client           the worker has it        rerun, if allowed
//!  ─────────────────► Away ────────────────────────────► asked ──────────────────► here ◄──────────────────┐
//!                       │                                  └── worker is gone, or lost the result ─────────┤
//!                       └── no user left: the worker is told to release it                 lost ◄──────────┘ else
//! ```
//!
//! A worker that keeps a result answers with a location reply (`LEFT`), which says where the result is. This reply is
//! sent with a task that needs the result, and the worker of the task uses it to fetch the result. If the fetch fails
//! (no route between the hosts, or the worker with the result is gone), the task does not run. Then the result is
//! brought to the client, and sent with the task like any other result. All of it happens under the core's `state`
//! lock.

use super::outcome::TaskOutcome;
use super::request::TaskPayload;
use super::target::Target;
use crate::client::tasks::Run;
use crate::locks::locked;
use hotlease_wire::task::left_results::LEFT_REPLY_BYTES;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;

/// A result that stays with its worker.
pub struct RemoteResult {
    /// Location reply, which is sent with dependent tasks in place of the result.
    pub told: [u8; LEFT_REPLY_BYTES],
    pub place: RemotePlace,
    pub bytes: usize,
    pub target: Arc<Target>,
    /// Call that can make the result again, if that is allowed.
    pub again: Option<Remake>,
    /// Set once the result was brought to the client: the result, or the reason why there is none.
    pub here: OnceLock<Arc<TaskOutcome>>,
    pub wanted: Mutex<FetchState>,
    pub releases: Arc<Releases>,
}

/// Location of a remote result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemotePlace {
    /// Index of the slot.
    pub lane: usize,
    /// Number of the worker, counted over all workers that the slot has had.
    pub worker: u64,
    pub ticket: u64,
}

/// State of bringing a result to the client.
#[derive(Default)]
pub struct FetchState {
    /// Whether dependent tasks cannot fetch the result from its worker, so that it must be brought to the client.
    pub is_wanted: bool,
    /// Whether the request to the worker is under way.
    pub is_asked: bool,
    /// Runs that continue once the result is at the client.
    pub runs: Vec<Run>,
}

/// Call that made a result, kept to make the result again.
pub struct Remake {
    pub payload: TaskPayload,
    pub inputs: Vec<Arc<TaskOutcome>>,
    pub depth: usize,
}

impl RemoteResult {
    /// The result, or the reason why it could not be brought to the client; `None` before either is known.
    pub fn local_outcome(&self) -> Option<&Arc<TaskOutcome>> {
        self.here.get()
    }

    /// Bytes that are sent with dependent tasks: the result if it is at the client, else the location reply.
    pub fn sent_bytes(&self) -> Option<&[u8]> {
        self.local_outcome().map_or(Some(&self.told), |here| here.bytes())
    }

    /// Size of the result in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Largest number of results that have to be made again before this result.
    pub fn depth(&self) -> usize {
        self.again.as_ref().map_or(0, |again| again.depth)
    }

    /// Marks that dependent tasks could not fetch the result from its worker.
    pub fn require_here(&self) {
        self.lock_fetch().is_wanted = true;
    }

    /// State of bringing the result to the client.
    pub fn lock_fetch(&self) -> MutexGuard<'_, FetchState> {
        locked(&self.wanted)
    }
}

impl Drop for RemoteResult {
    fn drop(&mut self) {
        if self.local_outcome().is_none() {
            self.releases.push(self.place);
        }
    }
}

/// Remote results without a user, collected until their workers are told to release them.
#[derive(Default)]
pub struct Releases {
    pub any: AtomicBool,
    list: Mutex<Vec<RemotePlace>>,
    keeper: OnceLock<Thread>,
}

impl Releases {
    /// Sets the keeper thread, which is woken when a result is to be released.
    pub fn wake(&self, keeper: Thread) {
        // Set once; a second call changes nothing.
        let _ = self.keeper.set(keeper);
    }

    fn push(&self, released: RemotePlace) {
        self.list().push(released);
        self.any.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// The results to release.
    pub fn list(&self) -> MutexGuard<'_, Vec<RemotePlace>> {
        locked(&self.list)
    }
}
