//! Starting workers.

use crate::memory::OutOfMemory;
use crate::process::Process;
use nix::unistd::{AccessFlags, access};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::sync::watch;

/// The name of this kind of sandbox in lease requests.
pub const KIND: &str = "process";
/// File name of the program that workers run.
pub const WORKER_BINARY: &str = "hotlease-worker";

/// What a worker may inherit. Nothing here is a secret, and libraries of users need it to be found
/// (`LD_LIBRARY_PATH`), to print text (locale) and to write files (`HOME`, `TMPDIR`).
const INHERITED: [&str; 10] = [
    "HOME",
    "HOTLEASE_LIBFABRIC",
    "HOTLEASE_LOG",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "TMPDIR",
    "TZ",
];

/// Why there is no worker. None was started.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no program for workers.
    #[error(
        "the worker program {path} cannot be run: {source}; build it with `make build`, or name it in HOTLEASE_WORKER"
    )]
    Binary {
        /// What was tried.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program that a lease names.
    #[error("the program {path} cannot be run on this node: {source}")]
    Program {
        /// What was named.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system refused.
    #[error("a worker process could not be started: {what}: {source}")]
    Start {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A program of the tenant's that is a worker, in place of `hotlease-worker`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Where it is. Not resolved: a Python interpreter finds its packages by the path that it is started by.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Environment beyond what every worker inherits.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it runs; `/` if that is no folder here.
    pub directory: PathBuf,
}

/// Starts workers of kind `process`. Cloneable; the clones count together.
#[derive(Clone)]
pub struct Launcher {
    binary: PathBuf,
    environment: Arc<Vec<(OsString, OsString)>>,
    living: watch::Sender<usize>,
    out_of_memory: Arc<OutOfMemory>,
}

impl fmt::Debug for Launcher {
    // Without the environment, which is nobody's business in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launcher({})", self.binary.display())
    }
}

impl Launcher {
    /// For this program.
    pub fn new(binary: &Path) -> Result<Self, SandboxError> {
        let unusable = |source| SandboxError::Binary {
            path: binary.to_owned(),
            source,
        };
        // Absolute, because workers start in another directory.
        let path = binary.canonicalize().map_err(unusable)?;
        if !path.is_file() {
            return Err(unusable(io::ErrorKind::IsADirectory.into()));
        }
        access(&path, AccessFlags::X_OK).map_err(|errno| unusable(errno.into()))?;
        let environment = INHERITED
            .iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        Ok(Self {
            binary: path,
            environment: Arc::new(environment),
            living: watch::Sender::new(0),
            out_of_memory: Arc::new(OutOfMemory::watch()),
        })
    }

    /// Where the worker program is: `$HOTLEASE_WORKER`, else beside the running program, else in
    /// `../libexec/hotlease` of that.
    pub fn find() -> Result<PathBuf, SandboxError> {
        if let Some(named) = std::env::var_os("HOTLEASE_WORKER").filter(|name| !name.is_empty()) {
            return Ok(named.into());
        }
        let program = std::env::current_exe().map_err(|source| SandboxError::Binary {
            path: WORKER_BINARY.into(),
            source,
        })?;
        let directory = program.parent().unwrap_or(Path::new("/"));
        let beside = directory.join(WORKER_BINARY);
        let installed = directory.join("../libexec/hotlease").join(WORKER_BINARY);
        if beside.is_file() {
            return Ok(beside);
        }
        if installed.is_file() {
            return Ok(installed);
        }
        Err(SandboxError::Binary {
            path: beside,
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// The program that is run.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Starts a worker with `control` as its standard input. Takes some hundred microseconds, in which it
    /// blocks; to be called within a tokio runtime.
    pub fn start(&self, control: OwnedFd) -> Result<Process, SandboxError> {
        let mut worker = Command::new(&self.binary);
        worker.arg0(WORKER_BINARY).current_dir("/");
        self.spawn(worker, &[], control)
    }

    /// Starts this program instead, in the same way.
    pub fn start_program(&self, program: &Program, control: OwnedFd) -> Result<Process, SandboxError> {
        let unusable = |errno: nix::errno::Errno| SandboxError::Program {
            path: program.path.clone(),
            source: errno.into(),
        };
        access(&program.path, AccessFlags::X_OK).map_err(unusable)?;
        let mut worker = Command::new(&program.path);
        worker.args(&program.arguments);
        worker.current_dir(match program.directory.is_dir() {
            true => &program.directory,
            false => Path::new("/"),
        });
        self.spawn(worker, &program.environment, control)
    }

    fn spawn(
        &self,
        mut worker: Command,
        environment: &[(OsString, OsString)],
        control: OwnedFd,
    ) -> Result<Process, SandboxError> {
        let failed = |what| move |source| SandboxError::Start { what, source };
        let (output, stdout) = io::pipe().map_err(failed("pipe"))?;
        let stderr = stdout.try_clone().map_err(failed("pipe"))?;
        // Without pre_exec and the like, so that the standard library uses posix_spawn: copying the page
        // tables of a large agent would cost more than all the rest.
        let child = worker
            .env_clear()
            .envs(
                self.environment
                    .iter()
                    .chain(environment)
                    .map(|(name, value)| (name, value)),
            )
            .process_group(0)
            .stdin(Stdio::from(control))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(failed("spawn"))?;
        Process::attend(child, output.into(), self.living.clone(), &self.out_of_memory)
            .map_err(failed("watch"))
    }

    /// Processes started and not yet reaped.
    pub fn living(&self) -> usize {
        *self.living.borrow()
    }

    /// Waits until every process that was started is gone and reaped.
    pub async fn all_gone(&self) {
        // Cannot fail: self holds the sender.
        let _ = self.living.subscribe().wait_for(|living| *living == 0).await;
    }
}
