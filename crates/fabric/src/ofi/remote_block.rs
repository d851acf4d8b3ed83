//! A memory block on another host: read and written by RMA, without a core there.

use super::error::OfiError;
use super::port::{Access, Port, PortPeer};
use super::transfer::{Registration, TransferSpans};
use crate::memory::Memory;
use hotlease_wire::fabric::RmaMemory;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Size of a staging buffer, bytes. A transfer keeps up to 8 operations of 1 MiB under way.
const STAGING_BYTES: u64 = 8 << 20;
/// Largest number of staging buffers that are kept: one for each thread that copies at the same time.
const STAGING_KEPT: usize = 4;
/// How long one piece of at most [`STAGING_BYTES`] may take.
const PIECE_LIMIT: Duration = Duration::from_secs(10);

/// A memory block of a peer. `Send + Sync`; threads that copy at the same time use the port in turn.
///
/// Bytes go through registered staging buffers. So a caller's memory is never in use after a call has returned, not
/// even after an error, when pieces may still be under way.
pub struct RemoteBlock {
    port: Arc<Port>,
    peer: Arc<PortPeer>,
    remote: RmaMemory,
    staging: Mutex<Vec<Registration>>,
}

impl RemoteBlock {
    /// Makes a block of the description that its memory server gave.
    pub fn new(port: Arc<Port>, peer: Arc<PortPeer>, remote: RmaMemory) -> Self {
        Self {
            port,
            peer,
            remote,
            staging: Mutex::default(),
        }
    }

    /// Size of the block, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.remote.size
    }

    /// Name of the provider.
    pub fn provider(&self) -> &'static str {
        self.port.provider()
    }

    /// Stops all copies, now and later: the peer is gone.
    pub fn give_up(&self) {
        self.peer.give_up();
    }

    /// Copies bytes of the block to `bytes`.
    ///
    /// # Errors
    /// The bytes are not inside the block, or the fabric has lost the peer. `bytes` may hold a part of the block then.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), OfiError> {
        self.check(offset, bytes.len())?;
        let staging = self.take_staging(bytes.len())?;
        let mut from = offset;
        for piece in bytes.chunks_mut(STAGING_BYTES as usize) {
            self.port
                .read(&self.peer, &[self.spans(&staging, from, piece.len())], PIECE_LIMIT)?;
            // SAFETY: the piece is not longer than the staging memory, which no operation uses any more: `read` has
            // returned without an error.
            unsafe {
                let source = staging.memory().start().as_ptr();
                std::ptr::copy_nonoverlapping(source, piece.as_mut_ptr(), piece.len());
            }
            from += piece.len() as u64;
        }
        self.keep(staging);
        Ok(())
    }

    /// Copies `bytes` into the block. The block has them when this returns.
    ///
    /// # Errors
    /// The bytes are not inside the block, or the fabric has lost the peer. A part of the bytes may be in the block
    /// then.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), OfiError> {
        self.check(offset, bytes.len())?;
        let staging = self.take_staging(bytes.len())?;
        let mut to = offset;
        for piece in bytes.chunks(STAGING_BYTES as usize) {
            // SAFETY: the piece is not longer than the staging memory, which no operation uses: it is new, or the last
            // transfer with it ended without an error.
            unsafe {
                let target = staging.memory().start().as_ptr();
                std::ptr::copy_nonoverlapping(piece.as_ptr(), target, piece.len());
            }
            let spans = self.spans(&staging, to, piece.len());
            self.port.write_delivered(&self.peer, &[spans], PIECE_LIMIT)?;
            to += piece.len() as u64;
        }
        self.keep(staging);
        Ok(())
    }

    fn spans<'a>(&'a self, local: &'a Registration, remote_offset: u64, length: usize) -> TransferSpans<'a> {
        TransferSpans {
            remote: &self.remote,
            remote_offset,
            local,
            local_offset: 0,
            length: length as u64,
        }
    }

    fn check(&self, offset: u64, length: usize) -> Result<(), OfiError> {
        super::transfer::check_bounds("memory block", offset, length as u64, self.remote.size)
    }

    /// A staging buffer for a copy of this many bytes.
    fn take_staging(&self, bytes: usize) -> Result<Registration, OfiError> {
        let wanted = (bytes as u64).clamp(1, STAGING_BYTES);
        let kept = {
            let mut all = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            let fitting = all.iter().position(|kept| kept.memory().size_bytes() >= wanted);
            fitting.map(|at| all.swap_remove(at))
        };
        match kept {
            Some(kept) => Ok(kept),
            None => {
                let memory = Memory::create("hotlease-staging", wanted.next_power_of_two().max(64 << 10));
                let memory = memory.map_err(|error| OfiError::Memory(error.to_string()))?;
                self.port.register(&Arc::new(memory), Access::Local)
            }
        }
    }

    /// Keeps a staging buffer for later copies. (After an error the buffer is dropped instead: the operations that are
    /// still under way keep its memory.)
    fn keep(&self, staging: Registration) {
        let mut all = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == STAGING_KEPT {
            // The smallest is dropped, so that long copies find a large one.
            all.sort_by_key(|kept| std::cmp::Reverse(kept.memory().size_bytes()));
            all.pop();
        }
        all.push(staging);
    }
}
