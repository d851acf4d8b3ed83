//! The way out of a sandbox to object storage: a port of its own loopback, at which somebody outside accepts.
//!
//! A listener belongs to the network that it was made in, and whoever has its descriptor accepts what comes there: so a program
//! reaches the agent through a network that has nothing else in it, and no way to any other.

use crate::kernel;
use crate::order::STORAGE_PORT;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen as listen_at, socket,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Connections that wait to be accepted.
const WAITING_MAX: i32 = 128;

/// Switches the loopback of this process's network on, and listens there.
pub fn listen() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    kernel::switch_on(&socket, c"lo")?;
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, STORAGE_PORT))?;
    listen_at(&socket, Backlog::new(WAITING_MAX)?)?;
    Ok(socket)
}
