//! Local end of a relay: a message socket in the tokio runtime.

use hotlease_fabric::socket::{RawMessage, Socket, SocketError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// Message socket that a relay serves asynchronously.
pub(super) struct LocalSocket(AsyncFd<Socket>);

impl LocalSocket {
    pub fn new(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // The replacement is unsafe, because a type could change its descriptor meanwhile. A Socket owns one
        // descriptor for its whole life, and this crate has no unsafe code.
        #[allow(deprecated)]
        AsyncFd::new(socket).map(Self)
    }

    /// Receives the next message; `None` when the other end has closed. Loses nothing if it is dropped before it is
    /// done.
    pub async fn receive(&self) -> Result<Option<RawMessage>, SocketError> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.0.get_ref().receive_raw() {
                Err(error) if error.would_block() => ready.clear_ready(),
                received => return received,
            }
        }
    }

    /// Sends a message; waits until the socket has space for it.
    pub async fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        loop {
            let mut ready = self.0.writable().await?;
            match self.0.get_ref().send_bytes(bytes, &fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }
}
