//! Calls of the kernel about a child process.

use nix::errno::Errno;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Forbids core dumps: writing gigabytes of core file would delay the report of a crash, which takes milliseconds.
pub(super) fn forbid_core_dumps(pid: u32) -> io::Result<()> {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both pointers are valid or null for the length of the call; pid is an unreaped child of this process.
    let result = unsafe { libc::prlimit(pid as libc::pid_t, libc::RLIMIT_CORE, &none, std::ptr::null_mut()) };
    Ok(Errno::result(result).map(drop)?)
}

/// Opens a descriptor of an unreaped child, closed on exec.
pub(super) fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and touches no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for this process; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Sends SIGKILL. Fails only if the process is gone already.
pub(super) fn send_kill(pidfd: &OwnedFd) {
    // SAFETY: the descriptor is open, and a null info is what the call documents for "as kill(2) does".
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<u8>(),
            0,
        )
    };
}
