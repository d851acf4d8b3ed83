//! Members of a communicator. The engine addresses members by their rank on its connections, and users address them by
//! their rank in the communicator.

use crate::engine::Engine;
use crate::error::{Activity, Error};
use crate::matching::Pattern;
use crate::protocol::MessageStatus;
use hotlease_collectives::Rank;
use std::sync::Arc;

/// The members of a communicator, with the mapping between ranks in the communicator and ranks on the connections.
pub(crate) struct MemberGroup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) context: u64,
    /// Rank of this member.
    pub(crate) rank: Rank,
    /// Rank on the connections, by rank in the communicator.
    pub(crate) members: Arc<[Rank]>,
    /// Inverse mapping, sorted by rank on the connections; `None` if both ranks are equal.
    ranks: Option<Box<[(Rank, Rank)]>>,
}

impl MemberGroup {
    /// Makes a group of all members on the connections.
    pub(crate) fn all(engine: Arc<Engine>, context: u64, rank: Rank, members: Arc<[Rank]>) -> Self {
        Self {
            engine,
            context,
            rank,
            members,
            ranks: None,
        }
    }

    /// Makes a group of some members, in this order.
    pub(crate) fn subset(engine: Arc<Engine>, context: u64, rank: Rank, members: Arc<[Rank]>) -> Self {
        let ranks = members.iter().enumerate();
        let mut ranks: Vec<(Rank, Rank)> = ranks.map(|(rank, world)| (*world, rank as Rank)).collect();
        ranks.sort_unstable();
        Self {
            ranks: Some(ranks.into()),
            ..Self::all(engine, context, rank, members)
        }
    }

    /// Rank on the connections.
    pub(crate) fn rank_on_connections(&self, rank: Rank) -> Result<Rank, Error> {
        let size = self.members.len() as Rank;
        let outer = self.members.get(rank as usize).copied();
        outer.ok_or(Error::NoSuchRank { rank, size })
    }

    /// Translates the source of a receive into a rank on the connections.
    pub(crate) fn pattern(&self, pattern: Pattern) -> Result<Pattern, Error> {
        let source = pattern
            .source
            .map(|source| self.rank_on_connections(source))
            .transpose()?;
        Ok(Pattern { source, ..pattern })
    }

    /// Rank in the communicator, by rank on the connections; `None` if that rank is not a member.
    fn rank_in_communicator(&self, outer: Rank) -> Option<Rank> {
        let Some(ranks) = &self.ranks else {
            return Some(outer);
        };
        let place = ranks.binary_search_by_key(&outer, |(outer, _)| *outer).ok()?;
        Some(ranks[place].1)
    }

    pub(crate) fn status(&self, status: MessageStatus) -> MessageStatus {
        MessageStatus {
            source: self.rank_in_communicator(status.source).unwrap_or(status.source),
            ..status
        }
    }

    fn during(&self, during: Activity) -> Activity {
        match during {
            Activity::Send { to, tag } => Activity::Send {
                to: self.rank_in_communicator(to).unwrap_or(to),
                tag,
            },
            Activity::Receive { from, tag } => Activity::Receive {
                from: from.map(|from| self.rank_in_communicator(from).unwrap_or(from)),
                tag,
            },
            Activity::Collective { .. } | Activity::Meeting | Activity::Finish => during,
        }
    }

    /// Translates the ranks in an error into ranks of the communicator. Only its own members make operations of a
    /// communicator fail, so all ranks in the error are members. The exception is the reporter of [`Error::Outcast`],
    /// which may belong to another communicator.
    pub(crate) fn error(&self, mut error: Error) -> Error {
        if self.ranks.is_none() {
            return error;
        }
        let inner = |rank: &mut Rank| *rank = self.rank_in_communicator(*rank).unwrap_or(*rank);
        match &mut error {
            Error::Truncated { source_rank, .. } => inner(source_rank),
            Error::Mismatch { source_rank, .. } => inner(source_rank),
            Error::CollectiveFailed { rank, .. } | Error::UnreadData { rank, .. } => inner(rank),
            Error::MemberLost { during, rank, .. } | Error::MemberLeft { during, rank } => {
                inner(rank);
                *during = self.during(*during);
            }
            Error::Outcast {
                during,
                rank,
                reporter: by,
                ..
            } => {
                inner(rank);
                *by = by.and_then(|by| self.rank_in_communicator(by));
                *during = self.during(*during);
            }
            Error::Cancelled { during } | Error::MemoryReclaimed { during } | Error::Store { during, .. } => {
                *during = self.during(*during);
            }
            _ => {}
        }
        error
    }
}
