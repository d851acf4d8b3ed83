//! Making, from outside, the namespaces of a worker that is to be forked from a zygote.
//!
//! A process of the nursery (`helper`) joins the zygote's user namespace and becomes the zygote's user there. So it can
//! make a user namespace that the zygote's forks may join. The users of that namespace are mapped through `/proc`,
//! which the kernel allows only for a process that is open to inspection. The zygote cannot see that process, which is
//! gone before the next step. Then the helper joins the zygote's other namespaces, and starts pid 1 of the new
//! namespaces there, as a child of the nursery.

mod nested;

use crate::inside::SandboxInit;
use crate::kernel::{self, ForkSide};
use crate::message::send;
use crate::pid1_message::Pid1Report;
use crate::root::{Host, StepError, USER, step};
use crate::sandbox_process::SandboxProcess;
use crate::zygote::ZygoteNamespaces;
use nested::NestedSandbox;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rustix::thread::{Gid, Uid, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Namespaces of a worker, besides its user namespace. Leases that are granted the network have no zygotes.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWNET;

/// Begins to make a worker's sandbox within the sandbox of its zygote. Returns the helper, which waits to be killed.
/// When pid 1 reports that it is prepared, and sends its own pidfd, pid 1 takes the place of the helper.
///
/// The zygote's code can see, and might stop, processes in its namespace. So no step here waits for them, and the
/// nursery's end of the socket does not block. `user`: user and group of the zygote's sandbox on the host.
pub fn nest(
    inside: &SandboxInit<'_>,
    parent: &ZygoteNamespaces,
    targets: &[PathBuf],
    user: (u32, u32),
) -> Result<SandboxProcess, StepError> {
    let kind = SockType::SeqPacket;
    let pair = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC);
    let (socket, theirs) = pair.map_err(step("making a socket"))?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(step("making a socket"))?;
    // SAFETY: the nursery has one thread.
    let forked = unsafe { kernel::fork(0) };
    match forked.map_err(step("starting a process"))? {
        ForkSide::Child => match help(&NestedSandbox { inside, targets }, parent, &theirs) {
            Ok(()) => {
                // Now only the process that `help` has started has this end open: the end closes when it dies.
                drop(theirs);
                wait_to_be_killed()
            }
            Err(error) => fail(&theirs, &error),
        },
        ForkSide::Parent { pid, pidfd } => Ok(SandboxProcess::of_helper(pidfd, socket, pid, user)),
    }
}

fn wait_to_be_killed() -> ! {
    loop {
        // SAFETY: waits.
        unsafe { libc::pause() };
    }
}

/// Ends the helper, or a process that it started: reports its error and exits.
fn fail(socket: &OwnedFd, error: &StepError) -> ! {
    let what = format!("making namespaces in those of a zygote: {error}");
    let _ = send(socket, &Pid1Report::Failed { what }, &[]);
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

/// Runs in the helper.
fn help(nested: &NestedSandbox<'_>, parent: &ZygoteNamespaces, socket: &OwnedFd) -> Result<(), StepError> {
    let join =
        |fd: &OwnedFd, kind, what: &str| setns(fd, kind).map_err(step(format!("joining the namespace of {what}")));
    join(&parent.user, CloneFlags::CLONE_NEWUSER, "users")?;
    set_keep_capabilities(true).map_err(step("keeping capabilities"))?;
    if nested.inside.by_root {
        set_thread_groups(&[]).map_err(step("leaving groups"))?;
    }
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    set_thread_res_gid(group, group, group).map_err(step("changing the group"))?;
    set_thread_res_uid(user, user, user).map_err(step("changing the user"))?;
    kernel::die_with_parent().map_err(step("binding its life to the nursery's"))?;
    let users = namespace_of_users()?;
    kernel::set_dumpable(false).map_err(step("hiding pid 1"))?;
    join(&parent.mnt, CloneFlags::CLONE_NEWNS, "mounts")?;
    // From now on the helper's children are in this namespace. Only they can make a namespace within it.
    join(&parent.pid, CloneFlags::CLONE_NEWPID, "processes")?;
    // SAFETY: this process has one thread.
    let forked = unsafe { kernel::fork(libc::CLONE_PARENT) };
    match forked.map_err(step("starting a process"))? {
        ForkSide::Parent { .. } => return Ok(()),
        ForkSide::Child => {}
    }
    let started = || {
        join(&users, CloneFlags::CLONE_NEWUSER, "users, a new one")?;
        // SAFETY: this process has one thread.
        let forked = unsafe { kernel::fork(NAMESPACES | libc::CLONE_PARENT) };
        forked.map_err(step("making namespaces"))
    };
    match started() {
        Ok(ForkSide::Child) => match socket.try_clone() {
            Ok(socket) => nested.live(socket),
            Err(error) => fail(socket, &step("keeping a socket")(error)),
        },
        // SAFETY: ends the process.
        Ok(ForkSide::Parent { .. }) => unsafe { libc::_exit(0) },
        Err(error) => fail(socket, &error),
    }
}

/// Makes a user namespace below the user namespace of this process, with the same single user.
fn namespace_of_users() -> Result<OwnedFd, StepError> {
    kernel::set_dumpable(true).map_err(step("preparing to map users"))?;
    let parent = rustix::process::getpid();
    // SAFETY: this process has one thread.
    let forked = unsafe { kernel::fork(libc::CLONE_NEWUSER) };
    let pid = match forked.map_err(step("making a user namespace"))? {
        ForkSide::Child => {
            // Lives only so that its namespace can be opened, and no longer than its parent.
            let bound = kernel::die_with_parent();
            while bound.is_ok() && rustix::process::getppid() == Some(parent) {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) }
        }
        ForkSide::Parent { pid, .. } => pid,
    };
    let file = |name: &str| Host::path(format!("/proc/{pid}/{name}"));
    let mapped = || -> Result<OwnedFd, StepError> {
        fs::write(file("setgroups"), "deny").map_err(step("keeping its groups"))?;
        fs::write(file("gid_map"), format!("{USER} {USER} 1")).map_err(step("mapping its group"))?;
        fs::write(file("uid_map"), format!("{USER} {USER} 1")).map_err(step("mapping its user"))?;
        let opened = fs::File::open(file("ns/user")).map_err(step("opening a user namespace"))?;
        Ok(opened.into())
    };
    let namespace = mapped();
    // SAFETY: a child that was not reaped yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    kernel::wait_for(pid).map_err(step("waiting for a process"))?;
    namespace
}
