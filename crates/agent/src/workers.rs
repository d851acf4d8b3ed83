//! Workers before they serve a lease: their start, and their wait for the next lease.

pub(crate) mod borrowing;
pub(crate) mod fabric_demand;
pub(crate) mod forecast;
pub(crate) mod idle_memory;
pub(crate) mod pool;
pub(crate) mod python;
pub(crate) mod spares;
pub(crate) mod worker;
pub(crate) mod zygotes;
