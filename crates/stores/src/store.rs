//! Operations of a store, and how they fail.

use std::future::Future;

/// Failure of a store; nothing can be done over it any more.
#[derive(Debug, Clone)]
pub(crate) struct StoreFault {
    /// Error text of the store, and advice. Contains no credentials.
    pub(crate) why: String,
}

/// Operations of a store. One thread at a time polls the futures of many operations; the futures move from thread to
/// thread.
pub(crate) trait LinkStore: Send + Sync + 'static {
    /// Number of bytes of a piece; pieces contain the part of a body that is not stored with its head.
    const PIECE_BYTES: usize;
    /// Whether reading a head removes it, so that no member has to remove it.
    const HEADS_ARE_TAKEN: bool;
    /// Whether the store has no blocking read, so that an awaited head is asked for repeatedly.
    const IS_POLLED: bool;

    /// Number of bytes of a body that are stored with its head.
    fn first_bytes(readers: u32) -> usize;
    /// Writes an object's head, for this many readers.
    fn put_head(&self, key: &str, head: Vec<u8>, readers: u32) -> impl Future<Output = Result<(), StoreFault>> + Send;
    /// Reads a head as soon as it exists.
    fn take_head(&self, key: &str) -> impl Future<Output = Result<Vec<u8>, StoreFault>> + Send;
    /// Writes a piece.
    fn put(&self, key: &str, bytes: Vec<u8>) -> impl Future<Output = Result<(), StoreFault>> + Send;
    /// Reads a piece; returns `None` if it does not exist.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreFault>> + Send;
    /// Reads all boards, and then writes the board at index `own`.
    fn exchange(
        &self,
        keys: &[String],
        own: usize,
        board: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, StoreFault>> + Send;
    /// Removes these keys, as far as they exist.
    fn remove(&self, keys: &[String]) -> impl Future<Output = Result<(), StoreFault>> + Send;
    /// Keys in the store for this member's own use.
    fn private(&self) -> Vec<String> {
        Vec::new()
    }
    /// Removes every key with this prefix, which is a group's key and a slash.
    fn clear(&self, group: &str) -> impl Future<Output = Result<(), StoreFault>> + Send;
}

/// Text of an error with its causes, for example the message of a server or of the system.
pub(crate) fn error_text(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}
