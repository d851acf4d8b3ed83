//! Local end of a relay: a message socket in the tokio runtime.

use crate::worker_socket::WorkerSocket;
use hotlease_fabric::foreign::ForeignDescriptor;
use hotlease_fabric::socket::{ForeignMessage, Socket, SocketError};
use std::io;
use std::os::fd::AsFd;
use tokio::io::unix::AsyncFd;

/// Message socket that a relay serves asynchronously.
pub(super) enum LocalSocket {
    /// To the agent, or to a program's client.
    Session(AsyncFd<Socket>),
    /// To a worker.
    Worker(WorkerSocket),
}

impl LocalSocket {
    /// A socket whose other end a worker holds.
    pub fn of_worker(socket: Socket) -> io::Result<Self> {
        WorkerSocket::new(socket).map(Self::Worker)
    }

    pub fn new(socket: Socket) -> io::Result<Self> {
        let socket = socket.closed_aside();
        socket.set_nonblocking(true)?;
        // This constructor of `AsyncFd` is deprecated, and its replacement is unsafe, because a type could change its
        // descriptor while it is registered. A `Socket` owns one descriptor for its whole life, and this crate has no
        // unsafe code.
        #[allow(deprecated)]
        AsyncFd::new(socket).map(Self::Session)
    }

    /// Receives the next message; `None` when the other end has closed. If the future is dropped before it is done, no
    /// message is lost.
    pub async fn receive(&self) -> Result<Option<ForeignMessage>, SocketError> {
        let socket = match self {
            Self::Session(socket) => socket,
            Self::Worker(socket) => {
                let received = socket.receive().await?;
                return Ok(received.map(|bytes| (bytes, Vec::new())));
            }
        };
        loop {
            let mut ready = socket.readable().await?;
            match socket.get_ref().receive_foreign_raw() {
                Err(error) if error.would_block() => ready.clear_ready(),
                received => return received,
            }
        }
    }

    /// Sends a message; waits until the socket has space for it.
    pub async fn send(&self, bytes: &[u8], fds: &[ForeignDescriptor]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let socket = match self {
            Self::Session(socket) => socket,
            Self::Worker(socket) => return socket.send(bytes, &fds).await,
        };
        loop {
            let mut ready = socket.writable().await?;
            match socket.get_ref().send_bytes(bytes, &fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }
}
