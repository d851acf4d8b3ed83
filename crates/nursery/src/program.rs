//! Program of a sandbox: its description, and its start.

pub mod inner_environment;

use crate::confinement;
use crate::directory::DeclaredDirectory;
use crate::kernel::{self, ForkSide};
use crate::policy::Mount;
use crate::root::{StepError, step};
use rustix::process::{chdir, setsid};
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Largest number of bytes of a [`ProgramDescription`].
pub const DESCRIBED_BYTES_MAX: u64 = 1 << 20;
/// Descriptor at which a zygote finds its orders.
pub const ORDERS_AT: i32 = 3;

/// A program, and the mounts that it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramDescription {
    /// Path of the program; absolute, in the sandbox.
    pub path: OsString,
    /// Arguments, the program's name first.
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory; `/` is used if this is no folder in the sandbox.
    pub directory: OsString,
    /// Mounts in addition to the mounts of the policy.
    pub mounts: Vec<Mount>,
    /// Directories that the lease has declared. They use up the limit of mounts, too.
    pub declared: Vec<DeclaredDirectory>,
    /// Whether workers will be forked from it: it finds its [`zygote`](crate::zygote) orders at descriptor 3.
    pub zygote: bool,
}

/// Reads a described program; checks its length, because the writer is not trusted.
pub(crate) fn read_description(file: OwnedFd) -> io::Result<ProgramDescription> {
    let file = fs::File::from(file);
    let length = file.metadata()?.len();
    if length > DESCRIBED_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a program's arguments and environment have {length} bytes, and may have {DESCRIBED_BYTES_MAX}"),
        ));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    hotlease_wire::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A program in the form that the kernel takes, built before the fork.
pub(crate) struct Executable {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: PathBuf,
    /// Descriptor at which the program finds its input.
    pub input_at: i32,
    /// Socket from which a zygote reads its orders.
    pub orders: Option<OwnedFd>,
}

impl Executable {
    pub fn new(program: ProgramDescription) -> io::Result<Self> {
        let text = |text: OsString| CString::new(text.into_vec());
        let environment = program.environment.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            text(name)
        });
        Ok(Self {
            path: text(program.path)?,
            arguments: program.arguments.into_iter().map(text).collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            directory: program.directory.into(),
            input_at: libc::STDIN_FILENO,
            orders: None,
        })
    }

    /// Starts the program with these streams.
    pub fn start(
        &self,
        input: OwnedFd,
        output: OwnedFd,
        filter: &BpfProgram,
    ) -> Result<(libc::pid_t, OwnedFd), StepError> {
        let (mut failure, failing) = io::pipe().map_err(step("making a pipe"))?;
        // SAFETY: this process has one thread.
        let (pid, pidfd) = match unsafe { kernel::fork(0) }.map_err(step("starting a process"))? {
            ForkSide::Child => {
                let limited = || -> io::Result<()> {
                    setsid()?;
                    confinement::limit_system_calls(filter)
                };
                let error = match limited() {
                    Ok(()) => self.exec(input, output),
                    Err(error) => error,
                };
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                // The only way to report the error.
                let _ = (&failing).write_all(&code.to_ne_bytes());
                // SAFETY: ends the process.
                unsafe { libc::_exit(127) }
            }
            ForkSide::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop((failing, input, output));
        let mut code = [0; 4];
        match failure.read_exact(&mut code) {
            // The pipe was closed by the program's start, or by the death of the process, which is noticed later.
            Err(_) => Ok((pid, pidfd)),
            Ok(()) => {
                let error = io::Error::from_raw_os_error(i32::from_ne_bytes(code));
                Err(step(format!("running {}", self.path.to_string_lossy()))(error))
            }
        }
    }

    /// Turns the calling process into the program.
    pub fn exec(&self, input: OwnedFd, output: OwnedFd) -> io::Error {
        let run = || -> io::Result<()> {
            kernel::put_at(&input, self.input_at)?;
            nix::unistd::dup2_stdout(&output)?;
            nix::unistd::dup2_stderr(&output)?;
            if let Some(orders) = &self.orders {
                kernel::put_at(orders, ORDERS_AT)?;
            }
            // Rust's runtime ignores SIGPIPE in this program; the program that follows begins with the default.
            // SAFETY: sets the default action.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            // All other descriptors are closed on exec.
            if chdir(&self.directory).is_err() {
                chdir("/")?;
            }
            nix::unistd::execve(&self.path, &self.arguments, &self.environment)?;
            Ok(())
        };
        match run() {
            Err(error) => error,
            Ok(()) => io::ErrorKind::Other.into(),
        }
    }
}
