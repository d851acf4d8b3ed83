//! Level 0 of hotlease: messages that carry descriptors from one process of a node to another, over Unix sockets that
//! keep message boundaries (`SCM_RIGHTS`, unix(7)).

#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kernel's limit of the descriptors in one message (unix(7)).
pub const SCM_MAX_FD: usize = 253;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(SCM_MAX_FD));

/// Reason why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// Error of the system; `WouldBlock` on a non-blocking socket without a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer sent more bytes or descriptors than the receiver accepts.
    #[error("the message has more bytes or descriptors than are accepted")]
    Truncated,
}

/// Sends one message. Never raises SIGPIPE.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        let too_many = format!("a message carries at most {SCM_MAX_FD} descriptors");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, too_many));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => continue,
            result => return Ok(result.map(drop)?),
        }
    }
}

/// A received message, without the bytes and descriptors for which there was no room.
#[derive(Debug)]
pub struct Received {
    /// Bytes that were received; 0 when the peer has closed.
    pub length: usize,
    /// Descriptors of the message, closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether bytes or descriptors are missing, because there was no room for them.
    pub is_truncated: bool,
}

/// Receives the next message into `bytes`, with all of its descriptors.
pub fn receive_all(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Received> {
    // Room for all descriptors that the kernel lets a peer attach.
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    receive_into(socket, bytes, RecvAncillaryBuffer::new(&mut space))
}

/// Receives the next message into `bytes`; returns its length, which is 0 when the peer has closed. Accepts no
/// descriptors: a message with descriptors is an error, and the kernel closes them in this call. The sender decides how
/// long their close takes, so only a thread that serves a single peer should call this function.
pub fn receive_bytes(socket: impl AsFd, bytes: &mut [u8]) -> Result<usize, ReceiveError> {
    let received = receive_into(socket, bytes, RecvAncillaryBuffer::default())?;
    match received.is_truncated {
        true => Err(ReceiveError::Truncated),
        false => Ok(received.length),
    }
}

fn receive_into(socket: impl AsFd, bytes: &mut [u8], mut control: RecvAncillaryBuffer<'_>) -> io::Result<Received> {
    let received = loop {
        let mut spans = [IoSliceMut::new(bytes)];
        match recvmsg(&socket, &mut spans, &mut control, RecvFlags::CMSG_CLOEXEC) {
            // ECONNRESET: the peer closed with our message unread. The kernel reports it once, ahead of the messages
            // that the peer sent before and ahead of the end of file.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            result => break result?,
        }
    };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Received {
        length: received.bytes,
        descriptors,
        is_truncated: received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
    })
}

/// Receives the next message into `bytes`. Returns its length, which is 0 when the peer has closed, and its
/// descriptors, which are closed on exec. A message that is longer than `bytes`, or has more than `most` descriptors,
/// is an error, and all of its descriptors are closed. Their close may take long, so this function is for trusted
/// peers.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], most: usize) -> Result<(usize, Vec<OwnedFd>), ReceiveError> {
    let received = receive_all(socket, bytes)?;
    if received.is_truncated || received.descriptors.len() > most {
        return Err(ReceiveError::Truncated);
    }
    Ok((received.length, received.descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("two ends")
    }

    #[test]
    fn the_last_message_of_a_peer_arrives_although_it_closed_with_ours_unread() {
        let (a, b) = pair();
        send(&a, &[7], &[std::io::stdin().as_fd()]).expect("sent");
        send(&b, &[8], &[]).expect("sent");
        drop(a);
        let mut bytes = [0; 8];
        let (length, descriptors) = receive(&b, &mut bytes, 1).expect("its last word");
        assert_eq!((&bytes[..length], descriptors.len()), (&[7][..], 1));
        let flags = fcntl_getfd(&descriptors[0]).expect("flags");
        assert!(flags.contains(FdFlags::CLOEXEC), "a descriptor would survive exec");
        let (length, descriptors) = receive(&b, &mut bytes, 1).expect("end of file");
        assert_eq!((length, descriptors.len()), (0, 0));
    }

    #[test]
    fn too_many_descriptors_or_bytes_are_refused_and_the_descriptors_closed() {
        for (count, most, length) in [(9, 8, 1), (SCM_MAX_FD, 8, 1), (SCM_MAX_FD, 252, 1), (2, 8, 5)] {
            let (a, b) = pair();
            // The only read ends of this pipe are in flight, so that the pipe breaks when all of them are closed.
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            send(&a, &vec![1; length], &vec![reader.as_fd(); count]).expect("sent");
            drop(reader);
            let received = receive(&b, &mut [0; 4], most);
            assert!(matches!(received, Err(ReceiveError::Truncated)), "{count} descriptors");
            let broken = writer.write(b"x").map_err(|error| error.kind());
            assert_eq!(
                broken,
                Err(io::ErrorKind::BrokenPipe),
                "{count} descriptors were left open"
            );
        }
        let (a, b) = pair();
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        send(&a, &[1], &[reader.as_fd()]).expect("sent");
        send(&a, &[2], &[]).expect("sent");
        drop(reader);
        let received = receive_bytes(&b, &mut [0; 4]);
        assert!(matches!(received, Err(ReceiveError::Truncated)), "{received:?}");
        let broken = writer.write(b"x").map_err(|error| error.kind());
        assert_eq!(broken, Err(io::ErrorKind::BrokenPipe), "left open where none is taken");
        assert_eq!(receive_bytes(&b, &mut [0; 4]).expect("the next"), 1);
        let (a, b) = pair();
        let stdin = std::io::stdin();
        send(&a, &[1], &vec![stdin.as_fd(); SCM_MAX_FD]).expect("sent");
        assert_eq!(
            receive(&b, &mut [0; 4], SCM_MAX_FD).expect("as many as fit").1.len(),
            SCM_MAX_FD
        );
        let over = send(&a, &[1], &vec![stdin.as_fd(); SCM_MAX_FD + 1]);
        assert_eq!(over.expect_err("too many").kind(), io::ErrorKind::InvalidInput);
    }
}
