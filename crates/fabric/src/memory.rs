//! Shared memory for peers: memfds sealed against resizing, so that neither side can shrink them while the other uses
//! them.
//!
//! A peer's descriptor is not trusted: [`Memory::attach`] refuses memory that is not sealed against shrinking (reading
//! past the end would kill the reader) or that is smaller than announced. An inaccessible guard page follows every
//! `Memory`.

pub mod block;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::stat::fstat;
use std::ffi::CString;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// Page size of all layouts.
pub const PAGE_BYTES: usize = 4096;

/// Reason why memory cannot be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused.
    #[error("cannot {step} {size_bytes} bytes of shared memory: {source}; see {}", advice(*source))]
    System {
        /// Step that failed.
        step: &'static str,
        /// Size asked for.
        size_bytes: u64,
        /// Error of the kernel.
        source: Errno,
    },
    /// The peer's descriptor is not sealed against resizing, or is no memfd of ordinary pages.
    #[error("the peer's memory is not a memfd of 4 KiB pages, sealed against resizing")]
    NotSealed,
    /// The peer's memory is smaller than announced.
    #[error("the peer's memory has {actual} bytes, not the announced {announced}")]
    TooSmall {
        /// Real size.
        actual: u64,
        /// Announced size.
        announced: u64,
    },
    /// The opened descriptor is not the object that the peer announced.
    #[error("the peer's open file is not the memory that it announced")]
    OtherObject,
    /// The size is zero, or larger than the address space.
    #[error("{size_bytes} bytes cannot be mapped")]
    BadSize {
        /// Size asked for.
        size_bytes: u64,
    },
}

impl MemoryError {
    /// Whether the limit of open descriptors, of this process or of the host, was reached.
    pub fn lacks_descriptors(&self) -> bool {
        matches!(
            self,
            Self::System {
                source: Errno::EMFILE | Errno::ENFILE,
                ..
            }
        )
    }
}

fn advice(source: Errno) -> &'static str {
    match source {
        Errno::EMFILE | Errno::ENFILE => "`ulimit -n`: each buffer holds a descriptor",
        _ => "`ulimit -v` and free memory",
    }
}

const RESIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

pub(crate) fn system(step: &'static str, size_bytes: u64) -> impl FnOnce(Errno) -> MemoryError {
    move |source| MemoryError::System {
        step,
        size_bytes,
        source,
    }
}

fn new_memfd(name: &str) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
}

/// Address space that is unmapped on drop.
pub(crate) struct AddressMapping {
    start: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: plain address space; its users decide which thread may touch which byte when.
unsafe impl Send for AddressMapping {}
// SAFETY: as above.
unsafe impl Sync for AddressMapping {}

impl AddressMapping {
    /// Reserves inaccessible address space.
    pub(crate) fn reserve(bytes: usize) -> Result<Self, Errno> {
        let bytes = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)? };
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// Maps `bytes` of `fd` from `fd_offset` at `at` bytes into the reservation, readable and writable.
    pub(crate) fn map_at(&self, at: usize, fd: BorrowedFd<'_>, fd_offset: usize, bytes: usize) -> Result<(), Errno> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        self.map_at_with(protection, at, fd, fd_offset, bytes)
    }

    fn map_at_with(
        &self,
        protection: ProtFlags,
        at: usize,
        fd: BorrowedFd<'_>,
        fd_offset: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes.get());
        let (Some(length), true) = (NonZeroUsize::new(bytes), fits) else {
            return Err(Errno::EINVAL);
        };
        let address = NonZeroUsize::new(self.start.as_ptr() as usize + at);
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: replaces pages of our own reservation only, as checked above, before any other code uses them.
        unsafe { mmap(address, length, protection, flags, fd, fd_offset as libc::off_t)? };
        Ok(())
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for AddressMapping {
    fn drop(&mut self) {
        // SAFETY: our own reservation; users hold it by reference or Arc as long as they use it.
        let _ = unsafe { munmap(self.start.cast(), self.bytes.get()) };
    }
}

/// A memfd mapped readable and writable, with a guard page behind it. `Send + Sync`: it hands out a raw address; the
/// protocol on top defines concurrent access.
pub struct Memory {
    mapping: AddressMapping,
    fd: OwnedFd,
    size_bytes: u64,
}

impl Memory {
    /// Creates zeroed memory, sealed against resizing. `name` shows in `/proc/PID/maps`.
    pub fn create(name: &str, size_bytes: u64) -> Result<Self, MemoryError> {
        Self::map(sealed_memfd(name, size_bytes)?, size_bytes)
    }

    /// Attaches a peer's memory, whose size the peer announced as `size_bytes`. Fails unless the memory is sealed and
    /// large enough.
    pub fn attach(fd: OwnedFd, size_bytes: u64) -> Result<Self, MemoryError> {
        check_sealed(fd.as_fd(), size_bytes)?;
        Self::map(fd, size_bytes)
    }

    fn map(fd: OwnedFd, size_bytes: u64) -> Result<Self, MemoryError> {
        let bad_size = MemoryError::BadSize { size_bytes };
        let Some(bytes) = usize::try_from(size_bytes).ok().filter(|bytes| *bytes > 0) else {
            return Err(bad_size);
        };
        let Some(pages) = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .and_then(|bytes| bytes.checked_add(PAGE_BYTES))
        else {
            return Err(bad_size);
        };
        let mapping = AddressMapping::reserve(pages).map_err(system("reserve", size_bytes))?;
        mapping
            .map_at(0, fd.as_fd(), 0, bytes)
            .map_err(system("map", size_bytes))?;
        Ok(Self {
            mapping,
            fd,
            size_bytes,
        })
    }

    /// First byte; page-aligned; valid for [`Memory::size_bytes`] as long as self lives.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Descriptor to pass to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Size as created or announced.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// Memfd of zeros of exactly this size, not sealed yet.
pub(crate) fn sized_memfd(name: &str, size_bytes: u64) -> Result<OwnedFd, MemoryError> {
    let length = libc::off_t::try_from(size_bytes).map_err(|_| MemoryError::BadSize { size_bytes })?;
    let fd = new_memfd(name).map_err(system("create", size_bytes))?;
    nix::unistd::ftruncate(&fd, length).map_err(system("size", size_bytes))?;
    Ok(fd)
}

/// Memfd of zeros of exactly this size, sealed against resizing.
pub(crate) fn sealed_memfd(name: &str, size_bytes: u64) -> Result<OwnedFd, MemoryError> {
    let fd = sized_memfd(name, size_bytes)?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(RESIZE_SEALS | SealFlag::F_SEAL_SEAL)).map_err(system("seal", size_bytes))?;
    Ok(fd)
}

/// Refuses a peer's descriptor that is not sealed against resizing or that is smaller than announced.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<(), MemoryError> {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|_| MemoryError::NotSealed)?;
    if !SealFlag::from_bits_truncate(seals).contains(RESIZE_SEALS) {
        return Err(MemoryError::NotSealed);
    }
    let status = fstat(fd).map_err(system("inspect", size_bytes))?;
    // The kernel maps a memfd of huge pages in whole huge pages, which would reach beyond the end of the reserved
    // address space.
    if status.st_blksize != PAGE_BYTES as libc::blksize_t {
        return Err(MemoryError::NotSealed);
    }
    let actual = status.st_size as u64;
    if actual < size_bytes {
        return Err(MemoryError::TooSmall {
            actual,
            announced: size_bytes,
        });
    }
    Ok(())
}

/// Memfd that holds `bytes` and is sealed against any change.
pub fn sealed_copy(name: &str, bytes: &[u8]) -> Result<OwnedFd, MemoryError> {
    let size_bytes = bytes.len() as u64;
    let fd = new_memfd(name).map_err(system("create", size_bytes))?;
    let file = std::fs::File::from(fd);
    file.write_all_at(bytes, 0)
        .map_err(|error| system("fill", size_bytes)(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    let seals = RESIZE_SEALS | SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(system("seal", size_bytes))?;
    Ok(file.into())
}

/// The bytes of a memfd that is sealed against any change, mapped without a copy.
pub struct SealedBytes {
    mapping: AddressMapping,
    bytes: usize,
}

impl SealedBytes {
    /// Maps the first `size_bytes` of a memfd. Refuses a memfd that is not sealed against writing and resizing.
    pub fn attach(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<Self, MemoryError> {
        check_sealed(fd, size_bytes)?;
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(|_| MemoryError::NotSealed)?;
        if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_WRITE) {
            return Err(MemoryError::NotSealed);
        }
        let bytes = usize::try_from(size_bytes).map_err(|_| MemoryError::BadSize { size_bytes })?;
        let mapping = AddressMapping::reserve(bytes.max(1)).map_err(system("reserve", size_bytes))?;
        if bytes > 0 {
            let placed = mapping.map_at_with(ProtFlags::PROT_READ, 0, fd, 0, bytes);
            placed.map_err(system("map", size_bytes))?;
        }
        Ok(Self { mapping, bytes })
    }
}

impl std::ops::Deref for SealedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this many readable bytes as long as self lives, and the seals, checked above, prevent
        // every process from changing or removing them.
        unsafe { std::slice::from_raw_parts(self.mapping.start().as_ptr(), self.bytes) }
    }
}

/// Private copy of `size_bytes` of a peer's memfd. Refuses a memfd that is not sealed, or that is too small.
pub fn read_sealed(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<Vec<u8>, MemoryError> {
    check_sealed(fd, size_bytes)?;
    let bytes = usize::try_from(size_bytes).map_err(|_| MemoryError::BadSize { size_bytes })?;
    let mut copy = vec![0; bytes];
    let file = std::fs::File::from(fd.try_clone_to_owned().map_err(|_| MemoryError::NotSealed)?);
    file.read_exact_at(&mut copy, 0)
        .map_err(|error| system("read", size_bytes)(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsealed_or_short_memory_is_refused() {
        let unsealed = sized_memfd("test", 8192).unwrap();
        assert!(matches!(Memory::attach(unsealed, 8192), Err(MemoryError::NotSealed)));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(matches!(Memory::attach(file, 1), Err(MemoryError::NotSealed)));
        let short = Memory::create("test", 4096).unwrap();
        let fd = short.fd().try_clone_to_owned().unwrap();
        assert!(matches!(
            Memory::attach(fd, 8192),
            Err(MemoryError::TooSmall {
                actual: 4096,
                announced: 8192
            })
        ));
    }

    #[test]
    fn sealed_memory_cannot_be_resized_by_its_owner() {
        let memory = Memory::create("test", 8192).unwrap();
        assert!(
            nix::unistd::ftruncate(memory.fd(), 4096).is_err(),
            "shrinking would kill the peer"
        );
        assert!(nix::unistd::ftruncate(memory.fd(), 16384).is_err());
    }

    #[test]
    fn sealed_copy_cannot_be_written() {
        let fd = sealed_copy("test", b"code").unwrap();
        assert_eq!(read_sealed(fd.as_fd(), 4).unwrap(), b"code");
        assert!(std::fs::File::from(fd).write_all_at(b"evil", 0).is_err());
    }

    #[test]
    fn bytes_are_mapped_only_if_no_process_can_change_them() {
        let fd = sealed_copy("test", b"code").unwrap();
        assert_eq!(&*SealedBytes::attach(fd.as_fd(), 4).unwrap(), b"code");
        assert!(SealedBytes::attach(fd.as_fd(), 5).is_err());
        assert!(SealedBytes::attach(fd.as_fd(), 0).unwrap().is_empty());
        let writable = Memory::create("test", 4).unwrap();
        assert!(matches!(
            SealedBytes::attach(writable.fd(), 4),
            Err(MemoryError::NotSealed)
        ));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Memory::create("test", 0).is_err());
        assert!(Memory::create("test", u64::MAX).is_err());
        assert!(Memory::create("test", 1 << 62).is_err());
    }
}
