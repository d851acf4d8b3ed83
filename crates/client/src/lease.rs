//! Leases: how they are asked for, taken, used, replaced when they are lost, and released.

pub(crate) mod acquire;
mod cold_phases;
mod direct;
mod held;
mod holders;
pub(crate) mod manager;
pub(crate) mod parts;
mod plan;
pub(crate) mod slots;
mod unattached;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use cold_phases::ColdPhases;
pub(crate) use held::Lease;
pub(crate) use plan::LeasePlan;

/// Locks a mutex, also if another thread has panicked while it held the lock.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
