//! Limits of stored records.

/// Largest numbers of records that a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of agents.
    pub agents: usize,
    /// Number of running leases.
    pub active_leases: usize,
    /// Number of ended leases; the lease that ended first is removed to make room.
    pub ended_leases: usize,
    /// Number of ledger rows; settled rows are folded into their tenant's total to make room.
    pub ledger_rows: usize,
    /// Number of tenants with a folded total, and number of tenants that operators named.
    pub tenants: usize,
    /// Number of keys, including revoked keys.
    pub keys: usize,
}

impl Limits {
    /// Limits of a [`MemoryStore`](crate::MemoryStore).
    pub const MEMORY: Self = Self {
        agents: 4096,
        active_leases: 65_536,
        ended_leases: 1024,
        ledger_rows: 65_536,
        tenants: 4096,
        keys: 4096,
    };
    /// Limits of a database, which some gigabytes of disk can hold.
    pub const DATABASE: Self = Self {
        agents: 16_384,
        active_leases: 262_144,
        ended_leases: 65_536,
        ledger_rows: 10_000_000,
        tenants: 65_536,
        keys: 65_536,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::MEMORY
    }
}
