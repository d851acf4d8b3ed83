//! Board of a member: one small object that tells all other members about this member. The member writes its board a
//! few times in each failure bound, and the others read the board at the same rate. A board contains frames without a
//! body: members that have connections send each other the same frames to report failures and departures.

use hotlease_comm::Rank;
use hotlease_wire::DecodeError;
use hotlease_wire::comm::RANKS_MAX;
use hotlease_wire::comm::frame::MemberFrame;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Board of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Board {
    /// Rises with each write: a member whose beat does not change is taken for dead.
    pub(crate) beat: u64,
    /// Words that some addressee has not read yet. A word is a frame with its addressees. Words are numbered; `first`
    /// is the number of the first word in this queue.
    words: VecDeque<([u8; MemberFrame::BYTES], Vec<Rank>)>,
    first: u64,
    /// All words below this number have been written to the store.
    #[serde(skip)]
    written: u64,
    /// For each other member, a number: the owner of the board has read all words of that member below this number.
    pub(crate) heard: BTreeMap<Rank, u64>,
    /// By communicator and sender, a number: the owner has read all messages below this number.
    pub(crate) read: BTreeMap<(u64, Rank), u64>,
    /// By communicator, a number: the owner has finished all collectives below this number.
    pub(crate) done: BTreeMap<u64, u32>,
    /// For communicators that the owner has left: number of messages that it sent, by communicator and receiver.
    pub(crate) quit: BTreeMap<(u64, Rank), u64>,
    /// Present once the owner has finished: number of messages that it has sent, by communicator and receiver.
    pub(crate) left: Option<BTreeMap<(u64, Rank), u64>>,
}

impl Board {
    /// Adds a frame for a member. If consecutive calls add one frame for several members, the frame is stored once.
    pub(crate) fn say(&mut self, to: Rank, frame: &MemberFrame) {
        let bytes = frame.encode();
        let is_written = self.end() == self.written;
        match self.words.back_mut() {
            // The member is added only to the last word, so that the frames for each member keep their order. And it is
            // added only if that word has not been written: otherwise members may already have read past the word.
            Some((word, ranks)) if *word == bytes && !ranks.contains(&to) && !is_written => ranks.push(to),
            _ => self.words.push_back((bytes, vec![to])),
        }
    }

    /// Returns the frames to a member in the words from number `heard` on. Skips words that are no valid frames.
    pub(crate) fn frames_for(&self, to: Rank, heard: u64) -> Vec<MemberFrame> {
        let words = (self.first..).zip(&self.words);
        words
            .filter(|(number, (_, ranks))| *number >= heard && ranks.contains(&to))
            .filter_map(|(_, (word, _))| MemberFrame::decode(word).ok())
            .collect()
    }

    /// Number of the next word.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.words.len() as u64
    }

    /// Removes words from the front while all addressees of a word have read it: `is_heard(number, rank)`.
    pub(crate) fn take_down(&mut self, is_heard: impl Fn(u64, Rank) -> bool) {
        while let Some((_, ranks)) = self.words.front()
            && ranks.iter().all(|rank| is_heard(self.first, *rank))
        {
            self.words.pop_front();
            self.first += 1;
        }
    }

    /// Whether a word with this frame is on the board.
    pub(crate) fn has(&self, frame: &MemberFrame) -> bool {
        let bytes = frame.encode();
        self.words.iter().any(|(word, _)| *word == bytes)
    }

    pub(crate) fn encode(&mut self) -> Vec<u8> {
        self.written = self.end();
        hotlease_wire::encode(self)
    }

    /// Decodes another member's board. Never panics, for any bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "board" };
        let board: Self = hotlease_wire::decode(bytes)?;
        let sent = board.left.iter().flat_map(BTreeMap::keys);
        let sent = sent.chain(board.quit.keys());
        let ranks = sent.chain(board.read.keys()).map(|(_, rank)| rank);
        let ranks_heard = board.heard.keys();
        let is_word = |frame: &MemberFrame| frame.body_bytes() == 0 && !matches!(frame, MemberFrame::Eager { .. });
        let are_frames = board
            .words
            .iter()
            .all(|(word, _)| MemberFrame::decode(word).is_ok_and(|frame| is_word(&frame)));
        let is_counted = board.first.checked_add(board.words.len() as u64).is_some();
        if !are_frames || !is_counted || ranks.chain(ranks_heard).any(|rank| *rank >= RANKS_MAX) {
            return Err(malformed);
        }
        Ok(board)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::comm::Loss;

    #[test]
    fn a_board_comes_back_as_it_was_and_nonsense_does_not() {
        let mut board = Board {
            beat: 7,
            read: BTreeMap::from([((0, 1), 9)]),
            done: BTreeMap::from([(0, 4)]),
            quit: BTreeMap::from([((3, 2), 1)]),
            left: Some(BTreeMap::from([((0, 2), 5)])),
            heard: BTreeMap::from([(2, 3)]),
            ..Board::default()
        };
        board.say(1, &MemberFrame::Goodbye);
        let whole = board.encode();
        board.written = 0;
        assert_eq!(Board::decode(&whole), Ok(board.clone()));
        for length in 0..whole.len() {
            assert!(Board::decode(&whole[..length]).is_err(), "cut to {length}");
        }
        let mut uncountable = board.clone();
        uncountable.first = u64::MAX;
        assert!(Board::decode(&hotlease_wire::encode(&uncountable)).is_err());
        board.read.insert((0, RANKS_MAX), 1);
        assert!(Board::decode(&board.encode()).is_err(), "there is no such rank");
    }

    #[test]
    fn frames_for_a_member_are_delivered_once_and_in_order() {
        let lost = |rank| MemberFrame::Lost {
            rank,
            loss: Loss::Silent,
        };
        let mut board = Board::default();
        for to in [1, 2, 3] {
            board.say(to, &lost(4));
        }
        assert_eq!(board.words.len(), 1);
        board.say(1, &lost(5));
        board.say(2, &lost(4));
        assert_eq!(board.frames_for(1, 0), [lost(4), lost(5)]);
        assert_eq!(board.frames_for(1, 1), [lost(5)]);
        assert_eq!(board.frames_for(2, 0), [lost(4), lost(4)]);
        assert_eq!(board.frames_for(3, 1), []);
    }

    #[test]
    fn words_go_when_all_have_heard_them_and_not_before() {
        let word = |context| MemberFrame::Leave { context };
        let mut board = Board::default();
        board.say(1, &word(7));
        board.say(2, &word(7));
        board.say(1, &word(8));
        board.encode();
        // Rank 1 has read the last word. So rank 3 must not be added to that word, but gets a word of its own.
        let heard = board.end();
        board.say(3, &word(8));
        assert_eq!(board.frames_for(3, heard), [word(8)]);
        board.take_down(|number, rank| rank == 1 && number < heard);
        assert!(board.has(&word(7)) && board.first == 0, "rank 2 has not heard it");
        board.take_down(|number, _| number < heard);
        assert!(!board.has(&word(7)) && board.words.len() == 1);
        assert_eq!(board.frames_for(3, heard), [word(8)]);
    }
}
