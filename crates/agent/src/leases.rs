//! Leases that hold cores: their workers from assignment to end, with starts, usage, failures and shared cores.

pub(crate) mod active_lease;
mod attribution;
pub(crate) mod book_steps;
pub(crate) mod cause;
pub(crate) mod core_marks;
mod failures;
pub(crate) mod incarnation;
mod libraries;
pub(crate) mod running_usage;
pub(crate) mod sharing;
mod start;
mod start_records;
pub(crate) mod supply;
pub(crate) mod terms;
mod usage;
