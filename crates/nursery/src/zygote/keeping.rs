//! What pid 1 of a zygote's sandbox does once the zygote runs: it reaps, tells the ends of workers, and keeps their namespaces' parent for
//! as long as the nursery wants it, whether or not the zygote lives. It has no rights any more, and hears nothing of anybody.

use crate::inside::Word;
use crate::kernel;
use crate::message::send;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Until it is killed; an error ends everything in the sandbox, and in those of its workers.
pub fn keep(socket: &OwnedFd, zygote: libc::pid_t) -> io::Result<()> {
    let mut ends = nix::sys::signal::SigSet::empty();
    ends.add(nix::sys::signal::Signal::SIGCHLD);
    // What is blocked is not ignored, and so not missed between two waits.
    ends.thread_block()?;
    loop {
        while let Some(pid) = kernel::dead()? {
            // Only what has an own namespace of processes for whose pid 1 somebody waits: not whatever a tenant leaves behind.
            let is_worker = pid != zygote && is_first_in_a_namespace(pid);
            let status = kernel::wait_for(pid)?;
            let word = match (pid == zygote, is_worker) {
                (true, _) => Word::Ended { status },
                (_, true) => Word::Reaped { pid, status },
                _ => continue,
            };
            send(socket, &word, &[])?;
        }
        // Interrupted or not.
        let _ = ends.wait();
    }
}

/// Whether it was the first process after the pid 1 of a namespace below this one.
fn is_first_in_a_namespace(pid: libc::pid_t) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut pids = line.unwrap_or_default().split_whitespace().skip(1);
    pids.next() == Some("2") && pids.next().is_none()
}
