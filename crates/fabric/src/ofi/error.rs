//! What can go wrong on a fabric.

use crate::memory::MemoryError;
use std::path::PathBuf;
use std::time::Duration;

/// Why something on a fabric failed. Cloneable, because a broken link is reported to everybody on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfiError {
    /// There is no library to load: only `shm` is available.
    #[error("libfabric cannot be loaded from {path}: {why}; install libfabric1 or set HOTLEASE_LIBFABRIC",
        path = .path.display())]
    NoLibrary {
        /// What was tried last.
        path: PathBuf,
        /// The loader's words.
        why: String,
    },
    /// It is no libfabric, or one from before the functions that are needed.
    #[error("{path} is not libfabric 1.9 or later: {why}; install libfabric1 or set HOTLEASE_LIBFABRIC",
        path = .path.display())]
    Foreign {
        /// The library.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// The library cannot do what is needed.
    #[error("{path} is libfabric {major}.{minor}: {why}; 1.9 or later is needed", path = .path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version.
        major: u32,
        /// Its version.
        minor: u32,
        /// What it lacks.
        why: String,
    },
    /// A libfabric call failed.
    #[error("{provider}: {call}: {why} ({code})")]
    Call {
        /// Which provider.
        provider: String,
        /// Which function of libfabric.
        call: &'static str,
        /// Positive libfabric error number.
        code: i32,
        /// Its text.
        why: String,
    },
    /// The provider cannot give what this transport needs.
    #[error("{provider} cannot be used: {why}")]
    Unusable {
        /// Which provider.
        provider: String,
        /// Why.
        why: String,
    },
    /// The peer's address is not one of this provider's.
    #[error("not an address of {provider}: {why}")]
    BadAddress {
        /// Which provider.
        provider: String,
        /// Why.
        why: &'static str,
    },
    /// What the peer says about its end of a channel contradicts what was agreed.
    #[error("the peer's end of the channel is refused: {why}")]
    BadEnd {
        /// Why.
        why: &'static str,
    },
    /// A span reaches past the memory that it is part of.
    #[error("{length} bytes at {offset} are outside of the {size} bytes of {what}")]
    OutOfBounds {
        /// "remote memory" or "local memory".
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes that there are.
        size: u64,
    },
    /// A table of this port is full.
    #[error("this port has no room for more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// Nothing moved until the deadline: the peer is gone, stopped, or cut off.
    #[error("{what}: no progress within {after:?}; is the peer alive and reachable?")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The link reported a failure: the peer is gone or cannot be reached.
    #[error("the link to the peer broke: {what}: {why} ({code})")]
    LinkBroken {
        /// Which operation failed.
        what: &'static str,
        /// Positive libfabric error number.
        code: i32,
        /// Its text.
        why: String,
    },
    /// The peer said that it closed the channel.
    #[error("the peer closed the channel")]
    PeerClosed,
    /// Memory could not be made.
    #[error("{0}")]
    Memory(String),
}

impl From<MemoryError> for OfiError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error.to_string())
    }
}
