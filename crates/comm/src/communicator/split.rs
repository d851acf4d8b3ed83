//! Communicators of some members of an existing communicator, over the same connections.
//!
//! Members exchange their choices in one allgather of the communicator that is split. From the result, each member
//! computes which members belong together and the number of the new communicator on the connections ([`context_number`]).
//! Nothing more is sent, and other members may send in the new communicator before this member has made it.

use super::Communicator;
use super::checked::CallSite;
use super::group::MemberGroup;
use crate::error::Error;
use crate::memory::TransferMemory;
use crate::protocol::{CONTEXTS_MAX, Protocol};
use hotlease_collectives::{Blocks, Collective, Datatype, Rank};
use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

impl Communicator {
    /// Makes one communicator for each color, of the members that pass this color. Ranks follow the order of the keys;
    /// members with equal keys keep the order of their ranks. A member without a color gets no communicator. All
    /// members must call this.
    ///
    /// Each member can drop the new communicator at any time; members that still use it are told that this member has
    /// left.
    ///
    /// # Errors
    /// Errors of a collective; [`Error::TooManyCommunicators`] at all members if one of them has reached its maximum.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, Error> {
        let site = CallSite::rust(Location::caller()).named("split");
        let has_room = color.is_some() && self.group.engine.change(Protocol::reserve);
        let made = self.split_by(color, key, has_room, site);
        if has_room && !matches!(made, Ok(Some(_))) {
            self.group.engine.change(Protocol::release);
        }
        made
    }

    /// Makes a communicator of the same members with the same ranks. Messages sent in one of the two communicators are
    /// not received in the other. All members must call this.
    ///
    /// # Errors
    /// Errors of [`split`](Self::split).
    #[track_caller]
    pub fn dup(&self) -> Result<Self, Error> {
        let made = self.split(Some(0), 0)?;
        // A member that passes a color gets a communicator.
        made.ok_or(Error::Finished)
    }

    /// Makes a communicator of the members `ranks`, in this order; this member must be among them. Only these members
    /// call this, with equal arguments. If they make several calls for one group and `tag`, all of them must make
    /// equally many, in the same order. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Options`] if a rank is named twice, or this member is not named;
    /// [`Error::TooManyCommunicators`] if this member has reached its maximum.
    pub fn create_group(&self, ranks: &[Rank], tag: u32) -> Result<Self, Error> {
        let wrong = |what: String| Error::Options { what };
        let outer = ranks.iter().map(|rank| self.group.rank_on_connections(*rank));
        let members: Arc<[Rank]> = outer.collect::<Result<_, _>>()?;
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Err(wrong(format!("a group without this member, rank {}", self.rank())));
        };
        if ranks.iter().collect::<HashSet<_>>().len() < ranks.len() {
            return Err(wrong("a group with a member twice".into()));
        }
        let mut named = Vec::with_capacity(4 * ranks.len());
        named.extend(ranks.iter().flat_map(|rank| rank.to_le_bytes()));
        let group = number_of(&[b"hotlease group", &named, &tag.to_le_bytes()]);
        let count = {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            let count = made.entry(group).or_default();
            *count = count.wrapping_add(1);
            *count
        };
        let parent = self.group.context.to_le_bytes();
        let context = number_of(&[b"hotlease created", &parent, &group.to_le_bytes(), &count.to_le_bytes()]);
        if !self.group.engine.change(Protocol::reserve) {
            let (rank, most) = (self.rank(), CONTEXTS_MAX);
            return Err(Error::TooManyCommunicators { rank, most });
        }
        self.opened(context, rank, members)
            .inspect_err(|_| self.group.engine.change(Protocol::release))
    }

    /// Opens a communicator, for which a place is reserved.
    fn opened(&self, context: u64, rank: usize, members: Arc<[Rank]>) -> Result<Self, Error> {
        let theirs = Arc::clone(&members);
        let is_new = self.group.engine.change(|protocol| {
            let is_new = protocol.open(context, theirs);
            if is_new {
                protocol.release();
            }
            is_new
        });
        if !is_new {
            return Err(Error::LocalFailure {
                what: "make a communicator",
                why: "another one has the same number by chance; make it again".into(),
            });
        }
        let engine = Arc::clone(&self.group.engine);
        let group = MemberGroup::subset(engine, context, rank as Rank, members);
        Ok(Self::of(Arc::clone(&self.member), group))
    }

    fn split_by(
        &self,
        color: Option<u32>,
        key: i64,
        has_room: bool,
        site: CallSite<'_>,
    ) -> Result<Option<Self>, Error> {
        let mine = SplitChoice { color, key, has_room };
        let size = self.size() as usize;
        let votes = TransferMemory::zeroed(size * SplitChoice::BYTES);
        let blocks = Blocks::Equal(SplitChoice::BYTES);
        let vote = self.collective(Collective::Allgather { blocks }, Datatype::Bytes);
        let input = TransferMemory::of(mine.encode().to_vec());
        // The number of this collective is the same at all members.
        let collective = vote.called_at(site).begin_on(input, votes.clone())?.wait()?.tag;
        let votes = votes.into_bytes();
        let votes = votes.as_chunks::<{ SplitChoice::BYTES }>().0;
        let votes: Vec<(Rank, SplitChoice)> = (0..).zip(votes.iter().map(SplitChoice::decode)).collect();
        let is_full = |(_, vote): &&(Rank, SplitChoice)| vote.color.is_some() && !vote.has_room;
        if let Some((rank, _)) = votes.iter().find(is_full) {
            let (rank, most) = (*rank, CONTEXTS_MAX);
            return Err(Error::TooManyCommunicators { rank, most });
        }
        let Some(color) = color else {
            return Ok(None);
        };
        let mut ranks: Vec<(i64, Rank)> = votes
            .iter()
            .filter(|(_, vote)| vote.color == Some(color))
            .map(|(rank, vote)| (vote.key, *rank))
            .collect();
        ranks.sort_unstable();
        let place = ranks.iter().position(|(_, rank)| *rank == self.rank());
        let outer = |(_, rank): &(i64, Rank)| self.group.rank_on_connections(*rank);
        let members: Arc<[Rank]> = ranks.iter().map(outer).collect::<Result<_, _>>()?;
        let context = context_number(self.group.context, collective, color);
        // This member has passed a color, so it is among the members with that color.
        place.map(|place| self.opened(context, place, members)).transpose()
    }
}

/// Number of a new communicator. It does not depend on any other choice that members make meanwhile, so members of
/// several communicators may split them in any order, and at the same time. It has 63 bits: among a few thousand
/// existing communicators, two get the same number in one of 10¹² programs, and equal numbers are detected.
fn context_number(parent: u64, collective: u32, color: u32) -> u64 {
    let (parent, collective, color) = (parent.to_le_bytes(), collective.to_le_bytes(), color.to_le_bytes());
    number_of(&[b"hotlease communicator", &parent, &collective, &color])
}

/// Digest of these parts, as the number of a communicator.
fn number_of(parts: &[&[u8]]) -> u64 {
    let mut digest = blake3::Hasher::new();
    for part in parts {
        digest.update(part);
    }
    let mut number = [0; 8];
    digest.finalize_xof().fill(&mut number);
    // The top bit is set, so the number never equals `WORLD`, the number of the first communicator.
    u64::from_le_bytes(number) | 1 << 63
}

/// Choice of a member in a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SplitChoice {
    color: Option<u32>,
    key: i64,
    /// Whether the member has reserved a place for the new communicator.
    has_room: bool,
}

impl SplitChoice {
    const BYTES: usize = 16;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = u8::from(self.color.is_some());
        bytes[1] = u8::from(self.has_room);
        bytes[4..8].copy_from_slice(&self.color.unwrap_or(0).to_le_bytes());
        bytes[8..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let mut key = [0; 8];
        key.copy_from_slice(&bytes[8..]);
        let color = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Self {
            color: (bytes[0] == 1).then_some(color),
            key: i64::from_le_bytes(key),
            has_room: bytes[1] == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn votes_arrive_as_they_were() {
        for color in [None, Some(0), Some(u32::MAX)] {
            for key in [0, -1, i64::MIN, i64::MAX] {
                for has_room in [false, true] {
                    let vote = SplitChoice { color, key, has_room };
                    assert_eq!(SplitChoice::decode(&vote.encode()), vote);
                }
            }
        }
    }

    #[test]
    fn parents_collectives_and_colors_make_different_numbers() {
        let mut numbers = HashSet::new();
        for parent in [0, 1, 1 << 63] {
            for collective in 0..100 {
                for color in 0..100 {
                    assert!(numbers.insert(context_number(parent, collective, color)));
                }
            }
        }
        assert!(!numbers.contains(&0), "that is the first communicator's");
    }
}
