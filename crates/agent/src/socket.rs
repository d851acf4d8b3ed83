//! A message socket for use in the async runtime.

use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::socket::{Socket, SocketError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::BorrowedFd;
use tokio::io::unix::AsyncFd;

/// A non-blocking [`Socket`] to a client. Sending never waits; receiving can. The client may have sent descriptors
/// whose `close` blocks. They are closed on another thread, so neither sending nor receiving waits for that.
pub(crate) struct AsyncSocket(AsyncFd<Socket>);

impl AsyncSocket {
    pub fn new(socket: Socket) -> io::Result<Self> {
        let socket = socket.closed_aside();
        socket.set_nonblocking(true)?;
        // The function that replaces this one is unsafe, because a type could change its descriptor meanwhile. A Socket
        // keeps its descriptor for its whole life, and this crate has no unsafe code.
        #[allow(deprecated)]
        AsyncFd::new(socket).map(Self)
    }

    /// Receives the next message; returns `None` when the peer has closed. Dropping the future loses no message.
    pub async fn receive<M: DeserializeOwned>(&self) -> Result<Option<(M, Vec<ForeignDescriptor>)>, SocketError> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.0.get_ref().receive_foreign() {
                Err(error) if error.would_block() => ready.clear_ready(),
                received => return received,
            }
        }
    }

    /// Sends now, or fails with `WouldBlock`.
    pub fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.get_ref().send(message, fds)
    }

    /// Sends as soon as `attempt` (a [`send`](Self::send)) does not fail with `WouldBlock`.
    pub async fn when_writable<R>(&self, attempt: impl Fn() -> io::Result<R>) -> io::Result<R> {
        loop {
            let mut ready = self.0.writable().await?;
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }
}
