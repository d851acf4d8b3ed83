//! Table of the connections whose peer is not known yet. It decides which connection begins its handshake, and which is
//! closed to make room for another.
//!
//! A connection is *silent* until its first byte arrives, then *ready* until it has a place among the handshakes.
//! Silent and ready connections are in the room, where each costs a descriptor. Only handshakes cost memory and
//! processor time; so handshakes are limited for each source, and the room only in total.
//!
//! A full room makes place for a new connection, in this order:
//!
//! 1. Of the sources with a connection that has been silent for some time, the source with the most connections in the
//!    room loses its longest silent connection, unless the kernel has an unread byte of that connection: so a client
//!    that is just beginning, or whose bytes were not read yet, is not closed for others.
//! 2. The source that has most connections in the room loses its newest connection to a source that has fewer.
//! 3. A new connection of that source itself replaces the source's oldest connection that has been ready for some time.
//!    If there is none, the new connection is refused. It cannot wait in the accept queue, because all other
//!    connections would wait behind it.
//! 4. If no source has more than its share, the new connection waits.
//!
//! Ready connections begin in the order in which they arrived. But if a source has very many of them, its newest begins
//! first. Otherwise, in a queue that grows faster than it is served, each connection would wait until its time is over:
//! a few dozen connections a second that send one byte would keep out every other client of their address.
//!
//! A handshake is closed for another connection if three conditions hold: its source has as many handshakes as a source
//! may have, or more than any other source; the handshake began some time ago; and the kernel has no unread byte of it.

use crate::listener::Limits;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Source of connections: an address, or the /64 network of an IPv6 address, because one host may use all addresses of
/// such a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Socket of a connection.
pub(super) trait WaitingRoomSocket {
    /// Whether the kernel has no unread byte of the peer.
    fn is_quiet(&self) -> bool;
}

/// Number of a connection (each new connection gets a larger number), and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionNumber {
    source: Source,
    number: u64,
}

/// Reason why a connection cannot enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The connection's source has more connections in the room than any other source.
    SourceFull,
    /// No source has more than its share; there will be room soon.
    Full,
}

/// Connections of one source by number, each with the time at which it entered its state.
struct SourceConnections<S> {
    silent: BTreeMap<u64, (Instant, S)>,
    ready: BTreeMap<u64, (Instant, S)>,
    /// The socket is missing until the task of the connection has stored it.
    handshakes: BTreeMap<u64, (Instant, Option<S>)>,
}

impl<S> Default for SourceConnections<S> {
    fn default() -> Self {
        Self {
            silent: BTreeMap::new(),
            ready: BTreeMap::new(),
            handshakes: BTreeMap::new(),
        }
    }
}

impl<S> SourceConnections<S> {
    fn in_room(&self) -> usize {
        self.silent.len() + self.ready.len()
    }

    fn first_ready(&self) -> Option<u64> {
        self.ready.first_key_value().map(|(number, _)| *number)
    }
}

/// Sockets of connections whose handshake begins, and of connections that are closed for them.
pub(super) struct WaitingRoomTurns<S> {
    pub(super) begun: Vec<S>,
    pub(super) closed: Vec<S>,
}

/// Connections whose peer is not known yet.
pub(super) struct WaitingRoomTable<S> {
    limits: Limits,
    sources: HashMap<Source, SourceConnections<S>>,
    in_room: usize,
    in_handshake: usize,
    next: u64,
}

impl<S: WaitingRoomSocket> WaitingRoomTable<S> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            sources: HashMap::new(),
            in_room: 0,
            in_handshake: 0,
            next: 0,
        }
    }

    /// Makes room for a connection of `source`. Returns the socket that must be closed for it, if any.
    pub(super) fn make_room(&mut self, source: Source, now: Instant) -> Result<Option<S>, NoRoom> {
        if self.in_room < self.limits.waiting {
            return Ok(None);
        }
        if let Some(silent) = self.take_silent(now) {
            return Ok(Some(silent));
        }
        let largest = self.sources.iter().max_by_key(|(_, connections)| connections.in_room());
        let Some((crowd, most)) = largest.map(|(crowd, connections)| (*crowd, connections.in_room())) else {
            return Err(NoRoom::Full);
        };
        if most <= self.limits.handshakes_per_address {
            return Err(NoRoom::Full);
        }
        if self.sources.get(&source).map_or(0, SourceConnections::in_room) + 1 >= most {
            return self.take_late(source, now).map(Some).ok_or(NoRoom::SourceFull);
        }
        let newest = self.sources.get_mut(&crowd).and_then(|connections| {
            let newest = connections.silent.pop_last().or_else(|| connections.ready.pop_last());
            newest.map(|(_, (_, socket))| socket)
        });
        self.in_room -= usize::from(newest.is_some());
        self.forget_if_empty(crowd);
        Ok(newest)
    }

    /// Adds a connection, for which there is room, in the silent state.
    pub(super) fn add(&mut self, source: Source, now: Instant, socket: S) -> ConnectionNumber {
        let number = self.next;
        self.next += 1;
        self.in_room += 1;
        let connections = self.sources.entry(source).or_default();
        connections.silent.insert(number, (now, socket));
        ConnectionNumber { source, number }
    }

    /// Notes that the first byte of a connection has arrived. Returns the sockets whose handshake begins.
    pub(super) fn note_first_byte(&mut self, entry: ConnectionNumber, now: Instant) -> Vec<S> {
        if let Some(connections) = self.sources.get_mut(&entry.source)
            && let Some((_, socket)) = connections.silent.remove(&entry.number)
        {
            connections.ready.insert(entry.number, (now, socket));
        }
        let mut begun = Vec::new();
        while self.has_place(entry.source)
            && let Some(socket) = self.begin(entry.source, now)
        {
            begun.push(socket);
        }
        begun
    }

    /// Stores a socket of a connection in its handshake, so that the table can close the connection for another.
    pub(super) fn hold(&mut self, entry: ConnectionNumber, socket: S) {
        if let Some(connections) = self.sources.get_mut(&entry.source)
            && let Some((_, held)) = connections.handshakes.get_mut(&entry.number)
        {
            *held = Some(socket);
        }
    }

    /// Removes a connection, unless it was removed already. Returns the sockets whose handshake begins.
    pub(super) fn leave(&mut self, entry: ConnectionNumber, now: Instant) -> Vec<S> {
        let Some(connections) = self.sources.get_mut(&entry.source) else {
            return Vec::new();
        };
        let number = entry.number;
        if connections.silent.remove(&number).is_some() || connections.ready.remove(&number).is_some() {
            self.in_room -= 1;
        } else if connections.handshakes.remove(&number).is_some() {
            self.in_handshake -= 1;
        }
        self.forget_if_empty(entry.source);
        let mut begun = Vec::new();
        while let Some(source) = self.find_next()
            && let Some(socket) = self.begin(source, now)
        {
            begun.push(socket);
        }
        begun
    }

    /// Closes handshakes at a standstill, to make room for ready connections.
    pub(super) fn relieve(&mut self, now: Instant) -> WaitingRoomTurns<S> {
        let mut turns = WaitingRoomTurns {
            begun: Vec::new(),
            closed: Vec::new(),
        };
        let ready = self.sources.iter().filter_map(|(source, connections)| {
            let first = connections.first_ready()?;
            Some((connections.handshakes.len(), first, *source))
        });
        let mut ready: Vec<_> = ready.collect();
        ready.sort_unstable_by_key(|(handshakes, first, _)| (*handshakes, *first));
        let mut has_standstill = true;
        for (_, _, source) in ready {
            while self
                .sources
                .get(&source)
                .is_some_and(|connections| !connections.ready.is_empty())
            {
                if self.has_place(source) {
                    turns.begun.extend(self.begin(source, now));
                    continue;
                }
                let own = self.handshakes_of(source);
                let closed = if own >= self.limits.handshakes_per_address {
                    self.take_standstill(source, now)
                } else if has_standstill {
                    let crowd = self.find_most_handshakes(own);
                    let closed = crowd.and_then(|crowd| self.take_standstill(crowd, now));
                    has_standstill = closed.is_some();
                    closed
                } else {
                    None
                };
                let Some(closed) = closed else { break };
                turns.closed.push(closed);
            }
        }
        turns
    }

    /// Whether a connection waits for a place among the handshakes.
    pub(super) fn has_ready(&self) -> bool {
        self.sources.values().any(|connections| !connections.ready.is_empty())
    }

    fn handshakes_of(&self, source: Source) -> usize {
        self.sources
            .get(&source)
            .map_or(0, |connections| connections.handshakes.len())
    }

    fn has_place(&self, source: Source) -> bool {
        self.in_handshake < self.limits.handshakes && self.handshakes_of(source) < self.limits.handshakes_per_address
    }

    /// Finds the source whose connection begins next: the source with the fewest handshakes; among equals, the source
    /// whose connection has been ready for longest.
    fn find_next(&self) -> Option<Source> {
        let ready = self.sources.iter().filter_map(|(source, connections)| {
            let first = connections.first_ready()?;
            Some((connections.handshakes.len(), first, *source))
        });
        let (_, _, source) = ready.min_by_key(|(handshakes, first, _)| (*handshakes, *first))?;
        self.has_place(source).then_some(source)
    }

    /// Source with most handshakes, if it has more than `own`.
    fn find_most_handshakes(&self, own: usize) -> Option<Source> {
        let most = self
            .sources
            .iter()
            .max_by_key(|(_, connections)| connections.handshakes.len());
        most.filter(|(_, connections)| connections.handshakes.len() > own)
            .map(|(source, _)| *source)
    }

    fn begin(&mut self, source: Source, now: Instant) -> Option<S> {
        let connections = self.sources.get_mut(&source)?;
        let next = match connections.ready.len() > 2 * self.limits.handshakes_per_address {
            true => connections.ready.pop_last(),
            false => connections.ready.pop_first(),
        };
        let (number, (_, socket)) = next?;
        connections.handshakes.insert(number, (now, None));
        self.in_room -= 1;
        self.in_handshake += 1;
        Some(socket)
    }

    fn take_silent(&mut self, now: Instant) -> Option<S> {
        let silence = self.limits.silence;
        loop {
            let silent = self.sources.iter().filter_map(|(source, connections)| {
                let (number, (since, _)) = connections.silent.first_key_value()?;
                let is_long = now.duration_since(*since) >= silence;
                is_long.then_some((connections.in_room(), Reverse(*number), *source))
            });
            let (_, Reverse(number), source) = silent.max_by_key(|(in_room, number, _)| (*in_room, *number))?;
            let connections = self.sources.get_mut(&source)?;
            let (_, socket) = connections.silent.remove(&number)?;
            if socket.is_quiet() {
                self.in_room -= 1;
                self.forget_if_empty(source);
                return Some(socket);
            }
            // The first byte has arrived; the connection's task has not noted it yet.
            connections.ready.insert(number, (now, socket));
        }
    }

    /// Takes a source's oldest connection that waits for its turn, if it has waited for long.
    fn take_late(&mut self, source: Source, now: Instant) -> Option<S> {
        let connections = self.sources.get_mut(&source)?;
        let (_, (since, _)) = connections.ready.first_key_value()?;
        if now.duration_since(*since) < self.limits.standstill {
            return None;
        }
        let (_, (_, socket)) = connections.ready.pop_first()?;
        self.in_room -= 1;
        self.forget_if_empty(source);
        Some(socket)
    }

    fn take_standstill(&mut self, source: Source, now: Instant) -> Option<S> {
        let standstill = self.limits.standstill;
        let connections = self.sources.get_mut(&source)?;
        let number = connections.handshakes.iter().find_map(|(number, (since, socket))| {
            let is_long = now.duration_since(*since) >= standstill;
            (is_long && socket.as_ref().is_some_and(S::is_quiet)).then_some(*number)
        })?;
        let (_, socket) = connections.handshakes.remove(&number)?;
        self.in_handshake -= 1;
        self.forget_if_empty(source);
        socket
    }

    fn forget_if_empty(&mut self, source: Source) {
        let is_empty = |connections: &SourceConnections<S>| connections.in_room() + connections.handshakes.len() == 0;
        if self.sources.get(&source).is_some_and(is_empty) {
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests;
