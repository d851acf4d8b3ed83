//! Access to object storage from a sandbox: a port of its loopback, where the agent accepts connections from outside.
//!
//! A listener belongs to the network in which it was made, and any process that has its descriptor can accept its
//! connections. So a program reaches the agent through a network that has nothing else in it and leads nowhere.

use crate::kernel;
use crate::order::STORAGE_PORT;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen as listen_at, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Largest number of connections that wait to be accepted.
const WAITING_MAX: i32 = 128;

/// Switches on the loopback of this process's network, and listens there.
pub fn listen() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    kernel::switch_on(&socket, c"lo")?;
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, STORAGE_PORT))?;
    listen_at(&socket, Backlog::new(WAITING_MAX)?)?;
    Ok(socket)
}
