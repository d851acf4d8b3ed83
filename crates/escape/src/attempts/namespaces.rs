//! Attempts to make namespaces, in which a process has capabilities again, and to enter namespaces of other processes.

use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, denied, with_place};
use crate::syscall::kernel;
use crate::variables::{number, path};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;

pub(super) const THEME: Threat = Threat {
    threat: "make namespaces in which it has rights, or enter those of others",
    attempts: attempts! {
        "unshare-user", "make a user namespace, in which it has every capability (unshare)",
            unshare_user, needs("user namespaces for this user");
        "clone-user", "the same by clone", clone_user, needs("user namespaces for this user");
        "clone3-user", "the same by clone3, whose flags no filter can see",
            clone3_user, needs("user namespaces for this user");
        "unshare-mount", "make a mount namespace", unshare_mount, with_capability(Capability::SysAdmin);
        "setns-neighbour", "enter the neighbour's namespaces through its pidfd",
            setns_neighbour, with_capability(Capability::SysAdmin), needs("Linux 5.8");
        "setns-proc", "enter the namespaces of process 1, and read the neighbour's file there",
            setns_proc, by_secret(), with_capability(Capability::SysAdmin), needs("rights over process 1");
        "uid-map", "map itself to root of its own namespace", uid_map, need_not_succeed();
        "setgroups-allow", "allow itself supplementary groups again", setgroups_allow, need_not_succeed();
        "namespace-parent", "get at the namespace above its own (NS_GET_PARENT)", namespace_parent, need_not_succeed();
    },
};

fn unshare_user() -> AttemptResult {
    kernel!(SYS_unshare, libc::CLONE_NEWUSER)?;
    Ok("is root of a user namespace".into())
}

/// Part after `clone`: the child ends at once, and the parent waits for it.
fn child(pid: libc::c_long) -> AttemptResult {
    if pid == 0 {
        // SAFETY: ends this process, which shares nothing with its parent.
        unsafe { libc::_exit(0) };
    }
    kernel!(SYS_wait4, pid, 0, libc::__WALL, 0)?;
    Ok("had a child that is root of a user namespace".into())
}

fn clone_user() -> AttemptResult {
    child(kernel!(SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0)?)
}

fn clone3_user() -> AttemptResult {
    // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls.
    let arguments = [libc::CLONE_NEWUSER as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
    child(kernel!(SYS_clone3, arguments.as_ptr(), 64)?)
}

fn unshare_mount() -> AttemptResult {
    kernel!(SYS_unshare, libc::CLONE_NEWNS)?;
    Ok("has a mount namespace of its own".into())
}

fn setns_neighbour() -> AttemptResult {
    let pidfd = kernel!(SYS_pidfd_open, number::<i32>("PID")?, 0)?;
    kernel!(SYS_setns, pidfd, libc::CLONE_NEWNET | libc::CLONE_NEWIPC)?;
    Ok("is in the neighbour's namespaces".into())
}

fn setns_proc() -> AttemptResult {
    for kind in ["user", "mnt"] {
        let namespace = File::open(format!("/proc/1/ns/{kind}")).map_err(with_place("open"))?;
        let entered = kernel!(SYS_setns, namespace.as_raw_fd(), 0);
        // A process cannot enter the user namespace in which it is already, so only the result for `mnt` counts.
        if kind == "mnt" {
            entered?;
        }
    }
    fs::read_to_string(path("FILE")?).map_err(with_place("read"))
}

fn uid_map() -> AttemptResult {
    let mut map = OpenOptions::new()
        .write(true)
        .open("/proc/self/uid_map")
        .map_err(with_place("open"))?;
    std::io::Write::write_all(&mut map, b"0 0 4294967295").map_err(with_place("write"))?;
    Ok("wrote its uid_map".into())
}

fn setgroups_allow() -> AttemptResult {
    if fs::read_to_string("/proc/self/setgroups").is_ok_and(|now| now.trim() == "allow") {
        return match kernel!(SYS_setgroups, 1, [4u32].as_ptr()) {
            // Outside of user namespaces, the attempts of `identity` test this.
            Ok(_) if fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295")) => {
                denied("in no user namespace of its own")
            }
            Ok(_) => Ok("joined group 4".into()),
            Err(stop) => Err(stop),
        };
    }
    fs::write("/proc/self/setgroups", "allow").map_err(with_place("write"))?;
    Ok("allowed setgroups".into())
}

fn namespace_parent() -> AttemptResult {
    const NS_GET_PARENT: i32 = 0xb702;
    let mut stopped = StopReason::Denied("no namespaces in /proc".into());
    for kind in ["user", "pid"] {
        let Ok(namespace) = File::open(format!("/proc/self/ns/{kind}")) else {
            continue;
        };
        match kernel!(SYS_ioctl, namespace.as_raw_fd(), NS_GET_PARENT) {
            Ok(_) => return Ok(format!("has a descriptor of the {kind} namespace above")),
            Err(stop) => stopped = stop,
        }
    }
    Err(stopped)
}
