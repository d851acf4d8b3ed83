//! Set-up of the connections with all other members, at once, by every way that may work.
//!
//! Of two members, the lower rank calls. The higher rank listens, and also calls if a NAT or firewall may be between
//! the two. The lower rank chooses one of the resulting connections ([`handshake`]). The relay of the rendezvous is the
//! last resort ([`approach`]).
//!
//! One thread, one loop. A peer that connects to the port, but is no member of this group with the secret, occupies one
//! of a bounded number of places, for a bounded time.

mod approach;
mod handshake;

use super::cipher::Cipher;
use super::port::{SharedPort, begin_from_any};
use super::strangers::replaceable;
use crate::error::Error;
use crate::route::Route;
use crate::secret::Secret;
use approach::{Approach, Attempt, ways};
use handshake::{HandshakeResult, MemberHandshake};
use hotlease_collectives::Rank;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::MemberNode;
use hotlease_wire::comm::rendezvous::MemberAddress;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum number of unidentified connections at a time, in addition to two for each member.
const UNIDENTIFIED_MAX: usize = 64;

/// Connection with another member.
pub(crate) struct MemberConnection {
    pub(crate) stream: TcpStream,
    /// Present if frames are encrypted in records.
    pub(crate) cipher: Option<Cipher>,
    /// Bytes that followed the handshake.
    pub(crate) rest: Vec<u8>,
    pub(crate) route: Route,
    /// Node of the other member.
    pub(crate) member_node: MemberNode,
}

/// Parameters of the set-up: the members to connect with, and how.
pub(crate) struct MeshPlan<'a> {
    /// Name of the communicator.
    pub(crate) name: &'a str,
    pub(crate) secret: &'a Secret,
    pub(crate) group: GroupId,
    pub(crate) me: Rank,
    /// Addresses of each rank.
    pub(crate) members: &'a [MemberAddress],
    /// Address of the rendezvous, if it relays.
    pub(crate) relay: Option<SocketAddr>,
    pub(crate) is_sealed: bool,
    /// Digest of the link that members use beside connections
    /// ([`Introduction::link`](hotlease_wire::comm::greeting::Introduction)).
    pub(crate) link: u32,
    /// If `true`, a member that cannot be reached in time has no connection in the result; if `false`, it is an error.
    pub(crate) is_partial: bool,
    /// Node of this member.
    pub(crate) member_node: MemberNode,
    pub(crate) deadline: Instant,
}

struct Mesh<'a> {
    plan: &'a MeshPlan<'a>,
    poll: Poll,
    port: SharedPort,
    attempts: BTreeMap<(Rank, Approach), Attempt>,
    lines: HashMap<usize, MemberHandshake>,
    next_line: usize,
    joined: Vec<Option<MemberConnection>>,
    missing: usize,
}

const PORT: Token = Token(0);
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Connects with all other members and returns the connections by rank. The port is closed when this returns.
pub(crate) fn connect(plan: &MeshPlan<'_>, port: SharedPort) -> Result<Vec<Option<MemberConnection>>, Error> {
    let began = Instant::now();
    let mut mesh = Mesh::new(plan, port).map_err(Error::local("connect with other members"))?;
    mesh.run(began)
}

impl<'a> Mesh<'a> {
    fn new(plan: &'a MeshPlan<'a>, port: SharedPort) -> io::Result<Self> {
        let size = plan.members.len();
        let now = Instant::now();
        let me = (plan.me, &plan.members[plan.me as usize]);
        let mut attempts = BTreeMap::new();
        for other in (0..).zip(plan.members).filter(|(rank, _)| *rank != plan.me) {
            for (way, attempt) in ways(me, other, plan.relay, now) {
                attempts.insert((other.0, way), attempt);
            }
        }
        Ok(Self {
            plan,
            poll: Poll::new()?,
            port,
            attempts,
            lines: HashMap::new(),
            next_line: 1,
            joined: (0..size).map(|_| None).collect(),
            missing: size - 1,
        })
    }

    fn run(&mut self, began: Instant) -> Result<Vec<Option<MemberConnection>>, Error> {
        let mut events = Events::with_capacity(256);
        let listen = || {
            self.port.listener.set_nonblocking(true)?;
            let mut listener = TcpListener::from_std(self.port.listener.try_clone()?);
            let registry = self.poll.registry();
            registry.register(&mut listener, PORT, Interest::READABLE)?;
            Ok(listener)
        };
        let listener = listen().map_err(Error::local("connect with other members"))?;
        self.handle_deadlines();
        // Connections may wait at the listener already.
        self.accept(&listener);
        while self.missing > 0 {
            let now = Instant::now();
            if now >= self.plan.deadline {
                if self.plan.is_partial {
                    break;
                }
                return Err(self.unreachable(now - began));
            }
            let at_most = self.next_due().saturating_duration_since(now);
            match self.poll.poll(&mut events, Some(at_most)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::local("wait for other members")(error)),
            }
            for event in events.iter() {
                match event.token() {
                    PORT => self.accept(&listener),
                    Token(line) => self.handle_event(line),
                }
            }
            self.handle_deadlines();
        }
        Ok(std::mem::take(&mut self.joined))
    }

    fn next_due(&self) -> Instant {
        let again = self.attempts.values().filter_map(|attempt| attempt.at);
        let until = self.lines.values().map(|line| line.until);
        let due = again.chain(until).chain([self.plan.deadline]).min();
        due.unwrap_or(self.plan.deadline)
    }

    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        let is_over = |(_, line): &(&usize, &MemberHandshake)| line.until <= now;
        let over: Vec<usize> = self.lines.iter().filter(is_over).map(|(line, _)| *line).collect();
        for line in over {
            self.end(line, "it did not answer".into());
        }
        let is_due = |attempt: &Attempt| attempt.at.is_some_and(|at| at <= now);
        let due = self.attempts.iter().filter(|(_, attempt)| is_due(attempt));
        let due: Vec<(Rank, Approach)> = due.map(|(key, _)| *key).collect();
        for (rank, way) in due {
            self.call(rank, way, now);
        }
    }

    /// Begins a connection to a member.
    fn call(&mut self, rank: Rank, way: Approach, now: Instant) {
        let Some(attempt) = self.attempts.get_mut(&(rank, way)) else {
            return;
        };
        let until = attempt.begin(now);
        let token = self.next_line;
        let begin = || {
            // Two members in separate private networks may have the same address.
            if attempt.to == self.port.local() {
                return Err(io::Error::other("it is this member's own address"));
            }
            let mut stream = match way {
                // From another port, because this member's port has a connection with the rendezvous already.
                Approach::Relay => begin_from_any(attempt.to)?,
                _ => self.port.call(attempt.to)?,
            };
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, Token(token), both)?;
            Ok(stream)
        };
        match begin() {
            Ok(stream) => {
                self.next_line += 1;
                self.lines.insert(token, MemberHandshake::to(rank, way, stream, until));
            }
            // There is a connection between these two ports already: the other member has called.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => attempt.fail(now, None),
            Err(error) => attempt.fail(now, Some(error.to_string())),
        }
    }

    /// Accepts the connections that wait at the port.
    fn accept(&mut self, listener: &TcpListener) {
        // Ends at the first error. Usually the error says that no further connection waits. Otherwise a waiting
        // connection is gone, or this process has no descriptor left; connections that still wait are then accepted at
        // the next event of the port.
        while let Ok((mut stream, _)) = listener.accept() {
            let incoming = self.lines.iter().filter(|(_, line)| line.way == Approach::Incoming);
            if incoming.clone().count() >= UNIDENTIFIED_MAX + 2 * self.joined.len() {
                // A connection that has ended has no address any more.
                let address = |line: &MemberHandshake| line.stream.peer_addr().map_or(NO_ADDRESS, |from| from.ip());
                let incoming = incoming.map(|(number, line)| (*number, address(line), Some(line.until)));
                if let Some(replaced) = replaceable(incoming) {
                    self.lines.remove(&replaced);
                }
            }
            let token = self.next_line;
            let registry = self.poll.registry();
            let registered = registry.register(&mut stream, Token(token), Interest::READABLE);
            if registered.is_ok()
                && let Ok(line) = MemberHandshake::accepted(stream)
            {
                self.next_line += 1;
                self.lines.insert(token, line);
            }
        }
    }

    fn handle_event(&mut self, token: usize) {
        let Some(line) = self.lines.get_mut(&token) else {
            return;
        };
        match line.handle_event(self.plan) {
            Ok(None) => {}
            Ok(Some(known)) => self.join(token, known),
            Err(why) => self.end(token, why),
        }
    }

    fn end(&mut self, token: usize, why: String) {
        let Some(line) = self.lines.remove(&token) else {
            return;
        };
        let attempt = line.with.and_then(|rank| self.attempts.get_mut(&(rank, line.way)));
        match attempt {
            Some(attempt) => attempt.fail(Instant::now(), Some(why)),
            None => {
                let from = line.stream.peer_addr().ok();
                tracing::debug!(?from, why, "closed a connection that belongs to no member");
            }
        }
    }

    /// Keeps the connection that was chosen with a member.
    fn join(&mut self, token: usize, known: HandshakeResult) {
        let Some(mut line) = self.lines.remove(&token) else {
            return;
        };
        let HandshakeResult {
            rank,
            member_node,
            cipher,
            rest,
        } = known;
        let place = &mut self.joined[rank as usize];
        // The handshake has succeeded, but this rank may have a connection already, because several calls of the two
        // members can cross. A further connection is closed here, and so is one that the poll does not let go.
        if place.is_some() || self.poll.registry().deregister(&mut line.stream).is_err() {
            return;
        }
        let route = route(&line, &self.plan.members[rank as usize]);
        if route != Route::Direct {
            tracing::debug!(name = self.plan.name, rank, %route, "connected");
        }
        // The relay is no member, so it must not read the frames.
        let is_sealed = self.plan.is_sealed || route == Route::Relayed;
        *place = Some(MemberConnection {
            stream: line.stream,
            cipher: is_sealed.then_some(cipher),
            rest,
            route,
            member_node,
        });
        self.missing -= 1;
        self.attempts.retain(|(of, _), _| *of != rank);
        self.lines.retain(|_, line| line.with != Some(rank));
    }

    fn unreachable(&self, waited: Duration) -> Error {
        let plan = self.plan;
        let is_missing = |rank: &usize| *rank != plan.me as usize && self.joined[*rank].is_none();
        let rank = (0..self.joined.len()).find(is_missing).unwrap_or(0) as Rank;
        let ways = self
            .attempts
            .range((rank, Approach::Direct)..=(rank, Approach::Incoming));
        let ways = ways.map(|((_, way), attempt)| {
            let why = attempt.why.as_deref().unwrap_or("it did not answer");
            match way {
                Approach::Direct => why.to_owned(),
                Approach::Mapped => format!("at {}, the address at its NAT: {why}", attempt.to),
                Approach::Relay | Approach::Incoming => format!("relayed by {}: {why}", attempt.to),
            }
        });
        Error::Unreachable {
            name: plan.name.into(),
            rank,
            address: plan.members[rank as usize].address,
            waited,
            why: ways.collect::<Vec<_>>().join("; "),
        }
    }
}

/// Route of a connection with a member at this place.
fn route(line: &MemberHandshake, place: &MemberAddress) -> Route {
    match line.way {
        Approach::Direct => Route::Direct,
        Approach::Mapped => Route::Punched,
        Approach::Relay => Route::Relayed,
        Approach::Incoming => match line.stream.peer_addr() {
            Ok(from) if from != place.address && place.mapped.is_some() => Route::Punched,
            _ => Route::Direct,
        },
    }
}
