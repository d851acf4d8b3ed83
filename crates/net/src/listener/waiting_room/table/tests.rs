//! Tests of the table, with fake sockets: the test sets whether the kernel has bytes of a connection.

use super::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const SILENCE: Duration = Duration::from_millis(300);
const STANDSTILL: Duration = Duration::from_secs(1);

/// Name of a connection, and whether the kernel has bytes of it.
#[derive(Debug, Clone, PartialEq)]
struct FakeSocket(String, Rc<Cell<bool>>);

impl WaitingRoomSocket for FakeSocket {
    fn is_quiet(&self) -> bool {
        !self.1.get()
    }
}

struct Scene {
    table: WaitingRoomTable<FakeSocket>,
    now: Instant,
    bytes: HashMap<String, Rc<Cell<bool>>>,
}

impl Scene {
    fn new(waiting: usize, handshakes: usize, handshakes_per_address: usize) -> Self {
        let limits = Limits {
            waiting,
            handshakes,
            handshakes_per_address,
            silence: SILENCE,
            standstill: STANDSTILL,
            ..Limits::default()
        };
        Self {
            table: WaitingRoomTable::new(limits),
            now: Instant::now(),
            bytes: HashMap::new(),
        }
    }

    fn socket(&mut self, name: &str) -> FakeSocket {
        let bytes = self.bytes.entry(name.into()).or_default();
        FakeSocket(name.into(), Rc::clone(bytes))
    }

    /// Sets whether the kernel has bytes of a connection.
    fn set_bytes(&self, name: &str, has_bytes: bool) {
        self.bytes[name].set(has_bytes);
    }

    /// Lets a connection in. Returns its number, and the name of the connection that was closed for it.
    fn enter(&mut self, source: Source, name: &str) -> Result<(ConnectionNumber, Option<String>), NoRoom> {
        let closed = self.table.make_room(source, self.now)?;
        let socket = self.socket(name);
        let number = self.table.add(source, self.now, socket);
        self.check();
        Ok((number, closed.map(|socket| socket.0)))
    }

    fn entered(&mut self, source: Source, name: &str) -> ConnectionNumber {
        let (number, closed) = self.enter(source, name).expect("room");
        assert_eq!(closed, None, "closed for {name}");
        number
    }

    fn speak(&mut self, number: ConnectionNumber) -> Vec<String> {
        let begun = self.table.note_first_byte(number, self.now);
        self.check();
        names(begun)
    }

    /// Lets a connection in that speaks at once and begins its handshake.
    fn shake_hands(&mut self, source: Source, name: &str) -> ConnectionNumber {
        let number = self.entered(source, name);
        assert_eq!(self.speak(number), [name]);
        let socket = self.socket(name);
        self.table.hold(number, socket);
        number
    }

    fn leave(&mut self, number: ConnectionNumber) -> Vec<String> {
        let begun = self.table.leave(number, self.now);
        self.check();
        names(begun)
    }

    fn relieve(&mut self) -> (Vec<String>, Vec<String>) {
        let turns = self.table.relieve(self.now);
        self.check();
        (names(turns.begun), names(turns.closed))
    }

    /// Checks the counts against the entries, and both against the limits.
    fn check(&self) {
        let (table, limits) = (&self.table, self.table.limits);
        let in_room: usize = table.sources.values().map(SourceConnections::in_room).sum();
        let in_handshake: usize = table
            .sources
            .values()
            .map(|connections| connections.handshakes.len())
            .sum();
        assert_eq!((in_room, in_handshake), (table.in_room, table.in_handshake));
        assert!(in_room <= limits.waiting && in_handshake <= limits.handshakes);
        for connections in table.sources.values() {
            assert!(connections.handshakes.len() <= limits.handshakes_per_address);
            assert!(
                connections.in_room() + connections.handshakes.len() > 0,
                "an empty entry is left"
            );
        }
    }
}

fn names(sockets: Vec<FakeSocket>) -> Vec<String> {
    sockets.into_iter().map(|socket| socket.0).collect()
}

fn source(address: &str) -> Source {
    Source::of(address.parse().expect("an address"))
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
fn the_longest_silent_connection_is_closed_for_a_new_one() {
    let (mut scene, a) = (Scene::new(3, 8, 2), source("192.0.2.1"));
    for name in ["first", "second", "third"] {
        scene.entered(a, name);
    }
    assert_eq!(scene.enter(a, "early").unwrap_err(), NoRoom::SourceFull);
    scene.now += SILENCE;
    for (name, expected) in [("fourth", "first"), ("fifth", "second"), ("sixth", "third")] {
        let (_, closed) = scene.enter(a, name).expect("room");
        assert_eq!(closed.as_deref(), Some(expected));
    }
    assert_eq!(
        scene.enter(a, "seventh").unwrap_err(),
        NoRoom::SourceFull,
        "all are new"
    );
}

#[test]
fn a_connection_with_bytes_that_were_not_read_yet_is_closed_for_no_other() {
    let (mut scene, a) = (Scene::new(2, 8, 1), source("192.0.2.1"));
    let known = scene.entered(a, "known");
    scene.entered(a, "silent");
    scene.set_bytes("known", true);
    scene.now += 10 * SILENCE;
    let (_, closed) = scene.enter(a, "new").expect("room");
    assert_eq!(closed.as_deref(), Some("silent"));
    assert_eq!(scene.enter(a, "newer").unwrap_err(), NoRoom::SourceFull);
    assert_eq!(scene.speak(known), ["known"], "it was closed");
}

#[test]
fn a_crowd_keeps_no_other_source_out_and_loses_its_newest() {
    let (mut scene, a, b) = (Scene::new(4, 8, 1), source("192.0.2.1"), source("192.0.2.2"));
    scene.shake_hands(a, "in its handshake");
    for name in ["a1", "a2", "a3", "a4"] {
        let number = scene.entered(a, name);
        assert_eq!(scene.speak(number), [""; 0], "{name} has no place");
    }
    let (of_b, closed) = scene.enter(b, "b1").expect("room");
    assert_eq!(closed.as_deref(), Some("a4"));
    assert_eq!(scene.speak(of_b), ["b1"], "a source has places of its own");
    scene.entered(b, "b2");
    assert_eq!(scene.enter(a, "a5").unwrap_err(), NoRoom::SourceFull);
}

#[test]
fn a_crowd_of_one_address_lets_its_newest_in_first() {
    let (mut scene, a) = (Scene::new(4, 8, 1), source("192.0.2.1"));
    let first = scene.shake_hands(a, "first");
    for name in ["a1", "a2", "a3", "a4"] {
        let number = scene.entered(a, name);
        assert_eq!(scene.speak(number), [""; 0]);
    }
    assert_eq!(scene.enter(a, "a5").unwrap_err(), NoRoom::SourceFull, "all are new");
    scene.now += STANDSTILL;
    let (honest, closed) = scene.enter(a, "honest").expect("the oldest makes room");
    assert_eq!(closed.as_deref(), Some("a1"));
    assert_eq!(scene.speak(honest), [""; 0]);
    assert_eq!(scene.leave(first), ["honest"], "it waits behind all others");
    assert_eq!(scene.leave(honest), ["a4"]);
}

#[test]
fn a_new_connection_waits_if_no_source_has_more_than_its_share() {
    let mut scene = Scene::new(2, 8, 1);
    scene.entered(source("192.0.2.1"), "a");
    scene.entered(source("192.0.2.2"), "b");
    let c = source("192.0.2.3");
    assert_eq!(scene.enter(c, "c").unwrap_err(), NoRoom::Full);
    scene.now += SILENCE;
    let (_, closed) = scene.enter(c, "c").expect("room");
    assert_eq!(closed.as_deref(), Some("a"));
}

#[test]
fn ready_connections_begin_in_order_when_places_are_free() {
    let (mut scene, a, b) = (Scene::new(8, 2, 1), source("192.0.2.1"), source("192.0.2.2"));
    let first = scene.shake_hands(a, "a1");
    for name in ["a2", "a3"] {
        let number = scene.entered(a, name);
        assert_eq!(scene.speak(number), [""; 0]);
    }
    scene.shake_hands(b, "b1");
    assert_eq!(scene.leave(first), ["a2"]);
    assert_eq!(scene.leave(first), [""; 0], "it has left already");
}

#[test]
fn a_handshake_at_a_standstill_is_closed_for_a_ready_connection() {
    let (mut scene, a, b) = (Scene::new(8, 3, 2), source("192.0.2.1"), source("192.0.2.2"));
    scene.shake_hands(a, "a1");
    let stalled = scene.shake_hands(a, "a2");
    scene.set_bytes("a1", true);
    let number = scene.entered(a, "a3");
    assert_eq!(scene.speak(number), [""; 0]);
    assert_eq!(scene.relieve(), (vec![], vec![]), "both are new");
    scene.now += STANDSTILL;
    assert_eq!(scene.relieve(), (vec!["a3".into()], vec!["a2".into()]));
    assert_eq!(scene.leave(stalled), [""; 0], "its place is another's");
    scene.shake_hands(b, "b1");
    // All places are taken; the source with most handshakes loses one of its places.
    let c = source("192.0.2.3");
    let number = scene.entered(c, "c1");
    assert_eq!(scene.speak(number), [""; 0]);
    scene.set_bytes("a1", false);
    scene.now += STANDSTILL;
    assert_eq!(scene.relieve(), (vec!["c1".into()], vec!["a1".into()]));
    // Each source has one handshake: no other source has more than the source whose connection waits.
    let number = scene.entered(c, "c2");
    assert_eq!(scene.speak(number), [""; 0]);
    scene.now += STANDSTILL;
    assert_eq!(scene.relieve(), (vec![], vec![]));
}

#[test]
fn an_empty_table_has_no_entry_left() {
    let (mut scene, a) = (Scene::new(4, 2, 2), source("192.0.2.1"));
    let silent = scene.entered(a, "silent");
    let shaking = scene.shake_hands(a, "shaking");
    scene.leave(silent);
    scene.leave(shaking);
    assert!(scene.table.sources.is_empty() && !scene.table.has_ready());
}
