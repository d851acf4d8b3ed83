//! Registered memory as a typed slice, for large arguments and results.

use crate::memory::{Memory, MemoryError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// `len` elements in memory that can be handed to workers without a copy (`SharedBuffer<T>` of the rFaaS paper,
/// section 4.1). Zeroed at first. Behaves as a slice.
///
/// While an invocation that writes to the buffer is in flight, the worker writes to it and the client must not touch
/// it; the invocation APIs say how long they borrow the buffer. `T` is plain data (any bytes are a valid value), so
/// breaking this rule gives wrong numbers, not memory unsafety in practice.
pub struct SharedBuffer<T: Pod> {
    memory: Arc<Memory>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> SharedBuffer<T> {
    /// Zeroed registered memory for `len` elements.
    pub fn new(len: usize) -> Result<Self, MemoryError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| u64::try_from(bytes).ok());
        let bytes = bytes.ok_or(MemoryError::BadSize { size_bytes: u64::MAX })?;
        let memory = Arc::new(Memory::create("hotlease-buffer", bytes.max(1))?);
        Ok(Self {
            memory,
            len,
            element: PhantomData,
        })
    }

    /// The underlying memory, for registration.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Number of elements. Unlike the slice's `len`, this makes no reference to memory to which a worker may be
    /// writing.
    pub fn elements(&self) -> usize {
        self.len
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Pod> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is at least len * size_of::<T>() bytes, page-aligned, lives as long as self,
        // and any bytes are a valid T (Pod). By the API's rule the slice is not used while an invocation writes.
        unsafe { std::slice::from_raw_parts(self.memory.start().as_ptr().cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr().cast(), self.len) }
    }
}

impl<T: Pod + std::fmt::Debug> std::fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_zeroed_slice_that_a_peer_sees() {
        let mut buffer = SharedBuffer::<f64>::new(1000).unwrap();
        assert!(buffer.iter().all(|x| *x == 0.0));
        buffer[999] = 2.5;
        let fd = buffer.memory().fd().try_clone_to_owned().unwrap();
        let peer = Memory::attach(fd, 8000).unwrap();
        // SAFETY: element 999 is inside the 8000 bytes just mapped.
        assert_eq!(unsafe { *peer.start().as_ptr().cast::<f64>().add(999) }, 2.5);
        assert!(SharedBuffer::<f64>::new(usize::MAX).is_err());
        assert_eq!(SharedBuffer::<f64>::new(0).unwrap().len(), 0);
    }
}
