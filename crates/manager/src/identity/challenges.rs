//! Nonces: each makes a credential valid once, on one connection.
//!
//! A MUNGE credential can be replayed on another host, because each host has its own cache of decoded credentials. So a
//! credential carries a nonce that this manager made for this connection. The nonce is forgotten with its first use,
//! whether the credential was valid or not.
//!
//! Only one credential of a connection is checked at a time. A check costs a process, and few checks run at once, so a
//! stranger with many requests on each of its connections would delay other callers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Limit of connections with a nonce at a time. Beyond it the oldest nonce is dropped: a stranger that opens
/// connections as fast as we accept them must not keep other callers from signing in. An honest client answers at once,
/// before its nonce is dropped.
const CHALLENGES_MAX: usize = 4096;
/// Lifetime of a nonce.
pub(super) const LIFETIME_MS: u64 = 30_000;

type Channel = [u8; 32];

#[derive(Default)]
struct ChallengeTable {
    /// Nonces by connection, each with the end of its validity. A new nonce replaces the connection's last nonce.
    nonces: HashMap<Channel, ([u8; 32], u64)>,
    /// Connections whose credential is being checked.
    answering: HashSet<Channel>,
}

/// Challenges of all connections.
#[derive(Default)]
pub(super) struct Challenges(Mutex<ChallengeTable>);

/// Answer to a challenge. While this value exists, the connection cannot answer again.
pub(super) struct ChallengeAnswer<'a> {
    challenges: &'a Challenges,
    channel: Channel,
    /// Nonce of the challenge, already removed from the table.
    pub nonce: [u8; 32],
}

impl fmt::Debug for ChallengeAnswer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChallengeAnswer")
    }
}

impl Challenges {
    fn table(&self) -> MutexGuard<'_, ChallengeTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a nonce for a connection; returns it with the end of its validity.
    pub fn make(&self, channel: Channel, now_ms: u64) -> ([u8; 32], u64) {
        let mut table = self.table();
        let nonces = &mut table.nonces;
        if nonces.len() >= CHALLENGES_MAX && !nonces.contains_key(&channel) {
            let oldest = nonces.iter().min_by_key(|(_, (_, until_ms))| *until_ms);
            if let Some(oldest) = oldest.map(|(channel, _)| *channel) {
                nonces.remove(&oldest);
            }
        }
        let (nonce, until_ms) = (rand::random(), now_ms + LIFETIME_MS);
        nonces.insert(channel, (nonce, until_ms));
        (nonce, until_ms)
    }

    /// Takes the nonce of a connection, so that the connection's answer can be checked. Otherwise returns the reason
    /// for which it cannot be checked.
    pub fn take(&self, channel: Channel, now_ms: u64) -> Result<ChallengeAnswer<'_>, &'static str> {
        let mut table = self.table();
        if table.answering.contains(&channel) {
            return Err("another credential of this connection is being checked");
        }
        let known = table.nonces.remove(&channel);
        let Some((nonce, _)) = known.filter(|(_, until_ms)| now_ms < *until_ms) else {
            return Err("this connection has no challenge to answer");
        };
        table.answering.insert(channel);
        Ok(ChallengeAnswer {
            challenges: self,
            channel,
            nonce,
        })
    }
}

impl Drop for ChallengeAnswer<'_> {
    fn drop(&mut self) {
        self.challenges.table().answering.remove(&self.channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_good_once_on_its_connection_and_not_for_long() {
        let challenges = Challenges::default();
        let (nonce, until) = challenges.make([1; 32], 0);
        assert!(challenges.take([2; 32], 0).is_err(), "another connection took it");
        assert_eq!(challenges.take([1; 32], 0).expect("it is its own").nonce, nonce);
        assert!(challenges.take([1; 32], 0).is_err(), "it was good twice");
        challenges.make([1; 32], 0);
        assert!(challenges.take([1; 32], until).is_err(), "it never ends");
    }

    #[test]
    fn a_connection_has_one_credential_checked_at_a_time() {
        let challenges = Challenges::default();
        challenges.make([1; 32], 0);
        let first = challenges.take([1; 32], 0).expect("there is a nonce");
        let (nonce, _) = challenges.make([1; 32], 0);
        let refused = challenges.take([1; 32], 0).expect_err("two are checked at a time");
        assert!(refused.contains("being checked"), "{refused}");
        challenges.make([2; 32], 0);
        let other = challenges.take([2; 32], 0);
        assert!(other.is_ok(), "another connection waits for it");
        drop(first);
        assert_eq!(challenges.take([1; 32], 0).expect("the first is checked").nonce, nonce);
        drop(other);
        assert!(challenges.table().answering.is_empty());
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
        assert_eq!(challenges.table().nonces.len(), CHALLENGES_MAX);
        let (nonce, _) = challenges.make([255; 32], strangers);
        assert_eq!(challenges.table().nonces.len(), CHALLENGES_MAX);
        let taken = challenges.take([255; 32], strangers);
        assert_eq!(taken.expect("strangers keep it out").nonce, nonce);
    }
}
