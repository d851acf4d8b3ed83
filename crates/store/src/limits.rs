//! Bounds of what is stored.

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Agents.
    pub agents: usize,
    /// Leases that go on.
    pub active_leases: usize,
    /// Leases that ended; the longest ended one makes room.
    pub ended_leases: usize,
    /// Ledger rows; settled ones are folded into their tenant's total to make room.
    pub ledger_rows: usize,
    /// Tenants with a folded total; and tenants that operators named.
    pub tenants: usize,
    /// Keys, revoked ones included.
    pub keys: usize,
}

impl Limits {
    /// Of a [`MemoryStore`](crate::MemoryStore).
    pub const MEMORY: Self = Self {
        agents: 4096,
        active_leases: 65_536,
        ended_leases: 1024,
        ledger_rows: 65_536,
        tenants: 4096,
        keys: 4096,
    };
    /// Of a database: what some gigabytes of disk hold.
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
