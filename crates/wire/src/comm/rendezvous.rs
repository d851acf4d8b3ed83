//! A member ↔ the rendezvous: one question, and one answer, which is sent when all members of the group have asked.
//!
//! Both are control messages ([`crate::encode`]): the question in one record of Noise, the answer in one or more
//! records ([`AnswerPieces`]). If the rendezvous sees a member at another address than the address on which the member
//! listens, the member is behind a NAT, and gets an answer in between:
//!
//! ```text
//!   member                                      rendezvous
//!     │ ── Question::Join ─────────────────────────► │  comes from an address other than the stated one
//!     │ ◄─────────────── Answer::Seen { number } ─── │
//!     │ ── Greeting { Mapping, number } ─ port 2 ──► │  from the same port: does it have the same address there?
//!     │ ◄──────────────────── Answer::Together ───── │
//! ```
//!
//! While a member waits with others for the rest of a communicator, it may learn that more members are lost. It reports
//! them by [`JoinQuestion::Lost`] on the same connection, so that it still gets an answer that is already on its way.
//! If it asked again on another connection, it would be too late for a meeting to which it belongs.
//!
//! Both members of a pair ask [`JoinQuestion::Relay`], each on a separate connection. When both have asked, each gets
//! [`JoinAnswer::Relayed`]. From then on bytes that one of them sends arrive at the other unchanged.

use super::{GroupId, NAME_BYTES_MAX, RANKS_MAX, RECORD_BYTES_MAX, SEAL_BYTES};
use crate::DecodeError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// Longest time for which a member may wait for the others, milliseconds: a day.
pub const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Largest number of ranks that one member may report lost; further lost ranks are found by the timeout.
pub const LOST_MAX: usize = 256;

/// Kind of a meeting. Meetings of one name and of different kinds are separate: a member that waits for one kind does
/// not join a meeting of another kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Meeting {
    /// The meeting of a new group.
    First,
    /// The meeting of a group that grows: its members, which keep their ranks, and the members that join it.
    Growth,
    /// The meeting of the remaining members of a communicator. It is complete when all members have arrived except
    /// members that an arrived member considers lost, or when the time of one member is over. Members that have arrived
    /// get new ranks in the order of their old ranks.
    Rest {
        /// The group that the communicator belongs to.
        of: GroupId,
        /// The communicator.
        context: u64,
        /// Number of earlier meetings of this kind of the communicator.
        number: u32,
        /// Old ranks that this member considers lost, at most [`LOST_MAX`].
        lost: Vec<u32>,
    },
}

/// Time that a member has to call the second port, milliseconds: without that call the kind of NAT is unknown, and
/// connections are tried.
pub const MAPPING_MS_MAX: u64 = 500;
/// Longest answer, bytes: the answer to the largest group with all members behind NATs.
const ANSWER_BYTES_MAX: usize = 48 * RANKS_MAX as usize + 64;

/// Question of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinQuestion {
    /// Joins a group.
    Join(Join),
    /// Asks for a relay to another member, because the two cannot reach each other.
    Relay(Relay),
    /// Sent by a member that waits for a [`Meeting::Rest`]: all old ranks that it considers lost by now, at most
    /// [`LOST_MAX`].
    Lost(Vec<u32>),
}

impl JoinQuestion {
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

/// A request for a relay between two members; each of the two members sends such a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// Group of both members.
    pub group: GroupId,
    /// Rank that asks.
    pub from: u32,
    /// Rank of the other member.
    pub to: u32,
}

impl Relay {
    fn fits(&self) -> bool {
        self.from < RANKS_MAX && self.to < RANKS_MAX && self.from != self.to
    }
}

/// A member's request to join a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Name of the communicator: 1 to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Size of the communicator, 1 to [`RANKS_MAX`].
    pub size: u32,
    /// Rank that this member wants; `None` for any free rank.
    pub rank: Option<u32>,
    /// Address on which this member listens.
    pub address: SocketAddr,
    /// How long the member waits for the others, milliseconds; at most [`WAIT_MS_MAX`].
    pub wait_ms: u64,
    /// The meeting.
    pub meeting: Meeting,
    /// Description of the link that the member uses, which must be equal for all members: see [`is_link`].
    pub link: String,
}

/// Longest description of a link, bytes.
pub const LINK_BYTES_MAX: usize = 256;

/// Whether a text is valid as a link's description: 1 to [`LINK_BYTES_MAX`] printable ASCII characters, so that it can
/// be shown.
pub fn is_link(text: &str) -> bool {
    (1..=LINK_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
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

/// Addresses of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberAddress {
    /// Address on which the member listens.
    pub address: SocketAddr,
    /// Mapping of that address, if there is a NAT between the member and the rendezvous.
    pub mapped: Option<NatMapping>,
}

/// A NAT's mapping of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NatMapping {
    /// Address that the rendezvous sees.
    pub address: SocketAddr,
    /// Whether the second port of the rendezvous sees another address than the first, as every peer will: the NAT is
    /// symmetric.
    pub varies: bool,
}

/// Answer of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinAnswer {
    /// There is a NAT between the member and the rendezvous; another answer follows.
    Seen {
        /// Second port of the rendezvous, to be called from the same local port as the first.
        port: u16,
        /// Number to send there, in the field of the group.
        number: GroupId,
    },
    /// All members have arrived.
    Together {
        /// Id of the group of exactly these members.
        group: GroupId,
        /// Rank of the member that gets this answer.
        rank: u32,
        /// Addresses of each rank; as many as the size, at most [`RANKS_MAX`].
        members: Vec<MemberAddress>,
        /// Whether members that cannot reach each other may ask for a relay.
        relays: bool,
    },
    /// The relay is connected: from here on bytes go to and come from the other member.
    Relayed,
    /// The members will not meet.
    Refused(JoinRejection),
}

impl JoinAnswer {
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
            Self::Refused(JoinRejection::Missing { ranks, size, .. }) => {
                (1..=RANKS_MAX).contains(size) && ranks.len() <= *size as usize && ranks.iter().all(|rank| rank < size)
            }
            Self::Refused(JoinRejection::OtherLink { theirs, ours }) => is_link(theirs) && is_link(ours),
            Self::Refused(_) | Self::Relayed => true,
        };
        if !fits {
            return Err(DecodeError::Malformed { what: "answer" });
        }
        Ok(answer)
    }

    /// Splits the answer into contents of records. Each content begins with a flag, which says whether another record
    /// follows.
    pub fn pieces(&self) -> Vec<Vec<u8>> {
        let bytes = crate::encode(self);
        let chunks = bytes.chunks(RECORD_BYTES_MAX - SEAL_BYTES - 1);
        let last = chunks.len() - 1;
        let piece = |(number, chunk): (usize, &[u8])| [&[u8::from(number < last)], chunk].concat();
        chunks.enumerate().map(piece).collect()
    }
}

/// An answer that arrives record by record.
#[derive(Debug, Default)]
pub struct AnswerPieces {
    got: Vec<u8>,
}

impl AnswerPieces {
    /// Adds the content of a record; returns the answer after the last record. Total on any bytes, and stores no more
    /// bytes than the longest answer has.
    pub fn take(&mut self, piece: &[u8]) -> Result<Option<JoinAnswer>, DecodeError> {
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
        JoinAnswer::decode(&std::mem::take(&mut self.got)).map(Some)
    }
}

/// Reason why members will not meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinRejection {
    /// A member has waited for its whole time.
    Missing {
        /// Ranks that did not arrive. Members that asked for no rank fill the first free ranks, so the last free ranks
        /// are missing.
        ranks: Vec<u32>,
        /// Size of the group.
        size: u32,
        /// How long the first member to give up had waited, milliseconds.
        waited_ms: u64,
    },
    /// Another member has this rank.
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// Address on which the other member listens.
        other: SocketAddr,
    },
    /// Members of this name wait for a group of another size.
    OtherSize {
        /// Size that the other members have asked for.
        theirs: u32,
        /// Size that the receiver of this answer has asked for.
        ours: u32,
    },
    /// Members of this name use another link.
    OtherLink {
        /// Link of the other members.
        theirs: String,
        /// Link of the receiver of this answer.
        ours: String,
    },
    /// The rendezvous has no room for further waiting members.
    Full {
        /// Number of waiting members.
        members: u32,
    },
    /// The rendezvous is stopping.
    Stopping,
    /// The remaining members of the communicator have met without this member.
    MetWithoutYou,
    /// The rendezvous has reached its limit of relayed pairs.
    NoRelay {
        /// Limit of pairs; 0 if the rendezvous never relays.
        relays: u32,
    },
}

impl fmt::Display for JoinRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { ranks, size, waited_ms } => {
                let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
                write!(f, "{noun} {} of {size} did not come within ", Ranks(ranks))?;
                write!(f, "{:?}", std::time::Duration::from_millis(*waited_ms))
            }
            Self::DuplicateRank { rank, other } => {
                write!(
                    f,
                    "rank {rank} belongs to another member, which listens at {other}; give each member a rank of its own"
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
                write!(f, "{members} members are waiting there, which is the limit")
            }
            Self::Stopping => f.write_str("the rendezvous is stopping"),
            Self::MetWithoutYou => f.write_str(
                "the others have met without this member, because it seemed lost or came too late; start it again",
            ),
            Self::NoRelay { relays: 0 } => f.write_str("the rendezvous does not relay"),
            Self::NoRelay { relays } => {
                write!(f, "the rendezvous relays {relays} pairs of members, which is its limit")
            }
        }
    }
}

/// Text of numbers, as `0, 3 to 5 and 9`; only the first numbers if there are many.
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
    fn missing_members_are_named() {
        let missing = |ranks: &[u32]| {
            let refused = JoinRejection::Missing {
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
        let place = MemberAddress {
            address: longest,
            mapped: Some(NatMapping {
                address: longest,
                varies: true,
            }),
        };
        let together = |size: u32| JoinAnswer::Together {
            group: GroupId([0xff; 16]),
            rank: size - 1,
            members: vec![place; size as usize],
            relays: true,
        };
        for (size, records) in [(1, 1), (64, 1), (RANKS_MAX, 2)] {
            let answer = together(size);
            let mut came = answer.pieces();
            assert_eq!(came.len(), records, "{size} members");
            assert!(came.iter().all(|piece| piece.len() <= RECORD_BYTES_MAX - SEAL_BYTES));
            let mut pieces = AnswerPieces::default();
            let last = came.pop().expect("one at least");
            for piece in came {
                assert_eq!(pieces.take(&piece), Ok(None));
            }
            assert_eq!(pieces.take(&last), Ok(Some(answer)));
        }
    }

    #[test]
    fn records_without_an_end_are_refused() {
        let mut pieces = AnswerPieces::default();
        let more = [&[1][..], &[0; 1000]].concat();
        let refused = (0..200).find_map(|_| pieces.take(&more).err());
        assert!(refused.is_some(), "200 kB were kept");
        assert!(pieces.got.len() <= ANSWER_BYTES_MAX);
        for wrong in [&[][..], &[2, 0], &[0xff]] {
            assert!(AnswerPieces::default().take(wrong).is_err(), "{wrong:?}");
        }
    }
}
