//! Remote memory: memory of other nodes that a program reads and writes, without a core there (the memory service of
//! the disaggregation paper, section III.D).

mod block;
mod layout;
mod options;
mod transfer;

pub use options::MemoryOptions;
pub use transfer::MemoryTransfer;

use self::block::Block;
use self::layout::Layout;
use self::transfer::Transfers;
use crate::code::Code;
use crate::control::Control;
use crate::lease::LeasePlan;
use crate::{Error, LeaseId};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::forks::ProcessMark;
use hotlease_wire::session::UsageTotals;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long dropping a remote memory waits for the agents to end its leases.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// Memory of one or several nodes that this program reads and writes.
///
/// The bytes are zero at first. A read returns the bytes that the last completed write has left; a copy that overlaps a
/// write in progress may see old and new bytes mixed. Cheap to clone, `Send + Sync`: clones share the memory. It is
/// given back by [`RemoteMemory::deallocate`], or when the last clone and the last [`MemoryTransfer`] are dropped.
///
/// It is idle memory of other nodes, so it can be taken back at any time: then every call fails with
/// [`Error::MemoryLost`], and the bytes are gone. A forked process cannot use the remote memory of its parent.
#[derive(Clone)]
pub struct RemoteMemory {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    /// The blocks, in the order of the layout.
    blocks: Vec<Block>,
    transfers: Arc<Transfers>,
    made_by: ProcessMark,
}

impl RemoteMemory {
    /// Leases `size_bytes` of memory, all zero. Blocks until the nodes have reserved it, which takes up to about a
    /// second for each GiB.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a platform, [`Error::Refused`] if no node has that much memory to offer,
    /// [`Error::Options`] for options that make no sense.
    pub fn allocate(size_bytes: u64, options: MemoryOptions) -> Result<Self, Error> {
        let layout = options.layout(size_bytes)?;
        let plan = LeasePlan::new(Code::none(), options.of_block(&layout)?, Doorbell::create()?);
        let blocks = Control::get()?.run(async move { lease_blocks(plan, layout.blocks).await })?;
        Ok(Self {
            inner: Arc::new(Inner {
                layout,
                blocks,
                transfers: Arc::default(),
                made_by: ProcessMark::here(),
            }),
        })
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.inner.layout.size_bytes
    }

    /// The lease of each block.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.inner.blocks.iter().map(Block::lease_id).collect()
    }

    /// Name of the transport to the first block: `shm`, or a libfabric provider.
    pub fn transport(&self) -> &'static str {
        self.inner.blocks.first().map_or("", Block::transport)
    }

    /// Copies the bytes from `offset` on to `bytes`. Thread-safe.
    ///
    /// # Errors
    /// [`Error::Options`] if the bytes are not all inside the memory; [`Error::MemoryLost`]. `bytes` may hold a part of
    /// the memory then.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.check_span(offset, bytes.len())?;
        let inner = &*self.inner;
        for piece in inner.layout.pieces(offset, bytes.len()) {
            inner.blocks[piece.block].read_at(&mut bytes[piece.of_span], piece.offset)?;
        }
        Ok(())
    }

    /// Copies `bytes` to the bytes from `offset` on. The memory has them when this returns. Thread-safe.
    ///
    /// # Errors
    /// [`Error::Options`] if the bytes are not all inside the memory, which is then unchanged; [`Error::MemoryLost`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_span(offset, bytes.len())?;
        let inner = &*self.inner;
        for piece in inner.layout.pieces(offset, bytes.len()) {
            inner.blocks[piece.block].write_at(&bytes[piece.of_span], piece.offset)?;
        }
        Ok(())
    }

    /// Reads several pieces, each an offset and its target, as [`read`](Self::read) does.
    ///
    /// # Errors
    /// As for [`read`](Self::read); if a piece is not inside the memory, nothing is read.
    pub fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Error> {
        for (offset, bytes) in &*pieces {
            self.check_span(*offset, bytes.len())?;
        }
        pieces
            .iter_mut()
            .try_for_each(|(offset, bytes)| self.read(*offset, bytes))
    }

    /// Writes several pieces, each an offset and its bytes, as [`write`](Self::write) does.
    ///
    /// # Errors
    /// As for [`write`](Self::write); if a piece is not inside the memory, nothing is written.
    pub fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<(), Error> {
        for (offset, bytes) in pieces {
            self.check_span(*offset, bytes.len())?;
        }
        pieces.iter().try_for_each(|(offset, bytes)| self.write(*offset, bytes))
    }

    /// Begins to read `length` bytes from `offset` on; [`MemoryTransfer::wait`] returns them.
    ///
    /// # Errors
    /// [`Error::Options`] if the bytes are not all inside the memory; [`Error::Local`] if this process can start no
    /// thread.
    pub fn begin_read(&self, offset: u64, length: usize) -> Result<MemoryTransfer<Vec<u8>>, Error> {
        self.check_span(offset, length)?;
        self.begin(move |memory| {
            let mut bytes = vec![0; length];
            memory.read(offset, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// Begins to write bytes to the bytes from `offset` on. [`MemoryTransfer::wait`] returns `bytes` once the memory
    /// has them; [`flush`](Self::flush) waits for all writes.
    ///
    /// # Errors
    /// As for [`begin_read`](Self::begin_read).
    pub fn begin_write<B>(&self, offset: u64, bytes: B) -> Result<MemoryTransfer<B>, Error>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.check_span(offset, bytes.as_ref().len())?;
        self.begin(move |memory| {
            memory.write(offset, bytes.as_ref())?;
            Ok(bytes)
        })
    }

    /// Begins a copy on another thread. Copies that are under way at the same time may take effect in any order.
    ///
    /// # Errors
    /// [`Error::Local`] if this process can start no thread.
    pub fn begin<T: Send + 'static>(
        &self,
        copy: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<MemoryTransfer<T>, Error> {
        self.check_own()?;
        let memory = self.clone();
        MemoryTransfer::begin(&self.inner.transfers, move || copy(&memory))
    }

    /// Waits until no copy is under way.
    ///
    /// # Errors
    /// The first error since the last call of a copy whose [`MemoryTransfer`] was dropped.
    pub fn flush(&self) -> Result<(), Error> {
        self.check_own()?;
        self.inner.transfers.flush()
    }

    /// Gives the memory back, and waits until it is free; returns the total usage of its leases. Other clones fail from
    /// now on with [`Error::MemoryLost`].
    ///
    /// # Errors
    /// [`Error::Options`] while another clone or a [`MemoryTransfer`] uses the memory; errors of the connection to an
    /// agent, whose lease then ends by itself.
    pub fn deallocate(self) -> Result<UsageTotals, Error> {
        self.check_own()?;
        let inner = Arc::into_inner(self.inner).ok_or_else(|| Error::Options {
            what: "remote memory can be given back only by its last user: drop its clones, and wait for its transfers"
                .into(),
        })?;
        inner.release()
    }

    /// Refuses a span that is not inside the memory, and any span in a fork of the process that allocated it.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub fn check_span(&self, offset: u64, length: usize) -> Result<(), Error> {
        self.check_own()?;
        match self.inner.layout.holds(offset, length) {
            true => Ok(()),
            false => Err(self.outside(offset, length)),
        }
    }

    #[cold]
    fn outside(&self, offset: u64, length: usize) -> Error {
        let size = self.size_bytes();
        Error::Options {
            what: format!("{length} bytes from {offset} on reach past the end of a remote memory of {size} bytes"),
        }
    }

    fn check_own(&self) -> Result<(), Error> {
        match self.inner.made_by.is_foreign() {
            false => Ok(()),
            true => Err(Error::Options {
                what: "this remote memory belongs to the process that was forked; allocate one in this process".into(),
            }),
        }
    }
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMemory")
            .field("size_bytes", &self.size_bytes())
            .field("leases", &self.leases())
            .field("transport", &self.transport())
            .finish()
    }
}

/// Leases this many blocks, each on a node of its own if there are enough nodes. Runs on the control thread.
async fn lease_blocks(plan: LeasePlan, blocks: u64) -> Result<Vec<Block>, Error> {
    let mut leased = Vec::new();
    for _ in 0..blocks {
        let others = leased.iter().filter_map(Block::agent).collect::<BTreeSet<_>>();
        let block = match Block::lease(&plan.without(others.clone())).await {
            Err(Error::Refused(_) | Error::NoRoom { .. }) if !others.is_empty() => Block::lease(&plan).await,
            leased => leased,
        };
        match block {
            Ok(block) => leased.push(block),
            Err(error) => {
                // The memory needs all its blocks.
                release_all(leased).await;
                return Err(error);
            }
        }
    }
    Ok(leased)
}

async fn release_all(blocks: Vec<Block>) {
    for block in blocks {
        if let Err(error) = block.release().await {
            tracing::debug!(%error, "a block of remote memory was not released in time");
        }
    }
}

impl Inner {
    fn release(mut self) -> Result<UsageTotals, Error> {
        let blocks = std::mem::take(&mut self.blocks);
        Control::get()?.run(async move {
            let (mut total, mut failed) = (UsageTotals::default(), None);
            for block in blocks {
                match block.release().await {
                    Ok(used) => total.allocated_ns = total.allocated_ns.saturating_add(used.allocated_ns),
                    Err(error) => failed = Some(error),
                }
            }
            failed.map_or(Ok(total), Err)
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        if blocks.is_empty() {
            return;
        }
        if self.made_by.is_foreign() {
            // These are the parent's sockets: closing them properly would end the parent's leases.
            return std::mem::forget(blocks);
        }
        let Ok(control) = Control::get() else { return };
        let release = async move {
            // The end of the sessions ends the leases as well.
            let _ = tokio::time::timeout(DROP_LIMIT, release_all(blocks)).await;
        };
        if control.is_current() {
            control.spawn(release);
        } else {
            let _ = control.run(async move {
                release.await;
                Ok(())
            });
        }
    }
}
