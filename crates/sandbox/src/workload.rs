//! Workload of a sandbox: the program that runs in it, and the program's access beyond it.

use hotlease_nursery::directory::DeclaredDirectory;
use hotlease_nursery::policy::Mount;
use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// File name of the program that workers run.
pub const WORKER_BINARY: &str = "hotlease-worker";

/// Keeps a resource alive while a program can be started, or runs: the resource is dropped with the last clone. All
/// values compare as equal, because they do not describe the program.
#[derive(Clone, Default)]
pub struct KeepAlive(Option<Arc<dyn Any + Send + Sync>>);

impl KeepAlive {
    /// Keeps this resource.
    pub fn new(what: Arc<dyn Any + Send + Sync>) -> Self {
        Self(Some(what))
    }

    /// Whether it keeps no resource.
    pub fn is_nothing(&self) -> bool {
        self.0.is_none()
    }
}

impl PartialEq for KeepAlive {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeepAlive {}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Held" } else { "nothing" })
    }
}

/// A tenant's program that runs as a worker, in place of `hotlease-worker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Path of the program. Links are not resolved, because a Python interpreter finds its packages by the path with
    /// which it is started.
    pub path: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Environment variables beyond those that every worker inherits.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory; `/` is used if this is no folder in the sandbox.
    pub directory: PathBuf,
    /// Mounts beyond those of the site's [`Policy`](crate::Policy). Without effect in kind `process`, which sees
    /// everything.
    pub mounts: Vec<Mount>,
    /// Resource that the program needs while it runs, such as the mount that contains it. Do not drop it before
    /// [`Process::wait_until_gone`](crate::Process::wait_until_gone) has resolved.
    pub held: KeepAlive,
}

/// Access beyond its sandbox that a lease gives its worker, and the lease's environment variables. In kind `process`,
/// where a worker has the access of the agent, only storage and variables have an effect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerReach {
    /// Directories of the host that the worker sees.
    pub directories: Vec<DeclaredDirectory>,
    /// Whether the worker shares the host's network. Refused if the [`Policy`](crate::Policy) does not allow it.
    pub network: bool,
    /// Access to object storage; has an effect in kind `process`, too.
    pub storage: Option<WorkerStorage>,
    /// Environment variables that the lease gives its workers. They replace inherited variables of the same name.
    pub variables: Vec<(OsString, OsString)>,
}

/// Access of a worker to object storage, through a listener that the agent serves. Its debug output shows nothing,
/// because it contains keys.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerStorage {
    /// Environment variables with the address and the keys.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether the listener is at [`STORAGE_PORT`](crate::STORAGE_PORT) of the sandbox's own network; the agent then
    /// gets the listener by [`Process::take_listener`](crate::Process::take_listener). Otherwise the listener is on the
    /// host's network.
    pub inside: bool,
}

impl fmt::Debug for WorkerStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Storage")
    }
}

impl WorkerReach {
    /// Whether the lease gives nothing: no access beyond the sandbox, and no variables.
    pub fn is_nothing(&self) -> bool {
        self.directories.is_empty() && !self.network && self.storage.is_none() && self.variables.is_empty()
    }

    /// Variables of the lease, then variables that describe its access. Of two variables with the same name, the later
    /// one applies.
    pub(crate) fn environment(&self) -> [&[(OsString, OsString)]; 2] {
        let of_access = self.storage.as_ref().map_or(&[][..], |storage| &storage.environment);
        [&self.variables, of_access]
    }
}
