//! Memory of operations, and pieces of it.

use crate::error::Error;
use hotlease_fabric::lane::BodySource;
use hotlease_fabric::loan::{LentBytes, LentBytesMut};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that an operation sends, receives, or works on.
#[derive(Debug, Clone)]
pub(crate) enum TransferMemory {
    /// Memory of a caller, for as long as the caller waits. Read only.
    Lent(LentBytes),
    /// Memory of a caller, for as long as the caller waits.
    LentMut(LentBytesMut),
    /// Memory of the operation.
    Owned(Arc<Mutex<Vec<u8>>>),
    /// Memory of the operation for a message of any length: it is reserved when the length is known, and grows as the
    /// message arrives.
    AnyLength(Arc<Mutex<Vec<u8>>>),
    /// Memory of the operation, as elements.
    Elements(Arc<Mutex<dyn Elements>>),
}

/// Elements for which every bit pattern is a value.
pub(crate) trait Elements: Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: bytemuck::Pod + Send> Elements for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

impl fmt::Debug for dyn Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elements({} bytes)", self.bytes().len())
    }
}

/// Locks the memory, even if a thread that held the lock has panicked: the bytes are valid after a panic, too.
fn lock<T: ?Sized>(memory: &Mutex<T>) -> MutexGuard<'_, T> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TransferMemory {
    /// Allocates this many zeroed bytes.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self::of(vec![0; bytes])
    }

    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self::Owned(Arc::new(Mutex::new(bytes)))
    }

    /// Makes memory for a message of any length.
    pub(crate) fn fitting() -> Self {
        Self::AnyLength(Arc::default())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::AnyLength(_) => usize::MAX,
            Self::Lent(lent) => lent.len(),
            Self::LentMut(lent) => lent.len(),
            Self::Owned(bytes) => lock(bytes).len(),
            Self::Elements(elements) => lock(elements).bytes().len(),
        }
    }

    /// Whether both refer to the same memory, which can be locked only once at a time.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lent(one), Self::Lent(other)) => one.is_same(other),
            (Self::LentMut(one), Self::LentMut(other)) => one.is_same(other),
            (Self::Owned(one) | Self::AnyLength(one), Self::Owned(other) | Self::AnyLength(other)) => {
                Arc::ptr_eq(one, other)
            }
            (Self::Elements(one), Self::Elements(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether no other operation refers to this memory, so that it can be reused.
    pub(crate) fn is_free(&self) -> bool {
        match self {
            Self::Owned(bytes) => Arc::strong_count(bytes) == 1,
            _ => false,
        }
    }

    /// The whole memory as a piece.
    pub(crate) fn whole(&self) -> Piece {
        Piece {
            length: self.len(),
            memory: self.clone(),
            start: 0,
        }
    }

    /// A piece of this memory; the range must be inside.
    pub(crate) fn piece(&self, range: Range<usize>) -> Piece {
        debug_assert!(range.end <= self.len());
        Piece {
            memory: self.clone(),
            start: range.start,
            length: range.len(),
        }
    }

    /// Returns the bytes of owned memory, without a copy if nothing else refers to it. Returns no bytes for other memory.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Owned(bytes) | Self::AnyLength(bytes) => match Arc::try_unwrap(bytes) {
                Ok(bytes) => bytes.into_inner().unwrap_or_else(PoisonError::into_inner),
                Err(bytes) => lock(&bytes).clone(),
            },
            _ => Vec::new(),
        }
    }
}

/// Part of a memory.
#[derive(Debug, Clone)]
pub struct Piece {
    memory: TransferMemory,
    start: usize,
    length: usize,
}

impl Piece {
    /// Number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Prepares this piece for a message of this length: memory of kind [`TransferMemory::AnyLength`] is reserved now,
    /// but not touched before its bytes arrive. Touching would make the kernel provide gigabytes, which takes seconds.
    /// The caller holds the engine's lock for that time, so this member could not report that it is alive.
    pub(crate) fn fit(&mut self, length: u64) -> Result<(), Error> {
        let TransferMemory::AnyLength(bytes) = &self.memory else {
            return Ok(());
        };
        let no_room = |why: String| Error::LocalFailure {
            what: "make room for a message",
            why,
        };
        let length = usize::try_from(length).map_err(|error| no_room(error.to_string()))?;
        lock(bytes)
            .try_reserve_exact(length)
            .map_err(|error| no_room(format!("{length} bytes: {error}")))?;
        self.length = length;
        Ok(())
    }

    /// A part of this piece.
    pub fn part(&self, range: Range<usize>) -> Self {
        debug_assert!(range.end <= self.length);
        Self {
            memory: self.memory.clone(),
            start: self.start + range.start,
            length: range.len(),
        }
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.length
    }

    /// Passes the bytes to `read`; returns `None` if the memory was taken back.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let range = self.range();
        match &self.memory {
            TransferMemory::Lent(lent) => lent.with(|bytes| read(&bytes[range])),
            TransferMemory::LentMut(lent) => lent.with(|bytes| read(&bytes[range])),
            TransferMemory::Owned(bytes) | TransferMemory::AnyLength(bytes) => lock(bytes).get(range).map(read),
            TransferMemory::Elements(elements) => lock(elements).bytes().get(range).map(read),
        }
    }

    /// Passes the bytes to `write`; returns `None` if the memory was taken back or is read only.
    pub fn write<R>(&self, write: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let range = self.range();
        match &self.memory {
            TransferMemory::Lent(_) => None,
            TransferMemory::LentMut(lent) => lent.with(|bytes| write(&mut bytes[range])),
            TransferMemory::Owned(bytes) => lock(bytes).get_mut(range).map(write),
            TransferMemory::AnyLength(bytes) => {
                let mut bytes = lock(bytes);
                if (bytes.len()..=bytes.capacity()).contains(&range.end) {
                    bytes.resize(range.end, 0);
                }
                bytes.get_mut(range).map(write)
            }
            TransferMemory::Elements(elements) => lock(elements).bytes_mut().get_mut(range).map(write),
        }
    }

    /// Place of this piece for a process that copies it, for as long as this piece lives; see [`LentBytes::expose`].
    /// `key_address`: a word with the key, which is valid for as long as memory of the operation is. Returns `None` if
    /// the memory was taken back, or cannot be exposed.
    pub(crate) fn expose(&self, key: u64, key_address: u64) -> Option<BodySource> {
        let of_operation = |bytes: &[u8]| BodySource {
            address: bytes.as_ptr().expose_provenance() as u64,
            validity: key_address,
        };
        let source = match &self.memory {
            TransferMemory::Lent(lent) => lent.expose(key)?,
            TransferMemory::LentMut(lent) => lent.expose(key)?,
            TransferMemory::Owned(bytes) => of_operation(lock(bytes).get(..self.range().end)?),
            TransferMemory::Elements(elements) => of_operation(lock(elements).bytes().get(..self.range().end)?),
            // It may move when it grows.
            TransferMemory::AnyLength(_) => return None,
        };
        Some(BodySource {
            address: source.address + self.start as u64,
            ..source
        })
    }

    /// Copies this piece to the beginning of another piece. Returns `None` if the memory of one of them was taken back.
    pub(crate) fn copy_to(&self, into: &Self) -> Option<()> {
        if self.memory.is_same(&into.memory) {
            let copied = self.read(<[u8]>::to_vec)?;
            return into.write(|to| to[..copied.len()].copy_from_slice(&copied));
        }
        self.read(|from| into.write(|to| to[..from.len()].copy_from_slice(from)))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_between_memories_and_inside_of_one() {
        let memory = TransferMemory::of((0..10).collect());
        let other = TransferMemory::zeroed(4);
        let part = memory.piece(2..8).part(1..4);
        part.copy_to(&other.whole()).expect("both are there");
        assert_eq!(other.clone().into_bytes(), [3, 4, 5, 0]);
        part.copy_to(&memory.piece(0..3)).expect("it is there");
        assert_eq!(memory.into_bytes(), [3, 4, 5, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn memory_for_a_message_of_any_length_gets_as_long_as_it() {
        let memory = TransferMemory::fitting();
        let mut piece = memory.whole();
        assert!(
            matches!(piece.fit(u64::MAX), Err(Error::LocalFailure { .. })),
            "no memory is as long"
        );
        assert_eq!(piece.write(|_| ()), None, "its length is not known");
        piece.fit(3).expect("3 bytes");
        piece.part(1..3).write(|bytes| bytes.fill(7)).expect("it is there");
        drop(piece);
        assert_eq!(memory.into_bytes(), [0, 7, 7]);
    }

    #[test]
    fn memory_for_a_long_message_is_touched_only_as_it_comes() {
        let memory = TransferMemory::fitting();
        let mut piece = memory.whole();
        piece.fit(1 << 30).expect("a GiB of addresses");
        piece.part(0..4096).write(|bytes| bytes.fill(7)).expect("it is there");
        assert_eq!(piece.len(), 1 << 30);
        drop(piece);
        assert_eq!(memory.into_bytes().len(), 4096, "no more than has come");
    }

    #[test]
    fn memory_whose_loan_has_ended_is_neither_read_nor_written() {
        let mut bytes = [1, 2, 3];
        let piece = hotlease_fabric::loan::lend_mut(&mut bytes, |lent| TransferMemory::LentMut(lent.clone()).whole());
        assert_eq!((piece.read(<[u8]>::len), piece.write(|_| ())), (None, None));
    }
}
