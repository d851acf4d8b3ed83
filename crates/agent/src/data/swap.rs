//! Swapping: the state that functions have left in an idle worker is saved to a file system that several nodes see. The
//! state is restored in the worker of the next lease that asks for it, here or on another node. The idle worker ends,
//! so its memory is free at once.
//!
//! ```text
//!  lease with a state ── begins ──► hold (a lock) ─► restore: file ══ pipe ══► worker's restore function ─► serves
//!                     ── ends, also by idling ──► save: worker's save function ══ pipe ══► part ─► killed ─► renamed
//! ```
//!
//! | file | job |
//! |---|---|
//! | `files` | files: which lease has a state, and how a state is written completely or not at all |
//! | `listing` | states that exist, and states that are too old |
//! | `transfer` | bytes to and from a worker |
//! | `keeper` | the state of one worker, from its lease's beginning to its end |
//!
//! `node::eviction` chooses the workers to swap out.

mod files;
mod keeper;
pub(crate) mod listing;
pub(crate) mod transfer;

pub(crate) use files::StateRequest;
pub(crate) use keeper::WorkerStateKeeper;

use crate::AgentError;
use crate::data::code::CheckedLibrary;
use hotlease_lease::LeaseRequest;
use hotlease_sandbox::Kind;
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{AcquireRequest, PythonRuntime};
use hotlease_wire::ids::LeaseId;
use hotlease_wire::limits::FUNCTION_NAME_BYTES_MAX;
use hotlease_wire::python::IMPORTS;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest limit for saving a state: the end of its lease waits for it.
const LIMIT_MAX: Duration = Duration::from_secs(60);

/// Storage for saved states of workers, and its limits.
#[derive(Debug, Clone)]
pub struct SwapOptions {
    /// A directory on a file system that is shared by the nodes between which leases may move. Each tenant gets a
    /// folder in it that only the agent's user may enter. No default.
    pub directory: PathBuf,
    /// Time that a worker with a state may be idle before it is swapped out (default: as long as its lease lives). A
    /// worker is swapped out sooner if memory is short, or if the node is given back.
    pub after: Option<Duration>,
    /// Time in which a worker must save its state (default: 2 s; 100 ms to 60 s).
    pub limit: Duration,
    /// Largest number of bytes of one state (default: 1 GiB).
    pub state_bytes: u64,
    /// Largest number of bytes of all states of one tenant (default: 16 GiB).
    pub tenant_bytes: u64,
    /// Time for which a state is kept while no lease asks for it (default: 7 days).
    pub keep: Duration,
}

impl SwapOptions {
    /// Options with their defaults.
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

/// Refuses a directory in which other users may rename files of the agent: they could give a tenant another tenant's
/// state.
fn check_directory(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let there = fs::metadata(directory).map_err(|error| format!("the swap directory {shown}: {error}"))?;
    if !there.is_dir() {
        return Err(format!("the swap directory {shown} is no directory"));
    }
    if there.mode() & 0o022 != 0 && there.mode() & 0o1000 == 0 {
        return Err(format!(
            "the swap directory {shown} lets other users rename files that are not theirs: take that right from them, or set its sticky bit"
        ));
    }
    Ok(())
}

/// The state that a request asks for, if any. `message` is the message that `request` was made from. It names the
/// program that understands the state.
pub(crate) fn state_request(
    options: Option<&SwapOptions>,
    (message, request): (&AcquireRequest, &LeaseRequest),
    sandbox: Kind,
    (lease, node): (LeaseId, &str),
) -> Result<Option<StateRequest>, Rejection> {
    let bad = |what: &str| Err(Rejection::BadRequest { what: what.into() });
    let Some(name) = request.state.clone() else {
        return Ok(None);
    };
    if sandbox == Kind::MicroVm {
        return bad("states are not saved from virtual machines: ask for another kind of sandbox, or for no state");
    }
    let program = match &message.python {
        Some(python) => program_of(python, sandbox != Kind::Process),
        None if (1..=FUNCTION_NAME_BYTES_MAX).contains(&message.state_format.len()) => {
            program_of_library(&message.state_format)
        }
        None => return bad(UNDECLARED),
    };
    if options.is_none() {
        return Err(Rejection::OutOfReach {
            what: format!("the state `{name}`"),
            node: node.into(),
            why: "its agent has no swap directory for states of workers (--swap-directory)".into(),
        });
    }
    Ok(Some(StateRequest {
        tenant: request.tenant.clone(),
        name,
        program,
        lease,
    }))
}

/// Additional time that the end of a lease with a state may take.
pub(crate) fn ending_limit(options: Option<&SwapOptions>) -> Duration {
    options.map_or(Duration::ZERO, |options| options.limit + keeper::FILES_LIMIT)
}

/// Refusal of a library that does not declare how its state is saved.
const UNDECLARED: &str = "its library does not say how its state is saved: HOTLEASE_STATE_SAVE and HOTLEASE_STATE_RESTORE (hotlease/function.h). Nothing of it ran";

/// Refuses a library that does not fit the state of its lease of native workers, before any of its code runs.
pub(crate) fn admit_library(wanted: &StateRequest, code: &CheckedLibrary) -> Result<(), Rejection> {
    let rejected = |why: &str| Err(Rejection::CodeRejected { why: why.into() });
    match &code.state {
        None => rejected(UNDECLARED),
        Some(format) if program_of_library(format) != wanted.program => rejected(
            "its state has another format than its lease was taken for (HOTLEASE_STATE_SAVE). Nothing of it ran",
        ),
        Some(_) => Ok(()),
    }
}

/// Hash of the code and packages that understand a state. Excludes the client's current folder and the rest of its
/// environment, which differ between terminals. `confined`: whether the code is in a sandbox. The hashes differ, so
/// that a worker outside a sandbox restores no state from inside a sandbox: most programs unpickle the state, which
/// would run the sandbox's code with more rights.
fn program_of(python: &PythonRuntime, confined: bool) -> [u8; 32] {
    let versions = [&python.python, &python.hotlease, &python.cloudpickle].map(String::as_str);
    let imports = python.environment.get(IMPORTS).map_or("", String::as_str);
    let words = [&python.image, &python.interpreter].map(String::as_str).into_iter();
    hash(
        words
            .chain(versions)
            .chain([imports])
            .chain(python.path.iter().map(String::as_str))
            .chain(confined.then_some("in a sandbox")),
    )
}

/// Hash of a library's state format: any library that declares this format, on this kind of processor, understands the
/// state.
fn program_of_library(format: &str) -> [u8; 32] {
    // The first word is no image's hash, so no Python program has the same hash.
    hash(["function library", std::env::consts::ARCH, format].into_iter())
}

fn hash<'a>(words: impl Iterator<Item = &'a str>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for word in words {
        hasher.update(&(word.len() as u64).to_le_bytes());
        hasher.update(word.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
