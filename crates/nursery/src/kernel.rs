//! System calls that no library wraps.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Bits of mounts, as mount_setattr(2) has them.
pub const READ_ONLY: u64 = 0x1;
pub const NO_SET_USER_ID: u64 = 0x2;
pub const NO_DEVICES: u64 = 0x4;
pub const NO_EXEC: u64 = 0x8;

#[derive(Default)]
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
        ..MountAttributes::default()
    };
    set_attributes(fd, path, deep, &attributes)
}

/// Shows owners of files in a tree that is nowhere yet as this user namespace maps them.
pub fn map_owners(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attributes = MountAttributes {
        set: IDMAP,
        user_namespace: user_namespace.as_raw_fd() as u64,
        ..MountAttributes::default()
    };
    set_attributes(tree, c"", true, &attributes)
}

fn set_attributes(
    fd: BorrowedFd<'_>,
    path: &CStr,
    deep: bool,
    attributes: &MountAttributes,
) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if deep { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path and the structure are valid for the length of the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttributes>(),
        )
    };
    checked(result).map(drop)
}

/// Bytes that [`stir`] stirs in.
const STIRRED_BYTES: usize = 64;

/// What this kernel gives as random numbers from now on depends on these bytes, too; only root may say so.
///
/// # Errors
/// The kernel's.
pub fn stir(random: &[u8; STIRRED_BYTES]) -> io::Result<()> {
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        bytes: libc::c_int,
        random: [u8; STIRRED_BYTES],
    }
    const ADD: libc::Ioctl = 0x4008_5203_u32 as libc::Ioctl;
    const RESEED: libc::Ioctl = 0x5207;
    let pool = Pool {
        bits: 8 * STIRRED_BYTES as libc::c_int,
        bytes: STIRRED_BYTES as libc::c_int,
        random: *random,
    };
    let device = std::fs::File::open("/dev/urandom")?;
    // SAFETY: the structure is as long as it says, and valid for the length of the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), ADD, std::ptr::from_ref(&pool)) }.into())?;
    // Stirred in is not given out: what was ready before would be given out first.
    // SAFETY: integers only.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), RESEED) }.into()).map(drop)
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

/// Switches an interface of this socket's network on.
pub fn switch_on(socket: &OwnedFd, name: &CStr) -> io::Result<()> {
    // SAFETY: the structure is numbers and letters, for which zeros are good.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let letters = name.to_bytes();
    if letters.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, letter) in request.ifr_name.iter_mut().zip(letters) {
        *place = *letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure is valid for the length of the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    nix::errno::Errno::result(result)?;
    Ok(())
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

/// Does something with the rights that this user has in file systems, and none of root's.
pub fn with_rights_of<T>((user, group): (u32, u32), does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    become_in_file_systems((user, group))?;
    let done = does();
    become_in_file_systems(own)?;
    done
}

fn become_in_file_systems((user, group): (u32, u32)) -> io::Result<()> {
    // Each says who it was, and no error; no user is the last number, so it changes nothing.
    // SAFETY: integers only; of this thread alone.
    let now = unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
        (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32)
    };
    match now == (user, group) {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// A user namespace that maps this user and group to those, and all others to themselves: the kernel lets nobody write a file whose
/// owner or group is not mapped.
pub fn user_namespace(proc: &Path, from: (u32, u32), to: (u32, u32)) -> io::Result<OwnedFd> {
    // SAFETY: only a nursery makes them, which has one thread.
    let (pid, _pidfd) = match unsafe { fork(libc::CLONE_NEWUSER) }? {
        Forked::Child => {
            // It is there for its namespace, until that is open.
            let _ = die_with_parent();
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Forked::Parent { pid, pidfd } => (pid, pidfd),
    };
    let of = |name: &str| proc.join(pid.to_string()).join(name);
    let made = || -> io::Result<OwnedFd> {
        std::fs::write(of("gid_map"), one_mapped(from.1, to.1))?;
        std::fs::write(of("uid_map"), one_mapped(from.0, to.0))?;
        Ok(std::fs::File::open(of("ns/user"))?.into())
    };
    let made = made();
    // SAFETY: integers only; a child of ours that is not reaped yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for(pid)?;
    made
}

/// A map of identities, as the kernel reads it.
fn one_mapped(from: u32, to: u32) -> String {
    let (low, high) = (from.min(to), from.max(to));
    // The last number is nobody's.
    let others = [
        (0, low),
        (low.saturating_add(1), high),
        (high.saturating_add(1), u32::MAX),
    ];
    let others = others.into_iter().filter(|(first, end)| first < end);
    let lines = others.map(|(first, end)| format!("{first} {first} {}\n", end - first));
    lines.chain([format!("{from} {to} 1\n")]).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_becomes_another_and_all_others_stay() {
        assert_eq!(
            one_mapped(1000, 2_000_000_000),
            "0 0 1000\n1001 1001 1999998999\n2000000001 2000000001 2294967294\n1000 2000000000 1\n"
        );
        assert_eq!(one_mapped(7, 6), "0 0 6\n8 8 4294967287\n7 6 1\n");
    }
}
