//! Swapping: what functions have left in an idle worker is written to a file system that several nodes see, and restored in the worker
//! of the next lease that asks for it, here or elsewhere. The worker ends, so its memory is free at once.
//!
//! ```text
//!  lease with a state ── begins ──► hold (a lock) ─► restore: file ══ pipe ══► worker's restore function ─► serves
//!                     ── ends, or is ended because it is idle ──► save: worker's save function ══ pipe ══► part ─► killed ─► renamed
//! ```
//!
//! | file | job |
//! |---|---|
//! | `folder` | files: who has a state, who takes it, how a whole one comes to be |
//! | `listing` | which there are, and which are too old |
//! | `passing` | bytes to and from a worker |
//! | `keeping` | the state of one worker, from its lease's beginning to its end |
//! | `idle` | whose worker goes when |

mod folder;
mod idle;
mod keeping;
pub(crate) mod listing;
mod passing;

pub(crate) use folder::Wanted;
pub(crate) use idle::{make_room, swap_out_idle_ones};
pub(crate) use keeping::Keeping;

use crate::AgentError;
use hotlease_wire::Refusal;
use hotlease_wire::grpc::{AcquireRequest, PythonRuntime};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::python::IMPORTS;
use hotlease_wire::state::is_state_name;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a worker may take to save its state at most: the end of its lease waits for it.
const LIMIT_MAX: Duration = Duration::from_secs(60);

/// Where states of workers are saved, and when.
#[derive(Debug, Clone)]
pub struct SwapOptions {
    /// A directory on a file system that the nodes share which leases may move between. Each tenant gets a folder in it that the
    /// agent's user alone may enter. No default.
    pub directory: PathBuf,
    /// How long a worker with a state may be idle before it is swapped out (default: as long as its lease lives; sooner where
    /// memory is short, or the node is given back).
    pub after: Option<Duration>,
    /// How long a worker may take to save its state (default: 2 s; 100 ms to 60 s).
    pub limit: Duration,
    /// Bytes of one state (default: 1 GiB).
    pub state_bytes: u64,
    /// Bytes of all states of one tenant (default: 16 GiB).
    pub tenant_bytes: u64,
    /// How long a state is kept that nobody asks for (default: 7 days).
    pub keep: Duration,
}

impl SwapOptions {
    /// The defaults.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            after: None,
            limit: Duration::from_secs(2),
            state_bytes: 1 << 30,
            tenant_bytes: 16 << 30,
            keep: Duration::from_secs(7 * 24 * 3600),
        }
    }

    pub(crate) fn check(&self) -> Result<(), AgentError> {
        let bad = |what: String| Err(AgentError::Config { what });
        if self.limit < Duration::from_millis(100) || self.limit > LIMIT_MAX {
            return bad(format!(
                "a limit of {:?} for saving a state is not between 100 ms and 60 s",
                self.limit
            ));
        }
        check_directory(&self.directory).or_else(bad)
    }
}

/// A directory in which others may rename what is not theirs would let them give a tenant another one's state.
fn check_directory(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let there = fs::metadata(directory).map_err(|error| format!("the swap directory {shown}: {error}"))?;
    if !there.is_dir() {
        return Err(format!("the swap directory {shown} is no directory"));
    }
    if there.mode() & 0o022 != 0 && there.mode() & 0o1000 == 0 {
        return Err(format!(
            "the swap directory {shown} is one in which others may rename what is not theirs: take that right from them, or set its sticky bit"
        ));
    }
    Ok(())
}

/// Which state a request asks for, if any.
pub(crate) fn wanted(
    options: Option<&SwapOptions>,
    request: &AcquireRequest,
    (lease, node): (LeaseId, &str),
) -> Result<Option<Wanted>, Refusal> {
    let bad = |what: &str| Err(Refusal::BadRequest { what: what.into() });
    if request.state.is_empty() {
        return Ok(None);
    }
    if !is_state_name(&request.state) {
        return bad(
            "the name of its state has other characters than letters, digits, '.', '_' and '-', or too many",
        );
    }
    let Some(python) = request.python.as_ref().filter(|_| request.workers == 1) else {
        return bad("a state is that of one Python worker: ask for one");
    };
    if options.is_none() {
        return Err(Refusal::OutOfReach {
            what: format!("the state `{}`", request.state),
            node: node.into(),
            why: "its agent has no swap directory for states of workers (--swap-directory)".into(),
        });
    }
    Ok(Some(Wanted {
        tenant: request.tenant.clone(),
        name: request.state.clone(),
        program: program_of(python),
        lease,
    }))
}

/// How much longer than of others the end of a lease with a state may take.
pub(crate) fn ending_limit(options: Option<&SwapOptions>) -> Duration {
    options.map_or(Duration::ZERO, |options| options.limit + keeping::FILES_LIMIT)
}

/// What a state belongs to: code and packages that understand it. Not the folder where a client stands, nor the rest of its
/// environment, which is another one in each terminal.
fn program_of(python: &PythonRuntime) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |word: &str| {
        hasher.update(&(word.len() as u64).to_le_bytes());
        hasher.update(word.as_bytes());
    };
    add(&python.image);
    add(&python.interpreter);
    add(&python.python);
    add(&python.hotlease);
    add(&python.cloudpickle);
    add(python.environment.get(IMPORTS).map_or("", String::as_str));
    python.path.iter().for_each(|folder| add(folder));
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
