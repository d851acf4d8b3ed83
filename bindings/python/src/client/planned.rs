//! Tasks as the dataflow kernel carries them, and what they need.

use super::cell::{Cell, Outcome};
use super::core::Closed;
use super::job::{Memo, Payload, Plan, Target};
use crate::format::{reply, request};
use hotlease_flow::{Key, TaskId};
use std::cell::OnceCell;
use std::sync::Arc;

/// A task, as the kernel carries it. A hundred thousand may wait, so what few have is behind pointers.
pub struct Planned {
    pub cell: Arc<Cell>,
    pub target: Arc<Target>,
    /// Its request, without the results that it needs.
    pub payload: Payload,
    pub plan: Plan,
    /// Results that were there when it was submitted, each with its number.
    pub done: Box<[(u32, Arc<Outcome>)]>,
    /// Results that it needs, these and others.
    pub inputs: u32,
    /// Under which its result is remembered, once that is known.
    pub key: OnceCell<Box<Key>>,
}

impl Planned {
    /// A task that was not submitted.
    pub fn new(cell: Arc<Cell>, target: Arc<Target>, payload: Payload, plan: Plan) -> Box<Self> {
        Box::new(Self {
            cell,
            target,
            payload,
            plan,
            done: Box::default(),
            inputs: 0,
            key: OnceCell::new(),
        })
    }

    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        self.payload.bytes().len()
    }

    /// Says what it computes: function, arguments and what it needs.
    pub fn key_of(&self, results: &[Arc<Outcome>]) -> Option<Key> {
        match self.plan.memo.as_ref()? {
            Memo::Not => None,
            Memo::Key(key) => Some(Key(**key)),
            Memo::Content => {
                let mut hasher = blake3::Hasher::new_derive_key("hotlease python task 1");
                hasher.update(self.target.content.get()?);
                let payload = self.payload.bytes();
                hasher.update(&(payload.len() as u64).to_le_bytes());
                // Whether somebody wants to know how long it takes is not part of it.
                hasher.update(&[payload[0], payload[1] & !request::TIMED]);
                hasher.update(&payload[2..]);
                for part in results.iter().filter_map(|result| result.bytes()) {
                    hasher.update(&(part.len() as u64).to_le_bytes());
                    hasher.update(part);
                }
                Some(Key(*hasher.finalize().as_bytes()))
            }
        }
    }
}

/// What a task needs.
pub enum Source {
    /// A task of this executor.
    Task(Arc<Cell>, Option<Arc<Target>>),
    /// A future of somebody else's, which the kernel knows by this name.
    Foreign(TaskId),
}

/// Why a task was not taken.
pub enum Refused {
    /// Nothing is accepted any more.
    Closed(Closed),
    /// There are too many; the task comes back.
    Full(Box<Planned>),
    /// A result that it needs has become an object meanwhile: it has to be encoded again.
    Again(Box<Planned>),
}

/// Whether a reply of this kind is a result that others may need.
pub fn is_result(kind: Option<u8>) -> bool {
    matches!(kind, Some(reply::PLAIN | reply::PICKLED))
}

impl Outcome {
    /// Whether it is one that others may need.
    pub fn is_result(&self) -> bool {
        is_result(self.bytes().and_then(|bytes| bytes.first().copied()))
    }

    /// Whether the task itself raised something.
    pub fn is_raised(&self) -> bool {
        let kind = self.bytes().and_then(|bytes| bytes.first().copied());
        matches!(kind, Some(reply::EXCEPTION | reply::EXCEPTION_TEXT))
    }
}
