//! A member ↔ the rendezvous: one question, one answer, which comes when all members of the group have asked.
//!
//! Both are control messages ([`crate::encode`]) in one record of Noise each.

use super::{GroupId, NAME_BYTES_MAX, RANKS_MAX};
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

/// What a member asks: to be put together with the others.
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
}

impl Join {
    /// Decodes and checks every bound; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let join: Self = crate::decode(bytes)?;
        let fits = (1..=NAME_BYTES_MAX).contains(&join.name.len())
            && (1..=RANKS_MAX).contains(&join.size)
            && join.rank.is_none_or(|rank| rank < join.size)
            && join.wait_ms <= WAIT_MS_MAX
            && join.meeting.fits(join.size, join.rank);
        if !fits {
            return Err(DecodeError::Malformed { what: "join" });
        }
        Ok(join)
    }
}

impl Meeting {
    fn fits(&self, size: u32, rank: Option<u32>) -> bool {
        match self {
            Self::First | Self::Growth => true,
            Self::Rest { lost, .. } => {
                rank.is_some() && lost.len() <= LOST_MAX && lost.iter().all(|lost| *lost < size)
            }
        }
    }
}

/// What the rendezvous answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// All have come.
    Together {
        /// Of these members and no others.
        group: GroupId,
        /// Of the member that is answered.
        rank: u32,
        /// Where each rank listens; as many as the size, at most [`RANKS_MAX`].
        members: Vec<SocketAddr>,
    },
    /// They will not come together.
    Refused(Refused),
}

impl Answer {
    /// Decodes and checks every bound; total on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let answer = crate::decode(bytes)?;
        let fits = match &answer {
            Self::Together { rank, members, .. } => {
                members.len() <= RANKS_MAX as usize && (*rank as usize) < members.len()
            }
            Self::Refused(Refused::Missing { ranks, size, .. }) => {
                (1..=RANKS_MAX).contains(size)
                    && ranks.len() <= *size as usize
                    && ranks.iter().all(|rank| rank < size)
            }
            Self::Refused(_) => true,
        };
        if !fits {
            return Err(DecodeError::Malformed { what: "answer" });
        }
        Ok(answer)
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
    /// As many wait here as can.
    Full {
        /// How many.
        members: u32,
    },
    /// The rendezvous is stopping.
    Stopping,
    /// Those that are left of a communicator have met without this member.
    Over,
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
            Self::Full { members } => {
                write!(f, "{members} members are waiting there, which is as many as can")
            }
            Self::Stopping => f.write_str("the rendezvous is stopping"),
            Self::Over => f.write_str(
                "the others have met without this member, which they held to be lost, or which came too late; start it again",
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
    fn the_largest_group_fits_into_an_answer() {
        let longest: SocketAddr = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
            .parse()
            .expect("an address");
        let answer = Answer::Together {
            group: GroupId([0xff; 16]),
            rank: RANKS_MAX - 1,
            members: vec![longest; RANKS_MAX as usize],
        };
        let bytes = crate::encode(&answer);
        assert!(bytes.len() <= super::super::RECORD_BYTES_MAX - super::super::SEAL_BYTES);
        assert_eq!(Answer::decode(&bytes), Ok(answer));
    }
}
