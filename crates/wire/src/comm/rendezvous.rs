//! A member ↔ the rendezvous: one question, one answer, which comes when all members of the group have asked.
//!
//! Both are control messages ([`crate::encode`]): the question in one record of Noise, the answer in one or more
//! ([`Pieces`]). A member that is seen elsewhere than where it listens is behind a NAT, and gets an answer in between:
//!
//! ```text
//!   member                                      rendezvous
//!     │ ── Question::Join ─────────────────────────► │  comes from another address than it says
//!     │ ◄─────────────── Answer::Seen { number } ─── │
//!     │ ── Greeting { Mapping, number } ─ port 2 ──► │  from the same port: does it have the same address there?
//!     │ ◄──────────────────── Answer::Together ───── │
//! ```
//!
//! Who waits with the others for what is left of a communicator, and hears meanwhile that more are lost, says so by
//! [`Question::Lost`] on the same connection. The answer may be on its way already, and then is the one that counts: a member
//! that asked anew, on another connection, would come too late for a meeting that it belongs to.
//!
//! [`Question::Relay`] is asked on a connection of its own by both members of a pair. When both have, each is
//! answered [`Answer::Relayed`], and from then on what one of them sends comes out at the other as it is.

use super::{GroupId, NAME_BYTES_MAX, RANKS_MAX, RECORD_BYTES_MAX, SEAL_BYTES};
use crate::DecodeError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// How long a member may wait for the others at most, milliseconds: a day.
pub const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Ranks that one member may report lost; where there are more, time tells.
pub const LOST_MAX: usize = 256;

/// Which meeting it is, of those of one name: members of one do not come to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Meeting {
    /// Of a new group.
    First,
    /// Of a group that grows, whose members keep their ranks, and of those that join it.
    Growth,
    /// Of those that are left of a communicator: it is over when all have come but those that one of them holds to be lost, or when
    /// the time of one is over. Who has come is given new ranks in the order of the old ones.
    Rest {
        /// The group that the communicator belongs to.
        of: GroupId,
        /// The communicator.
        context: u64,
        /// How many such meetings of it there were before.
        number: u32,
        /// The old ranks that this member holds to be lost, at most [`LOST_MAX`].
        lost: Vec<u32>,
    },
}

/// How long a member has for a word at the second port, milliseconds: without it nobody knows what kind of NAT there is, and
/// they are tried.
pub const MAPPING_MS_MAX: u64 = 500;
/// The longest answer, bytes: to the largest group, all behind NATs.
const ANSWER_BYTES_MAX: usize = 48 * RANKS_MAX as usize + 64;

/// What a member asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// To be put together with the others.
    Join(Join),
    /// To be connected with another member, because they cannot reach each other.
    Relay(Relay),
    /// Of a member that waits for a [`Meeting::Rest`]: all old ranks that it holds to be lost by now, at most [`LOST_MAX`].
    Lost(Vec<u32>),
}

impl Question {
    /// Decodes and checks every bound; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let question = crate::decode(bytes)?;
        let fits = match &question {
            Self::Join(join) => join.fits(),
            Self::Relay(relay) => relay.fits(),
            Self::Lost(ranks) => are_lost(ranks, RANKS_MAX),
        };
        if !fits {
            return Err(DecodeError::Malformed { what: "question" });
        }
        Ok(question)
    }
}

/// Between which two members to relay; each of them asks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// Of both.
    pub group: GroupId,
    /// Who asks.
    pub from: u32,
    /// Whom it wants to talk to.
    pub to: u32,
}

impl Relay {
    fn fits(&self) -> bool {
        self.from < RANKS_MAX && self.to < RANKS_MAX && self.from != self.to
    }
}

/// Of a member: to be put together with the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Of the communicator: 1 to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// How many members it has, 1 to [`RANKS_MAX`].
    pub size: u32,
    /// The rank that this member wants; none: whichever is left.
    pub rank: Option<u32>,
    /// Where this member listens.
    pub address: SocketAddr,
    /// How long it waits for the others, milliseconds; at most [`WAIT_MS_MAX`].
    pub wait_ms: u64,
    /// Which others.
    pub meeting: Meeting,
    /// What it is to talk over with them, in words that all of them have to say alike: see [`is_link`].
    pub link: String,
}

/// Bytes of what members say of their link.
pub const LINK_BYTES_MAX: usize = 256;

/// Whether it can be what a member says of its link: 1 to [`LINK_BYTES_MAX`] letters and signs of ASCII, so that it can be shown.
pub fn is_link(text: &str) -> bool {
    (1..=LINK_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

impl Join {
    fn fits(&self) -> bool {
        (1..=NAME_BYTES_MAX).contains(&self.name.len())
            && (1..=RANKS_MAX).contains(&self.size)
            && self.rank.is_none_or(|rank| rank < self.size)
            && self.wait_ms <= WAIT_MS_MAX
            && self.meeting.fits(self.size, self.rank)
            && is_link(&self.link)
    }
}

impl Meeting {
    fn fits(&self, size: u32, rank: Option<u32>) -> bool {
        match self {
            Self::First | Self::Growth => true,
            Self::Rest { lost, .. } => rank.is_some() && are_lost(lost, size),
        }
    }
}

fn are_lost(ranks: &[u32], size: u32) -> bool {
    ranks.len() <= LOST_MAX && ranks.iter().all(|rank| *rank < size)
}

/// Where a member can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Where it listens.
    pub address: SocketAddr,
    /// What a NAT makes of that, if there is one between it and the rendezvous.
    pub mapped: Option<Mapped>,
}

/// What a NAT makes of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mapped {
    /// As the rendezvous sees it.
    pub address: SocketAddr,
    /// The second port of the rendezvous sees another one, and so will everybody: the NAT is symmetric.
    pub varies: bool,
}

/// What the rendezvous answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// There is a NAT between the member and the rendezvous, and another answer follows.
    Seen {
        /// The second port of the rendezvous, to be called from where the first one was.
        port: u16,
        /// What to say there, in the place of a group.
        number: GroupId,
    },
    /// All have come.
    Together {
        /// Of these members and no others.
        group: GroupId,
        /// Of the member that is answered.
        rank: u32,
        /// Where each rank is; as many as the size, at most [`RANKS_MAX`].
        members: Vec<Place>,
        /// Those that cannot reach each other may ask to be relayed.
        relays: bool,
    },
    /// From here on the other member is on the line.
    Relayed,
    /// They will not come together.
    Refused(Refused),
}

impl Answer {
    /// Decodes and checks every bound; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(DecodeError::Malformed { what: "answer" });
        }
        let answer = crate::message::decode_of_any_length(bytes)?;
        let fits = match &answer {
            Self::Seen { port, .. } => *port > 0,
            Self::Together { rank, members, .. } => {
                members.len() <= RANKS_MAX as usize && (*rank as usize) < members.len()
            }
            Self::Refused(Refused::Missing { ranks, size, .. }) => {
                (1..=RANKS_MAX).contains(size)
                    && ranks.len() <= *size as usize
                    && ranks.iter().all(|rank| rank < size)
            }
            Self::Refused(Refused::OtherLink { theirs, ours }) => is_link(theirs) && is_link(ours),
            Self::Refused(_) | Self::Relayed => true,
        };
        if !fits {
            return Err(DecodeError::Malformed { what: "answer" });
        }
        Ok(answer)
    }

    /// As the contents of records, each of which begins with whether another one follows.
    pub fn pieces(&self) -> Vec<Vec<u8>> {
        let bytes = crate::encode(self);
        let chunks = bytes.chunks(RECORD_BYTES_MAX - SEAL_BYTES - 1);
        let last = chunks.len() - 1;
        let piece = |(number, chunk): (usize, &[u8])| [&[u8::from(number < last)], chunk].concat();
        chunks.enumerate().map(piece).collect()
    }
}

/// An answer whose records come one by one.
#[derive(Debug, Default)]
pub struct Pieces {
    got: Vec<u8>,
}

impl Pieces {
    /// The content of a record has come; the answer, if it was the last one. Total on any bytes, and keeps no more than the
    /// longest answer.
    pub fn take(&mut self, piece: &[u8]) -> Result<Option<Answer>, DecodeError> {
        let malformed = DecodeError::Malformed { what: "answer" };
        let Some((follows @ 0..=1, chunk)) = piece.split_first() else {
            return Err(malformed);
        };
        if self.got.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(malformed);
        }
        self.got.extend_from_slice(chunk);
        if *follows == 1 {
            return Ok(None);
        }
        Answer::decode(&std::mem::take(&mut self.got)).map(Some)
    }
}

/// Why members will not come together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refused {
    /// A member has waited as long as it wanted to.
    Missing {
        /// The ranks that nobody came for; where members did not ask for a rank, the last ones.
        ranks: Vec<u32>,
        /// Of how many.
        size: u32,
        /// How long the first to give up had waited, milliseconds.
        waited_ms: u64,
    },
    /// Another member has this rank.
    DuplicateRank {
        /// Which.
        rank: u32,
        /// Where the other one listens.
        other: SocketAddr,
    },
    /// Members of this name are waiting for a group of another size.
    OtherSize {
        /// Of the group.
        theirs: u32,
        /// Of the member that is answered.
        ours: u32,
    },
    /// Members of this name are to talk over another link.
    OtherLink {
        /// What the others have said.
        theirs: String,
        /// What the member that is answered has.
        ours: String,
    },
    /// As many wait here as can.
    Full {
        /// How many.
        members: u32,
    },
    /// The rendezvous is stopping.
    Stopping,
    /// Those that are left of a communicator have met without this member.
    Over,
    /// As many members as may are relayed here already.
    NoRelay {
        /// How many pairs may be; 0: none ever.
        relays: u32,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing {
                ranks,
                size,
                waited_ms,
            } => {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{noun} {} of {size} did not come within ", Ranks(ranks))?;
                write!(f, "{:?}", std::time::Duration::from_millis(*waited_ms))
            }
            Self::DuplicateRank { rank, other } => {
                write!(
                    f,
                    "rank {rank} is another member's, which listens at {other}; give each member a rank of its own"
                )
            }
            Self::OtherSize { theirs, ours } => write!(
                f,
                "members of this name are waiting for a group of {theirs}, not of {ours}; use another name, or the same size everywhere"
            ),
            Self::OtherLink { theirs, ours } => write!(
                f,
                "members of this name talk over `{theirs}`, and not over `{ours}`; give all of them the same link (HOTLEASE_COMM_LINK)"
            ),
            Self::Full { members } => {
                write!(f, "{members} members are waiting there, which is as many as can")
            }
            Self::Stopping => f.write_str("the rendezvous is stopping"),
            Self::Over => f.write_str(
                "the others have met without this member, which they held to be lost, or which came too late; start it again",
            ),
            Self::NoRelay { relays: 0 } => f.write_str("the rendezvous relays nothing"),
            Self::NoRelay { relays } => write!(
                f,
                "the rendezvous relays {relays} pairs of members, which is as many as it may"
            ),
        }
    }
}

/// Numbers, as `0, 3 to 5 and 9`; the first ones where there are many.
struct Ranks<'a>(&'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for rank in self.0 {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
                _ => runs.push((*rank, *rank)),
            }
        }
        for (number, (first, last)) in runs.iter().take(SHOWN).enumerate() {
            let is_last = number + 1 == runs.len();
            f.write_str(match number {
                0 => "",
                _ if is_last => " and ",
                _ => ", ",
            })?;
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first}, {last}")?,
                _ => write!(f, "{first} to {last}")?,
            }
        }
        if runs.len() > SHOWN {
            f.write_str(" and more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_is_named() {
        let missing = |ranks: &[u32]| {
            let refused = Refused::Missing {
                ranks: ranks.to_vec(),
                size: 64,
                waited_ms: 1500,
            };
            refused.to_string()
        };
        assert_eq!(missing(&[3]), "rank 3 of 64 did not come within 1.5s");
        assert_eq!(
            missing(&[0, 1, 2, 5, 9]),
            "ranks 0 to 2, 5 and 9 of 64 did not come within 1.5s"
        );
        let many: Vec<u32> = (0..40).step_by(2).collect();
        assert!(missing(&many).contains("12, 14 and more"), "{}", missing(&many));
    }

    #[test]
    fn the_largest_group_comes_out_of_its_records() {
        let longest: SocketAddr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
            .parse()
            .expect("an address");
        let place = Place {
            address: longest,
            mapped: Some(Mapped {
                address: longest,
                varies: true,
            }),
        };
        let together = |size: u32| Answer::Together {
            group: GroupId([0xff; 16]),
            rank: size - 1,
            members: vec![place; size as usize],
            relays: true,
        };
        for (size, records) in [(1, 1), (64, 1), (RANKS_MAX, 2)] {
            let answer = together(size);
            let mut came = answer.pieces();
            assert_eq!(came.len(), records, "{size} members");
            assert!(
                came.iter()
                    .all(|piece| piece.len() <= RECORD_BYTES_MAX - SEAL_BYTES)
            );
            let mut pieces = Pieces::default();
            let last = came.pop().expect("one at least");
            for piece in came {
                assert_eq!(pieces.take(&piece), Ok(None));
            }
            assert_eq!(pieces.take(&last), Ok(Some(answer)));
        }
    }

    #[test]
    fn records_without_an_end_are_refused() {
        let mut pieces = Pieces::default();
        let more = [&[1][..], &[0; 1000]].concat();
        let refused = (0..200).find_map(|_| pieces.take(&more).err());
        assert!(refused.is_some(), "200 kB were kept");
        assert!(pieces.got.len() <= ANSWER_BYTES_MAX);
        for wrong in [&[][..], &[2, 0], &[0xff]] {
            assert!(Pieces::default().take(wrong).is_err(), "{wrong:?}");
        }
    }
}
