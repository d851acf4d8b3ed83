//! A session with an agent on another host: the messages of [`crate::session`] and [`crate::connection`], and
//! what stands for the descriptors that go with them, as frames on a stream.
//!
//! A stream begins with the agent's [`Frame::Hello`] and the client's [`Frame::Session`] or [`Frame::Join`],
//! which the agent accepts or refuses. A client without a certificate speaks first: [`Frame::Bearer`] for a session,
//! [`Frame::Join`] for a socket, whose ticket only the bearer of a session has. From then on both sides send messages. A message's memory follows it
//! on the stream as it is, one attachment after the other; a socket is left behind under a ticket, for which
//! the client comes with a stream of its own.
//!
//! On the stream a frame is its length (32 bits, little endian) and as many bytes. Who has nothing to say
//! says [`Frame::Alive`], so that a host that has vanished is told from one that is busy.

use crate::DecodeError;
use crate::limits::{CODE_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use crate::refusal::Refusal;
use crate::token::TOKEN_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Bytes of a frame's length.
pub const PREFIX_BYTES: usize = 4;
/// Longest frame, bytes: a message with all that may be attached to it.
pub const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 256;
/// Longest first frame of a client without a certificate, bytes: a token, and what goes with it.
pub const FIRST_BYTES_MAX: usize = TOKEN_BYTES_MAX + 32;

/// Names a socket that waits to be taken up. Random, good for one use within a few seconds, and only for
/// the peer that it was given to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket(pub [u8; 16]);

impl std::fmt::Debug for Ticket {
    /// Whoever has it can use it, so it stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// What stands for a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attachment {
    /// Sealed memory: so many bytes follow on the stream.
    Memory {
        /// At least 1, at most [`CODE_BYTES_MAX`].
        size_bytes: u64,
    },
    /// A socket, to be taken up with [`Frame::Join`].
    Socket {
        /// Under which.
        ticket: Ticket,
    },
}

/// What is sent on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// The agent's first: it has let the client in.
    Hello {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
    },
    /// The client's first: a session. Answer: [`Frame::Accepted`].
    Session {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
    /// The client's first: it comes for a socket. Answer: [`Frame::Accepted`].
    Join {
        /// Of the attachment.
        ticket: Ticket,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
    /// The agent's answer: messages may follow.
    Accepted,
    /// The agent's answer, and the last frame.
    Refused(Refusal),
    /// One message of the protocol that is carried, 1 to [`MESSAGE_BYTES_MAX`] bytes.
    Message {
        /// As it was sent.
        bytes: Vec<u8>,
        /// What was attached; at most [`MESSAGE_FDS_MAX`].
        attachments: Vec<Attachment>,
    },
    /// Nothing to say.
    Alive,
    /// The first of a client without a certificate, before the agent has said anything: a session, for which a lease's
    /// token stands in. Answer: [`Frame::Accepted`].
    Bearer {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// From the grant.
        token: Vec<u8>,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
}

impl Frame {
    /// With its length in front.
    pub fn encode(&self) -> Vec<u8> {
        let body = crate::encode(self);
        let mut frame = Vec::with_capacity(PREFIX_BYTES + body.len());
        // Bounded, as whoever makes a message is.
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        frame
    }

    /// How many bytes follow a length.
    pub fn body_bytes(prefix: [u8; PREFIX_BYTES]) -> Result<usize, DecodeError> {
        let size = u32::from_le_bytes(prefix) as usize;
        if size > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { size });
        }
        Ok(size)
    }

    /// Of the bytes that follow a length; total on any bytes.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        if body.len() > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { size: body.len() });
        }
        let malformed = DecodeError::Malformed { what: "tunnel frame" };
        let Ok((frame, [])) = postcard::take_from_bytes::<Self>(body) else {
            return Err(malformed);
        };
        if let Self::Message { bytes, attachments } = &frame {
            let memory_fits = attachments.iter().all(|attachment| match attachment {
                Attachment::Memory { size_bytes } => (1..=CODE_BYTES_MAX).contains(size_bytes),
                Attachment::Socket { .. } => true,
            });
            let message_fits = (1..=MESSAGE_BYTES_MAX).contains(&bytes.len());
            if !memory_fits || !message_fits || attachments.len() > MESSAGE_FDS_MAX {
                return Err(malformed);
            }
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_fits_into_a_first_frame() {
        let longest = Frame::Bearer {
            version: u32::MAX,
            token: vec![0xff; TOKEN_BYTES_MAX],
            silence_ms: u64::MAX,
        };
        let bytes = longest.encode().len() - PREFIX_BYTES;
        assert!(bytes <= FIRST_BYTES_MAX, "{bytes} bytes");
    }
}
