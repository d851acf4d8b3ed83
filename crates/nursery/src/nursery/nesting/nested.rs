//! Pid 1 of the sandbox of a worker that is forked from a zygote. It makes the inside of its namespaces from a copy of
//! the zygote's mounts, waits for the fork, and inspects it. Its end ends everything in the sandbox.
//!
//! The zygote has rights over processes in these namespaces, so this process must never be open to inspection: it is a
//! copy of the nursery, started outside, and not dumpable at any moment.

use crate::confinement;
use crate::inside::{SandboxInit, View, close_all_but};
use crate::kernel;
use crate::message::{receive, send};
use crate::pid1_message::{Pid1Order, Pid1Report};
use crate::root::{self, StepError, step};
use crate::zygote::{ForkReport, KINDS, failure};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Step in which the nursery's end of the socket may fail.
const HEARING: &str = "hearing from the nursery";
/// Pid of the fork in its namespace: the first after pid 1.
const WORKER: libc::pid_t = 2;

/// A sandbox within a zygote's sandbox. It sees the same files as the zygote's sandbox, with its own folders on top.
pub struct NestedSandbox<'a> {
    pub inside: &'a SandboxInit<'a>,
    /// Paths of the mounts that the zygote's program got.
    pub targets: &'a [PathBuf],
}

impl NestedSandbox<'_> {
    /// Runs pid 1 until its end; `socket` leads to the nursery.
    pub fn live(&self, socket: OwnedFd) -> ! {
        let status = match close_all_but(socket, "/dev/null") {
            Ok(socket) => match self.serve(&socket) {
                Ok(()) => 0,
                Err(error) => {
                    let what = error.to_string();
                    let _ = send(&socket, &Pid1Report::Failed { what }, &[]);
                    1
                }
            },
            Err(_) => 1,
        };
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) }
    }

    fn serve(&self, socket: &OwnedFd) -> Result<(), StepError> {
        self.inside.be_pid_1()?;
        self.enter()?;
        self.inside.limit().map_err(step("setting limits"))?;
        confinement::forbid_capabilities().map_err(step("forbidding capabilities"))?;
        confinement::give_up_capabilities().map_err(step("giving up capabilities"))?;
        confinement::limit_system_calls(self.inside.filter).map_err(step("limiting the system calls of pid 1"))?;
        let namespaces = self.namespaces().map_err(step("opening namespaces"))?;
        let own = kernel::open_pidfd(1).map_err(step("opening pid 1"))?;
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(&own).chain(&namespaces).map(AsFd::as_fd).collect();
        send(socket, &Pid1Report::Prepared, &fds).map_err(step("telling the nursery"))?;
        drop(fds);
        drop((own, namespaces));
        let report = match receive(socket).map_err(step(HEARING))? {
            Some((Pid1Order::Forking, mut fds)) => fds.pop(),
            _ => None,
        };
        let report = report.ok_or_else(|| step(HEARING)(io::Error::from(io::ErrorKind::UnexpectedEof)))?;
        let mut told: ForkReport = [0; 8];
        fs::File::from(report)
            .read_exact(&mut told)
            .map_err(step("waiting for a fork of the zygote, which died"))?;
        if let Some((what, error)) = failure(told) {
            return Err(step(format!("forking from the zygote: {what}"))(error));
        }
        let pidfd = kernel::open_pidfd(WORKER).map_err(step("finding the fork of the zygote"))?;
        check_confined().map_err(step("looking at the fork of the zygote"))?;
        send(socket, &Pid1Report::Started, &[pidfd.as_fd()]).map_err(step("telling the nursery"))?;
        drop(pidfd);
        keep(socket)
    }

    /// Covers `/tmp`, `/dev/shm` and `/proc` of the zygote by the sandbox's own folders.
    fn enter(&self) -> Result<(), StepError> {
        let View::Pieces(template) = self.inside.view else {
            return Err(step("making a root")(io::Error::from(io::ErrorKind::Unsupported)));
        };
        // Mounts in a folder that is about to be covered.
        let mut covered = Vec::new();
        let own = [PathBuf::from("/tmp"), PathBuf::from("/dev/shm")];
        let shown = template.targets().chain(self.targets.iter().map(PathBuf::as_path));
        for target in shown.filter(|target| own.iter().any(|own| target.starts_with(own))) {
            let tree = root::copy_at(target).map_err(step(format!("mounting {}", target.display())))?;
            covered.push((tree, target.to_owned()));
        }
        template.cover_own()?;
        for (tree, target) in covered {
            root::attach_new(&tree, &target).map_err(step(format!("mounting {}", target.display())))?;
        }
        Ok(())
    }

    fn namespaces(&self) -> io::Result<Vec<OwnedFd>> {
        let opened = KINDS
            .iter()
            .map(|(name, _)| fs::File::open(format!("/proc/self/ns/{name}")));
        opened.map(|file| file.map(OwnedFd::from)).collect()
    }
}

/// Waits until the nursery, which sends nothing more, closes its end of the socket. The kernel reaps orphans in this
/// namespace meanwhile: dead orphans would use up the limit of processes. The fork is a child of the zygote's pid 1.
fn keep(socket: &OwnedFd) -> Result<(), StepError> {
    kernel::discard_dead_children().map_err(step("reaping orphans"))?;
    while receive::<Pid1Order>(socket).map_err(step(HEARING))?.is_some() {}
    Ok(())
}

/// Checks that the fork is confined as it claims: a tenant's code may have changed how it is made.
fn check_confined() -> io::Result<()> {
    let status = fs::read_to_string(format!("/proc/{WORKER}/status"))?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let none = |set: &&str| value(set).is_none_or(|bits| bits.chars().any(|digit| digit != '0'));
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"];
    let filters = value("Seccomp_filters:").and_then(|count| count.parse::<u32>().ok());
    let what = match sets.iter().find(|set| none(set)) {
        Some(set) => *set,
        None if value("NoNewPrivs:") != Some("1") => "NoNewPrivs:",
        None if filters.is_some_and(|count| count < 2) => "Seccomp_filters:",
        None => return Ok(()),
    };
    Err(io::Error::other(format!(
        "it is not confined ({what} {})",
        value(what).unwrap_or("is missing")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sys::prctl::set_child_subreaper;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

    /// Runs this in a process of its own.
    fn fork_to(run: impl FnOnce() -> bool) -> Pid {
        // SAFETY: glibc's fork leaves an allocator that can be used; no other lock of the tests is taken in the child.
        match unsafe { fork() }.expect("a process") {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let is_good = run();
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_good)) }
            }
        }
    }

    #[test]
    fn dead_orphans_are_reaped() {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (nursery, socket) = pair.expect("sockets");
        let reaper = fork_to(move || {
            drop(nursery);
            let adopts = set_child_subreaper(true).is_ok();
            let own = getpid();
            fork_to(move || {
                let parent = getpid();
                fork_to(move || {
                    while getppid() == parent {
                        std::thread::yield_now();
                    }
                    getppid() == own
                });
                true
            });
            let ended = keep(&socket).is_ok();
            // Waits until there is no child, and would return any child that was not reaped.
            adopts && ended && waitpid(None, None) == Err(Errno::ECHILD)
        });
        let status = waitpid(reaper, None).expect("a child");
        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
    }
}
