//! Ports of the rendezvous: one thread, one loop, and bounds on everything that an unknown peer can do.

use super::matchmaker::{ConnectionId, Matchmaker};
use super::pairs::{PairResult, Pairs};
use super::peer::{CloseReason, PeerRequest, PeerStage, RendezvousPeer};
use super::relay::{Pipe, Relay};
use super::server::{Counters, Limits, OwnerOrders};
use crate::link::cipher::AdmissionRules;
use crate::link::strangers::replaceable;
use crate::secret::Secret;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::{KeyId, Purpose};
use hotlease_wire::comm::rendezvous::{
    self as wire, Join, JoinAnswer, JoinQuestion, JoinRejection, MAPPING_MS_MAX, Meeting, NatMapping,
};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WAKER: Token = Token(0);
const FIRST: Token = Token(1);
const SECOND: Token = Token(2);
const FIRST_CONNECTION: usize = 3;
/// Pause before the next accept attempt, after the system had no memory or descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time that a member has to fetch its answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Time that a member has to fetch its answer when the rendezvous stops.
const STOP_ANSWER_TIME: Duration = Duration::from_secs(1);
/// Time that a member of a pair that is to be relayed may wait for the other member.
const RELAY_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Ports {
    poll: Poll,
    port: TcpListener,
    second: Option<TcpListener>,
    secrets: Vec<Secret>,
    limits: Limits,
    matchmaker: Matchmaker,
    pairs: Pairs,
    /// Relay, which is started for the first pair that needs it.
    relay: Option<Relay>,
    peers: HashMap<ConnectionId, RendezvousPeer>,
    /// Members that are to show themselves at the second port, by the number that each was given.
    seen: HashMap<GroupId, ConnectionId>,
    next_connection: ConnectionId,
    /// Time of the next accept attempt, after a failed attempt.
    welcome_at: Option<Instant>,
    counters: Arc<Counters>,
}

impl Ports {
    /// Serves these ports; returns also the waker of its thread.
    pub(super) fn new(
        port: std::net::TcpListener,
        second: Option<std::net::TcpListener>,
        secrets: Vec<Secret>,
        limits: Limits,
        counters: Arc<Counters>,
    ) -> io::Result<(Self, Arc<Waker>)> {
        let poll = Poll::new()?;
        let mut port = TcpListener::from_std(port);
        let mut second = second.map(TcpListener::from_std);
        poll.registry().register(&mut port, FIRST, Interest::READABLE)?;
        if let Some(second) = &mut second {
            poll.registry().register(second, SECOND, Interest::READABLE)?;
        }
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let ports = Self {
            poll,
            port,
            second,
            secrets,
            limits,
            matchmaker: Matchmaker::new(limits.members, limits.relays > 0),
            pairs: Pairs::default(),
            relay: None,
            peers: HashMap::new(),
            seen: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            welcome_at: None,
            counters,
        };
        Ok((ports, waker))
    }

    pub(super) fn serve(mut self, owner: &OwnerOrders) {
        let mut events = Events::with_capacity(256);
        while !owner.is_over.load(Ordering::Acquire) {
            self.wait(&mut events, None);
            for event in events.iter() {
                match event.token() {
                    FIRST | SECOND => self.accept_all(),
                    WAKER => {}
                    Token(connection) => self.handle_event(connection),
                }
            }
            if owner.is_closed.load(Ordering::Acquire) {
                let stopped = self.matchmaker.stop();
                self.answer(stopped);
            }
            self.handle_deadlines();
            let waiting = self.matchmaker.waiting() as u64;
            self.counters.waiting.store(waiting, Ordering::Release);
        }
        let stopped = self.matchmaker.stop();
        self.answer(stopped);
        // Waits until all answers are sent, or the time for that is over.
        let until = Instant::now() + STOP_ANSWER_TIME;
        while self.peers.values().any(RendezvousPeer::is_sending) && Instant::now() < until {
            self.wait(&mut events, Some(until));
            for event in events.iter().filter(|event| event.token().0 >= FIRST_CONNECTION) {
                self.handle_event(event.token().0);
            }
        }
    }

    fn wait(&mut self, events: &mut Events, until: Option<Instant>) {
        let due = self.peers.values().filter_map(|peer| peer.until);
        let due = due.chain(self.matchmaker.next_due()).chain(self.welcome_at);
        let due = due.chain(until).min();
        let at_most = due.map(|due| due.saturating_duration_since(Instant::now()));
        // Rounded up, so that the wait does not end a moment too early again and again.
        let at_most = at_most.map(|at_most| at_most + Duration::from_millis(1));
        if let Err(error) = self.poll.poll(events, at_most)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "a rendezvous cannot wait for members");
            events.clear();
        }
    }

    fn accept_all(&mut self) {
        self.welcome_at = None;
        for is_second in [false, true] {
            while let Some(accepted) = self.accept(is_second) {
                match accepted {
                    Ok(peer) => self.let_in(peer),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        self.welcome_at = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
    }

    fn accept(&self, is_second: bool) -> Option<io::Result<RendezvousPeer>> {
        let port = if is_second { self.second.as_ref()? } else { &self.port };
        let until = Instant::now() + self.limits.handshake;
        let accepted = port.accept();
        Some(accepted.map(|(stream, from)| RendezvousPeer::new(stream, from, is_second, until)))
    }

    fn let_in(&mut self, mut peer: RendezvousPeer) {
        let strangers = self.peers.iter().filter(|(_, peer)| peer.is_stranger());
        if strangers.clone().count() >= self.limits.strangers {
            let strangers = strangers.map(|(connection, peer)| (*connection, peer.from.ip(), peer.until));
            if let Some(replaced) = replaceable(strangers) {
                self.turn_away(replaced, "it had said nothing when others came");
            }
        }
        let connection = self.next_connection;
        self.next_connection += 1;
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        let registered = registry.register(&mut peer.stream, Token(connection), both);
        if registered.is_ok() && peer.stream.set_nodelay(true).is_ok() {
            self.peers.insert(connection, peer);
        }
    }

    /// Closes a connection, and removes everything that was recorded of its peer.
    fn forget(&mut self, connection: ConnectionId) -> Option<RendezvousPeer> {
        self.matchmaker.remove(connection);
        self.pairs.remove(connection);
        let peer = self.peers.remove(&connection)?;
        if let PeerStage::Seen { number, .. } = &peer.stage {
            self.seen.remove(number);
        }
        Some(peer)
    }

    fn turn_away(&mut self, connection: ConnectionId, why: &str) {
        if let Some(peer) = self.forget(connection) {
            self.counters.count(peer.from, false, why);
        }
    }

    fn handle_event(&mut self, connection: ConnectionId) {
        while self.hear_one(connection) {}
    }

    /// Handles one request; returns whether there may be more.
    fn hear_one(&mut self, connection: ConnectionId) -> bool {
        let Some(peer) = self.peers.get_mut(&connection) else {
            return false;
        };
        let rules = AdmissionRules {
            secrets: &self.secrets,
            purpose: Purpose::Rendezvous,
            group: GroupId::NONE,
        };
        match peer.hear(&rules) {
            Ok(PeerRequest::Incomplete) => return false,
            Ok(PeerRequest::Ask(key, JoinQuestion::Join(join))) => self.request_join(connection, key, join),
            Ok(PeerRequest::Ask(key, JoinQuestion::Relay(relay))) => self.pair(connection, key, &relay),
            Ok(PeerRequest::Ask(_, JoinQuestion::Lost(_))) => {
                self.turn_away(connection, "it reports losses, and waits for no members")
            }
            Ok(PeerRequest::Tell(lost)) => self.report_lost(connection, lost),
            Ok(PeerRequest::Show(key, number)) => self.show(connection, key, number),
            Err(CloseReason::ByPeer) => drop(self.forget(connection)),
            Err(CloseReason::ByUs { is_other_secret, why }) => {
                self.counters.count(peer.from, is_other_secret, why);
                self.forget(connection);
            }
        }
        true
    }

    /// Handles a request to join: checks whether the member connects from the address on which it listens.
    fn request_join(&mut self, connection: ConnectionId, key: KeyId, join: Join) {
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        if peer.from == join.address {
            return self.join(connection, key, join, None);
        }
        let mapped = NatMapping {
            address: peer.from,
            varies: false,
        };
        let second = self.second.as_ref().and_then(|port| port.local_addr().ok());
        let Some(second) = second else {
            return self.join(connection, key, join, Some(mapped));
        };
        let number = GroupId(rand::random());
        self.seen.insert(number, connection);
        peer.stage = PeerStage::Seen {
            number,
            key,
            join: Box::new(join),
            mapped,
        };
        peer.until = Some(Instant::now() + Duration::from_millis(MAPPING_MS_MAX));
        peer.answer(&JoinAnswer::Seen {
            port: second.port(),
            number,
        });
    }

    /// Handles a peer at the second port that claims to be the member of this number.
    fn show(&mut self, at_second: ConnectionId, key: KeyId, number: GroupId) {
        let Some(shown) = self.forget(at_second) else {
            return;
        };
        let connection = self.seen.get(&number).copied();
        let stage = connection.and_then(|connection| Some(&self.peers.get(&connection)?.stage));
        match (connection, stage) {
            (Some(connection), Some(PeerStage::Seen { key: its, mapped, .. })) if *its == key => {
                let varies = mapped.address != shown.from;
                self.join_shown(connection, varies);
            }
            _ => self.counters.count(
                shown.from,
                false,
                "it claims to be a member that the rendezvous did not send there",
            ),
        }
    }

    /// Adds a member to its meeting, once nothing more can be found out about its NAT.
    fn join_shown(&mut self, connection: ConnectionId, varies: bool) {
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        match std::mem::replace(&mut peer.stage, PeerStage::Waits) {
            PeerStage::Seen {
                number,
                key,
                join,
                mapped,
            } => {
                self.seen.remove(&number);
                self.join(connection, key, *join, Some(NatMapping { varies, ..mapped }));
            }
            other => peer.stage = other,
        }
    }

    fn join(&mut self, connection: ConnectionId, key: KeyId, join: Join, mapped: Option<NatMapping>) {
        if let Some(peer) = self.peers.get_mut(&connection) {
            peer.stage = PeerStage::Waits;
            peer.until = None;
            let group = GroupId(rand::random());
            let answers = self
                .matchmaker
                .join(key, connection, join, mapped, Instant::now(), group);
            self.answer(answers);
        }
    }

    /// Handles the report of further losses, by a member that waits for the rest of a communicator.
    fn report_lost(&mut self, connection: ConnectionId, ranks: Vec<u32>) {
        match self.peers.get_mut(&connection).map(|peer| &mut peer.stage) {
            Some(PeerStage::Seen { join, .. }) => {
                if let Meeting::Rest { lost, .. } = &mut join.meeting
                    && ranks.iter().all(|rank| *rank < join.size)
                {
                    *lost = ranks;
                    return;
                }
            }
            // The member sent the report before it had the answer.
            Some(PeerStage::Answered) => return,
            _ => {}
        }
        let group = GroupId(rand::random());
        match self.matchmaker.report_lost(connection, ranks, Instant::now(), group) {
            Some(answers) => self.answer(answers),
            None => self.turn_away(connection, "it told of losses where there can be none"),
        }
    }

    /// Handles a request to be relayed.
    fn pair(&mut self, connection: ConnectionId, key: KeyId, relay: &wire::Relay) {
        if let Some(peer) = self.peers.get_mut(&connection) {
            peer.stage = PeerStage::Waits;
            peer.until = Some(Instant::now() + RELAY_WAIT);
        }
        let relays = self.limits.relays;
        let room = relays.saturating_sub(self.counters.relayed.load(Ordering::Acquire));
        match self.pairs.ask(key, relay, connection, room as usize) {
            PairResult::Waits => {}
            PairResult::Repeated(before) => drop(self.forget(before)),
            PairResult::Meets(other) => self.relay([connection, other]),
            PairResult::Full => self.answer(vec![(
                connection,
                JoinAnswer::Refused(JoinRejection::NoRelay { relays }),
            )]),
        }
    }

    fn relay(&mut self, peers: [ConnectionId; 2]) {
        let sides = peers.map(|connection| {
            let mut peer = self.forget(connection)?;
            peer.answer(&JoinAnswer::Relayed);
            let (mut stream, rest) = peer.into_parts();
            self.poll.registry().deregister(&mut stream).ok()?;
            Some((stream, rest))
        });
        let [Some(one), Some(other)] = sides else {
            return;
        };
        if self.relay.is_none() {
            match Relay::start(Arc::clone(&self.counters.relayed)) {
                Ok(relay) => self.relay = Some(relay),
                Err(error) => tracing::error!(%error, "a rendezvous cannot relay"),
            }
        }
        if let Some(relay) = &self.relay {
            self.counters.relayed.fetch_add(1, Ordering::AcqRel);
            relay.take(Pipe::new([one, other]));
        }
    }

    fn answer(&mut self, answers: Vec<(ConnectionId, JoinAnswer)>) {
        for (connection, answer) in answers {
            let Some(peer) = self.peers.get_mut(&connection) else {
                continue;
            };
            peer.stage = PeerStage::Answered;
            peer.until = Some(Instant::now() + ANSWER_TIME);
            peer.answer(&answer);
        }
    }

    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        if self.welcome_at.is_some_and(|at| at <= now) {
            self.accept_all();
        }
        let missing = self.matchmaker.expire(now, || GroupId(rand::random()));
        self.answer(missing);
        let is_over = |peer: &RendezvousPeer| peer.until.is_some_and(|until| until <= now);
        let over = self.peers.iter().filter(|(_, peer)| is_over(peer));
        let over: Vec<ConnectionId> = over.map(|(connection, _)| *connection).collect();
        for connection in over {
            match self.peers.get(&connection).map(|peer| &peer.stage) {
                // The member did not reach the second port.
                Some(PeerStage::Seen { .. }) => self.join_shown(connection, false),
                // The other member of the pair has not arrived (`Waits`), or this member has its whole answer
                // (`Answered`).
                Some(PeerStage::Waits) => drop(self.forget(connection)),
                Some(PeerStage::Answered) if !self.peers[&connection].is_sending() => drop(self.forget(connection)),
                _ => self.turn_away(connection, "it took too long"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
