//! Nonces, each of which makes a credential good for one connection, once.
//!
//! A MUNGE credential can be replayed on another host, as the cache of decoded credentials belongs to one host. So a
//! credential carries a nonce that this manager made for this connection. The nonce is forgotten with its first use,
//! whether the credential was valid or not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Limit of connections with a nonce at a time. Beyond it the oldest nonce goes: a stranger who opens connections as fast
/// as we take them must not keep others from signing in, and an honest client answers at once.
const CHALLENGES_MAX: usize = 4096;
/// Lifetime of a nonce.
pub(super) const LIFETIME_MS: u64 = 30_000;

type Channel = [u8; 32];

/// Nonces by connection, one for each at most: a new nonce replaces the last.
#[derive(Default)]
pub(super) struct Challenges(Mutex<HashMap<Channel, (Channel, u64)>>);

impl Challenges {
    /// Makes a nonce for a connection; returns it with the end of its validity.
    pub fn make(&self, channel: Channel, now_ms: u64) -> ([u8; 32], u64) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= CHALLENGES_MAX && !table.contains_key(&channel) {
            let oldest = table.iter().min_by_key(|(_, (_, until_ms))| *until_ms);
            if let Some(oldest) = oldest.map(|(channel, _)| *channel) {
                table.remove(&oldest);
            }
        }
        let (nonce, until_ms) = (rand::random(), now_ms + LIFETIME_MS);
        table.insert(channel, (nonce, until_ms));
        (nonce, until_ms)
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
        let (nonce, until) = challenges.make([1; 32], 0);
        assert_eq!(challenges.take([2; 32], 0), None, "another connection took it");
        assert_eq!(challenges.take([1; 32], 0), Some(nonce));
        assert_eq!(challenges.take([1; 32], 0), None, "it was good twice");
        challenges.make([1; 32], 0);
        assert_eq!(challenges.take([1; 32], until), None, "it never ends");
    }

    #[test]
    fn strangers_neither_make_the_table_grow_nor_keep_others_out() {
        let challenges = Challenges::default();
        let strangers = CHALLENGES_MAX as u64 + 10;
        for number in 0..strangers {
            let mut channel = [0; 32];
            channel[..8].copy_from_slice(&number.to_le_bytes());
            challenges.make(channel, number);
        }
        assert_eq!(challenges.0.lock().unwrap().len(), CHALLENGES_MAX);
        let (nonce, _) = challenges.make([255; 32], strangers);
        assert_eq!(challenges.0.lock().unwrap().len(), CHALLENGES_MAX);
        assert_eq!(
            challenges.take([255; 32], strangers),
            Some(nonce),
            "strangers keep it out"
        );
    }
}
