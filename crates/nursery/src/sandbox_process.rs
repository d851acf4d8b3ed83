//! A sandbox seen from outside: making it, telling it what to run, reaping it.

use crate::cgroup::{ControlGroup, Groups};
use crate::inside::{SandboxInit, View};
use crate::kernel::{self, ForkSide};
use crate::message::send;
use crate::pid1_message::Pid1Order;
use crate::root::{Host, StepError, USER, step};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// New namespaces of every sandbox. A sandbox that does not share the host's network also gets a new network namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// A living sandbox. Its owner must kill it by [`SandboxProcess::kill`] and reap it by [`SandboxProcess::reap`].
pub struct SandboxProcess {
    /// A pidfd of its pid 1.
    pub pidfd: OwnedFd,
    /// Socket to its pid 1.
    pub socket: OwnedFd,
    /// Control group with its limits.
    pub group: ControlGroup,
    /// User and group that it has on the host.
    pub user: (u32, u32),
    /// Whether it shares the host's network.
    pub network: bool,
    pid: libc::pid_t,
}

impl SandboxProcess {
    /// Begins to make a sandbox as `user`. Its pid 1 says when it is prepared, a moment later.
    pub fn make(inside: &SandboxInit<'_>, groups: &mut Groups, user: (u32, u32)) -> Result<Self, StepError> {
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(step("making a socket"))?;
        let network = if inside.network { 0 } else { libc::CLONE_NEWNET };
        // SAFETY: the nursery has one thread.
        let forked = unsafe { kernel::fork(NAMESPACES | network) };
        let (pid, pidfd) = match forked.map_err(step("making namespaces"))? {
            ForkSide::Child => inside.live(theirs),
            ForkSide::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop(theirs);
        let nothing = ControlGroup::none();
        let mut made = Self {
            pidfd,
            socket,
            group: nothing,
            user,
            network: inside.network,
            pid,
        };
        match made.set_up(inside, groups) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.kill();
                made.reap();
                // Its processes are gone, so the group can be removed. If that fails, the next nursery removes it.
                made.group.remove();
                Err(error)
            }
        }
    }

    /// A sandbox that a helper, another child of this process, has begun to make. It has no group yet.
    pub fn of_helper(pidfd: OwnedFd, socket: OwnedFd, pid: libc::pid_t, user: (u32, u32)) -> Self {
        Self {
            pidfd,
            socket,
            group: ControlGroup::none(),
            user,
            network: false,
            pid,
        }
    }

    /// Whether this process is, or was, the sandbox's first process.
    pub fn is_of(&self, pid: libc::pid_t) -> bool {
        self.pid == pid
    }

    /// Replaces the helper, which is done, by pid 1.
    pub fn set_pid_1(&mut self, pidfd: OwnedFd, pid: libc::pid_t) {
        self.kill();
        (self.pidfd, self.pid) = (pidfd, pid);
    }

    fn set_up(&mut self, inside: &SandboxInit<'_>, groups: &mut Groups) -> Result<(), StepError> {
        let (user, group) = self.user;
        let file = |name: &str| Host::path(format!("/proc/{}/{name}", self.pid));
        if !inside.by_root {
            fs::write(file("setgroups"), "deny").map_err(step("keeping its groups"))?;
        }
        fs::write(file("gid_map"), format!("{USER} {group} 1")).map_err(step("mapping its group"))?;
        fs::write(file("uid_map"), format!("{USER} {user} 1")).map_err(step("mapping its user"))?;
        send(&self.socket, &Pid1Order::Prepare, &[]).map_err(step("telling it"))?;
        // The group is made while pid 1 prepares, because joining a control group of version 1 takes milliseconds for
        // each group: the kernel waits for other processors. Pid 1 gets its program later.
        let policy = inside.policy;
        self.group = groups
            .make(self.pid, policy.processes, policy.memory_bytes)
            .map_err(step("limiting it by a control group"))?;
        if let View::Container(_) = inside.view {
            send(&self.socket, &Pid1Order::Grouped, &[]).map_err(step("telling it"))?;
        }
        Ok(())
    }

    /// Orders it to start a program.
    pub fn start(
        &self,
        (targets, storage): (Vec<(OsString, bool)>, bool),
        fds: &[BorrowedFd<'_>],
    ) -> std::io::Result<()> {
        send(&self.socket, &Pid1Order::Start { targets, storage }, fds)
    }

    /// Kills everything in it.
    pub fn kill(&self) {
        // Fails only if pid 1 is dead.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.as_fd(), rustix::process::Signal::KILL);
    }

    /// Waits for its end.
    pub fn reap(&self) {
        let id = rustix::process::WaitId::PidFd(self.pidfd.as_fd());
        while let Err(rustix::io::Errno::INTR) =
            rustix::process::waitid(id.clone(), rustix::process::WaitIdOptions::EXITED)
        {}
    }
}
