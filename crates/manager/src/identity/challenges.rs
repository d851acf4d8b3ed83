//! Nonces, each of which makes a credential good for one connection, once.
//!
//! A MUNGE credential can be replayed on another host, as the cache of decoded credentials belongs to one host. So a
//! credential carries a nonce that this manager made for this connection. The nonce is forgotten with its first use,
//! whether the credential was valid or not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Limit of connections with a nonce at a time.
pub(super) const CHALLENGES_MAX: usize = 4096;
/// Lifetime of a nonce.
pub(super) const LIFETIME_MS: u64 = 30_000;

type Channel = [u8; 32];

/// Nonces by connection, one for each at most: a new nonce replaces the last.
#[derive(Default)]
pub(super) struct Challenges(Mutex<HashMap<Channel, (Channel, u64)>>);

impl Challenges {
    /// Makes a nonce for a connection; returns it with the end of its validity. `None`: there are too many.
    pub fn make(&self, channel: Channel, now_ms: u64) -> Option<([u8; 32], u64)> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= CHALLENGES_MAX {
            table.retain(|_, (_, until_ms)| *until_ms > now_ms);
        }
        if table.len() >= CHALLENGES_MAX && !table.contains_key(&channel) {
            return None;
        }
        let (nonce, until_ms) = (rand::random(), now_ms + LIFETIME_MS);
        table.insert(channel, (nonce, until_ms));
        Some((nonce, until_ms))
    }

    /// Removes and returns the nonce of a connection.
    pub fn take(&self, channel: Channel, now_ms: u64) -> Option<[u8; 32]> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (nonce, until_ms) = table.remove(&channel)?;
        (now_ms < until_ms).then_some(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_good_once_on_its_connection_and_not_for_long() {
        let challenges = Challenges::default();
        let (nonce, until) = challenges.make([1; 32], 0).expect("room");
        assert_eq!(challenges.take([2; 32], 0), None, "another connection took it");
        assert_eq!(challenges.take([1; 32], 0), Some(nonce));
        assert_eq!(challenges.take([1; 32], 0), None, "it was good twice");
        challenges.make([1; 32], 0).expect("room");
        assert_eq!(challenges.take([1; 32], until), None, "it never ends");
    }

    #[test]
    fn strangers_cannot_make_the_table_grow() {
        let challenges = Challenges::default();
        for number in 0..CHALLENGES_MAX as u64 + 10 {
            let mut channel = [0; 32];
            channel[..8].copy_from_slice(&number.to_le_bytes());
            challenges.make(channel, 0);
        }
        assert_eq!(challenges.0.lock().unwrap().len(), CHALLENGES_MAX);
        assert!(
            challenges.make([255; 32], LIFETIME_MS).is_some(),
            "old ones made no room"
        );
    }
}
