//! Locks whose holder may have panicked: the data is used in the state in which the holder left it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the lock and takes it.
#[inline]
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
