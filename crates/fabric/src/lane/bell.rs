//! The bell of a process that sleeps until one of its lanes has a message: a word in shared memory that says whether
//! the process sleeps, and a pipe that wakes it. A process can sleep on a pipe and on its sockets at the same time.
//!
//! The protocol is that of [`crate::doorbell`]: the sleeper arms the word, passes a fence, checks its lanes once more,
//! and only then sleeps; the ringer publishes, passes a fence, and writes to the pipe if the word is armed.

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::doorbell;
use crate::memory::{AddressMapping, MemoryError, PAGE_BYTES, check_sealed, sealed_memfd};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};

/// Opens a file that another process of this user, or this process, has open. The kernel checks whether this process
/// may inspect the other process.
pub(super) fn open(process: u32, descriptor: u32) -> Result<OwnedFd, Errno> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/{process}/fd/{descriptor}"));
    Ok(file.map_err(|error| errno_of(&error))?.into())
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

#[repr(C)]
struct BellPage {
    /// Key that proves that this is the intended page.
    key: AtomicU64,
    /// Inode of the bell's pipe. It proves that a descriptor is that pipe: a peer could name any pipe of a process.
    pipe: AtomicU64,
    armed: AtomicU32,
}

struct BellMemory(AddressMapping);

impl BellMemory {
    fn map(memory: &OwnedFd) -> Result<Self, MemoryError> {
        let mapping = AddressMapping::reserve(PAGE_BYTES).map_err(system("reserve"))?;
        let placed = mapping.map_at(0, memory.as_fd(), 0, PAGE_BYTES);
        placed.map_err(system("map"))?;
        Ok(Self(mapping))
    }

    #[inline]
    fn page(&self) -> &BellPage {
        // SAFETY: the page is mapped as long as self lives, aligned, and only used as these atomics.
        unsafe { self.0.start().cast::<BellPage>().as_ref() }
    }
}

fn system(step: &'static str) -> impl FnOnce(Errno) -> MemoryError {
    move |source| MemoryError::System {
        step,
        size_bytes: PAGE_BYTES as u64,
        source,
    }
}

/// Address of a bell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BellAddress {
    /// Process that owns the bell.
    pub process: u32,
    /// Descriptor of the bell's memory in that process.
    pub memory: u32,
    /// Descriptor of the bell's pipe in that process.
    pub pipe: u32,
    /// Key that the memory must contain.
    pub key: u64,
}

/// This process's own bell, for all peers that write to it.
pub struct Bell {
    shared: BellMemory,
    memory: OwnedFd,
    reader: File,
    writer: OwnedFd,
    key: u64,
}

impl Bell {
    /// Creates a bell. Any process of this user that has the key can ring the bell.
    pub fn create(key: u64) -> Result<Self, MemoryError> {
        let memory = sealed_memfd("hotlease-bell", PAGE_BYTES as u64)?;
        let shared = BellMemory::map(&memory)?;
        shared.page().key.store(key, Ordering::Release);
        let flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let (reader, writer) = nix::unistd::pipe2(flags).map_err(system("make a pipe beside"))?;
        let reader = File::from(reader);
        let pipe = reader
            .metadata()
            .map_err(|error| system("look at a pipe beside")(errno_of(&error)))?;
        shared.page().pipe.store(pipe.ino(), Ordering::Release);
        Ok(Self {
            shared,
            memory,
            reader,
            writer,
            key,
        })
    }

    /// Address of the bell for [`PeerBell::open`].
    pub fn place(&self) -> BellAddress {
        BellAddress {
            process: std::process::id(),
            memory: self.memory.as_raw_fd() as u32,
            pipe: self.writer.as_raw_fd() as u32,
            key: self.key,
        }
    }

    /// Descriptor to sleep on: readable once the bell is rung.
    pub fn descriptor(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    /// Arms the bell before a sleep; lanes must be checked once more afterwards for messages that were published
    /// before.
    pub fn arm(&self) {
        doorbell::arm(&self.shared.page().armed);
    }

    /// Disarms the bell after a sleep.
    pub fn disarm(&mut self) {
        // From now on ringers need not ring. If a ringer has already rung, its byte is read here; otherwise that byte
        // would end the next sleep for nothing.
        if self.shared.page().armed.swap(0, Ordering::AcqRel) == 0 {
            let mut bytes = [0; 64];
            while self.reader.read(&mut bytes).is_ok_and(|got| got == bytes.len()) {}
        }
    }
}

/// Bell of another process.
pub struct PeerBell {
    shared: BellMemory,
    pipe: File,
}

impl PeerBell {
    /// Opens the bell and checks seals, key and pipe.
    pub fn open(place: &BellAddress) -> Result<Self, MemoryError> {
        let memory = open(place.process, place.memory).map_err(system("open"))?;
        check_sealed(memory.as_fd(), PAGE_BYTES as u64)?;
        let shared = BellMemory::map(&memory)?;
        if shared.page().key.load(Ordering::Acquire) != place.key {
            return Err(MemoryError::OtherObject);
        }
        // The pipe is opened for reading too. So it always has a reader, and writing raises no signal when the other
        // process is gone.
        let pipe = File::from(open(place.process, place.pipe).map_err(system("open a pipe beside"))?);
        let expected = shared.page().pipe.load(Ordering::Acquire);
        if !pipe
            .metadata()
            .is_ok_and(|status| status.file_type().is_fifo() && status.ino() == expected)
        {
            return Err(MemoryError::OtherObject);
        }
        Ok(Self { shared, pipe })
    }

    /// Wakes the other process if it sleeps; one fence and one load if it does not. Call after publishing.
    #[inline]
    pub fn ring(&self) {
        doorbell::ring(&self.shared.page().armed, || {
            // An error does no harm: if the pipe is full, the bell has been rung already.
            let _ = (&self.pipe).write(&[1]);
        });
    }
}
