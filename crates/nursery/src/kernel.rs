//! System calls that no safe library wraps.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Attributes of mounts, as in mount_setattr(2).
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

/// Sets attributes of a mount, and of all mounts on it if `deep`.
pub fn set_mount(fd: BorrowedFd<'_>, path: &CStr, deep: bool, set: u64) -> io::Result<()> {
    let attributes = MountAttributes {
        set,
        ..MountAttributes::default()
    };
    set_attributes(fd, path, deep, &attributes)
}

/// Maps the owners of files in a tree as this user namespace does. The tree must not be attached anywhere yet.
pub fn map_owners(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attributes = MountAttributes {
        set: IDMAP,
        user_namespace: user_namespace.as_raw_fd() as u64,
        ..MountAttributes::default()
    };
    set_attributes(tree, c"", true, &attributes)
}

fn set_attributes(fd: BorrowedFd<'_>, path: &CStr, deep: bool, attributes: &MountAttributes) -> io::Result<()> {
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

/// Number of bytes that [`mix_entropy`] mixes in.
const STIRRED_BYTES: usize = 64;

/// Mixes these bytes into the kernel's random numbers; only root may do so.
///
/// # Errors
/// An error of the kernel.
pub fn mix_entropy(random: &[u8; STIRRED_BYTES]) -> io::Result<()> {
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
    // The kernel would first give out numbers that it had prepared without these bytes, so it must reseed.
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

/// Switches on an interface of this socket's network.
pub fn switch_on(socket: &OwnedFd, name: &CStr) -> io::Result<()> {
    // SAFETY: the structure contains numbers and letters, for which zeros are valid.
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

/// The two sides of a fork.
pub enum ForkSide {
    Child,
    Parent { pid: libc::pid_t, pidfd: OwnedFd },
}

/// Forks as fork(2) does, with flags of clone(2), such as new namespaces for the child.
///
/// # Safety
/// The process has one thread: in the child of a process with several threads, locks may be held for ever.
pub unsafe fn fork(flags: libc::c_int) -> io::Result<ForkSide> {
    let mut pidfd: libc::c_int = -1;
    // The kernel signals the end of a sibling (CLONE_PARENT) to the caller's parent, with the caller's own signal.
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
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
    match checked(result)? {
        0 => Ok(ForkSide::Child),
        pid => Ok(ForkSide::Parent {
            pid: pid as libc::pid_t,
            // SAFETY: the kernel has just made it for us.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// Opens a descriptor of a process that this process will reap.
pub fn open_pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Waits for this child and reaps it; returns its exit status or the negative signal that killed it.
pub fn wait_for(pid: libc::pid_t) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the status is valid for the length of the call.
        match checked(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(exit_code(status)),
        }
    }
}

/// Finds a child that has ended and was not reaped.
pub fn find_dead_child() -> io::Result<Option<libc::pid_t>> {
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

/// Makes the kernel reap all children of this process from now on, and reaps the children that have ended already.
pub fn discard_dead_children() -> io::Result<()> {
    // SAFETY: no code runs on the signal.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    while let Some(pid) = find_dead_child()? {
        wait_for(pid)?;
    }
    Ok(())
}

/// Converts a status of wait(2): exit status, or negative signal.
pub fn exit_code(status: libc::c_int) -> i32 {
    match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        false => -libc::WTERMSIG(status),
    }
}

/// Limits the system calls of the calling thread, and of everything that it starts, by this filter.
pub fn limit_system_calls(filter: &[seccompiler::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // Kernels before 5.16 disable speculation around stores when a filter is installed, which slows down every load
    // after a store. This would protect code from other code in the same process, but here all code of a process
    // belongs to one lease.
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

/// Joins a new keyring that no other process has.
pub fn new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: passes no name, so the kernel reads no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    match checked(result) {
        // A kernel without keyrings has no keyring to inherit.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result.map(drop),
    }
}

/// Closes all descriptors from this number on.
pub fn close_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: the caller owns what it closes here, and uses none of it any more.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}

/// Copies a descriptor to a number, for a program that is run next.
pub fn put_at(fd: &OwnedFd, number: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only; the caller is about to run another program, and uses nothing that was at this number.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

/// Runs `does` with this user's rights in file systems, and without root's rights.
pub fn with_rights_of<T>((user, group): (u32, u32), does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    become_in_file_systems((user, group))?;
    let done = does();
    become_in_file_systems(own)?;
    done
}

fn become_in_file_systems((user, group): (u32, u32)) -> io::Result<()> {
    // Both calls return the previous identity and no error. Number `u32::MAX` is no user, so the last two calls change
    // nothing and only read the identity back.
    // SAFETY: integers only; affects this thread alone.
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

/// Makes a user namespace that maps user and group `from` to `to`, and all others but `to` to themselves: the kernel
/// forbids writing files whose owner or group is not mapped.
pub fn user_namespace(proc: &Path, from: (u32, u32), to: (u32, u32)) -> io::Result<OwnedFd> {
    // SAFETY: only a nursery calls this, and it has one thread.
    let (pid, _pidfd) = match unsafe { fork(libc::CLONE_NEWUSER) }? {
        ForkSide::Child => {
            // The child lives only so that its namespace exists until the namespace is open.
            let _ = die_with_parent();
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        ForkSide::Parent { pid, pidfd } => (pid, pidfd),
    };
    let of = |name: &str| proc.join(pid.to_string()).join(name);
    let made = || -> io::Result<OwnedFd> {
        std::fs::write(of("gid_map"), one_mapped(from.1, to.1))?;
        std::fs::write(of("uid_map"), one_mapped(from.0, to.0))?;
        Ok(std::fs::File::open(of("ns/user"))?.into())
    };
    let made = made();
    // SAFETY: integers only; a child of this process that is not reaped yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for(pid)?;
    made
}

/// An identity map in the kernel's format, but `from` is mapped to `to`, and `to` is not mapped.
fn one_mapped(from: u32, to: u32) -> String {
    let (low, high) = (from.min(to), from.max(to));
    // The last number is no user.
    let others = [
        (0, low),
        (low.saturating_add(1), high),
        (high.saturating_add(1), u32::MAX),
    ];
    let others = others.into_iter().filter(|(first, end)| first < end);
    let lines = others.map(|(first, end)| format!("{first} {first} {}\n", end - first));
    lines.chain([format!("{from} {to} 1\n")]).collect()
}

/// Makes the kernel kill this process when its parent dies.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into()).map(drop)
}

/// Sets whether other processes of this user may inspect this process.
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
    fn the_identity_map_changes_one_owner_only() {
        assert_eq!(
            one_mapped(1000, 2_000_000_000),
            "0 0 1000\n1001 1001 1999998999\n2000000001 2000000001 2294967294\n1000 2000000000 1\n"
        );
        assert_eq!(one_mapped(7, 6), "0 0 6\n8 8 4294967287\n7 6 1\n");
    }
}
