//! Prefixes of messages over a fabric, and the data that two ends exchange to reach one another.
//!
//! A message over a fabric begins with a [`Prefix`]. In a frame, the header line follows, and then the payload, unless
//! the payload was written ahead by RMA. Words of zeros at the end of the line are not sent; if a payload follows, they
//! are the whole second half. So a payload of 8 bytes is sent in a message of 64 bytes, and a payload of 64 bytes in a
//! message of 120, which sockets send without a completion.
//!
//! ```text
//! byte  0     1         2      4         8     16       20      24       56 to 88
//!       | kind| version | flags| channel | key | entry  | length| line   | payload ... |
//! ```
//!
//! The receiver's memory is reached by number (channel and entry), never by an address in the message. Keys are drawn
//! at random for each channel and each link, and passed over the authenticated control plane: a peer that only knows a
//! port's address can put nothing into a ring.

use crate::DecodeError;
use crate::connection::RingShape;
use crate::frame::{EXPRESS_ENTRY, LineWords};
use serde::{Deserialize, Serialize};

/// Version of this layout; other versions are refused.
const VERSION: u8 = 2;
/// Words of a line before its inline payload.
const HALF_WORDS: usize = 4;
/// Flag: the payload was written into the entry by RMA before this message.
const PAYLOAD_WRITTEN: u16 = 1;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// A frame of a channel.
    Frame = 1,
    /// Asks for a [`MessageKind::ProbeAnswer`]: proves that bytes pass over the link in both directions.
    Probe = 2,
    /// Answers a probe, with the same number.
    ProbeAnswer = 3,
    /// The sender has closed the channel.
    Goodbye = 4,
}

/// The first bytes of every message, except messages with an [`Envelope`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Kind of the message.
    pub kind: MessageKind,
    /// Whether the payload is in the entry already.
    pub payload_written: bool,
    /// The receiver's number of the channel; for probes the number of the probe.
    pub channel: u32,
    /// Key of the channel; for probes, key of the link.
    pub key: u64,
    /// Entry of the receiver's ring, or [`EXPRESS_ENTRY`].
    pub entry: u32,
    /// Bytes of payload in the entry; a payload inside the line is not counted.
    pub length: u32,
}

impl Prefix {
    /// Encoded size.
    pub const BYTES: usize = 24;

    /// Number of bytes of a frame's line that are sent in its message, after a prefix with this `length`: whole words,
    /// and at least the first half of the line.
    #[inline]
    pub fn line_bytes(length: u32, line: &LineWords) -> usize {
        let inline = if length == 0 { &line[HALF_WORDS..] } else { &[] };
        let zeros = inline.iter().rev().take_while(|word| **word == 0).count();
        8 * (HALF_WORDS + inline.len() - zeros)
    }

    /// Line and payload of a frame, from the message that begins with this prefix; `None` if the message's length is
    /// wrong. Words of the line that were not sent are zero.
    #[inline]
    pub fn frame<'a>(&self, message: &'a [u8]) -> Option<(LineWords, &'a [u8])> {
        let (in_line, in_message) = match (self.length, self.payload_written) {
            (0, false) => (message.len().checked_sub(Self::BYTES)?, 0),
            (length, false) => (8 * HALF_WORDS, length as usize),
            (_, true) => (8 * HALF_WORDS, 0),
        };
        if message.len() != Self::BYTES + in_line + in_message
            || in_line < 8 * HALF_WORDS
            || in_line > size_of::<LineWords>()
        {
            return None;
        }
        let (line, payload) = message[Self::BYTES..].split_at(in_line);
        let (from, rest) = line.as_chunks::<8>();
        if !rest.is_empty() {
            return None;
        }
        let mut words = LineWords::default();
        for (word, bytes) in words.iter_mut().zip(from) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some((words, payload))
    }

    /// Prefix of a probe, an answer to a probe, or a goodbye.
    pub fn bare(kind: MessageKind, channel: u32, key: u64) -> Self {
        Self {
            kind,
            payload_written: false,
            channel,
            key,
            entry: 0,
            length: 0,
        }
    }

    /// Encodes the prefix.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let flags = if self.payload_written { PAYLOAD_WRITTEN } else { 0 };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = VERSION;
        bytes[2..4].copy_from_slice(&flags.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.entry.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes the first [`Prefix::BYTES`] of a message. Checks the form only. The receiver then checks that the
    /// channel exists, that the key is the channel's, that the entry is in its ring, and that the length fits both
    /// entry and message; see [`Prefix::fits_ring`].
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "fabric prefix" };
        let Some((head, _)) = bytes.split_first_chunk::<{ Self::BYTES }>() else {
            return Err(malformed);
        };
        let half = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let kind = match head[0] {
            1 => MessageKind::Frame,
            2 => MessageKind::Probe,
            3 => MessageKind::ProbeAnswer,
            4 => MessageKind::Goodbye,
            _ => return Err(malformed),
        };
        let flags = u16::from_le_bytes([head[2], head[3]]);
        let bare = kind != MessageKind::Frame && (flags != 0 || half(16) != 0 || half(20) != 0);
        if head[1] != VERSION || flags & !PAYLOAD_WRITTEN != 0 || bare {
            return Err(malformed);
        }
        Ok(Self {
            kind,
            payload_written: flags & PAYLOAD_WRITTEN != 0,
            channel: half(4),
            key: word(8),
            entry: half(16),
            length: half(20),
        })
    }

    /// Whether a ring of this shape has the entry, and the payload fits into it.
    #[inline]
    pub fn fits_ring(&self, shape: RingShape) -> bool {
        (self.entry < shape.depth || self.entry == EXPRESS_ENTRY) && self.length <= shape.entry_bytes
    }
}

/// Memory of a peer that may be read or written over the fabric. This is an address, not a secret: software providers
/// do not check it, and a peer that guesses it reaches the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmaMemory {
    /// Address of the first byte, in the peer's terms: a virtual address, or 0.
    pub address: u64,
    /// The provider's key of the memory.
    pub key: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddress {
    /// Name of the provider, the same on both ends.
    pub provider: String,
    /// Address in the provider's format.
    pub address: Vec<u8>,
}

/// Description of an endpoint for one peer that sends messages to it, each with an [`Envelope`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbox {
    /// Address of the endpoint.
    pub address: PortAddress,
    /// The receiver's number of this peer.
    pub number: u32,
    /// Key, drawn at random for this peer.
    pub key: u64,
    /// Longest message that the endpoint receives, with its envelope.
    pub message_bytes: u32,
}

impl Inbox {
    /// Longest encoding, bytes.
    pub const BYTES_MAX: usize = 640;
    /// Longest address, and longest name of a provider, bytes.
    const ADDRESS_BYTES_MAX: usize = 512;
    const NAME_BYTES_MAX: usize = 64;

    /// Decodes an inbox; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let inbox: Self = crate::decode(bytes)?;
        let PortAddress { provider, address } = &inbox.address;
        let has_room = inbox.message_bytes as usize > Envelope::BYTES;
        if has_room && provider.len() <= Self::NAME_BYTES_MAX && address.len() <= Self::ADDRESS_BYTES_MAX {
            Ok(inbox)
        } else {
            Err(DecodeError::Malformed { what: "inbox" })
        }
    }
}

/// The first bytes of a message whose order is kept between two ends, in place of a [`Prefix`]:
///
/// ```text
/// byte  0     8        12         16
///       | key | number | sequence | content ...
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Key of the [`Inbox`].
    pub key: u64,
    /// Number of the sender, from the [`Inbox`].
    pub number: u32,
    /// Number of the message among the messages of this sender, counted from 0: no message is lost, and none overtakes
    /// another.
    pub sequence: u32,
}

impl Envelope {
    /// Encoded size.
    pub const BYTES: usize = 16;

    /// Encodes the envelope.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let words = u128::from(self.key) | u128::from(self.number) << 64 | u128::from(self.sequence) << 96;
        words.to_le_bytes()
    }

    /// Splits a message into envelope and content. Any 16 bytes form an envelope; the receiver checks whether it is
    /// valid.
    #[inline]
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((head, content)) = message.split_first_chunk() else {
            return Err(DecodeError::Malformed { what: "envelope" });
        };
        let words = u128::from_le_bytes(*head);
        let envelope = Self {
            key: words as u64,
            number: (words >> 64) as u32,
            sequence: (words >> 96) as u32,
        };
        Ok((envelope, content))
    }
}

/// The owner's description of a ring for the peer that writes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingDescription {
    /// The owner's number of the channel.
    pub channel: u32,
    /// Key that every frame must carry.
    pub key: u64,
    /// The ring's shape.
    pub shape: RingShape,
    /// The ring's memory, for payloads that are written ahead.
    pub ring: RmaMemory,
    /// Longest message that the owner's port receives.
    pub message_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Prefix = Prefix {
        kind: MessageKind::Frame,
        payload_written: true,
        channel: 0x0102_0304,
        key: u64::MAX - 1,
        entry: EXPRESS_ENTRY,
        length: 8128,
    };

    #[test]
    fn prefixes_round_trip() {
        for prefix in [
            FRAME,
            Prefix {
                payload_written: false,
                entry: 63,
                length: 0,
                ..FRAME
            },
            Prefix::bare(MessageKind::Probe, 7, 8),
            Prefix::bare(MessageKind::ProbeAnswer, u32::MAX, 0),
            Prefix::bare(MessageKind::Goodbye, 0, 1),
        ] {
            assert_eq!(Prefix::decode(&prefix.encode()), Ok(prefix));
        }
    }

    #[test]
    fn envelopes_and_inboxes_round_trip() {
        let envelope = Envelope {
            key: u64::MAX - 1,
            number: 7,
            sequence: u32::MAX,
        };
        let message = [&envelope.encode()[..], b"content"].concat();
        assert_eq!(Envelope::decode(&message), Ok((envelope, &b"content"[..])));
        assert!(Envelope::decode(&message[..Envelope::BYTES - 1]).is_err());
        let mut inbox = Inbox {
            address: PortAddress {
                provider: "p".repeat(64),
                address: vec![0xff; 512],
            },
            number: u32::MAX,
            key: u64::MAX,
            message_bytes: u32::MAX,
        };
        let bytes = crate::encode(&inbox);
        assert!(bytes.len() <= Inbox::BYTES_MAX);
        assert_eq!(Inbox::decode(&bytes).as_ref(), Ok(&inbox));
        inbox.message_bytes = Envelope::BYTES as u32;
        assert!(Inbox::decode(&crate::encode(&inbox)).is_err(), "no room");
        (inbox.message_bytes, inbox.address.address) = (100, vec![0; 513]);
        assert!(Inbox::decode(&crate::encode(&inbox)).is_err(), "too long an address");
    }

    #[test]
    fn anything_unknown_is_refused() {
        let good = FRAME.encode();
        for (at, value) in [(0, 0), (0, 5), (1, 0), (1, 1), (1, 3), (2, 2), (3, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Prefix::decode(&bytes).is_err(), "byte {at} = {value}");
        }
        assert!(Prefix::decode(&good[..23]).is_err());
        let mut probe = Prefix::bare(MessageKind::Probe, 1, 2).encode();
        probe[20] = 1;
        assert!(Prefix::decode(&probe).is_err(), "a probe has no payload");
    }

    #[test]
    fn frames_come_apart_as_they_were_put_together() {
        let inline = |bytes: &[u64]| {
            let mut line = [1, 2, 3, 4, 0, 0, 0, 0];
            line[4..4 + bytes.len()].copy_from_slice(bytes);
            line
        };
        let lines = [inline(&[]), inline(&[7]), inline(&[0, 0, 7]), inline(&[7, 7, 7, 7])];
        for (line, words) in lines.into_iter().zip([4, 5, 7, 8]) {
            assert_eq!(Prefix::line_bytes(0, &line), 8 * words);
            let (prefix, message) = message(0, false, &line, &[]);
            assert_eq!(prefix.frame(&message), Some((line, &[][..])));
        }
        let (prefix, frame) = message(100, false, &inline(&[]), &[9; 100]);
        assert_eq!(prefix.frame(&frame), Some((inline(&[]), &[9; 100][..])));
        let (prefix, frame) = message(100, true, &inline(&[]), &[]);
        assert_eq!(prefix.frame(&frame), Some((inline(&[]), &[][..])));
    }

    #[test]
    fn messages_that_are_too_short_or_too_long_are_no_frames() {
        for (length, written, payload) in [(0, false, 0), (100, false, 100), (100, true, 0)] {
            let (prefix, whole) = message(length, written, &[u64::MAX; 8], &vec![9; payload]);
            let good = (Prefix::BYTES + 32, Prefix::BYTES + 64);
            for bytes in 0..300 {
                let mut changed = whole.clone();
                changed.resize(bytes, 1);
                let inline = length == 0 && (good.0..=good.1).contains(&bytes) && bytes % 8 == 0;
                assert_eq!(
                    prefix.frame(&changed).is_some(),
                    inline || bytes == whole.len(),
                    "{bytes}"
                );
            }
        }
        assert!(
            Prefix {
                length: u32::MAX,
                ..FRAME
            }
            .frame(&[0; 64])
            .is_none()
        );
    }

    fn message(length: u32, payload_written: bool, line: &LineWords, payload: &[u8]) -> (Prefix, Vec<u8>) {
        let prefix = Prefix {
            length,
            payload_written,
            ..FRAME
        };
        let words = &line[..Prefix::line_bytes(length, line) / 8];
        let line = words.iter().flat_map(|word| word.to_le_bytes());
        let message = prefix.encode().into_iter().chain(line).chain(payload.iter().copied());
        (prefix, message.collect())
    }

    #[test]
    fn entries_and_lengths_outside_of_the_ring_do_not_fit() {
        let shape = RingShape {
            depth: 64,
            entry_bytes: 8128,
        };
        assert!(FRAME.fits_ring(shape));
        assert!(Prefix { entry: 63, ..FRAME }.fits_ring(shape));
        for (entry, length) in [(64, 0), (u32::MAX - 1, 0), (0, 8129), (EXPRESS_ENTRY, u32::MAX)] {
            assert!(!Prefix { entry, length, ..FRAME }.fits_ring(shape), "{entry} {length}");
        }
    }
}
