//! Connections whose peer is not known yet: how many there are in total and of each source, and which of them makes
//! room for a new one.
//!
//! A limit alone would let a party that connects and says nothing keep others out, namely all that come from behind the
//! same address. So a new connection replaces the oldest one that has not sent a byte; if each has sent some, the oldest
//! one that is there for longer than a handshake takes. Only if there is none the new connection is refused.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a peer that has begun its handshake is not replaced.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// Source of connections: an address, or the network of an IPv6 address. A host has all 2^64 addresses of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

struct Entry<T> {
    source: Source,
    begin: Instant,
    has_spoken: bool,
    connection: T,
}

/// Connections by their number, which rises with each: the first is the oldest.
struct Table<T> {
    entries: BTreeMap<u64, Entry<T>>,
    next: u64,
    most: usize,
    most_of_source: usize,
}

impl<T> Table<T> {
    /// Adds a connection. Returns its number, and the connection that was removed for it, if any. `None`: it is refused.
    fn add(&mut self, source: Source, now: Instant, connection: T) -> Option<(u64, Option<T>)> {
        let crowded = self.find_crowded(source);
        let removed = match crowded {
            None => None,
            Some(crowded) => {
                let number = self.find_replaceable(crowded, now)?;
                self.entries.remove(&number).map(|entry| entry.connection)
            }
        };
        let number = self.next;
        self.next += 1;
        let entry = Entry {
            source,
            begin: now,
            has_spoken: false,
            connection,
        };
        self.entries.insert(number, entry);
        Some((number, removed))
    }

    /// Source that has to make room for a connection from `source`: that one, or, if all places are taken, the one that
    /// has most of them. `None`: there is room.
    fn find_crowded(&self, source: Source) -> Option<Source> {
        let of_source = self.entries.values().filter(|entry| entry.source == source).count();
        if of_source >= self.most_of_source {
            return Some(source);
        }
        if self.entries.len() < self.most {
            return None;
        }
        let mut counts = HashMap::new();
        for entry in self.entries.values() {
            *counts.entry(entry.source).or_insert(0_usize) += 1;
        }
        counts
            .into_iter()
            .max_by_key(|(_, count)| *count)
            .map(|(source, _)| source)
    }

    fn find_replaceable(&self, source: Source, now: Instant) -> Option<u64> {
        let of_source = || self.entries.iter().filter(|(_, entry)| entry.source == source);
        let silent = of_source().find(|(_, entry)| !entry.has_spoken);
        let slow = || of_source().find(|(_, entry)| now.duration_since(entry.begin) > UNDISTURBED);
        silent.or_else(slow).map(|(number, _)| *number)
    }
}

/// Connections whose peer is not known yet.
#[derive(Clone)]
pub(crate) struct Door(Arc<Mutex<Table<TcpStream>>>);

impl Door {
    pub(super) fn new(most: usize, most_of_source: usize) -> Self {
        Self(Arc::new(Mutex::new(Table {
            entries: BTreeMap::new(),
            next: 0,
            most,
            most_of_source,
        })))
    }

    /// Takes a place for a connection, and closes the connection that it replaces, if any. `None`: no place is free.
    pub(super) fn enter(&self, address: IpAddr, connection: impl AsFd) -> std::io::Result<Option<DoorPlace>> {
        // A second descriptor closes the connection while another task reads from it.
        let handle = TcpStream::from(connection.as_fd().try_clone_to_owned()?);
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, replaced)) = table.add(Source::of(address), Instant::now(), handle) else {
            return Ok(None);
        };
        drop(table);
        if let Some(replaced) = replaced {
            // Fails only if the peer has closed it already.
            let _ = replaced.shutdown(Shutdown::Both);
        }
        Ok(Some(DoorPlace {
            door: self.clone(),
            number,
        }))
    }
}

/// Place among the connections whose peer is not known yet; dropped once the peer is known.
pub(crate) struct DoorPlace {
    door: Door,
    number: u64,
}

impl DoorPlace {
    /// Notes that the peer has sent something.
    pub(super) fn note_first_byte(&self) {
        let mut table = self.door.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.has_spoken = true;
        }
    }
}

impl Drop for DoorPlace {
    fn drop(&mut self) {
        let mut table = self.door.0.lock().unwrap_or_else(PoisonError::into_inner);
        // None if another connection has its place.
        table.entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(most: usize, most_of_source: usize) -> Table<&'static str> {
        Table {
            entries: BTreeMap::new(),
            next: 0,
            most,
            most_of_source,
        }
    }

    fn source(address: &str) -> Source {
        Source::of(address.parse().expect("an address"))
    }

    #[test]
    fn silent_connections_lock_out_no_other_of_their_address() {
        let (mut table, now, a) = (table(10, 2), Instant::now(), source("192.0.2.1"));
        let (first, _) = table.add(a, now, "first").expect("room");
        let (second, _) = table.add(a, now, "second").expect("room");
        let (third, replaced) = table.add(a, now, "third").expect("the oldest makes room");
        assert_eq!(replaced, Some("first"));
        assert!(!table.entries.contains_key(&first));
        // One that has begun its handshake stays, and the next silent one goes.
        table.entries.get_mut(&second).expect("it is there").has_spoken = true;
        let (fourth, replaced) = table.add(a, now, "fourth").expect("a silent one makes room");
        assert_eq!(replaced, Some("third"));
        assert!(!table.entries.contains_key(&third));
        table.entries.get_mut(&fourth).expect("it is there").has_spoken = true;
        assert!(
            table.add(a, now, "fifth").is_none(),
            "handshakes under way are not disturbed"
        );
        let later = now + 2 * UNDISTURBED;
        let (_, replaced) = table.add(a, later, "fifth").expect("a slow one makes room");
        assert_eq!(replaced, Some("second"));
        assert_eq!(table.entries.len(), 2);
    }

    #[test]
    fn the_source_with_most_connections_makes_room_when_all_places_are_taken() {
        let (mut table, now) = (table(3, 2), Instant::now());
        for (address, name) in [("192.0.2.2", "of 2"), ("192.0.2.1", "of 1"), ("192.0.2.1", "also of 1")] {
            let (_, replaced) = table.add(source(address), now, name).expect("room");
            assert_eq!(replaced, None);
        }
        let (_, replaced) = table.add(source("192.0.2.3"), now, "of 3").expect("it makes room");
        assert_eq!(replaced, Some("of 1"));
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_ipv6() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2:3:4"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("::ffff:192.0.2.1"), source("::ffff:192.0.2.2"));
    }

    #[test]
    fn a_replaced_connection_is_closed_and_frees_no_place_of_another() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let accept = || {
            let theirs = TcpStream::connect(address).expect("it listens");
            let (ours, from) = listener.accept().expect("a connection");
            (theirs, ours, from.ip())
        };
        let door = Door::new(8, 1);
        let (mut theirs, ours, ip) = accept();
        let first = door.enter(ip, &ours).expect("a descriptor").expect("room");
        let (_theirs, second, ip) = accept();
        let place = door
            .enter(ip, &second)
            .expect("a descriptor")
            .expect("the first makes room");
        let read = std::io::Read::read(&mut theirs, &mut [0]);
        assert_eq!(read.expect("closed in order"), 0);
        drop(first);
        place.note_first_byte();
        let (_theirs, third, ip) = accept();
        assert!(
            door.enter(ip, &third).expect("a descriptor").is_none(),
            "the second still has the place"
        );
        drop(place);
        assert!(door.enter(ip, &third).expect("a descriptor").is_some());
    }
}
