//! Options of a remote memory.

use super::layout::Layout;
use crate::Error;
use crate::options::{LeaseOptions, Sharing, Spread};
use hotlease_wire::limits::MEMORY_BLOCK_BYTES_MAX;

/// Largest number of nodes of one remote memory.
const NODES_MAX: u16 = 8;
/// Smallest and largest stripe.
const STRIPE_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 30;

/// Options of a remote memory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// Number of nodes over which the memory is spread, each with the same share; if fewer nodes have room, a node has
    /// several shares. Default: 1; at most 8.
    pub nodes: u16,
    /// Bytes that are together on one node before the next node follows, if there are several: a power of two. Default:
    /// 1 MiB; 4 KiB to 1 GiB.
    pub stripe_bytes: u32,
    /// Options of the leases that hold the memory: label, job, time to live, patience, transport, manager, identity and
    /// placement. The options of workers and functions do not matter: the memory has none.
    pub lease: LeaseOptions,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            stripe_bytes: 1 << 20,
            lease: LeaseOptions::default(),
        }
    }
}

impl MemoryOptions {
    /// Layout of a memory of this size.
    pub(super) fn layout(&self, size_bytes: u64) -> Result<Layout, Error> {
        let bad = |what: String| Err(Error::Options { what });
        if !(1..=NODES_MAX).contains(&self.nodes) {
            return bad(format!("nodes must be 1 to {NODES_MAX}, not {}", self.nodes));
        }
        if !self.stripe_bytes.is_power_of_two() || !STRIPE_BYTES.contains(&self.stripe_bytes) {
            return bad(format!(
                "stripe_bytes must be a power of two from {} to {}, not {}",
                STRIPE_BYTES.start(),
                STRIPE_BYTES.end(),
                self.stripe_bytes
            ));
        }
        let most = MEMORY_BLOCK_BYTES_MAX.saturating_mul(self.nodes.into());
        if !(1..=most).contains(&size_bytes) {
            return bad(format!("the size must be 1 to {most} bytes, not {size_bytes}"));
        }
        Ok(Layout {
            size_bytes,
            blocks: self.nodes.into(),
            stripe_bytes: self.stripe_bytes.into(),
        })
    }

    /// Options of the lease of one block.
    pub(super) fn of_block(self, layout: &Layout) -> Result<LeaseOptions, Error> {
        let options = LeaseOptions {
            workers: 1,
            slots: 0,
            memory_bytes: layout.block_bytes(),
            gpus: 0,
            state: String::new(),
            sharing: Sharing::Exclusive,
            spread: Spread::OneAgent,
            python: None,
            replace_lease: false,
            ..self.lease
        };
        options.check_lease()?;
        Ok(options)
    }
}
