//! Calls of the kernel about a child process.

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use tokio::time::sleep;

/// First pause between two checks of a process group that was killed. Each pause is twice as long as the one before.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Longest pause. All pauses for a group take 1 s in all: a process that the kernel does not end within that time is
/// stuck in the kernel.
const LAST_LOOK: Duration = Duration::from_millis(512);

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

/// Waits until no process runs in a process group that was sent SIGKILL, for at most a second. A killed process ends
/// only when it gets a core, so the group may outlive its leader. Zombies do not count, because in some containers no
/// process reaps them.
pub(super) async fn until_group_is_gone(group: Pid) {
    let mut pause = FIRST_LOOK;
    // ESRCH: the group has no process.
    while killpg(group, None) != Err(Errno::ESRCH) && pause <= LAST_LOOK {
        sleep(pause).await;
        pause *= 2;
        if pause > 8 * FIRST_LOOK && !has_running_process(group) {
            return;
        }
    }
}

/// Whether a process group has a process that is no zombie. Reads files of all processes, which takes milliseconds.
fn has_running_process(group: Pid) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.into_iter().any(|stat| {
        // The fields after the name are state, parent and group. The name may contain anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next();
        fields.nth(1) == Some(&group.to_string()) && !matches!(state, Some("Z" | "X"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[tokio::test]
    async fn a_group_is_gone_once_its_processes_are_or_are_zombies() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(child.id() as i32);
        assert!(has_running_process(group));
        let is_over = tokio::time::timeout(10 * FIRST_LOOK, until_group_is_gone(group))
            .await
            .is_ok();
        assert!(!is_over, "it runs");
        child.kill().unwrap();
        until_group_is_gone(group).await;
        assert!(!has_running_process(group), "it is a zombie");
        child.wait().unwrap();
        assert_eq!(killpg(group, None), Err(Errno::ESRCH));
        until_group_is_gone(group).await;
    }
}
