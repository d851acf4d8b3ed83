//! Leases that hold cores: their workers from assignment to end, with starts, usage, failures and shared cores.

pub(crate) mod active_lease;
pub(crate) mod attribution;
pub(crate) mod cause;
pub(crate) mod failures;
pub(crate) mod incarnation;
pub(crate) mod running_usage;
pub(crate) mod sharing;
pub(crate) mod start;
pub(crate) mod start_records;
pub(crate) mod usage;
