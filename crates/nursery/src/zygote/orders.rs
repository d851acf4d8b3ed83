//! The zygote's side: waiting for orders, and forking.
//!
//! This is our code in a process of the tenant, who may have changed it. It gives its forks the same confinement as the
//! worker of any sandbox. If a tenant prevents that, the fork is still confined by the filter that the zygote itself
//! was started with.

use super::{ForkOrder, ForkRequest, KINDS, ORDERS_AT, STEPS};
use crate::confinement;
use crate::filter;
use crate::kernel;
use crate::message::receive;
use crate::system_calls::lost_by_forks;
use nix::sched::{CloneFlags, setns};
use rustix::process::setsid;
use seccompiler::BpfProgram;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Steps of a program before and after its process forks.
pub trait ForkHooks {
    /// Runs in the zygote before the fork.
    fn before(&mut self);
    /// Runs in the zygote after the fork.
    fn in_zygote(&mut self);
}

/// Socket on which a zygote's orders arrive.
pub struct Orders {
    socket: OwnedFd,
    /// Filter of its forks, made once, before any fork.
    filter: BpfProgram,
}

impl Orders {
    /// Moves the socket away from its fixed descriptor, so that the program's own code does not find it there.
    ///
    /// # Errors
    /// This process was not started as a zygote.
    pub fn take() -> io::Result<Self> {
        // SAFETY: integers only.
        let moved = unsafe { libc::fcntl(ORDERS_AT, libc::F_DUPFD_CLOEXEC, ORDERS_AT + 1) };
        if moved < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the first descriptor was made just now. The second was made by the process that started this process,
        // and no other code uses it.
        let (socket, gift) = unsafe { (OwnedFd::from_raw_fd(moved), OwnedFd::from_raw_fd(ORDERS_AT)) };
        drop(gift);
        let filter = filter::forbidding(lost_by_forks()).map_err(io::Error::other)?;
        Ok(Self { socket, filter })
    }

    /// Waits for an order and carries it out. An order forks a worker, which then waits for a second message
    /// ([`ForkRequest::Go`]). In each worker, returns true after this message: the worker has its own standard input
    /// and output, and no open descriptor of the zygote's orders. In the zygote, returns false once no process can send
    /// orders any more. `also`: descriptors that workers must not have.
    ///
    /// # Errors
    /// The system cannot fork any more. The zygote is unchanged.
    pub fn next(&mut self, hooks: &mut impl ForkHooks, also: &mut Vec<OwnedFd>) -> io::Result<bool> {
        loop {
            let Some((fork, mut fds)) = receive::<ForkOrder>(&self.socket)? else {
                return Ok(false);
            };
            // A zygote that is alone in a virtual machine gets no namespaces.
            if fds.len() != 2 && fds.len() != 2 + KINDS.len() {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let namespaces = fds.split_off(2);
            let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
            hooks.before();
            // SAFETY: the program has one thread, or its other threads have declared that they survive a fork.
            match unsafe { libc::fork() } {
                -1 => {
                    let error = io::Error::last_os_error();
                    hooks.in_zygote();
                    return Err(error);
                }
                0 => {
                    let new = NewFork {
                        fork,
                        namespaces,
                        fds,
                        directory,
                    };
                    self.become_worker(new, also);
                    return Ok(true);
                }
                between => {
                    hooks.in_zygote();
                    drop((fds, namespaces));
                    // The process between zygote and worker ends at once; if not, the nursery ends the whole sandbox.
                    let _ = kernel::wait_for(between);
                }
            }
        }
    }

    /// Runs in the fork: confines it and turns it into a worker, or ends it.
    fn become_worker(&mut self, new: NewFork, also: &mut Vec<OwnedFd>) {
        let NewFork {
            fork,
            namespaces,
            mut fds,
            directory,
        } = new;
        let report = fds.pop();
        let told = |step: usize, code: i32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&(step as u32).to_ne_bytes());
            bytes[4..].copy_from_slice(&code.to_ne_bytes());
            // Failure is ignored: a reader that misses the report notices the end.
            let _ = report.as_ref().map(|pipe| nix::unistd::write(pipe, &bytes));
        };
        let leave = |status| -> ! {
            // Skips buffers and handlers of the zygote.
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        };
        let failed = |step: usize, error: io::Error| -> ! {
            told(step, error.raw_os_error().unwrap_or(libc::EIO));
            leave(1)
        };
        for (fd, (_, kind)) in namespaces.iter().zip(&KINDS) {
            if let Err(errno) = setns(fd, CloneFlags::from_bits_truncate(*kind)) {
                failed(1, errno.into());
            }
        }
        // This process's child is in the pid namespace that was joined.
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            -1 => failed(2, io::Error::last_os_error()),
            0 => {}
            _ => leave(0),
        }
        // A fork that has joined no namespaces has gained no capabilities by joining.
        let has_joined = !namespaces.is_empty();
        drop(namespaces);
        also.clear();
        let done: [&dyn Fn() -> io::Result<()>; STEPS.len() - 2] = [
            &|| {
                let nothing: OwnedFd = File::options().read(true).write(true).open("/dev/null")?.into();
                put_streams(&nothing, &nothing)
            },
            &|| {
                setsid()?;
                kernel::new_session_keyring()
            },
            &|| match confinement::has_landlock() {
                true => {
                    let own = [PathBuf::from("/tmp"), PathBuf::from("/dev/shm")];
                    let writable: Vec<PathBuf> = own.into_iter().chain(fork.writable.iter().cloned()).collect();
                    confinement::limit_files(&writable, confinement::TcpRules::None).map(drop)
                }
                false => Ok(()),
            },
            &|| match has_joined {
                true => confinement::forbid_capabilities().and_then(|()| confinement::give_up_capabilities()),
                false => Ok(()),
            },
            &|| confinement::limit_system_calls(&self.filter),
        ];
        for (step, carry_out) in (3..).zip(done) {
            if let Err(error) = carry_out() {
                failed(step, error);
            }
        }
        told(0, 0);
        drop(report);
        // Without this message, the worker is not needed any more and is about to be killed.
        let Ok(Some((ForkRequest::Go, streams))) = fds.pop().map_or(Ok(None), |go| receive(&go)) else {
            leave(0)
        };
        if take_streams(&streams, &directory).is_err() {
            leave(1);
        }
    }
}

/// State of one fork.
struct NewFork {
    fork: ForkOrder,
    namespaces: Vec<OwnedFd>,
    /// Socket at which the fork waits, and pipe for its report.
    fds: Vec<OwnedFd>,
    directory: PathBuf,
}

fn take_streams(streams: &[OwnedFd], directory: &Path) -> io::Result<()> {
    let [input, output] = streams else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    put_streams(input, output)?;
    if std::env::set_current_dir(directory).is_err() {
        std::env::set_current_dir("/")?;
    }
    Ok(())
}

fn put_streams(input: &OwnedFd, output: &OwnedFd) -> io::Result<()> {
    for (fd, number) in [(input, 0), (output, 1), (output, 2)] {
        kernel::put_at(fd, number)?;
    }
    Ok(())
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Orders({})", self.socket.as_raw_fd())
    }
}
