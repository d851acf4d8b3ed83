//! One fork of a zygote that is alone in a virtual machine: the fork needs no namespaces of its own.

use super::{ForkOrder, ForkReport, ForkRequest, failure};
use crate::message::send;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Orders a zygote to fork, through the other end of its `orders`. The fork is confined, gets this standard input and
/// output, and is an orphan.
///
/// # Errors
/// An error of the zygote or of the fork. A fork may report anything.
pub fn fork_here(orders: &OwnedFd, input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
    let kind = SockType::SeqPacket;
    let (go, waits) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
    let (mut reports, report) = io::pipe()?;
    let fork = ForkOrder { writable: Vec::new() };
    send(orders, &fork, &[waits.as_fd(), report.as_fd()])?;
    drop((waits, report));
    let mut told: ForkReport = [0; 8];
    reports.read_exact(&mut told)?;
    if let Some((what, error)) = failure(told) {
        return Err(io::Error::new(error.kind(), format!("{what}: {error}")));
    }
    send(&go, &ForkRequest::Go, &[input, output])
}
