//! Matchmaker of pairs of members that are to be relayed. A pure state machine.

use super::matchmaker::ConnectionId;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::KeyId;
use hotlease_wire::comm::rendezvous::Relay;
use std::collections::HashMap;

/// Two ranks of a group, the lower one first, and the secret of its members.
type Pair = (KeyId, GroupId, u32, u32);

struct WaitingHalf {
    connection: ConnectionId,
    rank: u32,
}

/// Result of a request to be relayed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PairResult {
    /// The other member has not asked yet.
    Waits,
    /// The same member has asked before, on this connection, which is to be closed.
    Repeated(ConnectionId),
    /// The other member waits on this connection.
    Meets(ConnectionId),
    /// The limit of pairs is reached.
    Full,
}

/// Members that have asked, while the other member of their pair has not.
#[derive(Default)]
pub(super) struct Pairs {
    halves: HashMap<Pair, WaitingHalf>,
    of: HashMap<ConnectionId, Pair>,
}

impl Pairs {
    /// Records the request of a member, while `room` more pairs may be relayed.
    pub(super) fn ask(&mut self, key: KeyId, relay: &Relay, connection: ConnectionId, room: usize) -> PairResult {
        let (rank, other) = (relay.from, relay.to);
        let pair = (key, relay.group, rank.min(other), rank.max(other));
        let before = self.halves.remove(&pair);
        let asked = match &before {
            Some(half) => {
                self.of.remove(&half.connection);
                if half.rank != rank {
                    return PairResult::Meets(half.connection);
                }
                PairResult::Repeated(half.connection)
            }
            None if self.halves.len() >= room => return PairResult::Full,
            None => PairResult::Waits,
        };
        self.halves.insert(pair, WaitingHalf { connection, rank });
        self.of.insert(connection, pair);
        asked
    }

    /// Removes a connection that is gone.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        if let Some(pair) = self.of.remove(&connection) {
            self.halves.remove(&pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyId = KeyId([1; 16]);

    fn between(from: u32, to: u32) -> Relay {
        Relay {
            group: GroupId([7; 16]),
            from,
            to,
        }
    }

    #[test]
    fn only_the_two_of_a_pair_meet() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.ask(KEY, &between(3, 1), 10, 9), PairResult::Waits);
        assert_eq!(pairs.ask(KEY, &between(3, 2), 11, 9), PairResult::Waits);
        let mut other_group = between(1, 3);
        other_group.group = GroupId([8; 16]);
        assert_eq!(pairs.ask(KEY, &other_group, 12, 9), PairResult::Waits);
        let other_secret = KeyId([2; 16]);
        assert_eq!(pairs.ask(other_secret, &between(1, 3), 13, 9), PairResult::Waits);
        assert_eq!(pairs.ask(KEY, &between(1, 3), 14, 9), PairResult::Meets(10));
        // The two members may meet once more, when their connection is gone.
        assert_eq!(pairs.ask(KEY, &between(1, 3), 15, 9), PairResult::Waits);
    }

    #[test]
    fn a_member_that_asks_again_replaces_its_earlier_request() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.ask(KEY, &between(3, 1), 10, 1), PairResult::Waits);
        assert_eq!(pairs.ask(KEY, &between(3, 1), 11, 1), PairResult::Repeated(10));
        pairs.remove(10);
        assert_eq!(pairs.ask(KEY, &between(1, 3), 12, 1), PairResult::Meets(11));
    }

    #[test]
    fn no_more_wait_than_may() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.ask(KEY, &between(0, 1), 10, 0), PairResult::Full);
        assert_eq!(pairs.ask(KEY, &between(0, 1), 10, 1), PairResult::Waits);
        assert_eq!(pairs.ask(KEY, &between(0, 2), 11, 1), PairResult::Full);
        pairs.remove(10);
        assert_eq!(pairs.ask(KEY, &between(0, 2), 11, 1), PairResult::Waits);
    }
}
