//! Places among the connections of a daemon: limits in total, for each address and for each peer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedSemaphorePermit;

/// Place among the connections of a daemon, and among those of a peer that has a certificate.
pub struct ConnectionPlace {
    pub(super) _all: OwnedSemaphorePermit,
    pub(super) _of_peer: Option<CountGuard<(crate::CertificateRole, String)>>,
}

pub(crate) type CountTable<K> = Arc<Mutex<HashMap<K, usize>>>;

/// Counts by key, with a limit for each key. A key has an entry while its count is not 0.
#[derive(Clone)]
pub(crate) struct KeyedCounts<K> {
    table: CountTable<K>,
    most: usize,
}

impl<K: Eq + Hash + Clone> KeyedCounts<K> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            table: Arc::default(),
            most,
        }
    }

    /// Limit for each key.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Adds one to the count of `key`; returns `None` if the limit is reached.
    pub(crate) fn count(&self, key: K) -> Option<CountGuard<K>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let count = table.entry(key.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(CountGuard {
            table: Arc::clone(&self.table),
            key,
        })
    }
}

pub(crate) struct CountGuard<K: Eq + Hash> {
    table: CountTable<K>,
    key: K,
}

impl<K: Eq + Hash> Drop for CountGuard<K> {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = table.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_many_places_and_no_entry_stays_behind() {
        let counts = KeyedCounts::new(2);
        let first = counts.count("a").expect("free");
        let second = counts.count("a").expect("free");
        assert!(counts.count("a").is_none(), "a third place of two");
        assert!(counts.count("b").is_some(), "another's places are its own");
        drop(first);
        assert!(counts.count("a").is_some(), "the place is free again");
        drop(second);
        assert!(counts.table.lock().unwrap().is_empty(), "entries are left");
    }
}
