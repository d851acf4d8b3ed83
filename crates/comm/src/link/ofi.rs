//! Link over libfabric, beside a connection with each other member.
//!
//! Each member sends its libfabric address to each other member over their connection, and the other member confirms it
//! ([`hotlease_wire::comm::frame`]). From then on all frames between the two go over libfabric; earlier frames wait.
//! Connections stay open, because they report at once that a process has ended, which many providers do not. Signs of
//! life also go over libfabric, so a member that libfabric no longer reaches counts as silent.
//!
//! A message contains whole frames and pieces of bodies, one after the other. Bodies are copied at both ends, through
//! registered memory: a caller may take back its own memory at any time, and a provider cannot be told during a write
//! to stop using the memory.

mod inbound;
pub(crate) mod open;
mod outbound;
mod set_up;
mod sleeper;

use super::tcp::Tcp;
use super::{Body, Link, Sink, Sleeper};
use crate::arena::Key;
use hotlease_collectives::Rank;
use hotlease_fabric::ofi::Messenger;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{EAGER_BYTES_MAX, MemberFrame};
use hotlease_wire::encode;
use hotlease_wire::fabric::Inbox;
use inbound::OfiReceiver;
use outbound::{MemoryTakenBack, OfiSendQueue};
use set_up::{SetUpFrame, SetUpSink};
use sleeper::NapSleeper;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Content of the longest message, bytes: the longest body that is sent with its frame fits.
const CONTENT_BYTES: usize = MemberFrame::BYTES + EAGER_BYTES_MAX as usize;
/// Shortest message limit that a member may announce, bytes.
const MESSAGE_BYTES_MIN: u32 = 512;
/// Number of polls for each poll of the connections, which carry hardly anything.
const POLLS: u32 = 1000;
/// Number of polls for messages that a member sent before it ended.
const LAST_TURNS: u32 = 16;
/// Time after a failure of libfabric in which the connection may report that the other process has ended; that is then
/// the cause. A killed process closes the connection only when its last thread has got a processor once more.
const CAUSE: Duration = Duration::from_millis(250);

/// State of another member.
#[derive(Default)]
struct OfiPeer {
    /// Whether this member has the peer's libfabric address.
    is_known: bool,
    /// Whether the peer has this member's libfabric address, so that messages may be sent to the peer.
    is_open: bool,
    inbound: OfiReceiver,
    outbound: OfiSendQueue,
    /// Whether a message has arrived from the peer.
    was_heard: bool,
    has_come: bool,
    has_gone: bool,
    /// Set if the peer has broken the protocol.
    wrong: Option<Loss>,
    /// Time since which libfabric does not reach the peer.
    unreached: Option<Instant>,
}

/// Link over libfabric.
pub(crate) struct Ofi {
    tcp: Tcp,
    messenger: Messenger,
    peers: Vec<Option<OfiPeer>>,
    /// Number of members to which messages may not be sent yet.
    opening: usize,
    /// Members with a failure whose cause is not decided yet.
    concerned: Vec<Rank>,
    /// Polls left until connections are polled again.
    polls: u32,
    is_dozing: bool,
    sleeper: Arc<NapSleeper>,
    words: SetUpSink,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
}

impl Ofi {
    /// Makes a link beside the TCP link; `connected` says, for each rank, whether there is a connection.
    pub(crate) fn new(tcp: Tcp, messenger: Messenger, connected: &[bool]) -> io::Result<Self> {
        if let Some(descriptor) = messenger.wait_fd() {
            tcp.watch(descriptor.as_raw_fd())?;
        }
        let peer = |is_connected: &bool| {
            is_connected.then(|| OfiPeer {
                has_gone: true,
                ..OfiPeer::default()
            })
        };
        let peers: Vec<_> = connected.iter().map(peer).collect();
        let mut ofi = Self {
            sleeper: Arc::new(NapSleeper::new(tcp.sleeper())),
            tcp,
            messenger,
            opening: peers.iter().flatten().count(),
            peers,
            concerned: Vec::new(),
            polls: 0,
            is_dozing: false,
            words: SetUpSink::default(),
            sent: VecDeque::new(),
            unsendable: VecDeque::new(),
            lost: VecDeque::new(),
        };
        for rank in 0..connected.len() {
            if ofi.peers[rank].is_some() {
                let inbox = encode(&ofi.messenger.inbox(rank as Rank));
                let length = inbox.len() as u64;
                ofi.tcp
                    .send(rank as Rank, &MemberFrame::Inbox { length }, Body::Borrowed(&inbox));
            }
        }
        Ok(ofi)
    }

    fn drop_peer(&mut self, rank: Rank) {
        if let Some(peer) = self.peers[rank as usize].take() {
            self.opening -= usize::from(!peer.is_open);
            self.messenger.drop_peer(rank);
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
        self.drop_peer(rank);
        self.tcp.close(rank);
        self.lost.push_back((rank, loss));
    }

    /// Handles frames that a member sent on its connection.
    fn handle_frame(&mut self, rank: Rank, word: SetUpFrame) -> Result<(), Loss> {
        let Some(peer) = &mut self.peers[rank as usize] else {
            return Ok(());
        };
        match word {
            SetUpFrame::Inbox(bytes) if !peer.is_known => {
                let inbox = Inbox::decode(&bytes).map_err(|_| Loss::Protocol)?;
                if inbox.message_bytes < MESSAGE_BYTES_MIN {
                    return Err(Loss::Protocol);
                }
                self.messenger.add_inbox(rank, &inbox).map_err(|error| {
                    tracing::debug!(rank, %error, "libfabric cannot reach this member");
                    Loss::Unreached
                })?;
                peer.is_known = true;
                self.tcp.send(rank, &MemberFrame::Switch, Body::Borrowed(&[]));
                Ok(())
            }
            SetUpFrame::Switch if peer.is_known && !peer.is_open => {
                peer.is_open = true;
                self.opening -= 1;
                self.flush(rank);
                Ok(())
            }
            _ => Err(Loss::Protocol),
        }
    }

    fn poll_connections(&mut self, sink: &mut dyn Sink) -> bool {
        let mut any = self.tcp.poll(&mut self.words);
        for (rank, word) in self.words.take() {
            any = true;
            if let Err(loss) = self.handle_frame(rank, word) {
                self.lose(rank, loss);
            }
        }
        while let Some((rank, loss)) = self.tcp.take_lost() {
            any = true;
            // The last messages of the member have arrived, but the first poll may not return them.
            (0..LAST_TURNS).all(|_| self.receive(sink));
            self.drop_peer(rank);
            self.lost.push_back((rank, loss));
        }
        any
    }

    /// Handles messages that have arrived over libfabric.
    fn receive(&mut self, sink: &mut dyn Sink) -> bool {
        let (peers, concerned) = (&mut self.peers, &mut self.concerned);
        let any = self.messenger.poll(&mut |rank, content| {
            if let Some(peer) = &mut peers[rank as usize]
                && peer.wrong.is_none()
            {
                (peer.was_heard, peer.has_come) = (true, true);
                if let Err(loss) = peer.inbound.message(rank, content, sink) {
                    peer.wrong = Some(loss);
                    concerned.push(rank);
                }
            }
        });
        while let Some((rank, error)) = self.messenger.next_failure() {
            tracing::debug!(rank, %error, "libfabric does not reach this member any more");
            if let Some(peer) = &mut self.peers[rank as usize] {
                peer.unreached = Some(Instant::now());
                self.concerned.push(rank);
            }
        }
        any
    }

    /// Gives up members that have broken the protocol, and members that libfabric has not reached for [`CAUSE`].
    fn drop_failed(&mut self) {
        for rank in std::mem::take(&mut self.concerned) {
            let Some(peer) = &self.peers[rank as usize] else {
                continue;
            };
            match (peer.wrong, peer.unreached) {
                (Some(loss), _) => self.lose(rank, loss),
                (None, Some(since)) if since.elapsed() >= CAUSE => self.lose(rank, Loss::Unreached),
                (None, Some(_)) => self.concerned.push(rank),
                (None, None) => {}
            }
        }
    }

    /// Sends frames that wait for a member, as far as there is room; returns whether any were sent.
    fn flush(&mut self, rank: Rank) -> bool {
        let Some(peer) = &mut self.peers[rank as usize] else {
            return false;
        };
        let mut any = false;
        while peer.is_open && !peer.outbound.is_empty() {
            let (outbound, sent) = (&mut peer.outbound, &mut self.sent);
            let mut filled = Ok(());
            let is_gone = self.messenger.send(rank, |content| {
                let (bytes, outcome) = outbound.fill(content, sent);
                filled = outcome;
                bytes
            });
            if let Err(MemoryTakenBack { send }) = filled {
                // The frame has announced a body: without it, the receiver would misread everything that follows.
                self.unsendable.push_back(send);
                self.lose(rank, Loss::GaveUp);
                return true;
            }
            if !is_gone {
                break;
            }
            any = true;
            peer.has_gone = true;
        }
        self.retry_in_naps();
        any
    }

    /// Replaces a sleep by naps while the provider has refused messages: they must be offered to the provider again.
    fn retry_in_naps(&self) {
        if self.is_dozing && self.messenger.is_stalled() {
            self.sleeper.nap();
        }
    }
}

impl Link for Ofi {
    fn send(&mut self, to: Rank, frame: &MemberFrame, body: Body<'_>) {
        let Some(peer) = &mut self.peers[to as usize] else {
            return;
        };
        let is_first = peer.is_open && peer.outbound.is_empty();
        match body {
            Body::Borrowed(bytes) if is_first => {
                let mut written = 0;
                let is_gone = self.messenger.send(to, |content| {
                    let (head, room) = content.split_at_mut(MemberFrame::BYTES);
                    head.copy_from_slice(&frame.encode());
                    written = bytes.len().min(room.len());
                    room[..written].copy_from_slice(&bytes[..written]);
                    MemberFrame::BYTES + written
                });
                peer.has_gone |= is_gone;
                let rest = &bytes[written..];
                if !is_gone || !rest.is_empty() {
                    peer.outbound.keep((!is_gone).then_some(frame), rest);
                }
                self.retry_in_naps();
            }
            Body::Borrowed(bytes) => peer.outbound.keep(Some(frame), bytes),
            Body::Lent { piece, send } => {
                peer.outbound.push(frame, piece, send);
                if is_first {
                    self.flush(to);
                }
            }
        }
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        let mut any = !self.lost.is_empty();
        any |= self.receive(sink);
        self.polls = self.polls.saturating_sub(1);
        if self.opening > 0 || self.polls == 0 || !self.concerned.is_empty() {
            self.polls = POLLS;
            any |= self.poll_connections(sink);
            self.drop_failed();
        }
        for rank in 0..self.peers.len() {
            any |= self.flush(rank as Rank);
        }
        any || !self.lost.is_empty()
    }

    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        self.polls = 0;
        let any = self.poll(sink);
        if any || !self.is_dozing {
            return any;
        }
        let may_sleep = self.messenger.prepare_sleep();
        let has_news = !may_sleep && !self.messenger.is_stalled() && self.messenger.wait_fd().is_some();
        self.sleeper.set_naps(!may_sleep || !self.concerned.is_empty());
        has_news
    }

    fn prepare_sleep(&mut self) {
        self.is_dozing = true;
        self.tcp.prepare_sleep();
    }

    fn end_sleep(&mut self) {
        self.is_dozing = false;
        self.tcp.end_sleep();
        self.polls = 0;
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
        self.drop_peer(rank);
        self.tcp.close(rank);
    }

    fn is_sending(&self) -> bool {
        let waits = |(rank, peer): (Rank, &Option<OfiPeer>)| {
            let is_waiting = peer.as_ref().is_some_and(|peer| !peer.outbound.is_empty());
            is_waiting || self.messenger.is_sending(rank)
        };
        (0..).zip(&self.peers).any(waits) || self.tcp.is_sending()
    }

    fn take_activity(&mut self, rank: Rank) -> (bool, bool) {
        match &mut self.peers[rank as usize] {
            Some(peer) => (std::mem::take(&mut peer.has_come), std::mem::take(&mut peer.has_gone)),
            None => (true, true),
        }
    }

    fn unopened_member(&self) -> Option<Rank> {
        // Each member sends a frame as soon as it may ([`Keeper`](crate::engine::keeper::Keeper)).
        let is_apart = |peer: &OfiPeer| !peer.is_open || !peer.was_heard;
        let apart = |peer: &Option<OfiPeer>| peer.as_ref().is_some_and(is_apart);
        self.peers.iter().position(apart).map(|rank| rank as Rank)
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        Arc::clone(&self.sleeper) as Arc<dyn Sleeper>
    }
}
