//! Memory server: a worker without slots, which holds a memory block for the client of its lease.
//!
//! The agent creates the block and keeps a descriptor of it, so that it can take the block back when the memory server
//! is gone, also if other processes still have descriptors. The memory server provides the pages, which are charged to
//! its control group.

use super::Incarnation;
use crate::workers::worker::StartError;
use hotlease_fabric::memory::block::OwnedBlock;
use std::sync::Arc;

/// Memory that a memory server may use beyond its block, bytes: its program, and the buffers of libfabric's ports.
const OWN_BYTES: u64 = 256 << 20;

/// Limit on all memory of a memory server with a block of this size, bytes.
pub(super) fn limit_of(block_bytes: u64) -> u64 {
    // A page table has 8 bytes for each page of 4 KiB.
    block_bytes.saturating_add(block_bytes / 512).saturating_add(OWN_BYTES)
}

impl Incarnation {
    /// The block of this memory server; creates it, without pages, if there is none yet.
    pub(super) fn memory_block(&self, size_bytes: u64) -> Result<Arc<OwnedBlock>, StartError> {
        if self.memory.get().is_none() {
            let block = OwnedBlock::create(size_bytes).map_err(StartError::for_now)?;
            let _ = self.memory.set(Arc::new(block));
        }
        let block = self.memory.get().cloned();
        block.ok_or_else(|| StartError::for_now("there is no memory block"))
    }

    /// Takes the block back, if there is one, and waits until the kernel has freed it.
    pub(super) async fn revoke_memory(&self) {
        let Some(block) = self.memory.get().cloned() else {
            return;
        };
        let revoked = tokio::task::spawn_blocking(move || block.revoke()).await;
        let failed = match revoked {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(worker = %self.index, epoch = %self.epoch, error = failed, "a memory block was not freed: it stays until its client closes it");
    }
}
