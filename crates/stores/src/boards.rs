//! Boards of all members: the content of this member's own board, the events that the other boards report, and the
//! objects that can be removed because of them.
//!
//! Each board is written and read eight times in a failure bound. A member whose board has not changed for six of these
//! beats is taken for dead: all members notice that within the bound, and a member that is only slow has half of the
//! bound. The store itself is taken for dead if it does not answer for six beats.

mod exchange;

pub(crate) use exchange::{gather, keep, remove_boards};

use crate::board::Board;
use crate::courier::CourierPlan;
use crate::object::{self, piece_key};
use crate::request::CourierEvent;
use crate::store::StoreFault;
use hotlease_comm::Rank;
use hotlease_comm::link::{FinalCounts, ObjectName};
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::frame::MemberFrame;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// State of another member, as this member has read it.
struct BoardPeer {
    board: Option<Board>,
    changed: Instant,
    has_left: bool,
    /// Communicators that the other member has left.
    quit: BTreeSet<u64>,
    is_lost: bool,
    /// Whether the other member needs nothing of this member any more, and the engine was told so.
    has_parted: bool,
}

/// Object of a collective that this member has written and may have to remove: it has several readers, or pieces.
struct WrittenObject {
    context: u64,
    collective: u32,
    members: Arc<[Rank]>,
    key: String,
    pieces: u64,
}

/// Boards of all members, and the objects that depend on them.
pub(crate) struct Boards {
    me: Rank,
    keys: Vec<String>,
    own: Board,
    /// Number of words on the own board that have not been written.
    unwritten: usize,
    others: Vec<BoardPeer>,
    is_leaving: bool,
    /// Whether this member's board in the store says that this member leaves.
    is_seen_leaving: bool,
    /// Whether a member or a collective has failed. Then there may be objects that no member has recorded.
    is_untidy: bool,
    /// Communicators that all members have left, but not all members may have read yet that this member has left.
    left_by_all: BTreeSet<u64>,
    sent: BTreeMap<(u64, Rank), u64>,
    /// Messages that may not have been read yet, and their numbers of pieces.
    unread: BTreeMap<(u64, Rank), BTreeMap<u64, u64>>,
    written: Vec<WrittenObject>,
    /// Messages that were read, and collectives that were finished, before their turn.
    read_ahead: BTreeMap<(u64, Rank), BTreeSet<u64>>,
    done_ahead: BTreeMap<u64, BTreeSet<u32>>,
}

impl Boards {
    pub(crate) fn new(plan: &CourierPlan) -> Self {
        let other = |_| BoardPeer {
            board: None,
            changed: Instant::now(),
            has_left: false,
            quit: BTreeSet::new(),
            is_lost: false,
            has_parted: false,
        };
        Self {
            me: plan.me,
            keys: (0..plan.size).map(|rank| format!("{}/b/{rank}", plan.group)).collect(),
            own: Board::default(),
            unwritten: 0,
            others: (0..plan.size).map(other).collect(),
            is_leaving: false,
            is_seen_leaving: false,
            is_untidy: false,
            left_by_all: BTreeSet::new(),
            sent: BTreeMap::new(),
            unread: BTreeMap::new(),
            written: Vec::new(),
            read_ahead: BTreeMap::new(),
            done_ahead: BTreeMap::new(),
        }
    }

    pub(crate) fn say(&mut self, to: Rank, frame: &MemberFrame) {
        self.own.say(to, frame);
        self.unwritten += 1;
        self.is_untidy = true;
    }

    /// Writes on the own board that this member has left a communicator, and how many messages it has sent there.
    pub(crate) fn leave_context(&mut self, to: Rank, of: u64) {
        self.own.say(to, &MemberFrame::Leave { context: of });
        self.unwritten += 1;
        if let Some(sent) = self.sent.get(&(of, to)) {
            self.own.quit.insert((of, to), *sent);
        }
        // Other members no longer need the numbers of messages that this member has read there.
        self.own.read.retain(|(context, _), _| *context != of);
        self.read_ahead.retain(|(context, _), _| *context != of);
    }

    /// Writes on the own board that this member has finished.
    pub(crate) fn say_goodbye(&mut self) {
        self.leave();
        self.unwritten += 1;
    }

    /// Notes that this member has finished.
    pub(crate) fn leave(&mut self) {
        self.own.left = Some(self.sent.clone());
        self.is_leaving = true;
    }

    /// Notes that this member writes an object.
    pub(crate) fn note_write(
        &mut self,
        name: &ObjectName,
        key: &str,
        pieces: u64,
        is_left: bool,
        members: Arc<[Rank]>,
    ) {
        match *name {
            ObjectName::Message {
                context, to, number, ..
            } => {
                self.sent.insert((context, to), number + 1);
                self.unread.entry((context, to)).or_default().insert(number, pieces);
            }
            ObjectName::Step {
                context, collective, ..
            }
            | ObjectName::Published {
                context, collective, ..
            } if is_left => {
                self.written.push(WrittenObject {
                    context,
                    collective,
                    members,
                    key: key.to_owned(),
                    pieces,
                });
            }
            ObjectName::Step { .. } | ObjectName::Published { .. } => {}
        }
    }

    /// Notes that this member has read an object completely.
    pub(crate) fn note_read(&mut self, name: &ObjectName) {
        let ObjectName::Message {
            context, from, number, ..
        } = *name
        else {
            return;
        };
        let ahead = self.read_ahead.entry((context, from)).or_default();
        let below = self.own.read.entry((context, from)).or_default();
        ahead.insert(number);
        while ahead.remove(below) {
            *below += 1;
        }
    }

    pub(crate) fn note_done(&mut self, context: u64, collective: u32) {
        let ahead = self.done_ahead.entry(context).or_default();
        let below = self.own.done.entry(context).or_default();
        ahead.insert(collective);
        while ahead.remove(below) {
            *below = below.wrapping_add(1);
        }
    }

    fn others(&self) -> impl Iterator<Item = (Rank, &BoardPeer)> {
        let others = (0..).zip(&self.others);
        others.filter(|(rank, _)| *rank != self.me)
    }

    /// Restarts the measurement of silence of all members at this time.
    fn reset_silence(&mut self, now: Instant) {
        self.others.iter_mut().for_each(|other| other.changed = now);
    }

    fn are_all_there(&self) -> bool {
        self.others().all(|(_, other)| other.board.is_some())
    }

    /// Reports members without a board as failed.
    fn give_up_missing(&mut self, plan: &CourierPlan) {
        let me = self.me;
        for (rank, other) in (0..).zip(&mut self.others) {
            if rank != me && other.board.is_none() {
                other.is_lost = true;
                let loss = Loss::Silent;
                plan.shared.tell(CourierEvent::Lost { rank, loss });
            }
        }
    }

    fn have_all_gone(&self) -> bool {
        self.others().all(|(_, other)| other.has_left || other.is_lost)
    }

    /// Whether a member reads no more objects of this collective.
    fn is_done(&self, rank: Rank, written: &WrittenObject) -> bool {
        let other = &self.others[rank as usize];
        let board = other.board.as_ref();
        let done = board.and_then(|board| board.done.get(&written.context));
        rank == self.me
            || other.has_left
            || other.is_lost
            || other.quit.contains(&written.context)
            || done.is_some_and(|done| *done > written.collective)
    }

    /// Removes and returns the keys of objects of collectives that all members have finished.
    fn take_outlived(&mut self) -> Vec<String> {
        let written = std::mem::take(&mut self.written);
        let (over, kept) = written.into_iter().partition::<Vec<_>, _>(|written| {
            let mut members = written.members.iter();
            members.all(|rank| self.is_done(*rank, written))
        });
        self.written = kept;
        over.into_iter()
            .flat_map(|written| keys_of(written.key, written.pieces))
            .collect()
    }

    /// Removes and returns the keys of objects that this member has written and that no member will read any more,
    /// because this member leaves.
    pub(crate) fn take_left_over(&mut self) -> Vec<String> {
        let group = self.keys[0]
            .rsplit_once("/b/")
            .map_or("", |(group, _)| group)
            .to_owned();
        let from = self.me;
        let unread = std::mem::take(&mut self.unread).into_iter();
        let messages = unread.flat_map(|((context, to), numbers)| {
            numbers.into_iter().map(move |(number, pieces)| {
                let name = ObjectName::Message {
                    context,
                    from,
                    to,
                    number,
                };
                (name, pieces)
            })
        });
        let messages = messages.flat_map(|(name, pieces)| keys_of(object::key(&name, &group), pieces));
        let written = std::mem::take(&mut self.written).into_iter();
        let written = written.flat_map(|written| keys_of(written.key, written.pieces));
        messages.chain(written).collect()
    }

    /// Updates the state from the boards that were read; returns the resulting events.
    fn read_boards(
        &mut self,
        found: Vec<Option<Vec<u8>>>,
        now: Instant,
        silence_max: Duration,
    ) -> Result<Vec<CourierEvent>, StoreFault> {
        let mut events = Vec::new();
        let was_written = self.own.beat > 1;
        for (rank, found) in (0..).zip(found) {
            if rank == self.me {
                if found.is_none() && was_written && !self.is_leaving {
                    let why = "it has lost data: it was restarted, emptied, or has no room";
                    return Err(StoreFault { why: why.into() });
                }
                continue;
            }
            self.read_board(rank, found, now, &mut events);
            let other = &mut self.others[rank as usize];
            if now.saturating_duration_since(other.changed) > silence_max && !other.has_left && !other.is_lost {
                let loss = Loss::Silent;
                other.is_lost = true;
                events.push(CourierEvent::Lost { rank, loss });
            }
            self.is_untidy |= self.others[rank as usize].is_lost;
            self.forget_read(rank);
            // Only once other members can read that this member leaves: if two members leave at the same time, at least
            // one of them then reads that the other leaves.
            if self.is_seen_leaving && !self.others[rank as usize].has_parted && !self.is_needed_by(rank) {
                self.others[rank as usize].has_parted = true;
                let frame = MemberFrame::Farewell;
                events.push(CourierEvent::Frame { from: rank, frame });
            }
        }
        self.take_down();
        Ok(events)
    }

    /// Removes words that all addressees have read. Forgets communicators that all members have left, once all have
    /// read that this member has left.
    fn take_down(&mut self) {
        let (me, others) = (self.me, &self.others);
        self.own.take_down(|number, rank| {
            let other = &others[rank as usize];
            let heard = other.board.as_ref().and_then(|board| board.heard.get(&me));
            other.has_left || other.is_lost || heard.is_some_and(|heard| *heard > number)
        });
        for over in std::mem::take(&mut self.left_by_all) {
            if self.own.has(&MemberFrame::Leave { context: over }) {
                self.left_by_all.insert(over);
                continue;
            }
            self.own.quit.retain(|(context, _), _| *context != over);
            self.own.read.retain(|(context, _), _| *context != over);
            self.own.done.remove(&over);
            self.sent.retain(|(context, _), _| *context != over);
            self.read_ahead.retain(|(context, _), _| *context != over);
            self.done_ahead.remove(&over);
        }
    }

    /// Notes that all members, including this member, have left a communicator; returns the keys of objects that no
    /// member will read any more.
    pub(crate) fn forget(&mut self, over: u64) -> Vec<String> {
        let outlived = self.take_outlived();
        for other in &mut self.others {
            other.quit.remove(&over);
        }
        self.left_by_all.insert(over);
        outlived
    }

    fn read_board(&mut self, rank: Rank, found: Option<Vec<u8>>, now: Instant, events: &mut Vec<CourierEvent>) {
        let (me, is_leaving) = (self.me, self.is_leaving);
        let other = &mut self.others[rank as usize];
        if other.has_left || other.is_lost {
            return;
        }
        let Some(found) = found else {
            // The last member to leave removes all boards.
            other.has_left = is_leaving && other.board.is_some();
            return;
        };
        let Ok(board) = Board::decode(&found) else {
            other.is_lost = true;
            let loss = Loss::Protocol;
            return events.push(CourierEvent::Lost { rank, loss });
        };
        if other.board.as_ref().is_none_or(|before| before.beat != board.beat) {
            other.changed = now;
        }
        let heard = self.own.heard.get(&rank).copied().unwrap_or(0);
        let words = board.frames_for(me, heard);
        if !words.is_empty() {
            self.own.heard.insert(rank, board.end());
        }
        for frame in words {
            let MemberFrame::Leave { context } = frame else {
                self.is_untidy = true;
                // A member that gives up writes nothing after that, so no member waits until it leaves.
                other.is_lost |= matches!(frame, MemberFrame::Lost { rank: gone, .. } if gone == rank);
                events.push(CourierEvent::Frame { from: rank, frame });
                continue;
            };
            other.quit.insert(context);
            events.push(CourierEvent::Quit {
                from: rank,
                context,
                sent: board.quit.get(&(context, me)).copied().unwrap_or(0),
                done: board.done.get(&context).copied().unwrap_or(0),
            });
        }
        if let Some(sent) = &board.left {
            other.has_left = true;
            let to_me = sent.iter().filter(|((_, to), _)| *to == me);
            let parting = FinalCounts {
                sent: to_me.map(|((context, _), sent)| (*context, *sent)).collect(),
                done: board.done.clone(),
            };
            events.push(CourierEvent::Left { from: rank, parting });
        }
        other.board = Some(board);
    }

    /// Forgets messages that a member has read.
    fn forget_read(&mut self, by: Rank) {
        let Some(board) = &self.others[by as usize].board else {
            return;
        };
        for ((context, to), unread) in &mut self.unread {
            let read = board.read.get(&(*context, self.me));
            if let Some(read) = read.filter(|_| *to == by) {
                *unread = unread.split_off(read);
            }
        }
        self.unread.retain(|_, unread| !unread.is_empty());
    }

    fn is_needed_by(&self, rank: Rank) -> bool {
        let other = &self.others[rank as usize];
        let has_unread = || {
            self.unread
                .iter()
                .any(|((of, to), unread)| *to == rank && !unread.is_empty() && !other.quit.contains(of))
        };
        let is_read = |written: &WrittenObject| written.members.contains(&rank) && !self.is_done(rank, written);
        !other.has_left && !other.is_lost && (has_unread() || self.written.iter().any(is_read))
    }
}

fn keys_of(key: String, pieces: u64) -> impl Iterator<Item = String> {
    let all = (0..=pieces).map(move |number| match number {
        0 => key.clone(),
        number => piece_key(&key, number),
    });
    all.collect::<Vec<_>>().into_iter()
}
