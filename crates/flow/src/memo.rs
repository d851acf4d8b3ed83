//! Memo of computations by their key: all pending computations, and a bounded number of done computations.

use crate::id::MemoKey;
use lru::LruCache;
use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Memo {
    pending: HashMap<MemoKey, u32>,
    /// Tasks of done computations with the sizes of their results; the least recently used is dropped first.
    done: LruCache<MemoKey, (u32, u64)>,
    /// Keys of pending and done computations, by task.
    keys: HashMap<u32, MemoKey>,
    bytes: u64,
}

impl Memo {
    pub fn new() -> Self {
        Self {
            pending: HashMap::new(),
            done: LruCache::unbounded(),
            keys: HashMap::new(),
            bytes: 0,
        }
    }

    /// Number of done computations.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Bytes of the results of done computations.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The task of this key, pending or done.
    pub fn find(&mut self, key: &MemoKey) -> Option<u32> {
        self.pending.get(key).copied().or_else(|| self.find_done(key))
    }

    /// The task of this key if it is done.
    pub fn find_done(&mut self, key: &MemoKey) -> Option<u32> {
        self.done.get(key).map(|(index, _)| *index)
    }

    /// Adds a pending task under its key, which must be new.
    pub fn begin(&mut self, key: MemoKey, index: u32) {
        self.pending.insert(key, index);
        self.keys.insert(index, key);
    }

    /// Turns a pending computation into a done computation.
    pub fn finish(&mut self, index: u32, bytes: u64) {
        if let Some(key) = self.keys.get(&index).copied() {
            self.pending.remove(&key);
            self.remember(key, index, bytes);
        }
    }

    /// Remembers a done computation.
    pub fn remember(&mut self, key: MemoKey, index: u32, bytes: u64) {
        self.keys.insert(index, key);
        self.done.put(key, (index, bytes));
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Removes a computation; returns whether it was done.
    pub fn forget(&mut self, index: u32) -> bool {
        let Some(key) = self.keys.remove(&index) else {
            return false;
        };
        if self.pending.get(&key) == Some(&index) {
            self.pending.remove(&key);
            return false;
        }
        let gone = self.done.pop(&key);
        self.bytes = self.bytes.saturating_sub(gone.map_or(0, |(_, bytes)| bytes));
        gone.is_some()
    }

    /// Removes the least recently used done computation.
    pub fn forget_oldest(&mut self) -> Option<u32> {
        let (_, (index, _)) = self.done.peek_lru()?;
        let index = *index;
        self.forget(index).then_some(index)
    }
}
