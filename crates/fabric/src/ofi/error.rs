//! Errors of a fabric.

use crate::memory::MemoryError;
use std::path::PathBuf;
use std::time::Duration;

/// An error of a fabric. Cloneable, because a broken link is reported to every user of the link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfiError {
    /// There is no library to load: only `shm` is available.
    #[error("libfabric cannot be loaded from {path}: {why}; install libfabric1 or set HOTLEASE_LIBFABRIC",
        path = .path.display())]
    NoLibrary {
        /// Last path that was tried.
        path: PathBuf,
        /// Message of the loader.
        why: String,
    },
    /// The file is no libfabric, or is a version that lacks a necessary function.
    #[error("{path} is not libfabric 1.9 or later: {why}; install libfabric1 or set HOTLEASE_LIBFABRIC",
        path = .path.display())]
    Foreign {
        /// The library.
        path: PathBuf,
        /// Missing symbol.
        why: String,
    },
    /// The library is too old.
    #[error("{path} is libfabric {major}.{minor}: {why}; 1.9 or later is needed", path = .path.display())]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Reason.
        why: String,
    },
    /// A libfabric call failed.
    #[error("{provider}: {call}: {why} ({code})")]
    Call {
        /// Name of the provider.
        provider: String,
        /// Function of libfabric.
        call: &'static str,
        /// Positive libfabric error number.
        code: i32,
        /// Text of the error number.
        why: String,
    },
    /// The provider lacks something that this transport needs.
    #[error("{provider} cannot be used: {why}")]
    Unusable {
        /// Name of the provider.
        provider: String,
        /// Reason.
        why: String,
    },
    /// The peer's address does not belong to this provider.
    #[error("not an address of {provider}: {why}")]
    BadAddress {
        /// Name of the provider.
        provider: String,
        /// Reason.
        why: &'static str,
    },
    /// The peer's description of its end of a channel contradicts the agreement between the ends.
    #[error("the peer's end of the channel is refused: {why}")]
    BadEnd {
        /// Reason.
        why: &'static str,
    },
    /// A span reaches past the end of its memory.
    #[error("{length} bytes at {offset} are outside of the {size} bytes of {what}")]
    OutOfBounds {
        /// "remote memory" or "local memory".
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// A table of this port is full.
    #[error("this port has no room for more than {limit} {what}")]
    TooMany {
        /// Kind of the table's entries.
        what: &'static str,
        /// Limit of the table.
        limit: usize,
    },
    /// Nothing moved until the deadline: the peer is gone, stopped, or cut off.
    #[error("{what}: no progress within {after:?}; is the peer alive and reachable?")]
    Timeout {
        /// Operation that was waited for.
        what: &'static str,
        /// Time that was waited.
        after: Duration,
    },
    /// The link reported a failure: the peer is gone or cannot be reached.
    #[error("the link to the peer broke: {what}: {why} ({code})")]
    LinkBroken {
        /// Operation that failed.
        what: &'static str,
        /// Positive libfabric error number.
        code: i32,
        /// Text of the error number.
        why: String,
    },
    /// The peer sent a goodbye: it closed the channel.
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
