//! Unix sockets that keep message boundaries and carry descriptors: session, control and connection
//! sockets.
//!
//! The messages are defined in `hotlease-wire`. A received message is decoded from a private copy of bounded size;
//! descriptors that the receiver does not want are closed. A peer that is not trusted may send descriptors whose close
//! waits: [`Socket::receive_foreign`] and [`Socket::receive_bytes`] are for the messages of such a peer, and
//! [`Socket::closed_aside`] is for messages that are still unread when the socket is closed.

use crate::foreign::{ForeignDescriptor, close_aside};
use hotlease_descriptors::ReceiveError;
use hotlease_wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use hotlease_wire::{DecodeError, decode, encode};
use nix::sys::socket::sockopt::PeerCredentials as PeerCredentialsOption;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, listen,
    shutdown, socket, socketpair,
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
    /// Whether the caller should wait and try again.
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
/// A message as received from a peer that is not trusted, and its descriptors.
pub type ForeignMessage = (Vec<u8>, Vec<ForeignDescriptor>);

/// Socket option: whether descriptors may be sent to a socket. On by default (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

/// One end of a `SOCK_SEQPACKET` Unix connection. Closed on drop.
#[derive(Debug)]
pub struct Socket {
    /// `None` only while `self` is dropped, or after the descriptor was taken.
    fd: Option<OwnedFd>,
    closes_aside: bool,
}

impl Socket {
    /// Makes two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self::from(a), Self::from(b)))
    }

    fn fd(&self) -> &OwnedFd {
        self.fd.as_ref().expect("taken only where `self` ends")
    }

    /// Makes the drop of this socket close it by [`close_aside`]: a peer that is not trusted may have sent descriptors,
    /// which the kernel closes together with the socket.
    #[must_use]
    pub fn closed_aside(mut self) -> Self {
        self.closes_aside = true;
        self
    }

    /// Makes another handle of this socket. The new handle is not [closed aside](Self::closed_aside). The kernel closes
    /// the socket with the last of its handles.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self::from(self.fd().try_clone()?))
    }

    /// Makes the kernel refuse messages with descriptors to this socket from now on, if the kernel supports this (Linux
    /// 6.16).
    pub fn refuse_descriptors(&self) -> io::Result<()> {
        let off: libc::c_int = 0;
        // SAFETY: the pointer is to an integer of the given size, which outlives the call.
        let set = unsafe {
            libc::setsockopt(
                self.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSRIGHTS,
                (&raw const off).cast(),
                size_of_val(&off) as libc::socklen_t,
            )
        };
        match io::Error::last_os_error() {
            _ if set == 0 => Ok(()),
            error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
            error => Err(error),
        }
    }

    /// Ends the connection in both directions: the peer sees the end of the connection, and can send nothing more. What
    /// the peer has sent before can still be received.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(shutdown(self.as_raw_fd(), Shutdown::Both)?)
    }

    /// Connects to a [`SocketListener`].
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = new_socket(SockFlag::SOCK_CLOEXEC)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self::from(fd))
    }

    /// Sets whether calls return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        let stream = std::os::unix::net::UnixStream::from(self.fd().try_clone()?);
        stream.set_nonblocking(on)
    }

    /// Sets how long a blocking receive waits before it fails with `WouldBlock`.
    pub fn set_receive_timeout(&self, timeout: Option<std::time::Duration>) -> io::Result<()> {
        let stream = std::os::unix::net::UnixStream::from(self.fd().try_clone()?);
        stream.set_read_timeout(timeout)
    }

    /// Credentials of the peer. For a pair, the credentials of the process that made the pair.
    pub fn peer(&self) -> io::Result<PeerCredentials> {
        let peer = getsockopt(self.fd(), PeerCredentialsOption)?;
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

    /// Sends bytes unchanged, to forward a message (or, in tests, to break the protocol).
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > MESSAGE_FDS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, SocketError::Truncated));
        }
        hotlease_descriptors::send(self, bytes, fds)
    }

    /// Receives the next message and its descriptors (closed on exec) from a trusted peer. Returns `None` when the peer
    /// has closed.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<Option<(M, Vec<OwnedFd>)>, SocketError> {
        match self.receive_raw()? {
            Some((bytes, fds)) => Ok(Some((decode(&bytes)?, fds))),
            None => Ok(None),
        }
    }

    /// Receives the next message as [`receive`](Self::receive), but without decoding it, to forward it.
    pub fn receive_raw(&self) -> Result<Option<RawMessage>, SocketError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let (length, fds) = hotlease_descriptors::receive(self, &mut bytes, MESSAGE_FDS_MAX)?;
        bytes.truncate(length);
        Ok((length > 0).then_some((bytes, fds)))
    }

    /// Receives the next message and its descriptors from a peer that is not trusted. Returns `None` when the peer has
    /// closed. Never waits for the close of a descriptor.
    pub fn receive_foreign<M: DeserializeOwned>(&self) -> Result<Option<(M, Vec<ForeignDescriptor>)>, SocketError> {
        match self.receive_foreign_raw()? {
            Some((bytes, fds)) => Ok(Some((decode(&bytes)?, fds))),
            None => Ok(None),
        }
    }

    /// Receives the next message as [`receive_foreign`](Self::receive_foreign), but without decoding it, to forward it.
    pub fn receive_foreign_raw(&self) -> Result<Option<ForeignMessage>, SocketError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let received = hotlease_descriptors::receive_all(self, &mut bytes)?;
        let fds: Vec<_> = received.descriptors.into_iter().map(ForeignDescriptor::from).collect();
        if received.is_truncated || fds.len() > MESSAGE_FDS_MAX {
            return Err(SocketError::Truncated);
        }
        bytes.truncate(received.length);
        Ok((received.length > 0).then_some((bytes, fds)))
    }

    /// Receives the next message without decoding it, on a thread that serves this peer alone. Returns `None` when the
    /// peer has closed. A message with descriptors is an error; the call waits until these descriptors are closed.
    pub fn receive_bytes(&self) -> Result<Option<Vec<u8>>, SocketError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let length = hotlease_descriptors::receive_bytes(self, &mut bytes)?;
        bytes.truncate(length);
        Ok((length > 0).then_some(bytes))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd().as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().as_raw_fd()
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            closes_aside: false,
        }
    }
}

impl From<ForeignDescriptor> for Socket {
    /// The socket is [closed aside](Socket::closed_aside).
    fn from(fd: ForeignDescriptor) -> Self {
        Self::from(fd.into_trusted()).closed_aside()
    }
}

impl From<Socket> for ForeignDescriptor {
    fn from(mut socket: Socket) -> Self {
        Self::from(socket.fd.take().expect("taken only where `self` ends"))
    }
}

impl From<Socket> for OwnedFd {
    fn from(mut socket: Socket) -> Self {
        socket.fd.take().expect("taken only where `self` ends")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && self.closes_aside
        {
            close_aside(fd);
        }
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

    /// Accepts the next connection (a blocking socket). Fails with `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<Socket> {
        let fd = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 just made this descriptor for us.
        Ok(Socket::from(unsafe { OwnedFd::from_raw_fd(fd) }))
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
    fn a_socket_that_refuses_descriptors_gets_messages_without_any() {
        let (a, b) = Socket::pair().unwrap();
        let file = sealed_copy("test", b"hello").unwrap();
        b.refuse_descriptors().unwrap();
        match a.send(&WorkerAnswer::Done, &[file.as_fd()]) {
            // Kernels before Linux 6.16.
            Ok(()) => assert!(matches!(b.receive_bytes(), Err(SocketError::Truncated))),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
        a.send(&WorkerAnswer::Done, &[]).unwrap();
        let bytes = b.receive_bytes().unwrap().expect("a message");
        assert_eq!(decode::<WorkerAnswer>(&bytes).unwrap(), WorkerAnswer::Done);
        b.send(&WorkerAnswer::Done, &[file.as_fd()]).unwrap();
        assert_eq!(
            a.receive_foreign::<WorkerAnswer>().unwrap().expect("a message").1.len(),
            1
        );
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
