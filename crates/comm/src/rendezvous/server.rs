//! The rendezvous's port: one thread, one loop, and bounds on everything that somebody unknown can do.

use super::book::{Book, Guest};
use crate::link::cipher::{Cipher, Door, Failure, Listener, Step, explain};
use crate::secret::Secret;
use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::{KeyId, Purpose, Verdict};
use hotlease_wire::comm::rendezvous::{Answer, Join};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: Token = Token(0);
const BELL: Token = Token(1);
const FIRST_GUEST: usize = 2;
/// Before the system is asked again for a connection that it had no memory or descriptor for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a member may take to fetch its answer.
const FAREWELL: Duration = Duration::from_secs(5);
/// The same when the rendezvous stops.
const LAST_FAREWELL: Duration = Duration::from_secs(1);

/// How much of a rendezvous others may occupy.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that have not proved the secret, at a time (default: 256). A new one takes the place of the oldest.
    pub strangers: usize,
    /// How long the proof may take (default: 5 s).
    pub handshake: Duration,
    /// Members that wait for others, at a time (default: 16384).
    pub members: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            strangers: 256,
            handshake: Duration::from_secs(5),
            members: 16 * 1024,
        }
    }
}

/// Whom a rendezvous has not let in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Members with another secret.
    pub other_secret: u64,
    /// Everybody else: what is no member, took too long, or had to make place.
    pub others: u64,
    /// The last one, and why.
    pub last: Option<String>,
}

#[derive(Default)]
struct Tally {
    waiting: AtomicU64,
    other_secret: AtomicU64,
    others: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Tally {
    fn count(&self, from: Option<SocketAddr>, is_other_secret: bool, why: &str) {
        let counter = if is_other_secret {
            &self.other_secret
        } else {
            &self.others
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let whom = from.map_or_else(|| "somebody who has gone".into(), |from| from.to_string());
        if is_other_secret {
            tracing::warn!(from = whom, "did not let a member in: {why}");
        } else {
            tracing::debug!(from = whom, "closed a connection: {why}");
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{whom}: {why}"));
    }
}

/// A rendezvous, which serves until it is dropped.
///
/// ```
/// use hotlease_comm::{Secret, rendezvous::Server};
/// let secret = Secret::new(b"of at least sixteen bytes")?;
/// let server = Server::start("127.0.0.1:0", vec![secret], Default::default())?;
/// assert_ne!(server.address().port(), 0);
/// # Ok::<(), hotlease_comm::Error>(())
/// ```
pub struct Server {
    address: SocketAddr,
    waker: Arc<Waker>,
    is_over: Arc<AtomicBool>,
    tally: Arc<Tally>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address (port 0: any free one), for members that have one of these secrets.
    ///
    /// # Errors
    /// [`crate::Error::Local`] if it cannot listen there, [`crate::Error::Secret`] without a secret.
    pub fn start(
        address: impl ToSocketAddrs,
        secrets: Vec<Secret>,
        limits: Limits,
    ) -> Result<Self, crate::Error> {
        if secrets.is_empty() {
            let why = "a rendezvous needs one at least".into();
            return Err(crate::Error::Secret { why });
        }
        let local = crate::Error::local;
        let port = std::net::TcpListener::bind(address).map_err(local("listen for members"))?;
        let address = port.local_addr().map_err(local("listen for members"))?;
        let tally = Arc::new(Tally::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let set_up = || {
            port.set_nonblocking(true)?;
            let mut port = TcpListener::from_std(port);
            let poll = Poll::new()?;
            poll.registry().register(&mut port, PORT, Interest::READABLE)?;
            let waker = Arc::new(Waker::new(poll.registry(), BELL)?);
            let desk = Desk {
                poll,
                port,
                secrets,
                limits,
                book: Book::new(limits.members),
                guests: HashMap::new(),
                next_guest: FIRST_GUEST,
                welcome_at: None,
                tally: Arc::clone(&tally),
            };
            let over = Arc::clone(&is_over);
            let thread = std::thread::Builder::new().name("rendezvous".into());
            let thread = thread.spawn(move || desk.serve(&over))?;
            Ok((waker, thread))
        };
        let (waker, thread) = set_up().map_err(local("serve members"))?;
        Ok(Self {
            address,
            waker,
            is_over,
            tally,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many members wait for others there.
    pub fn waiting(&self) -> u64 {
        self.tally.waiting.load(Ordering::Acquire)
    }

    /// Whom it has not let in.
    pub fn refusals(&self) -> Refusals {
        Refusals {
            other_secret: self.tally.other_secret.load(Ordering::Relaxed),
            others: self.tally.others.load(Ordering::Relaxed),
            last: self
                .tally
                .last
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Stage {
    Stranger(Box<Listener>),
    /// It has asked, and waits.
    Member(Box<Cipher>),
    /// It has its answer, or what of it the system has not taken yet.
    Answered {
        rest: Vec<u8>,
    },
}

struct Visitor {
    stream: TcpStream,
    stage: Stage,
    /// When it has to go; a member's time is in the book.
    until: Option<Instant>,
}

struct Desk {
    poll: Poll,
    port: TcpListener,
    secrets: Vec<Secret>,
    limits: Limits,
    book: Book,
    guests: HashMap<Guest, Visitor>,
    next_guest: Guest,
    /// When to look again for who could not be let in.
    welcome_at: Option<Instant>,
    tally: Arc<Tally>,
}

/// What a guest wants.
enum Wish {
    Nothing,
    Join(KeyId, Box<Cipher>, Join),
}

impl Desk {
    fn serve(mut self, is_over: &AtomicBool) {
        let mut events = Events::with_capacity(256);
        while !is_over.load(Ordering::Acquire) {
            self.wait(&mut events, None);
            for event in events.iter() {
                match event.token() {
                    PORT => self.welcome(),
                    BELL => {}
                    Token(guest) => self.hear(guest),
                }
            }
            self.look_at_the_clock();
            let waiting = self.book.waiting() as u64;
            self.tally.waiting.store(waiting, Ordering::Release);
        }
        let stopped = self.book.stop();
        self.answer(stopped);
        // Answers that are on their way still arrive.
        let until = Instant::now() + LAST_FAREWELL;
        let is_due =
            |visitor: &Visitor| matches!(&visitor.stage, Stage::Answered { rest } if !rest.is_empty());
        while self.guests.values().any(is_due) && Instant::now() < until {
            self.wait(&mut events, Some(until));
            for event in events.iter().filter(|event| event.token().0 >= FIRST_GUEST) {
                self.hear(event.token().0);
            }
        }
    }

    fn wait(&mut self, events: &mut Events, until: Option<Instant>) {
        let due = self.guests.values().filter_map(|visitor| visitor.until);
        let due = due.chain(self.book.next_due()).chain(self.welcome_at);
        let due = due.chain(until).min();
        let at_most = due.map(|due| due.saturating_duration_since(Instant::now()));
        // Rounded up, so as not to come a moment too early again and again.
        let at_most = at_most.map(|at_most| at_most + Duration::from_millis(1));
        if let Err(error) = self.poll.poll(events, at_most)
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "a rendezvous cannot wait for members");
            events.clear();
        }
    }

    fn welcome(&mut self) {
        self.welcome_at = None;
        loop {
            let mut stream = match self.port.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.welcome_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let is_stranger = |visitor: &Visitor| matches!(visitor.stage, Stage::Stranger(_));
            let strangers = self.guests.iter().filter(|(_, visitor)| is_stranger(visitor));
            if strangers.clone().count() >= self.limits.strangers {
                // Members take milliseconds: who has been here longest is none.
                let oldest = strangers.min_by_key(|(_, visitor)| visitor.until);
                if let Some(oldest) = oldest.map(|(guest, _)| *guest) {
                    self.turn_away(oldest, "it had said nothing when others came");
                }
            }
            let guest = self.next_guest;
            self.next_guest += 1;
            let both = Interest::READABLE | Interest::WRITABLE;
            let registered = self.poll.registry().register(&mut stream, Token(guest), both);
            if registered.is_ok() && stream.set_nodelay(true).is_ok() {
                let visitor = Visitor {
                    stream,
                    stage: Stage::Stranger(Box::new(Listener::new())),
                    until: Some(Instant::now() + self.limits.handshake),
                };
                self.guests.insert(guest, visitor);
            }
        }
    }

    fn turn_away(&mut self, guest: Guest, why: &str) {
        if let Some(visitor) = self.guests.remove(&guest) {
            self.tally.count(visitor.stream.peer_addr().ok(), false, why);
        }
    }

    fn hear(&mut self, guest: Guest) {
        let Some(visitor) = self.guests.get_mut(&guest) else {
            return;
        };
        let door = Door {
            secrets: &self.secrets,
            purpose: Purpose::Rendezvous,
            group: GroupId::NONE,
        };
        match heard(visitor, &door) {
            Ok(Wish::Nothing) => {}
            Ok(Wish::Join(key, cipher, join)) => {
                visitor.stage = Stage::Member(cipher);
                visitor.until = None;
                let group = GroupId(rand::random());
                let answers = self.book.join(key, guest, join, Instant::now(), group);
                self.answer(answers);
            }
            Err(Farewell::Goes) => {
                self.guests.remove(&guest);
                self.book.gone(guest);
            }
            Err(Farewell::Sent { is_other_secret, why }) => {
                let from = visitor.stream.peer_addr().ok();
                self.tally.count(from, is_other_secret, why);
                self.guests.remove(&guest);
                self.book.gone(guest);
            }
        }
    }

    fn answer(&mut self, answers: Vec<(Guest, Answer)>) {
        for (guest, answer) in answers {
            let Some(visitor) = self.guests.get_mut(&guest) else {
                continue;
            };
            let Stage::Member(cipher) = &mut visitor.stage else {
                continue;
            };
            let mut rest = Vec::new();
            cipher.seal(&hotlease_wire::encode(&answer), &mut rest);
            visitor.stage = Stage::Answered { rest };
            visitor.until = Some(Instant::now() + FAREWELL);
            // What is wrong with the connection is found when it is read.
            let _ = push(visitor);
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if self.welcome_at.is_some_and(|at| at <= now) {
            self.welcome();
        }
        let missing = self.book.expire(now, || GroupId(rand::random()));
        self.answer(missing);
        let is_over = |visitor: &Visitor| visitor.until.is_some_and(|until| until <= now);
        let over = self.guests.iter().filter(|(_, visitor)| is_over(visitor));
        let over: Vec<Guest> = over.map(|(guest, _)| *guest).collect();
        for guest in over {
            self.turn_away(guest, "it took too long");
        }
    }
}

/// Why a connection is closed.
enum Farewell {
    /// By the other side.
    Goes,
    /// By this one.
    Sent {
        is_other_secret: bool,
        why: &'static str,
    },
}

/// Sends what the system takes of an answer.
fn push(visitor: &mut Visitor) -> io::Result<()> {
    let Stage::Answered { rest } = &mut visitor.stage else {
        return Ok(());
    };
    while !rest.is_empty() {
        match visitor.stream.write(rest) {
            Ok(gone) => drop(rest.drain(..gone)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn heard(visitor: &mut Visitor, door: &Door<'_>) -> Result<Wish, Farewell> {
    push(visitor).map_err(|_| Farewell::Goes)?;
    let sent = |why| Farewell::Sent {
        is_other_secret: false,
        why,
    };
    let mut bytes = [0; 2048];
    loop {
        let got = match visitor.stream.read(&mut bytes) {
            Ok(0) => return Err(Farewell::Goes),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Wish::Nothing),
            Err(_) => return Err(Farewell::Goes),
        };
        let Stage::Stranger(listener) = &mut visitor.stage else {
            return Err(sent("it went on before it was answered"));
        };
        let mut bytes = &bytes[..got];
        loop {
            match listener.read(std::mem::take(&mut bytes), door) {
                Ok(Step::More) => break,
                Ok(Step::Answer { bytes, .. }) => {
                    visitor.stream.write_all(&bytes).map_err(|_| Farewell::Goes)?;
                }
                Ok(Step::Known { cipher, content, .. }) => {
                    let join = Join::decode(&content).map_err(|_| sent("it asked for nothing sensible"))?;
                    let key = listener.key().ok_or(Farewell::Goes)?;
                    return Ok(Wish::Join(key, Box::new(cipher), join));
                }
                Err(Failure::Refuse(verdict)) => {
                    // It may be gone, and then needs no answer.
                    let _ = visitor.stream.write(&[verdict.encode()]);
                    return Err(Farewell::Sent {
                        is_other_secret: verdict == Verdict::OtherSecret,
                        why: explain(verdict),
                    });
                }
                Err(Failure::Refused(_)) => return Err(sent("it refused")),
                Err(Failure::Stranger(why)) => return Err(sent(why)),
            }
        }
    }
}
