//! Nonces that make a credential good for one connection, once.
//!
//! A MUNGE credential can be replayed where its decoder's cache does not know it: the cache is one host's. So a
//! credential carries a nonce that this manager made for this connection, and which is forgotten with its first
//! use, right or wrong.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Connections with a nonce at a time.
pub(super) const CHALLENGES_MAX: usize = 4096;
/// How long a nonce is good.
pub(super) const LIFETIME_MS: u64 = 30_000;

type Channel = [u8; 32];

/// One for each connection at most: a new one takes the place of the last.
#[derive(Default)]
pub(super) struct Challenges(Mutex<HashMap<Channel, (Channel, u64)>>);

impl Challenges {
    /// A nonce for a connection, and when it ends; `None`: there are too many.
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

    /// Takes the nonce of a connection: from now on there is none.
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
