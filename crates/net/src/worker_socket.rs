//! Socket whose other end a worker holds: a dedicated thread receives from the socket and closes it.
//!
//! A worker runs foreign code, which may send descriptors whose close takes minutes. If a message is received but its
//! descriptor is not taken, the kernel closes the descriptor in the thread that receives. If a message is never
//! received, the kernel closes the descriptor in the thread that closes the socket. Both are this thread, which serves
//! only one worker. Kernels from Linux 6.16 on are told to refuse messages with descriptors in the first place.
//!
//! The runtime has a second handle, to send. The thread closes its own handle only after the second handle is closed,
//! so the last close is always made by the thread.

use hotlease_fabric::socket::{Socket, SocketError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc as blocking;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, mpsc};

/// Messages that are received ahead. A worker that sends more waits.
const AHEAD_MAX: usize = 4;
/// The thread calls the kernel and little else.
const STACK_BYTES: usize = 128 << 10;

type ReceivedMessage = Result<Vec<u8>, SocketError>;

/// Message socket to a worker, without descriptors from the worker.
pub struct WorkerSocket {
    sending: AsyncFd<Socket>,
    received: Mutex<mpsc::Receiver<ReceivedMessage>>,
    /// Dropped after `sending`: see the head of this file.
    _release: blocking::Sender<()>,
}

impl WorkerSocket {
    /// Starts to receive. Must be called before the worker has the other end.
    pub fn new(socket: Socket) -> io::Result<Self> {
        // The last handle of the socket must be closed in a thread of its own, also if this function fails.
        let socket = socket.closed_aside();
        socket.set_nonblocking(true)?;
        socket.refuse_descriptors()?;
        // This constructor of `AsyncFd` is deprecated, and its replacement is unsafe, because a type could change its
        // descriptor while it is registered. A `Socket` owns one descriptor for its whole life, and this crate has no
        // unsafe code.
        #[allow(deprecated)]
        let sending = AsyncFd::with_interest(socket.try_clone()?, Interest::WRITABLE)?;
        let (sender, received) = mpsc::channel(AHEAD_MAX);
        let (release, released) = blocking::channel();
        let thread = std::thread::Builder::new()
            .name("worker's socket".into())
            .stack_size(STACK_BYTES);
        let started = thread.spawn(move || {
            receive_all(&socket, &sender);
            drop(sender);
            // Nothing is sent on this channel: the wait ends when the other handle is closed.
            let _ = released.recv();
            drop(OwnedFd::from(socket));
        });
        if let Err(error) = started {
            drop(sending.into_inner().closed_aside());
            return Err(error);
        }
        Ok(Self {
            sending,
            received: Mutex::new(received),
            _release: release,
        })
    }

    /// Receives the next message; `None` when the worker has closed. If the future is dropped before it is done, no
    /// message is lost.
    pub async fn receive(&self) -> Result<Option<Vec<u8>>, SocketError> {
        self.received.lock().await.recv().await.transpose()
    }

    /// Sends bytes now, or fails with `WouldBlock`.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.sending.get_ref().send_bytes(bytes, fds)
    }

    /// Sends bytes; waits until the socket has space for them.
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.sending.writable().await?;
            match self.try_send(bytes, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }
}

impl Drop for WorkerSocket {
    fn drop(&mut self) {
        // The worker sees the end at once, and the thread wakes. Fails if the worker is gone.
        let _ = self.sending.get_ref().shut_down();
    }
}

/// Receives until the worker closes, breaks the protocol, or its messages are not wanted any more.
fn receive_all(socket: &Socket, sender: &mpsc::Sender<ReceivedMessage>) {
    loop {
        let message = match socket.receive_bytes() {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => return,
            Err(error) if error.would_block() => {
                let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                match poll(&mut polled, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => continue,
                    Err(error) => Err(SocketError::Io(error.into())),
                }
            }
            Err(error) => Err(error),
        };
        let is_last = message.is_err();
        if sender.blocking_send(message).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
