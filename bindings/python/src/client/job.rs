//! A task on its way: what is sent, and what is kept to send it again.

use super::cell::Cell;
use super::memory::Memory;
use crate::format::{Key, Layout, Request, request};
use std::sync::Arc;

/// A function that tasks call, by its content.
pub struct Target {
    /// Its name on the wire.
    pub key: Key,
    /// Its pickle.
    pub blob: Box<[u8]>,
    /// Whether it may run again after a worker died of it.
    pub idempotent: bool,
}

/// A whole request, without its function.
pub enum Payload {
    /// That fits a ring entry.
    Small(Box<[u8]>),
    /// In shared memory.
    Large(Arc<Memory>),
}

impl Payload {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(memory) => memory.bytes(),
        }
    }
}

/// A task.
pub struct Job {
    pub cell: Arc<Cell>,
    pub target: Arc<Target>,
    pub payload: Payload,
    /// Workers that died of it.
    pub deaths: u8,
    /// It was sent before: it cannot be cancelled any more.
    pub sent: bool,
    /// It prepares a worker: nobody waits for it, but everybody for what it does.
    pub prepares: bool,
}

impl Job {
    /// A task that was not sent.
    pub fn new(cell: Arc<Cell>, target: Arc<Target>, payload: Payload) -> Self {
        Self {
            cell,
            target,
            payload,
            deaths: 0,
            sent: false,
            prepares: false,
        }
    }

    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }
}

/// The same request with its function in it. `None` where that is larger than any memory.
pub fn with_function(bytes: &[u8], target: &Target) -> Option<Vec<u8>> {
    let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
    let without = Request::decode(bytes.len(), at).ok()?;
    let lengths: Vec<usize> = without
        .arguments
        .buffers
        .iter()
        .map(|(_, length)| *length)
        .collect();
    let pickle_bytes = without.arguments.pickle_bytes;
    let head = Request::head(
        without.kind,
        without.writable,
        &target.key,
        target.blob.len(),
        pickle_bytes,
        &lengths,
    )?;
    let layout = Layout::new(head.len().checked_add(target.blob.len())?, pickle_bytes, lengths)?;
    let mut whole = vec![0; layout.end];
    whole[..head.len()].copy_from_slice(&head);
    whole[head.len()..layout.pickle].copy_from_slice(&target.blob);
    let pickle = &bytes[without.arguments.pickle..][..pickle_bytes];
    whole[layout.pickle..][..pickle_bytes].copy_from_slice(pickle);
    for ((into, length), (from, _)) in layout.buffers.iter().zip(&without.arguments.buffers) {
        whole[*into..][..*length].copy_from_slice(&bytes[*from..][..*length]);
    }
    Some(whole)
}

/// A request for a result that did not fit.
pub fn take(ticket: u64) -> Vec<u8> {
    let mut bytes = vec![0; request::HEAD_BYTES];
    bytes[0] = request::TAKE;
    bytes.extend(ticket.to_le_bytes());
    bytes
}
