//! Sealed memory, sent to a stream and received from it.

use super::frames::{FrameReader, FrameWriter};
use crate::NetError;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes that are read or written at a time.
const STEP: usize = 64 << 10;

const SEALED: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE);

/// Memory to send, with seals that fix its bytes and size.
pub(super) struct SealedMemory {
    file: File,
    pub size_bytes: u64,
}

impl SealedMemory {
    /// Wraps the memory; `None` if it could still change while it is sent.
    pub fn of(fd: OwnedFd) -> Option<Self> {
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).ok()?;
        if !SealFlag::from_bits_truncate(seals).contains(SEALED) {
            return None;
        }
        let file = File::from(fd);
        let size_bytes = file.metadata().ok()?.len();
        Some(Self { file, size_bytes })
    }

    pub async fn send<S: AsyncWrite>(&self, outgoing: &mut FrameWriter<S>) -> Result<(), NetError> {
        let mut bytes = vec![0; STEP];
        let mut sent = 0;
        while sent < self.size_bytes {
            let step = usize::try_from(self.size_bytes - sent).map_or(STEP, |left| left.min(STEP));
            // This is memory: the read never waits for a disk.
            self.file
                .read_exact_at(&mut bytes[..step], sent)
                .map_err(NetError::local("read a function library's memory"))?;
            outgoing.send_bytes(&bytes[..step]).await?;
            sent += step as u64;
        }
        Ok(())
    }
}

/// Receives `size_bytes` from the stream into memory, and seals it against changes. Memory is used as bytes arrive,
/// not in advance for the announced size.
pub(super) async fn receive<S: AsyncRead>(incoming: &mut FrameReader<S>, size_bytes: u64) -> Result<OwnedFd, NetError> {
    let local = || NetError::local("take memory for a function library");
    let fd = memfd_create(c"hotlease-code", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING);
    let mut file = File::from(fd.map_err(io::Error::from).map_err(local())?);
    let mut bytes = vec![0; STEP];
    let mut left = size_bytes;
    while left > 0 {
        let step = usize::try_from(left).map_or(STEP, |left| left.min(STEP));
        incoming.fill(&mut bytes[..step]).await?;
        file.write_all(&bytes[..step]).map_err(local())?;
        left -= step as u64;
    }
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALED | SealFlag::F_SEAL_SEAL))
        .map_err(io::Error::from)
        .map_err(local())?;
    Ok(file.into())
}
