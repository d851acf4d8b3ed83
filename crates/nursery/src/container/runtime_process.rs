//! The process that becomes a runtime. It is forked, and its system calls are limited, before the program is known,
//! because both steps take longer than the whole work of some runtimes.

use crate::confinement;
use crate::kernel::{self, ForkSide};
use crate::message::{receive, send};
use crate::program::{self, Executable, ProgramDescription};
use crate::root::{StepError, step};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rustix::process::setsid;
use seccompiler::BpfProgram;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

/// The waiting process. It ends with its parent, which is pid 1.
pub struct RuntimeProcess {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// Carries one message each way: the program to run, and the error if it does not run.
    socket: OwnedFd,
}

impl RuntimeProcess {
    /// Forks the process. `filter` limits the system calls of it and of everything that it starts; `None` allows all.
    pub fn fork(filter: Option<&BpfProgram>) -> Result<Self, StepError> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(step("making a socket"))?;
        // SAFETY: this process has one thread.
        match unsafe { kernel::fork(0) }.map_err(step("starting a process"))? {
            ForkSide::Parent { pid, pidfd } => Ok(Self { pid, pidfd, socket }),
            ForkSide::Child => {
                drop(socket);
                let error = become_runtime(&theirs, filter);
                // The only way to report the error.
                let _ = send(&theirs, &error.to_string(), &[]);
                // SAFETY: ends the process.
                unsafe { libc::_exit(127) }
            }
        }
    }

    /// Tells the process to run a program with these streams; the program finds its input at descriptor `input_at`.
    pub fn run(
        self,
        program: &ProgramDescription,
        (input, input_at): (OwnedFd, i32),
        output: OwnedFd,
    ) -> Result<(libc::pid_t, OwnedFd), StepError> {
        let told = || -> io::Result<()> {
            let mut described = File::from(memfd_create(c"runtime", MFdFlags::MFD_CLOEXEC)?);
            described.write_all(&hotlease_wire::encode(program))?;
            let fds = [described.as_fd(), input.as_fd(), output.as_fd()];
            send(&self.socket, &input_at, &fds)
        };
        told().map_err(step("telling what to run"))?;
        drop((input, output));
        match receive::<String>(&self.socket) {
            // The socket was closed by the program's start, or by the death of the process, which is noticed later.
            Ok(None) | Err(_) => Ok((self.pid, self.pidfd)),
            Ok(Some((why, _))) => {
                let named = format!("running {}", program.path.to_string_lossy());
                Err(step(named)(io::Error::other(why)))
            }
        }
    }
}

fn become_runtime(socket: &OwnedFd, filter: Option<&BpfProgram>) -> io::Error {
    let ready = || -> io::Result<(Executable, OwnedFd, OwnedFd)> {
        setsid()?;
        if let Some(filter) = filter {
            confinement::limit_system_calls(filter)?;
        }
        let (input_at, fds) = receive(socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let [described, input, output] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut run = Executable::new(program::read_description(described)?)?;
        run.input_at = input_at;
        Ok((run, input, output))
    };
    match ready() {
        Ok((run, input, output)) => run.exec(input, output),
        Err(error) => error,
    }
}
