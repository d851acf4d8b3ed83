//! Private memory with the alignment of all requests and replies.

use hotlease_wire::task::ALIGNMENT;
use std::ptr::NonNull;

/// Zeroed memory; the part from its first aligned byte on is used.
pub struct AlignedMemory {
    memory: Vec<u8>,
    offset: usize,
}

impl AlignedMemory {
    /// Allocates memory of this size. Returns `None` if so much memory is not available.
    pub fn new(bytes: usize) -> Option<Self> {
        let whole = bytes.checked_add(ALIGNMENT)?;
        // This only checks whether so much memory is available. Large memory from `vec!` is zeroed by the kernel, so
        // its pages are not touched before use.
        Vec::<u8>::new().try_reserve_exact(whole).ok()?;
        let mut memory = vec![0; whole];
        let offset = memory.as_ptr().align_offset(ALIGNMENT);
        memory.truncate(offset + bytes);
        Some(Self { memory, offset })
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..]
    }

    /// Address and length.
    pub fn place(&mut self) -> (NonNull<u8>, usize) {
        let bytes = self.bytes_mut();
        (NonNull::from(&mut *bytes).cast(), bytes.len())
    }
}
