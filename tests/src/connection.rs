//! The client's side of a worker's connection socket, without the client library.

use crate::channel::RawChannel;
use crate::platform::LIMIT;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::memory::Memory;
use hotlease_fabric::shm::{NearRing, ShmRing};
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_wire::Rejection;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::ids::{RegionId, SlotIndex};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// One connection; checks nothing that it sends.
pub struct RawConnection {
    socket: Socket,
}

/// A shape that every worker accepts.
pub const SHAPE: RingShape = RingShape {
    depth: 8,
    entry_bytes: 4096,
};

impl RawConnection {
    /// Makes a connection over the socket that was sent with `Connected`.
    pub fn new(socket: Socket) -> Self {
        // A hostile function may have sent descriptors that take minutes to close.
        Self {
            socket: socket.closed_aside(),
        }
    }

    /// Sends a request and waits for its answer; `None` if the worker closed the connection.
    ///
    /// # Panics
    /// If the worker does not answer, or sends something else than an answer.
    pub fn ask(&self, request: &ConnectionRequest, fds: &[BorrowedFd<'_>]) -> Option<(ConnectionReply, Vec<OwnedFd>)> {
        if self.socket.send(request, fds).is_err() {
            return None;
        }
        self.next(LIMIT)
    }

    /// Waits for the next answer; `None` if the worker closed the connection.
    ///
    /// # Panics
    /// As [`RawConnection::ask`].
    pub fn next(&self, limit: Duration) -> Option<(ConnectionReply, Vec<OwnedFd>)> {
        self.socket.set_receive_timeout(Some(limit)).expect("a time limit");
        match self.socket.receive() {
            Ok(message) => message,
            Err(SocketError::Io(error)) if error.kind() != std::io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("the worker does not answer: {error}"),
        }
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        self.socket.send_bytes(bytes, fds)
    }

    /// Sends more descriptors than a message may have.
    pub fn send_many_fds(&self, bytes: &[u8], fd: BorrowedFd<'_>, count: usize) {
        send_many_fds(&self.socket, bytes, fd, count);
    }

    /// Opens a channel to a slot, with rings of [`SHAPE`].
    ///
    /// # Panics
    /// If the worker refuses.
    pub fn channel(&self, slot: u16) -> RawChannel {
        self.open(slot, SHAPE, SHAPE)
            .expect("the connection is open")
            .unwrap_or_else(|refusal| panic!("no channel: {refusal}"))
    }

    /// Opens a channel; `None` if the worker closed the connection instead.
    ///
    /// # Panics
    /// If there is no answer, or a wrong one.
    pub fn open(&self, slot: u16, request: RingShape, reply: RingShape) -> Option<Result<RawChannel, Rejection>> {
        let replies = NearRing::create("test-replies", reply).expect("a ring");
        let doorbell = Doorbell::create().expect("a doorbell");
        let fds = [replies.fd(), doorbell.fd()];
        let message = ConnectionRequest::Open {
            slot: SlotIndex(slot),
            request,
            reply,
        };
        match self.ask(&message, &fds)? {
            (ConnectionReply::Opened { generation }, mut fds) if fds.len() == 2 => {
                let slot_doorbell = Doorbell::attach(fds.pop().expect("two")).expect("the slot's doorbell");
                let ring = fds.pop().expect("two");
                let requests = ShmRing::attach(ring, request, slot_doorbell).expect("the request ring");
                Some(Ok(RawChannel::new(requests, replies, doorbell, generation)))
            }
            (ConnectionReply::Refused(refusal), _) => Some(Err(refusal)),
            (other, _) => panic!("to Open: {other:?}"),
        }
    }

    /// Registers memory.
    ///
    /// # Panics
    /// If there is no answer, or a wrong one.
    pub fn register(&self, region: u32, memory: &Memory) -> Result<(), Rejection> {
        self.done(
            &ConnectionRequest::Register {
                region: RegionId(region),
                size_bytes: memory.size_bytes(),
            },
            &[memory.fd()],
        )
    }

    /// Sends a request that is answered by yes or no.
    ///
    /// # Panics
    /// If there is no answer, or a wrong one.
    pub fn done(&self, request: &ConnectionRequest, fds: &[BorrowedFd<'_>]) -> Result<(), Rejection> {
        match self.ask(request, fds) {
            Some((ConnectionReply::Done, _)) => Ok(()),
            Some((ConnectionReply::Refused(refusal), _)) => Err(refusal),
            other => panic!("to {request:?}: {other:?}"),
        }
    }

    /// Returns whether the worker has closed the connection, or does so within `limit`. Drops answers.
    pub fn is_closed(&self, limit: Duration) -> bool {
        self.socket.set_receive_timeout(Some(limit)).expect("a time limit");
        loop {
            match self.socket.receive::<ConnectionReply>() {
                Ok(None) => return true,
                Ok(Some(_)) | Err(SocketError::Decode(_) | SocketError::Truncated) => {}
                Err(SocketError::Io(error)) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Sends one message with `count` copies of a descriptor.
pub fn send_many_fds(socket: &impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>, count: usize) {
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
    let raw: Vec<RawFd> = vec![fd.as_raw_fd(); count];
    let rights = [ControlMessage::ScmRights(&raw)];
    let iov = [std::io::IoSlice::new(bytes)];
    let to = socket.as_fd().as_raw_fd();
    // The peer may have closed the connection already.
    let _ = sendmsg::<UnixAddr>(to, &iov, &rights, MsgFlags::MSG_NOSIGNAL, None);
}
