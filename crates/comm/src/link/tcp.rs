//! Link over one TCP connection with each other member, Nagle off.
//!
//! Connections are registered for both directions, edge-triggered. A sleeping thread notes which connections are ready
//! ([`Readiness`]); a polling thread, under the engine's lock, reads and writes the ready connections. With a few
//! members, polling reads the connections directly, which is one system call instead of two. Connections are then
//! registered only before the first sleep, and deregistered when no thread has slept for long, because each arrival on
//! a registered connection takes 0.2 us longer.

mod inbound;
mod outbound;
#[cfg(test)]
mod tests;

use super::cipher::Cipher;
use super::mesh::MemberConnection;
use super::{Body, Link, Sink, Sleeper};
use crate::arena::Key;
use crate::route::Route;
use hotlease_collectives::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use inbound::{ReadState, TcpReceiver};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use outbound::{FlushResult, TcpSendQueue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Maximum number of connections that are all read without asking which are ready.
const ASKED_DIRECTLY_MAX: usize = 3;
const EVENTS: usize = 256;
/// Number of polls without a sleep after which no sleep is expected soon.
const POLLS_AWAKE: u32 = 20_000;

struct TcpPeer {
    stream: TcpStream,
    cipher: Option<Cipher>,
    inbound: TcpReceiver,
    outbound: TcpSendQueue,
    is_relayed: bool,
    /// Nothing can be sent any more, for this reason. The peer is lost once everything that it sent before is read.
    unsendable: Option<Loss>,
    has_come: bool,
    has_gone: bool,
}

/// Link over one TCP connection with each other member.
pub(crate) struct Tcp {
    peers: Vec<Option<TcpPeer>>,
    connections: usize,
    registry: Registry,
    is_registered: bool,
    is_dozing: bool,
    /// Number of polls since the last sleep.
    polls: u32,
    readiness: Arc<Readiness>,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
}

/// Connections on which there is something to do.
struct Readiness {
    poll: Mutex<(Poll, Events)>,
    waker: Waker,
    /// Whether the current sleep, or else the next one, is to end. The waker alone does not suffice: a thread that asks
    /// for readiness before the sleep begins consumes the waker's event.
    is_woken: AtomicBool,
    ready: Vec<AtomicBool>,
}

impl Tcp {
    /// Makes a link of these connections, by rank.
    pub(crate) fn new(joined: Vec<Option<MemberConnection>>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), Token(joined.len()))?;
        // Bytes that followed a handshake have left their socket already, so every connection begins as ready.
        let ready = joined.iter().map(|_| AtomicBool::new(true)).collect();
        let mut peers = Vec::with_capacity(joined.len());
        for joined in joined {
            let Some(joined) = joined else {
                peers.push(None);
                continue;
            };
            peers.push(Some(TcpPeer {
                stream: joined.stream,
                inbound: TcpReceiver::new(&joined.rest, joined.cipher.is_some()),
                outbound: TcpSendQueue::new(),
                is_relayed: joined.route == Route::Relayed,
                cipher: joined.cipher,
                unsendable: None,
                has_come: false,
                has_gone: true,
            }));
        }
        let mut tcp = Self {
            connections: peers.iter().flatten().count(),
            peers,
            registry: poll.registry().try_clone()?,
            is_registered: false,
            is_dozing: false,
            polls: 0,
            readiness: Arc::new(Readiness {
                poll: Mutex::new((poll, Events::with_capacity(EVENTS))),
                waker,
                is_woken: AtomicBool::new(false),
                ready,
            }),
            sent: VecDeque::new(),
            unsendable: VecDeque::new(),
            lost: VecDeque::new(),
        };
        if tcp.connections > ASKED_DIRECTLY_MAX {
            tcp.register();
        }
        Ok(tcp)
    }

    fn register(&mut self) {
        self.is_registered = true;
        let both = Interest::READABLE | Interest::WRITABLE;
        for rank in 0..self.peers.len() {
            if let Some(peer) = &mut self.peers[rank]
                && let Err(error) = self.registry.register(&mut peer.stream, Token(rank), both)
            {
                // A sleeping thread would not be told of this connection.
                self.drop_peer(rank, loss_of(&error));
            }
        }
    }

    /// Deregisters all connections, because no thread sleeps or has slept for a while.
    fn deregister(&mut self) {
        self.is_registered = false;
        for peer in self.peers.iter_mut().flatten() {
            let left = self.registry.deregister(&mut peer.stream);
            debug_assert!(left.is_ok(), "it was registered");
        }
    }

    /// Ends sleeps also when this descriptor is readable.
    pub(super) fn watch(&self, descriptor: RawFd) -> io::Result<()> {
        // The token is higher than the tokens of connections and waker, so its event marks no connection as ready.
        let token = Token(self.peers.len() + 1);
        let mut source = SourceFd(&descriptor);
        self.registry.register(&mut source, token, Interest::READABLE)
    }

    fn drop_peer(&mut self, rank: usize, loss: Loss) {
        if let Some(peer) = self.peers[rank].take() {
            self.connections -= 1;
            let loss = match loss {
                Loss::Closed if peer.is_relayed => Loss::Unrelayed,
                loss => loss,
            };
            self.lost.push_back((rank as Rank, loss));
        }
    }

    fn flush(&mut self, rank: usize) -> bool {
        let Some(peer) = &mut self.peers[rank] else {
            return false;
        };
        let outcome = peer
            .outbound
            .flush(&mut peer.stream, peer.cipher.as_mut(), &mut self.sent);
        self.handle_flush(rank, outcome)
    }

    fn handle_flush(&mut self, rank: usize, outcome: io::Result<FlushResult>) -> bool {
        match outcome {
            Ok(FlushResult::Gone { any }) => {
                if let Some(peer) = &mut self.peers[rank] {
                    peer.has_gone |= any;
                }
                any
            }
            // The frame has announced a body: without it, the receiver would misread everything that follows.
            Ok(FlushResult::NoMemory { send }) => {
                self.unsendable.push_back(send);
                self.drop_peer(rank, Loss::GaveUp);
                true
            }
            Err(error) => {
                if let Some(peer) = &mut self.peers[rank] {
                    peer.unsendable = Some(loss_of(&error));
                    peer.outbound = TcpSendQueue::new();
                    // The connection is marked as ready, because perhaps no event would mark it any more, and the loss
                    // would go unnoticed.
                    self.readiness.ready[rank].store(true, Ordering::Release);
                }
                true
            }
        }
    }
}

fn loss_of(error: &io::Error) -> Loss {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Loss::Silent,
        _ => Loss::Closed,
    }
}

impl Link for Tcp {
    fn send(&mut self, to: Rank, frame: &MemberFrame, body: Body<'_>) {
        let rank = to as usize;
        let peer = self.peers[rank].as_mut();
        let Some(peer) = peer.filter(|peer| peer.unsendable.is_none()) else {
            return;
        };
        let outcome = peer
            .outbound
            .send(&mut peer.stream, peer.cipher.as_mut(), frame, body, &mut self.sent);
        self.handle_flush(rank, outcome);
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let is_asked_directly = self.connections <= ASKED_DIRECTLY_MAX;
        if !is_asked_directly {
            self.readiness.refresh();
        } else if self.is_registered && !self.is_dozing {
            self.polls += 1;
            if self.polls == POLLS_AWAKE {
                self.deregister();
            }
        }
        let mut any = !self.lost.is_empty();
        for rank in 0..self.peers.len() {
            // Cleared before the read: data that arrives meanwhile sets it again.
            let is_ready = self.readiness.ready[rank].swap(false, Ordering::Acquire);
            let Some(peer) = &mut self.peers[rank] else {
                continue;
            };
            if is_ready || is_asked_directly {
                let from = rank as Rank;
                let read = peer.inbound.read(&mut peer.stream, peer.cipher.as_mut(), from, sink);
                match read {
                    Ok(ReadState { any: some, is_empty }) => {
                        peer.has_come |= some;
                        any |= some;
                        if !is_empty {
                            self.readiness.ready[rank].store(true, Ordering::Release);
                        } else if let Some(loss) = peer.unsendable {
                            self.drop_peer(rank, loss);
                            any = true;
                            continue;
                        }
                    }
                    Err(loss) => {
                        // The reason that was noted first is nearer to the cause.
                        let loss = peer.unsendable.unwrap_or(loss);
                        self.drop_peer(rank, loss);
                        any = true;
                        continue;
                    }
                }
            }
            if self.peers[rank].as_ref().is_some_and(|peer| !peer.outbound.is_empty()) {
                any |= self.flush(rank);
            }
        }
        any
    }

    fn prepare_sleep(&mut self) {
        (self.is_dozing, self.polls) = (true, 0);
        if !self.is_registered {
            self.register();
        }
    }

    fn end_sleep(&mut self) {
        self.is_dozing = false;
    }

    fn take_sent(&mut self) -> Option<Key> {
        self.sent.pop_front()
    }

    fn take_unsendable(&mut self) -> Option<Key> {
        self.unsendable.pop_front()
    }

    fn take_lost(&mut self) -> Option<(Rank, Loss)> {
        self.lost.pop_front()
    }

    fn close(&mut self, rank: Rank) {
        if self.peers[rank as usize].take().is_some() {
            self.connections -= 1;
        }
    }

    fn is_sending(&self) -> bool {
        let mut peers = self.peers.iter().flatten();
        peers.any(|peer| !peer.outbound.is_empty())
    }

    fn take_activity(&mut self, rank: Rank) -> (bool, bool) {
        match &mut self.peers[rank as usize] {
            Some(peer) => (std::mem::take(&mut peer.has_come), std::mem::take(&mut peer.has_gone)),
            None => (true, true),
        }
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        Arc::clone(&self.readiness) as Arc<dyn Sleeper>
    }
}

impl Readiness {
    fn note(&self, poll: &mut (Poll, Events), at_most: Option<Duration>) {
        let (poll, events) = poll;
        // An interrupted sleep counts as a short one.
        if poll.poll(events, at_most).is_ok() {
            for event in events.iter() {
                if let Some(ready) = self.ready.get(event.token().0) {
                    ready.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Notes which connections are ready, without waiting, not even for the lock: a sleeping thread that holds the lock
    /// notes the ready connections itself.
    fn refresh(&self) {
        match self.poll.try_lock() {
            Ok(mut poll) => self.note(&mut poll, Some(Duration::ZERO)),
            Err(TryLockError::Poisoned(poll)) => self.note(&mut poll.into_inner(), Some(Duration::ZERO)),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

impl Sleeper for Readiness {
    fn sleep(&self, at_most: Option<Duration>) {
        let mut poll = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
        // While this thread holds the lock, no other thread consumes the waker's event. Acquire pairs with the release
        // in `wake`.
        let at_most = match self.is_woken.swap(false, Ordering::Acquire) {
            true => Some(Duration::ZERO),
            false => at_most,
        };
        self.note(&mut poll, at_most);
    }

    fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        // Fails only if the system has no memory for a counter.
        let _ = self.waker.wake();
    }
}
