//! Memory block: memory of a node that a client reads and writes while no process of the node touches it, and that the
//! node can take back at any time (the memory service of the disaggregation paper, section III.D).
//!
//! ```text
//!  agent                       memory server                client on the node
//!  create: no pages yet  ────► reserve: the pages, zeroed,
//!                              charged to its control group
//!                              share the descriptor   ────► maps it; read_at, write_at
//!  revoke: sets the mark,                                   both fail from now on
//!  then frees the pages
//! ```
//!
//! The file has one page more than the block, which holds the mark. The agent sets the mark before it frees the first
//! page, and a client looks at the mark after each copy. So a client that has read zeros from a freed page, or has
//! written to one, knows that the block is lost. Pages that a client touches after the revocation are new memory of the
//! client itself, charged to the client. No process can add a seal to the file, so no process can prevent the
//! revocation.

use crate::memory::{AddressMapping, Memory, MemoryError, PAGE_BYTES, sealed_memfd, system};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reason why a read or a write of a block failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The block was taken back.
    #[error("the memory block was taken back")]
    Revoked,
    /// The bytes are not all inside the block.
    #[error("{length} bytes from {offset} on reach past the end of a memory block of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Size of the block.
        size_bytes: u64,
    },
}

/// Bytes of the pages of a block; `None` if no file is that large.
fn page_bytes(size_bytes: u64) -> Option<u64> {
    let pages = size_bytes.checked_next_multiple_of(PAGE_BYTES as u64)?;
    // The page of the mark and a guard page follow.
    let all = pages.checked_add(2 * PAGE_BYTES as u64)?;
    (size_bytes > 0 && i64::try_from(all).is_ok()).then_some(pages)
}

/// A block as its agent holds it: without a mapping of its bytes.
#[derive(Debug)]
pub struct OwnedBlock {
    fd: OwnedFd,
    mark: MarkMapping,
    page_bytes: u64,
}

/// The page of a block's mark.
struct MarkMapping(AddressMapping);

impl std::fmt::Debug for MarkMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mark at {:?}", self.0.start())
    }
}

impl OwnedBlock {
    /// Creates a block of this size without pages.
    ///
    /// # Errors
    /// The size is 0 or too large, or the kernel refuses.
    pub fn create(size_bytes: u64) -> Result<Self, MemoryError> {
        let page_bytes = page_bytes(size_bytes).ok_or(MemoryError::BadSize { size_bytes })?;
        let fd = sealed_memfd("hotlease-block", page_bytes + PAGE_BYTES as u64)?;
        let mark = AddressMapping::reserve(PAGE_BYTES).map_err(system("reserve", size_bytes))?;
        let mapped = mark.map_at(0, fd.as_fd(), page_bytes as usize, PAGE_BYTES);
        mapped.map_err(system("map", size_bytes))?;
        Ok(Self {
            fd,
            mark: MarkMapping(mark),
            page_bytes,
        })
    }

    /// Descriptor to pass to the memory server.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes the block back: frees its pages at once, also if other processes have its descriptor, and makes all later
    /// reads and writes fail. The kernel frees about 10 GiB a second; the call waits for that.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn revoke(&self) -> std::io::Result<()> {
        // SAFETY: the mapping is one page, page-aligned, and lives as long as self; every access to the word is atomic.
        let mark = unsafe { self.mark.0.start().cast::<AtomicU64>().as_ref() };
        // Release pairs with the acquire in `check_mark`. The kernel frees a page only after this store, and a later
        // access to the page takes a fault, which waits for the kernel's work: so who sees a freed page sees the mark.
        mark.store(1, Ordering::Release);
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(retried(|| {
            fallocate(&self.fd, flags, 0, self.page_bytes as libc::off_t)
        })?)
    }
}

/// A block as its memory server or its client holds it: mapped. `Send + Sync`. Reads and writes of overlapping bytes at
/// the same time are allowed, and may see old and new bytes mixed.
pub struct MappedBlock {
    memory: Arc<Memory>,
    size_bytes: u64,
    page_bytes: u64,
}

impl MappedBlock {
    /// Maps a block of this size that an agent created. Pages are mapped when they are touched first.
    ///
    /// # Errors
    /// The descriptor is not memory that is sealed against resizing, or it is smaller.
    pub fn attach(fd: OwnedFd, size_bytes: u64) -> Result<Self, MemoryError> {
        let page_bytes = page_bytes(size_bytes).ok_or(MemoryError::BadSize { size_bytes })?;
        let memory = Memory::attach(fd, page_bytes + PAGE_BYTES as u64)?;
        Ok(Self {
            memory: Arc::new(memory),
            size_bytes,
            page_bytes,
        })
    }

    /// Size as announced, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The mapped memory, for a registration with a fabric. It is one page, the mark's, longer than the block's pages.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Makes the kernel provide the pages of these bytes, zeroed; they are charged to the caller's control group.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn reserve(&self, offset: u64, length: u64) -> Result<(), MemoryError> {
        let (from, bytes) = (offset as libc::off_t, length as libc::off_t);
        let reserved = retried(|| fallocate(self.memory.fd(), FallocateFlags::empty(), from, bytes));
        reserved.map_err(system("reserve", length))
    }

    /// Maps all pages of the block at once, which takes about 0.25 s for each GiB; a page that is not mapped costs its
    /// first copy some microseconds. The bytes do not change. Kernels before 5.14 cannot do it: then nothing happens.
    pub fn populate(&self) {
        let bytes = self.page_bytes as usize;
        // SAFETY: the pages of the block, inside our own mapping; this advice changes no byte.
        let _ = unsafe { libc::madvise(self.memory.start().as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
    }

    /// Copies bytes of the block to `bytes`.
    ///
    /// # Errors
    /// The block was taken back, or the bytes are not inside it. `bytes` may hold anything then.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), BlockError> {
        let start = self.place(offset, bytes.len())?;
        // SAFETY: the span is inside the mapping, which other processes use by design, so nothing is assumed of its
        // bytes; `bytes` is memory of the caller alone.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        self.check_mark()
    }

    /// Copies `bytes` into the block.
    ///
    /// # Errors
    /// The block was taken back, or the bytes are not inside it. A part of the bytes may be in the block then.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), BlockError> {
        let start = self.place(offset, bytes.len())?;
        // A block that was taken back is not touched: that would allocate memory again, of this process.
        self.check_mark()?;
        // SAFETY: as in `read_at`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        self.check_mark()
    }

    /// First byte of a span that is inside the block.
    fn place(&self, offset: u64, length: usize) -> Result<NonNull<u8>, BlockError> {
        let (length, size_bytes) = (length as u64, self.size_bytes);
        match offset.checked_add(length) {
            // SAFETY: inside the mapping, which is at least as large as the block.
            Some(end) if end <= size_bytes => Ok(unsafe { self.memory.start().add(offset as usize) }),
            _ => Err(BlockError::OutOfBounds {
                offset,
                length,
                size_bytes,
            }),
        }
    }

    /// Fails if the block was taken back.
    fn check_mark(&self) -> Result<(), BlockError> {
        // SAFETY: the mark's page follows the block's pages inside the mapping; every access to the word is atomic.
        let mark = unsafe {
            self.memory
                .start()
                .add(self.page_bytes as usize)
                .cast::<AtomicU64>()
                .as_ref()
        };
        // The fence keeps the copies before it, so that the mark is read after them. The acquire pairs with the release
        // in `revoke`.
        std::sync::atomic::fence(Ordering::Acquire);
        match mark.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(BlockError::Revoked),
        }
    }
}

impl std::fmt::Debug for MappedBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory block of {} bytes", self.size_bytes)
    }
}

fn retried(mut call: impl FnMut() -> nix::Result<()>) -> nix::Result<()> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sized_memfd;
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::stat::fstat;
    use std::sync::atomic::AtomicBool;

    const PAGE: u64 = PAGE_BYTES as u64;
    /// Blocks of 512 bytes, in which files are measured, of a page.
    const FILE_BLOCKS: i64 = PAGE_BYTES as i64 / 512;

    fn mapped(block: &OwnedBlock, size_bytes: u64) -> MappedBlock {
        MappedBlock::attach(block.fd().try_clone_to_owned().unwrap(), size_bytes).unwrap()
    }

    fn file_blocks(block: &OwnedBlock) -> i64 {
        fstat(block.fd()).unwrap().st_blocks
    }

    #[test]
    fn a_block_holds_what_was_written_and_zeros_elsewhere() {
        let size = 3 * PAGE + 5;
        let block = OwnedBlock::create(size).unwrap();
        let server = mapped(&block, size);
        server.reserve(0, size).unwrap();
        assert_eq!(file_blocks(&block), 4 * FILE_BLOCKS);
        let client = mapped(&block, size);
        client.write_at(b"hello", PAGE - 2).unwrap();
        let mut all = vec![1; size as usize];
        client.read_at(&mut all, 0).unwrap();
        let at = PAGE as usize - 2;
        assert_eq!(&all[at..at + 5], b"hello");
        assert!(all[..at].iter().chain(&all[at + 5..]).all(|byte| *byte == 0));
        client.write_at(b"12345", 3 * PAGE).unwrap();
        client.read_at(&mut [], size).unwrap();
    }

    #[test]
    fn what_is_outside_the_block_is_refused_and_changes_nothing() {
        let block = OwnedBlock::create(PAGE).unwrap();
        let client = mapped(&block, PAGE);
        for (offset, length) in [(PAGE, 1), (PAGE - 1, 2), (u64::MAX, 1), (0, PAGE as usize + 1)] {
            let mut bytes = vec![7; length];
            let refused = |done| matches!(done, Err(BlockError::OutOfBounds { .. }));
            assert!(refused(client.write_at(&bytes, offset)), "{offset}+{length}");
            assert!(refused(client.read_at(&mut bytes, offset)), "{offset}+{length}");
        }
        assert_eq!(file_blocks(&block), 0);
        for size in [0, u64::MAX, i64::MAX as u64] {
            assert!(OwnedBlock::create(size).is_err(), "{size}");
        }
    }

    #[test]
    fn a_block_that_was_taken_back_has_no_pages_and_fails_every_call() {
        let size = 64 * PAGE;
        let block = OwnedBlock::create(size).unwrap();
        let client = mapped(&block, size);
        client.reserve(0, size).unwrap();
        client.write_at(&[1; 8], 0).unwrap();
        block.revoke().unwrap();
        assert_eq!(file_blocks(&block), FILE_BLOCKS, "only the mark's page is left");
        assert_eq!(client.write_at(&[0; 8], 0), Err(BlockError::Revoked));
        assert_eq!(file_blocks(&block), FILE_BLOCKS, "a write that fails allocates nothing");
        assert_eq!(client.read_at(&mut [0; 8], 0), Err(BlockError::Revoked));
        for seals in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
            let sealed = fcntl(block.fd(), FcntlArg::F_ADD_SEALS(seals));
            assert!(sealed.is_err(), "the seal would prevent the revocation");
        }
    }

    #[test]
    fn no_read_beside_a_revocation_returns_a_byte_that_was_not_written() {
        let size = 256 * PAGE;
        for _ in 0..30 {
            let block = OwnedBlock::create(size).unwrap();
            let client = mapped(&block, size);
            client.write_at(&vec![7; size as usize], 0).unwrap();
            let begun = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut bytes = vec![0; size as usize];
                    while client.read_at(&mut bytes, 0).is_ok() {
                        assert!(
                            bytes.iter().all(|byte| *byte == 7),
                            "a read returned bytes of a freed page"
                        );
                        begun.store(true, Ordering::Relaxed);
                    }
                });
                while !begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                block.revoke().unwrap();
                reader.join().unwrap();
            });
        }
    }

    #[test]
    fn a_descriptor_that_is_no_block_is_refused() {
        let unsealed = sized_memfd("test", 3 * PAGE).unwrap();
        assert!(matches!(
            MappedBlock::attach(unsealed, PAGE),
            Err(MemoryError::NotSealed)
        ));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(matches!(MappedBlock::attach(file, 1), Err(MemoryError::NotSealed)));
        let small = OwnedBlock::create(PAGE).unwrap().fd().try_clone_to_owned().unwrap();
        let refused = MappedBlock::attach(small, 2 * PAGE);
        assert!(matches!(refused, Err(MemoryError::TooSmall { .. })));
    }
}
