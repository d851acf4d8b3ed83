//! Messages of the nursery, with descriptors, over sockets that keep message boundaries.

use hotlease_descriptors::{ReceiveError, SCM_MAX_FD};
use hotlease_wire::limits::MESSAGE_BYTES_MAX;
use hotlease_wire::{decode, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends one message. Never raises SIGPIPE.
pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = encode(message);
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too large"));
    }
    hotlease_descriptors::send(socket, &bytes, fds)
}

/// Receives the next message and its descriptors, which are closed on exec; returns `None` if the peer has closed.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let received = hotlease_descriptors::receive(socket, &mut bytes, SCM_MAX_FD);
    let (length, fds) = received.map_err(|error| match error {
        ReceiveError::Io(error) => error,
        ReceiveError::Truncated => io::Error::new(io::ErrorKind::InvalidData, "the message was too large"),
    })?;
    if length == 0 {
        return Ok(None);
    }
    let message = decode(&bytes[..length]);
    let message = message.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, fds)))
}
