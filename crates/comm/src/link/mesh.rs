//! Connects a member with all others, at once: the lower rank calls, the higher one listens.
//!
//! One thread, one loop. Whoever comes to the port and is not a member of this group that has the secret costs a place
//! among a bounded number of guests, for a bounded time.

use super::cipher::{self, Caller, Cipher, Door, Failure, Listener, Step};
use crate::error::Error;
use crate::schedule::Rank;
use crate::secret::Secret;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::{Greeting, Introduction, NodeId, Purpose, Verdict};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long somebody who comes may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Before a connection that failed is tried again; doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Guests at a time, besides two for each member.
const GUESTS: usize = 64;

/// A connection with another member.
pub(crate) struct Joined {
    pub(crate) stream: TcpStream,
    /// If frames are to be in records.
    pub(crate) cipher: Option<Cipher>,
    /// What has come behind the handshake.
    pub(crate) rest: Vec<u8>,
    /// Where the other member is.
    pub(crate) node: NodeId,
}

/// Whom to connect with.
pub(crate) struct Plan<'a> {
    /// Of the communicator.
    pub(crate) name: &'a str,
    pub(crate) secret: &'a Secret,
    pub(crate) group: GroupId,
    pub(crate) me: Rank,
    /// Where each rank listens.
    pub(crate) members: &'a [SocketAddr],
    pub(crate) is_sealed: bool,
    /// Where this member is.
    pub(crate) node: NodeId,
    pub(crate) deadline: Instant,
}

/// A connection that this member makes.
struct Attempt {
    stream: Option<TcpStream>,
    caller: Option<Caller>,
    /// To be sent when the connection is there.
    first: Vec<u8>,
    /// When to try again.
    again: Option<Instant>,
    pause: Duration,
    /// What happened the last time.
    why: String,
}

/// Somebody who came.
struct Guest {
    stream: TcpStream,
    listener: Listener,
    introduction: Option<Introduction>,
    until: Instant,
}

struct Mesh<'a> {
    plan: &'a Plan<'a>,
    poll: Poll,
    attempts: HashMap<Rank, Attempt>,
    guests: HashMap<usize, Guest>,
    next_guest: usize,
    joined: Vec<Option<Joined>>,
    missing: usize,
}

const PORT: Token = Token(0);

/// Connections with all others, by rank. The port is closed when this returns.
pub(crate) fn connect(plan: &Plan<'_>, port: std::net::TcpListener) -> Result<Vec<Option<Joined>>, Error> {
    let began = Instant::now();
    let mut mesh = Mesh::new(plan).map_err(Error::local("connect with other members"))?;
    mesh.run(port, began)
}

impl<'a> Mesh<'a> {
    fn new(plan: &'a Plan<'a>) -> io::Result<Self> {
        let size = plan.members.len();
        Ok(Self {
            plan,
            poll: Poll::new()?,
            attempts: HashMap::new(),
            guests: HashMap::new(),
            next_guest: size + 1,
            joined: (0..size).map(|_| None).collect(),
            missing: size - 1,
        })
    }

    fn run(&mut self, port: std::net::TcpListener, began: Instant) -> Result<Vec<Option<Joined>>, Error> {
        let local = Error::local("connect with other members");
        let mut events = Events::with_capacity(256);
        let set_up = || {
            port.set_nonblocking(true)?;
            let mut port = TcpListener::from_std(port);
            self.poll
                .registry()
                .register(&mut port, PORT, Interest::READABLE)?;
            Ok(port)
        };
        let port = set_up().map_err(local)?;
        for rank in self.plan.me + 1..self.plan.members.len() as Rank {
            let attempt = Attempt {
                stream: None,
                caller: None,
                first: Vec::new(),
                again: None,
                pause: PAUSE_MIN,
                why: String::new(),
            };
            self.attempts.insert(rank, attempt);
            self.call(rank);
        }
        // Some may wait there already.
        self.welcome(&port);
        while self.missing > 0 {
            let now = Instant::now();
            if now >= self.plan.deadline {
                return Err(self.unreachable(now - began));
            }
            let due = self.next_due().min(self.plan.deadline);
            match self
                .poll
                .poll(&mut events, Some(due.saturating_duration_since(now)))
            {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::local("wait for other members")(error)),
            }
            for event in events.iter() {
                match event.token() {
                    PORT => self.welcome(&port),
                    Token(token) if token <= self.joined.len() => self.hear_answer(token as Rank - 1),
                    Token(token) => self.hear_guest(token),
                }
            }
            self.look_at_the_clock();
        }
        Ok(std::mem::take(&mut self.joined))
    }

    fn next_due(&self) -> Instant {
        let again = self.attempts.values().filter_map(|attempt| attempt.again);
        let until = self.guests.values().map(|guest| guest.until);
        let due = again.chain(until).min();
        due.unwrap_or(self.plan.deadline)
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        self.guests.retain(|_, guest| guest.until > now);
        let due: Vec<Rank> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.again.is_some_and(|again| again <= now))
            .map(|(rank, _)| *rank)
            .collect();
        for rank in due {
            self.call(rank);
        }
    }

    /// Begins a connection.
    fn call(&mut self, rank: Rank) {
        let plan = self.plan;
        let greeting = Greeting {
            purpose: Purpose::Member,
            key: plan.secret.id(),
            group: plan.group,
        };
        let introduction = Introduction {
            from: plan.me,
            to: rank,
            is_sealed: plan.is_sealed,
            node: plan.node,
        };
        let begin = || {
            let (caller, first) = Caller::new(plan.secret, &greeting, &introduction.encode())
                .ok_or_else(|| io::Error::other("no random numbers"))?;
            let mut stream = TcpStream::connect(plan.members[rank as usize])?;
            let both = Interest::READABLE | Interest::WRITABLE;
            let token = Token(rank as usize + 1);
            self.poll.registry().register(&mut stream, token, both)?;
            Ok((caller, first, stream))
        };
        let began: io::Result<_> = begin();
        let Some(attempt) = self.attempts.get_mut(&rank) else {
            return;
        };
        attempt.again = None;
        match began {
            Ok((caller, first, stream)) => {
                attempt.stream = Some(stream);
                attempt.caller = Some(caller);
                attempt.first = first;
            }
            Err(error) => Self::fail(attempt, error.to_string()),
        }
    }

    /// To be tried again.
    fn fail(attempt: &mut Attempt, why: String) {
        attempt.stream = None;
        attempt.caller = None;
        attempt.why = why;
        attempt.again = Some(Instant::now() + attempt.pause);
        attempt.pause = (attempt.pause * 2).min(PAUSE_MAX);
    }

    fn hear_answer(&mut self, rank: Rank) {
        let Some(attempt) = self.attempts.get_mut(&rank) else {
            return;
        };
        let is_sealed = self.plan.is_sealed;
        match answered(attempt, is_sealed) {
            Ok(None) => {}
            Ok(Some(mut joined)) => {
                self.attempts.remove(&rank);
                let left = self.poll.registry().deregister(&mut joined.stream);
                debug_assert!(left.is_ok(), "it was registered");
                self.joined[rank as usize] = Some(joined);
                self.missing -= 1;
            }
            Err(why) => Self::fail(attempt, why),
        }
    }

    /// Lets in who waits at the port.
    fn welcome(&mut self, port: &TcpListener) {
        // An error is one of a connection that is gone, or of a process that has no place for it.
        while let Ok((mut stream, _)) = port.accept() {
            if self.guests.len() >= GUESTS + 2 * self.joined.len() {
                // Members take milliseconds: who has been here longest is none.
                let oldest = self.guests.iter().min_by_key(|(_, guest)| guest.until);
                if let Some(oldest) = oldest.map(|(token, _)| *token) {
                    self.guests.remove(&oldest);
                }
            }
            let token = self.next_guest;
            self.next_guest += 1;
            let registry = self.poll.registry();
            let registered = registry.register(&mut stream, Token(token), Interest::READABLE);
            if registered.is_ok() && stream.set_nodelay(true).is_ok() {
                let guest = Guest {
                    stream,
                    listener: Listener::saying(&self.plan.node.0),
                    introduction: None,
                    until: Instant::now() + HANDSHAKE,
                };
                self.guests.insert(token, guest);
            }
        }
    }

    fn hear_guest(&mut self, token: usize) {
        let Some(mut guest) = self.guests.remove(&token) else {
            return;
        };
        let plan = self.plan;
        let door = Door {
            secrets: std::slice::from_ref(plan.secret),
            purpose: Purpose::Member,
            group: plan.group,
        };
        match heard(&mut guest, &door, plan) {
            Ok(None) => {
                self.guests.insert(token, guest);
            }
            Ok(Some(Known {
                introduction: Introduction { from, node, .. },
                cipher,
                rest,
            })) => {
                // Of two that say that they are this rank, the first: nobody connects twice who got an answer.
                let place = &mut self.joined[from as usize];
                if place.is_none() && self.poll.registry().deregister(&mut guest.stream).is_ok() {
                    *place = Some(Joined {
                        stream: guest.stream,
                        cipher: plan.is_sealed.then_some(cipher),
                        rest,
                        node,
                    });
                    self.missing -= 1;
                }
            }
            Err(why) => {
                let from = guest.stream.peer_addr().ok();
                tracing::debug!(?from, why, "closed a connection: it is none of a member");
            }
        }
    }

    fn unreachable(&self, waited: Duration) -> Error {
        let plan = self.plan;
        let is_missing = |rank: &usize| *rank != plan.me as usize && self.joined[*rank].is_none();
        let rank = (0..self.joined.len()).find(is_missing).unwrap_or(0) as Rank;
        let why = match self.attempts.get(&rank) {
            Some(attempt) if attempt.why.is_empty() => "it did not answer".into(),
            Some(attempt) => attempt.why.clone(),
            None => "it did not connect".into(),
        };
        Error::Unreachable {
            name: plan.name.into(),
            rank,
            address: plan.members[rank as usize],
            waited,
            why,
        }
    }
}

fn answered(attempt: &mut Attempt, is_sealed: bool) -> Result<Option<Joined>, String> {
    let Some(stream) = &mut attempt.stream else {
        return Ok(None);
    };
    let text = |error: io::Error| error.to_string();
    if let Some(error) = stream.take_error().map_err(text)? {
        return Err(error.to_string());
    }
    if !attempt.first.is_empty() {
        match stream.peer_addr() {
            Ok(_) => {}
            // Not yet connected.
            Err(_) => return Ok(None),
        }
        stream.set_nodelay(true).map_err(text)?;
        // The system takes so little of a new connection whole.
        stream.write_all(&attempt.first).map_err(text)?;
        attempt.first.clear();
    }
    let mut bytes = [0; 4096];
    loop {
        let got = match stream.read(&mut bytes) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let Some(caller) = &mut attempt.caller else {
            return Ok(None);
        };
        match caller.read(&bytes[..got]) {
            Ok(None) => {}
            Ok(Some((mut cipher, rest))) => {
                let node = NodeId::decode(caller.payload());
                let node = node.map_err(|_| "it does not say where it is".to_owned())?;
                let mut record = Vec::new();
                cipher.seal(&[], &mut record);
                stream.write_all(&record).map_err(text)?;
                return Ok(attempt.stream.take().map(|stream| Joined {
                    stream,
                    cipher: is_sealed.then_some(cipher),
                    rest,
                    node,
                }));
            }
            Err(Failure::Refused(verdict) | Failure::Refuse(verdict)) => {
                return Err(cipher::explain(verdict).into());
            }
            Err(Failure::Stranger(why)) => return Err(why.into()),
        }
    }
}

/// A member that has proved to be one.
struct Known {
    introduction: Introduction,
    cipher: Cipher,
    rest: Vec<u8>,
}

fn heard(guest: &mut Guest, door: &Door<'_>, plan: &Plan<'_>) -> Result<Option<Known>, &'static str> {
    let mut bytes = [0; 4096];
    loop {
        let got = match guest.stream.read(&mut bytes) {
            Ok(0) => return Err("it closed the connection"),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(_) => return Err("its connection broke"),
        };
        let mut bytes = &bytes[..got];
        loop {
            match guest.listener.read(std::mem::take(&mut bytes), door) {
                Ok(Step::More) => break,
                Ok(Step::Answer { bytes, payload }) => {
                    let introduction = Introduction::decode(&payload).map_err(|_| "it is no member")?;
                    if introduction.to != plan.me || introduction.from >= plan.me {
                        return Err("it takes this member for another one");
                    }
                    if introduction.is_sealed != plan.is_sealed {
                        return Err(refuse(&mut guest.stream, Verdict::OtherSealing));
                    }
                    guest.introduction = Some(introduction);
                    guest
                        .stream
                        .write_all(&bytes)
                        .map_err(|_| "its connection broke")?;
                }
                Ok(Step::Known { cipher, rest, .. }) => {
                    let introduction = guest.introduction.ok_or("it is no member")?;
                    return Ok(Some(Known {
                        introduction,
                        cipher,
                        rest,
                    }));
                }
                Err(Failure::Refuse(verdict)) => return Err(refuse(&mut guest.stream, verdict)),
                Err(Failure::Refused(_)) => return Err("it refused"),
                Err(Failure::Stranger(why)) => return Err(why),
            }
        }
    }
}

fn refuse(stream: &mut TcpStream, verdict: Verdict) -> &'static str {
    // It may be gone, and then needs no answer.
    let _ = stream.write(&[verdict.encode()]);
    cipher::explain(verdict)
}
