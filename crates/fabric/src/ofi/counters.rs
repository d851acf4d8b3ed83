//! Counts of a port's received messages.

/// Counts of received messages. Refused frames change nothing but these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames put into rings.
    pub delivered: u64,
    /// Messages that are too short, or of an unknown kind or version.
    pub malformed: u64,
    /// Frames of a channel that is not open.
    pub unknown_channel: u64,
    /// Messages with a key other than the channel's or link's.
    pub wrong_key: u64,
    /// Messages from a sender other than the channel's or link's peer.
    pub wrong_source: u64,
    /// Frames for an entry that the ring does not have, or longer than the entry.
    pub bad_entry: u64,
    /// Frames whose length does not match the message's.
    pub bad_length: u64,
    /// Receives that failed, for instance because a message was too long.
    pub receive_errors: u64,
    /// Completions and failures that belong to no known operation.
    pub unattributed: u64,
}
