//! Watch on the agent: ends the worker when its agent is gone, even if its other threads hang.
//!
//! The main thread sees the end of the control socket too, but it may be inside a library's constructor,
//! which may never return.

use crate::crash;
use hotlease_fabric::socket::Socket;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;

/// Stack of the watching thread, which calls `poll` and nothing else.
const STACK_BYTES: usize = 64 << 10;

/// Watches the agent's end of the control socket, in a thread of its own.
pub fn hold(socket: &Socket) -> io::Result<()> {
    let socket = socket.as_fd().try_clone_to_owned()?;
    let watch = move || {
        loop {
            // No events are requested, so that only the peer's end shows (POLLHUP), not its orders.
            let mut watched = [PollFd::new(socket.as_fd(), PollFlags::empty())];
            if poll(&mut watched, PollTimeout::NONE) != Err(Errno::EINTR) {
                crash::exit_now(0);
            }
        }
    };
    let thread = std::thread::Builder::new().name("hotlease-lifeline".into());
    thread.stack_size(STACK_BYTES).spawn(watch)?;
    Ok(())
}
