//! Leases: how they are asked for, taken, used, replaced when they are lost, and released.

pub(crate) mod acquire;
mod direct;
mod held;
pub(crate) mod manager;
pub(crate) mod parts;
pub(crate) mod slots;

pub use held::ColdPhases;
pub(crate) use held::{Lease, LeasePlan};
