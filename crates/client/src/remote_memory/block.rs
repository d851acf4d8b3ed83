//! A block of a remote memory: the lease that holds it, and the way to it.

use crate::Error;
use crate::lease::acquire;
use crate::lease::{Lease, LeasePlan};
use crate::session::connection::{AccessError, BlockAccess, WorkerConnection};
use hotlease_fabric::memory::block::BlockError;
use hotlease_fabric::ofi::OfiError;
use hotlease_wire::ids::{AgentId, LeaseId};
use hotlease_wire::session::UsageTotals;
use std::sync::{Arc, OnceLock};

/// A block and its lease.
pub(super) struct Block {
    lease: Lease,
    connection: Arc<WorkerConnection>,
    access: BlockAccess,
    /// Why the block is lost, if it is.
    loss: OnceLock<String>,
}

impl Block {
    /// Leases a block, and makes it accessible. Runs on the control thread.
    pub async fn lease(plan: &LeasePlan) -> Result<Self, Error> {
        let taken = acquire::take_or_explain(plan, 1, plan.options.patience).await?;
        let lease = taken.into_iter().next().map(|(lease, ..)| lease);
        let lease = lease.ok_or_else(|| Error::protocol("the manager granted no lease"))?;
        let connection = lease.first_connection().cloned();
        let connection = connection.ok_or_else(|| Error::protocol("the lease has no memory server"))?;
        match connection.open_memory(plan.options.memory_bytes, &plan.options).await {
            Ok(access) => Ok(Self {
                lease,
                connection,
                access,
                loss: OnceLock::new(),
            }),
            Err(error) => {
                if let Err(error) = lease.release().await {
                    tracing::debug!(%error, "a lease of memory that could not be used was not released");
                }
                Err(error)
            }
        }
    }

    /// The agent of the block's node.
    pub fn agent(&self) -> Option<AgentId> {
        self.lease.agent().parse().ok()
    }

    pub fn lease_id(&self) -> LeaseId {
        self.lease.id()
    }

    pub fn transport(&self) -> &'static str {
        self.access.transport()
    }

    /// Copies bytes of the block to `bytes`.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
        self.check()?;
        let read = self.access.read_at(bytes, offset);
        read.map_err(|error| self.failed(error, bytes.len()))
    }

    /// Copies `bytes` into the block.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.check()?;
        let written = self.access.write_at(bytes, offset);
        written.map_err(|error| self.failed(error, bytes.len()))
    }

    /// Fails if the block is lost.
    #[inline]
    fn check(&self) -> Result<(), Error> {
        match self.connection.death().is_none() && self.loss.get().is_none() {
            true => Ok(()),
            false => Err(self.lost(|| "its memory server is gone".into())),
        }
    }

    #[cold]
    fn failed(&self, error: AccessError, length: usize) -> Error {
        match error {
            AccessError::Shared(error @ BlockError::OutOfBounds { .. }) => Error::Options {
                what: error.to_string(),
            },
            // There is no staging buffer: nothing was copied, and the block is as it was.
            AccessError::Fabric(error @ (OfiError::Memory(_) | OfiError::TooMany { .. })) => Error::Unregistered {
                size_bytes: length as u64,
                why: error.to_string(),
            },
            error @ (AccessError::Shared(BlockError::Revoked) | AccessError::Fabric(_)) => {
                self.lost(|| error.to_string())
            }
        }
    }

    /// Marks the block as lost, for good: after a failed copy it is not known which bytes the block has. `otherwise`:
    /// the reason, if no better reason is reported.
    #[cold]
    fn lost(&self, otherwise: impl FnOnce() -> String) -> Error {
        let reason = || {
            crate::control::Control::get().ok().and_then(|control| {
                let connection = self.connection.clone();
                control
                    .run(async move { Ok(connection.memory_loss().await) })
                    .ok()
                    .flatten()
            })
        };
        let why = self.loss.get_or_init(|| reason().unwrap_or_else(otherwise));
        if let BlockAccess::Fabric(block) = &self.access {
            block.give_up();
        }
        Error::MemoryLost { why: why.clone() }
    }

    /// Gives the block back; returns the usage of its lease.
    pub async fn release(self) -> Result<UsageTotals, Error> {
        // Before the memory server is gone, so that nothing is under way to it.
        drop(self.access);
        drop(self.connection);
        self.lease.release().await
    }
}
