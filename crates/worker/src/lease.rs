//! The worker's lease: state of a worker that is assigned to a lease.

use crate::function::library::FunctionTable;
use crate::memory_server::MemoryServer;
use crate::ports::SlotPorts;
use crate::shared_place::SharedPlace;
use crate::slot::mailbox::Mailbox;
use crate::state::StateKeeper;
use std::sync::Arc;

/// State of the worker once it is assigned to a lease.
pub struct WorkerLease {
    /// The slots' mailboxes; empty in a memory server.
    pub slots: Vec<Arc<Mailbox>>,
    /// The memory block, if the worker is a memory server.
    pub memory: Option<MemoryServer>,
    /// Number of open channels of each slot, of all clients together.
    pub channels: Vec<usize>,
    /// The slots' ports.
    pub fabrics: SlotPorts,
    /// Place of the worker on a shared core, if it shares a core.
    pub place: Option<SharedPlace>,
    /// Whether its functions can take part in a gang.
    pub has_gangs: bool,
    /// All functions of the worker.
    pub functions: Arc<FunctionTable>,
    /// Keeper of its functions' state, if there is one.
    pub keeper: Option<StateKeeper>,
    /// Generation that was drawn last.
    pub generation: u32,
    /// Number of connections made so far.
    pub connections_made: u64,
}

impl WorkerLease {
    /// Draws a generation that none of the last 2^32 - 2 channels of this worker had; never 0.
    pub fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.generation
    }
}
