//! Pid 1 of a zygote's sandbox once the zygote runs: it reaps, and reports the ends of workers. It retains the parent
//! of their namespaces for as long as the nursery needs this parent, even if the zygote is dead. Pid 1 has no rights
//! any more, and receives no messages.

use crate::kernel;
use crate::message::send;
use crate::pid1_message::Pid1Report;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Runs until it is killed. An error ends everything in the sandbox, and in the sandboxes of its workers.
pub fn keep(socket: &OwnedFd, zygote: libc::pid_t) -> io::Result<()> {
    let mut ends = nix::sys::signal::SigSet::empty();
    ends.add(nix::sys::signal::Signal::SIGCHLD);
    // A blocked signal stays pending, so no signal is missed between two waits.
    ends.thread_block()?;
    loop {
        while let Some(pid) = kernel::find_dead_child()? {
            // Reports only processes that had a namespace of their own, with a pid 1 that waits for them. A tenant may
            // leave other processes behind.
            let is_worker = pid != zygote && is_first_in_a_namespace(pid);
            let status = kernel::wait_for(pid)?;
            let word = match (pid == zygote, is_worker) {
                (true, _) => Pid1Report::Ended { status },
                (_, true) => Pid1Report::Reaped { pid, status },
                _ => continue,
            };
            send(socket, &word, &[])?;
        }
        // Returns after a signal or an interruption alike.
        let _ = ends.wait();
    }
}

/// Whether `pid` was process 2 of a namespace directly below our own: the first process after that namespace's pid 1.
fn is_first_in_a_namespace(pid: libc::pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut pids = line.unwrap_or_default().split_whitespace().skip(1);
    pids.next() == Some("2") && pids.next().is_none()
}
