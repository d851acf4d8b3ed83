//! System calls that no library wraps.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bits of mounts, as mount_setattr(2) has them.
pub const READ_ONLY: u64 = 0x1;
pub const NO_SET_USER_ID: u64 = 0x2;
pub const NO_DEVICES: u64 = 0x4;
pub const NO_EXEC: u64 = 0x8;

#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Sets bits of a mount, and of all mounts on it if `deep`.
pub fn set_mount(fd: BorrowedFd<'_>, path: &CStr, deep: bool, set: u64) -> io::Result<()> {
    let attributes = MountAttributes {
        set,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    let flags = libc::AT_EMPTY_PATH | if deep { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path and the structure are valid for the length of the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            path.as_ptr(),
            flags,
            &attributes,
            size_of::<MountAttributes>(),
        )
    };
    checked(result).map(drop)
}

#[derive(Default)]
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Who one is after a fork.
pub enum Forked {
    Child,
    Parent { pid: libc::pid_t, pidfd: OwnedFd },
}

/// As fork(2), with these flags of clone(2): namespaces of the child's own, say.
///
/// # Safety
/// The process has one thread: in a child of several, locks may be held for ever.
pub unsafe fn fork(flags: libc::c_int) -> io::Result<Forked> {
    let mut pidfd: libc::c_int = -1;
    // A sibling's end is told as the caller's own.
    let exit_signal = if flags & libc::CLONE_PARENT == 0 {
        libc::SIGCHLD
    } else {
        0
    };
    let arguments = CloneArguments {
        flags: flags as u64 | libc::CLONE_PIDFD as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: exit_signal as u64,
        ..CloneArguments::default()
    };
    // SAFETY: the structure is valid for the call; no memory is shared, and the caller has one thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<CloneArguments>(),
        )
    };
    match checked(result)? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent {
            pid: pid as libc::pid_t,
            // SAFETY: the kernel has just made it for us.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// A descriptor of a process that this one will reap.
pub fn open_pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Waits for this child, and reaps it: its exit status, or else the signal that killed it, negative.
pub fn wait_for(pid: libc::pid_t) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the status is valid for the length of the call.
        match checked(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(told(status)),
        }
    }
}

/// A child that has ended and was not reaped.
pub fn dead() -> io::Result<Option<libc::pid_t>> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    loop {
        // SAFETY: plain data, for which all zeros are good.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: valid for the length of the call.
        match unsafe { libc::waitid(libc::P_ALL, 0, &raw mut found, options) } {
            // SAFETY: the kernel has filled it in.
            0 => return Ok(Some(unsafe { found.si_pid() }).filter(|pid| *pid != 0)),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// A status as wait(2) has it.
pub fn told(status: libc::c_int) -> i32 {
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        false => -libc::WTERMSIG(status),
    }
}

/// Lets the calling thread, and what it starts, call no more than `filter` lets it.
pub fn limit_system_calls(filter: &[seccompiler::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // Kernels before 5.16 turn speculation around stores off with a filter, which slows down every load after a store. That
    // keeps code from being read by other code of the same process; here all code of a process is of one lease.
    // SAFETY: the program is valid for the length of the call, which copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const program,
        )
    };
    checked(result).map(drop)
}

/// Joins a keyring that nobody else has.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: no name, and so no memory of ours.
    let result = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    match checked(result) {
        // A kernel without keyrings has none to inherit.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result.map(drop),
    }
}

/// Closes all descriptors from this one on.
pub fn close_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: whoever calls this owns what it closes, and uses none of it any more.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// Puts a copy of a descriptor at a number, for a program that is run next.
pub fn put_at(fd: &OwnedFd, number: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only; whoever calls this is about to become another program, and uses nothing that was there.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// To be killed when the parent is.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into()).map(drop)
}

/// Whether others of its user may look into it.
pub fn set_dumpable(yes: bool) -> io::Result<()> {
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(yes)) }.into()).map(drop)
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
