//! Unix sockets that keep message boundaries and carry descriptors: session, control and connection
//! sockets.
//!
//! Messages are those of `hotlease-wire`. A received message is decoded from a private copy of bounded size;
//! descriptors that the receiver does not want are closed.

use hotlease_descriptors::ReceiveError;
use hotlease_wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use hotlease_wire::{DecodeError, decode, encode};
use nix::sys::socket::sockopt::PeerCredentials as PeerCredentialsOption;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, listen, socket,
    socketpair,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reason why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Error of the system; `WouldBlock` on a non-blocking socket without a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer sent something other than the expected message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer sent more bytes or descriptors than any message has.
    #[error("message over the limit of {MESSAGE_BYTES_MAX} bytes and {MESSAGE_FDS_MAX} descriptors")]
    Truncated,
}

impl From<ReceiveError> for SocketError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Io(error) => Self::Io(error),
            ReceiveError::Truncated => Self::Truncated,
        }
    }
}

impl SocketError {
    /// Whether to wait and try again.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Credentials of the peer, as the kernel reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Effective user at the time of connect.
    pub uid: u32,
    /// Effective group at the time of connect.
    pub gid: u32,
    /// Process id of the peer.
    pub pid: i32,
}

/// A message as received, and its descriptors.
pub type RawMessage = (Vec<u8>, Vec<OwnedFd>);

/// One end of a `SOCK_SEQPACKET` Unix connection. Closed on drop.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Makes two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(a), Self(b)))
    }

    /// Connects to a [`SocketListener`].
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = new_socket(SockFlag::SOCK_CLOEXEC)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self(fd))
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        let stream = std::os::unix::net::UnixStream::from(self.0.try_clone()?);
        stream.set_nonblocking(on)
    }

    /// Sets how long a blocking receive waits before it fails with `WouldBlock`.
    pub fn set_receive_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        let stream = std::os::unix::net::UnixStream::from(self.0.try_clone()?);
        stream.set_read_timeout(timeout)
    }

    /// Credentials of the peer. For a pair: those of the process that made it.
    pub fn peer(&self) -> io::Result<PeerCredentials> {
        let peer = getsockopt(&self.0, PeerCredentialsOption)?;
        Ok(PeerCredentials {
            uid: peer.uid(),
            gid: peer.gid(),
            pid: peer.pid(),
        })
    }

    /// Sends one message with descriptors. Never raises SIGPIPE.
    pub fn send<M: Serialize>(&self, message: &M, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&encode(message), fds)
    }

    /// Sends bytes as they are, to forward a message (or, in tests, to misbehave).
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > MESSAGE_FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, SocketError::Truncated));
        }
        hotlease_descriptors::send(&self.0, bytes, fds)
    }

    /// Receives the next message and its descriptors (closed on exec); `None` when the peer has closed.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<Option<(M, Vec<OwnedFd>)>, SocketError> {
        match self.receive_raw()? {
            Some((bytes, fds)) => Ok(Some((decode(&bytes)?, fds))),
            None => Ok(None),
        }
    }

    /// Receives the next message without decoding it, to forward it; otherwise as [`receive`](Self::receive).
    pub fn receive_raw(&self) -> Result<Option<RawMessage>, SocketError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let (length, fds) = hotlease_descriptors::receive(&self.0, &mut bytes, MESSAGE_FDS_MAX)?;
        bytes.truncate(length);
        Ok((length > 0).then_some((bytes, fds)))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.0
    }
}

fn new_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// Accepts [`Socket`]s at a path. Non-blocking; does not remove the path on drop.
#[derive(Debug)]
pub struct SocketListener(OwnedFd);

impl SocketListener {
    /// Binds to a path that must not exist yet; only the owner can connect.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let fd = new_socket(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listen(&fd, Backlog::new(128)?)?;
        Ok(Self(fd))
    }

    /// Accepts the next connection (a blocking socket); `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<Socket> {
        let fd = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 just made this descriptor for us.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

impl AsFd for SocketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SocketListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sealed_copy;
    use hotlease_wire::control::WorkerAnswer;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (a, b) = Socket::pair().unwrap();
        let file = sealed_copy("test", b"hello").unwrap();
        let ready = WorkerAnswer::Ready {
            version: 7,
            imports_us: 0,
            boot_us: 0,
        };
        a.send(&ready, &[file.as_fd()]).unwrap();
        let (answer, fds) = b.receive::<WorkerAnswer>().unwrap().expect("a message");
        assert_eq!(answer, ready);
        assert_eq!(crate::memory::read_sealed(fds[0].as_fd(), 5).unwrap(), b"hello");
        drop(a);
        assert!(b.receive::<WorkerAnswer>().unwrap().is_none(), "end of file");
    }

    #[test]
    fn garbage_is_an_error_and_the_next_message_still_arrives() {
        let (a, b) = Socket::pair().unwrap();
        a.send_bytes(&[0xff; 100], &[]).unwrap();
        a.send(&WorkerAnswer::Done, &[]).unwrap();
        assert!(matches!(b.receive::<WorkerAnswer>(), Err(SocketError::Decode(_))));
        assert_eq!(b.receive::<WorkerAnswer>().unwrap().unwrap().0, WorkerAnswer::Done);
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (a, b) = Socket::pair().unwrap();
        let file = sealed_copy("test", b"hello").unwrap();
        let fds = [file.as_fd(); MESSAGE_FDS_MAX + 1];
        assert_eq!(
            a.send_bytes(b"x", &fds).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        hotlease_descriptors::send(&a, b"x", &fds).unwrap();
        assert!(matches!(b.receive::<WorkerAnswer>(), Err(SocketError::Truncated)));
    }

    #[test]
    fn listener_knows_its_peer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = SocketListener::bind(&path).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = Socket::connect(&path).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.peer().unwrap().pid, std::process::id() as i32);
        drop(server);
        assert!(client.receive::<WorkerAnswer>().unwrap().is_none());
    }
}
