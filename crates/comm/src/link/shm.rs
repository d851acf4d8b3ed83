//! Link of shared-memory lanes between the members of one node, beside a connection with each other member.
//!
//! Each direction between two members changes over to a lane of its own when its first message is sent; no call waits
//! for the change ([`hotlease_wire::comm::frame`]). A direction whose lane cannot be opened stays with TCP. A member
//! opens the memory of another member through `/proc`, where the kernel checks whether the one process may access the
//! other. The location of the memory is sent over a connection on which both have proved that they have the secret.
//! Connections stay open, because they report that a member is gone. Then what the member had written to its lane is
//! still read, before the member counts as lost.
//!
//! A thread sleeps on the connections and on a doorbell, which other members ring only if they see that a thread sleeps
//! ([`prepare_sleep`](Link::prepare_sleep)). Each poll reads the lanes, and also the connections if there are members
//! on other nodes. Without members on other nodes, connections carry hardly anything, so only one poll in a thousand
//! reads them.

mod filter;
mod inbound;
pub(crate) mod node;
mod outbound;
#[cfg(test)]
mod tests;

use super::tcp::Tcp;
use super::{Body, Link, Sink, Sleeper};
use crate::arena::Key;
use filter::LaneFrameFilter;
use hotlease_collectives::Rank;
use hotlease_fabric::lane::{Bell, BellAddress, LANE_BYTES_MIN, LaneReader, LaneWriter, PeerBell};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::{self, MemberFrame};
use inbound::{LaneReceiver, TURN_LINES};
use outbound::{LaneSendQueue, LaneStop};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Memory for all lanes that one member writes, bytes. With many lanes the sum is larger, because each lane has at
/// least [`LANE_BYTES_MIN`].
const BUDGET_BYTES: usize = 4 << 20;
const LANE_BYTES: usize = 256 * 1024;
/// Number of polls for each poll of the connections, which carry hardly anything within a node.
const POLLS: u32 = 1000;

/// Path of frames from this member to another member.
enum OutPath {
    /// TCP, so far.
    Tcp,
    /// TCP, until the offer of a lane is answered.
    LaneOffered(LaneWriter),
    Lane(LaneSendQueue),
    /// TCP for good.
    TcpOnly,
}

/// Path of frames from another member to this member.
enum InPath {
    /// TCP, so far.
    Tcp,
    /// TCP, until the other member says that it has switched to the lane.
    LaneOpened(LaneReceiver),
    Lane(LaneReceiver),
}

/// State of another member of this node.
struct NearMember {
    rank: Rank,
    out: OutPath,
    inbound: InPath,
    /// Doorbell of that member.
    bell: Option<PeerBell>,
    has_come: bool,
    has_gone: bool,
}

/// Link of lanes within the node, and of TCP to other nodes.
pub(crate) struct Shm {
    tcp: Tcp,
    bell: Bell,
    place: BellAddress,
    near: Vec<NearMember>,
    /// Index of each rank in `near`.
    place_of: Vec<Option<usize>>,
    /// Number of members that may send over TCP at any time.
    far: usize,
    lane_bytes: usize,
    /// Polls left until connections are polled again.
    polls: u32,
    /// Whether the polling thread is about to sleep.
    is_about_to_sleep: bool,
    /// Frames about lanes that members of this node have sent.
    words: Vec<(Rank, MemberFrame)>,
    sent: VecDeque<Key>,
    unsendable: VecDeque<Key>,
    lost: VecDeque<(Rank, Loss)>,
}

impl Shm {
    /// Makes a link beside these connections; `nodes` has the node of each rank.
    pub(crate) fn new(tcp: Tcp, me: Rank, nodes: &[u32]) -> io::Result<Self> {
        let bell = Bell::create(rand::random()).map_err(io::Error::other)?;
        tcp.watch(bell.descriptor())?;
        let mut near = Vec::new();
        let mut place_of = vec![None; nodes.len()];
        for (rank, node) in nodes.iter().enumerate() {
            if rank != me as usize && *node == nodes[me as usize] {
                place_of[rank] = Some(near.len());
                near.push(NearMember {
                    rank: rank as Rank,
                    out: OutPath::Tcp,
                    inbound: InPath::Tcp,
                    bell: None,
                    has_come: false,
                    has_gone: true,
                });
            }
        }
        let share = BUDGET_BYTES / near.len().max(1);
        Ok(Self {
            tcp,
            place: bell.place(),
            bell,
            far: nodes.len() - 1 - near.len(),
            lane_bytes: 1 << share.clamp(LANE_BYTES_MIN, LANE_BYTES).ilog2(),
            near,
            place_of,
            polls: 0,
            is_about_to_sleep: false,
            words: Vec::new(),
            sent: VecDeque::new(),
            unsendable: VecDeque::new(),
            lost: VecDeque::new(),
        })
    }

    fn near(&mut self, rank: Rank) -> Option<&mut NearMember> {
        let place = self.place_of[rank as usize]?;
        Some(&mut self.near[place])
    }

    /// Drops the lanes with a member.
    fn drop_lanes(&mut self, rank: Rank) {
        if let Some(place) = self.place_of[rank as usize].take() {
            let near = &mut self.near[place];
            (near.out, near.inbound, near.bell) = (OutPath::TcpOnly, InPath::Tcp, None);
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
        self.drop_lanes(rank);
        self.tcp.close(rank);
        self.lost.push_back((rank, loss));
    }

    /// Handles the reason why a lane to a member has stopped.
    fn handle_stop(&mut self, rank: Rank, stop: LaneStop) {
        match stop {
            LaneStop::Broken => self.lose(rank, Loss::Protocol),
            // The frame has announced a body: without it, the receiver would misread everything that follows.
            LaneStop::NoMemory { send } => {
                self.unsendable.push_back(send);
                self.lose(rank, Loss::GaveUp);
            }
        }
    }

    fn frame_bell(&self) -> frame::BellLocation {
        let BellAddress {
            process,
            memory,
            pipe,
            key,
        } = self.place;
        frame::BellLocation {
            process,
            memory,
            pipe,
            key,
        }
    }

    /// Offers a lane to a member, after the first message to this member.
    fn offer(&mut self, rank: Rank) {
        let (bell, bytes) = (self.frame_bell(), self.lane_bytes);
        let writer = LaneWriter::create(bytes, bell.key);
        let Some(near) = self.near(rank) else { return };
        match writer.map(|writer| (writer.descriptor(), writer)) {
            Ok((Some(memory), writer)) => {
                near.out = OutPath::LaneOffered(writer);
                let offer = MemberFrame::Offer {
                    bell,
                    memory,
                    bytes: bytes as u32,
                };
                self.tcp.send(rank, &offer, Body::Borrowed(&[]));
            }
            Ok((None, _)) => near.out = OutPath::TcpOnly,
            Err(error) => {
                tracing::debug!(rank, %error, "no memory to be shared: this member is talked to by TCP");
                near.out = OutPath::TcpOnly;
            }
        }
    }

    /// Handles a frame about lanes.
    fn handle_lane_frame(&mut self, rank: Rank, word: MemberFrame) -> Result<(), Loss> {
        let mine = self.frame_bell();
        let Some(near) = self.near(rank) else {
            return Ok(());
        };
        match word {
            MemberFrame::Offer { bell, memory, bytes } => {
                if !matches!(near.inbound, InPath::Tcp) {
                    return Err(Loss::Protocol);
                }
                let opened = near.open_bell(&bell).and_then(|()| {
                    let opened = LaneReader::open(bell.process, memory, bytes as usize, bell.key);
                    opened.map_err(|error| error.to_string())
                });
                let answer = match opened {
                    Ok(reader) => {
                        near.inbound = InPath::LaneOpened(LaneReceiver::new(reader));
                        MemberFrame::Accept { bell: mine }
                    }
                    Err(error) => {
                        tracing::debug!(rank, error, "cannot open its memory: it talks to this member by TCP");
                        self.far += 1;
                        MemberFrame::Decline
                    }
                };
                self.tcp.send(rank, &answer, Body::Borrowed(&[]));
            }
            MemberFrame::Accept { bell } => {
                let known = near.open_bell(&bell);
                match std::mem::replace(&mut near.out, OutPath::TcpOnly) {
                    OutPath::LaneOffered(writer) if known.is_ok() => {
                        near.out = OutPath::Lane(LaneSendQueue::new(writer));
                        self.tcp.send(rank, &MemberFrame::Switch, Body::Borrowed(&[]));
                    }
                    // That member can open this member's memory, but this member cannot open that member's doorbell. So
                    // this direction stays with TCP.
                    OutPath::LaneOffered(_) => {}
                    _ => return Err(Loss::Protocol),
                }
            }
            MemberFrame::Decline => match near.out {
                OutPath::LaneOffered(_) => near.out = OutPath::TcpOnly,
                _ => return Err(Loss::Protocol),
            },
            MemberFrame::Switch => match std::mem::replace(&mut near.inbound, InPath::Tcp) {
                InPath::LaneOpened(inbound) => near.inbound = InPath::Lane(inbound),
                _ => return Err(Loss::Protocol),
            },
            _ => {}
        }
        Ok(())
    }

    /// Reads the frames and bodies in a lane.
    fn read_lane(&mut self, place: usize, sink: &mut dyn Sink) -> bool {
        let near = &mut self.near[place];
        let rank = near.rank;
        let mut any = false;
        if let InPath::Lane(inbound) = &mut near.inbound {
            let mut lines = TURN_LINES;
            if let OutPath::Lane(outbound) = &mut near.out
                && outbound.has_exposed()
            {
                if !inbound.has_line() {
                    return false;
                }
                // The member may have copied a body before it wrote this line, for example its goodbye. Then the engine
                // notes first that the body is sent.
                match outbound.settle_exposed(&mut self.sent, false) {
                    Ok(false) => lines = 1,
                    Ok(true) => {
                        near.has_gone = true;
                        return true;
                    }
                    Err(stop) => {
                        self.handle_stop(rank, stop);
                        return true;
                    }
                }
            }
            let came = inbound.read(rank, sink, near.bell.as_ref(), lines);
            match came {
                Ok(came) => {
                    near.has_come |= came;
                    any |= came;
                }
                Err(loss) => {
                    self.lose(rank, loss);
                    return true;
                }
            }
        }
        any
    }

    /// Writes as much to a lane as it has room for.
    fn flush_lane(&mut self, place: usize) -> bool {
        let near = &mut self.near[place];
        let rank = near.rank;
        let mut any = false;
        if let OutPath::Lane(outbound) = &mut near.out
            && !outbound.is_empty()
        {
            let settled = outbound.settle_exposed(&mut self.sent, self.is_about_to_sleep);
            let may_expose = may_expose(&near.inbound);
            match settled.and_then(|any| Ok(any | outbound.flush(&mut self.sent, may_expose)?)) {
                Ok(true) => {
                    any = true;
                    near.has_gone = true;
                    near.ring();
                }
                Ok(false) => {}
                Err(stop) => {
                    self.handle_stop(rank, stop);
                    return true;
                }
            }
        }
        any
    }

    fn poll_connections(&mut self, sink: &mut dyn Sink) -> bool {
        let mut filter = LaneFrameFilter {
            sink,
            near: &self.near,
            place_of: &self.place_of,
            words: &mut self.words,
        };
        let mut any = self.tcp.poll(&mut filter);
        for (rank, word) in std::mem::take(&mut self.words) {
            any = true;
            if let Err(loss) = self.handle_lane_frame(rank, word) {
                self.lose(rank, loss);
            }
        }
        while let Some((rank, loss)) = self.tcp.take_lost() {
            any = true;
            // Messages that the member wrote before it was gone may still be in the lane.
            if let Some(place) = self.place_of[rank as usize]
                && let InPath::Lane(inbound) = &mut self.near[place].inbound
            {
                inbound.read_rest(rank, sink);
            }
            self.drop_lanes(rank);
            self.lost.push_back((rank, loss));
        }
        any
    }
}

/// Whether a member may copy bodies from their place: only a member whose frames arrive over its lane, where the engine
/// notes that a body is sent before it reads what the member has written afterwards.
fn may_expose(inbound: &InPath) -> bool {
    matches!(inbound, InPath::Lane(_))
}

impl NearMember {
    /// Opens the doorbell of this member.
    fn open_bell(&mut self, bell: &frame::BellLocation) -> Result<(), String> {
        if self.bell.is_none() {
            let frame::BellLocation {
                process,
                memory,
                pipe,
                key,
            } = *bell;
            let place = BellAddress {
                process,
                memory,
                pipe,
                key,
            };
            self.bell = Some(PeerBell::open(&place).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl Link for Shm {
    fn send(&mut self, to: Rank, frame: &MemberFrame, body: Body<'_>) {
        let Some(place) = self.place_of[to as usize] else {
            return self.tcp.send(to, frame, body);
        };
        let near = &mut self.near[place];
        match &mut near.out {
            OutPath::Lane(outbound) => match outbound.send(frame, body, &mut self.sent, may_expose(&near.inbound)) {
                Ok(gone) => {
                    near.has_gone |= gone;
                    near.ring();
                }
                Err(stop) => self.handle_stop(to, stop),
            },
            OutPath::Tcp if matches!(frame, MemberFrame::Eager { .. } | MemberFrame::Announce { .. }) => {
                self.tcp.send(to, frame, body);
                self.offer(to);
            }
            _ => self.tcp.send(to, frame, body),
        }
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> bool {
        // All lanes and connections are read before anything is sent. So if this poll sends the end of a body, only a
        // later poll reads the member's answer to that body, or its goodbye. By then the engine has noted that the body
        // is sent.
        let mut any = !self.lost.is_empty();
        for place in 0..self.near.len() {
            any |= self.read_lane(place, sink);
        }
        self.polls = self.polls.saturating_sub(1);
        if self.far > 0 || self.polls == 0 {
            self.polls = POLLS;
            any |= self.poll_connections(sink);
        }
        for place in 0..self.near.len() {
            any |= self.flush_lane(place);
        }
        any
    }

    fn poll_all(&mut self, sink: &mut dyn Sink) -> bool {
        self.polls = 0;
        self.poll(sink)
    }

    fn prepare_sleep(&mut self) {
        self.tcp.prepare_sleep();
        self.bell.arm();
        self.is_about_to_sleep = true;
    }

    fn end_sleep(&mut self) {
        self.is_about_to_sleep = false;
        self.bell.disarm();
        self.tcp.end_sleep();
        self.polls = 0;
    }

    fn take_sent(&mut self) -> Option<Key> {
        self.sent.pop_front().or_else(|| self.tcp.take_sent())
    }

    fn take_unsendable(&mut self) -> Option<Key> {
        self.unsendable.pop_front().or_else(|| self.tcp.take_unsendable())
    }

    fn take_lost(&mut self) -> Option<(Rank, Loss)> {
        self.lost.pop_front()
    }

    fn close(&mut self, rank: Rank) {
        self.drop_lanes(rank);
        self.tcp.close(rank);
    }

    fn is_sending(&self) -> bool {
        let waits = |near: &NearMember| matches!(&near.out, OutPath::Lane(outbound) if !outbound.is_empty());
        self.near.iter().any(waits) || self.tcp.is_sending()
    }

    fn take_activity(&mut self, rank: Rank) -> (bool, bool) {
        let (has_come, has_gone) = self.tcp.take_activity(rank);
        match self.near(rank) {
            Some(near) => (
                std::mem::take(&mut near.has_come) | has_come,
                std::mem::take(&mut near.has_gone) | has_gone,
            ),
            None => (has_come, has_gone),
        }
    }

    fn sleeper(&self) -> Arc<dyn Sleeper> {
        self.tcp.sleeper()
    }
}
