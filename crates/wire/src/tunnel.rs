//! A session with an agent on another host: the messages of [`crate::session`] and [`crate::connection`], and the
//! substitutes of their descriptors, as frames on a stream.
//!
//! A stream begins with the agent's [`TunnelFrame::Hello`] and the client's [`TunnelFrame::Session`] or
//! [`TunnelFrame::Join`], which the agent accepts or rejects. A client without a certificate sends the first frame:
//! [`TunnelFrame::Bearer`] for a session, [`TunnelFrame::Join`] for a socket, whose ticket only the bearer of a session
//! has. From then on both sides send messages. A message's memory follows it on the stream without framing, one
//! attachment after the other. A socket is kept under a ticket until the client fetches it with a separate stream.
//!
//! On the stream a frame is its length (32 bits, little endian) and that many bytes. A side that has nothing else to
//! send sends [`TunnelFrame::Alive`], so that its peer can distinguish a vanished host from a busy host.

use crate::DecodeError;
use crate::limits::{CODE_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use crate::rejection::Rejection;
use crate::token::TOKEN_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Bytes of a frame's length.
pub const PREFIX_BYTES: usize = 4;
/// Longest frame, bytes: a message with all its attachments.
pub const FRAME_BYTES_MAX: usize = MESSAGE_BYTES_MAX + 256;
/// Longest first frame of a client without a certificate, bytes: a token, and its other fields.
pub const FIRST_BYTES_MAX: usize = TOKEN_BYTES_MAX + 32;

/// Names a socket that waits to be fetched. Random, valid for one use within a few seconds, and only for the peer that
/// got it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket(pub [u8; 16]);

impl std::fmt::Debug for Ticket {
    /// Without a certificate, every party that has a ticket can use it, so tickets stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}

/// Substitute of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attachment {
    /// Sealed memory: this many bytes follow on the stream.
    Memory {
        /// Size of the memory: at least 1, at most [`CODE_BYTES_MAX`].
        size_bytes: u64,
    },
    /// A socket, to be fetched with [`TunnelFrame::Join`].
    Socket {
        /// Ticket of the socket.
        ticket: Ticket,
    },
}

/// A frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TunnelFrame {
    /// First frame of the agent: it has admitted the client.
    Hello {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
    },
    /// First frame of the client: starts a session. Answer: [`TunnelFrame::Accepted`].
    Session {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
    /// First frame of the client: fetches a socket. Answer: [`TunnelFrame::Accepted`].
    Join {
        /// Ticket of the attachment.
        ticket: Ticket,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
    /// Answer of the agent: messages may follow.
    Accepted,
    /// Answer of the agent, and its last frame: a rejection.
    Refused(Rejection),
    /// One message of the carried protocol, 1 to [`MESSAGE_BYTES_MAX`] bytes.
    Message {
        /// The message, unchanged.
        bytes: Vec<u8>,
        /// Its attachments; at most [`MESSAGE_FDS_MAX`].
        attachments: Vec<Attachment>,
    },
    /// Sign of life, without content.
    Alive,
    /// First frame of a client without a certificate, before the agent has sent anything: starts a session, with a
    /// lease's token in place of a certificate. Answer: [`TunnelFrame::Accepted`].
    Bearer {
        /// [`crate::limits::PROTOCOL_VERSION`].
        version: u32,
        /// Token from the grant.
        token: Vec<u8>,
        /// How long either side may be silent, milliseconds.
        silence_ms: u64,
    },
}

impl TunnelFrame {
    /// Encodes the frame, with its length in front.
    pub fn encode(&self) -> Vec<u8> {
        let body = crate::encode(self);
        let mut frame = Vec::with_capacity(PREFIX_BYTES + body.len());
        // The length fits: messages are bounded.
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        frame
    }

    /// Size of the body that follows a length.
    pub fn body_bytes(prefix: [u8; PREFIX_BYTES]) -> Result<usize, DecodeError> {
        let size = u32::from_le_bytes(prefix) as usize;
        if size > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { size });
        }
        Ok(size)
    }

    /// Decodes the bytes that follow a length; total on any bytes.
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
        let longest = TunnelFrame::Bearer {
            version: u32::MAX,
            token: vec![0xff; TOKEN_BYTES_MAX],
            silence_ms: u64::MAX,
        };
        let bytes = longest.encode().len() - PREFIX_BYTES;
        assert!(bytes <= FIRST_BYTES_MAX, "{bytes} bytes");
    }
}
