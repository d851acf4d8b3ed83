//! Messages with descriptors, over sockets that keep message boundaries.

use hotlease_wire::limits::MESSAGE_BYTES_MAX;
use hotlease_wire::{decode, encode};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Most descriptors in one message, a limit of the kernel (unix(7)).
const SCM_MAX_FD: usize = 253;

/// Sends one message. Never raises SIGPIPE.
pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = encode(message);
    if bytes.len() > MESSAGE_BYTES_MAX || fds.len() > SCM_MAX_FD {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too large"));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let iov = [IoSlice::new(&bytes)];
    loop {
        let flags = MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<UnixAddr>(socket.as_fd().as_raw_fd(), &iov, control, flags, None) {
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Receives the next message and its descriptors, which are closed on exec; `None`: the peer has closed.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut control = cmsg_space!([RawFd; SCM_MAX_FD]);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let received = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<UnixAddr>(socket.as_fd().as_raw_fd(), &mut iov, Some(&mut control), flags) {
            // A peer that closed with our message unread: reported once, before its own last messages and the end of
            // file.
            Err(Errno::EINTR | Errno::ECONNRESET) => continue,
            result => break result?,
        }
    };
    let cut = received.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
    let length = received.bytes;
    let mut fds = Vec::new();
    // Owns the descriptors first, so that every return closes them.
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel just made these descriptors for this process; nothing else owns them.
            fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message was too large"));
    }
    if length == 0 {
        return Ok(None);
    }
    let message = decode(&bytes[..length]);
    let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    #[test]
    fn what_a_peer_said_last_arrives_though_it_closed_with_our_message_unread() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("two ends");
        send(&a, &7_u32, &[std::io::stdin().as_fd()]).expect("sent");
        send(&b, &8_u32, &[]).expect("sent");
        drop(a);
        let (said, fds) = receive::<u32>(&b).expect("read").expect("its last word");
        assert_eq!((said, fds.len()), (7, 1));
        assert!(receive::<u32>(&b).expect("read").is_none(), "end of file");
    }
}
