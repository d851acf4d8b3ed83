//! Matchmaker: assembles the members of each communicator. A pure state machine.

use hotlease_wire::comm::GroupId;
use hotlease_wire::comm::greeting::KeyId;
use hotlease_wire::comm::rendezvous::{Join, JoinAnswer, JoinRejection, Meeting, MemberAddress, NatMapping};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Number of a member's connection.
pub(super) type ConnectionId = usize;

struct WaitingMember {
    connection: ConnectionId,
    rank: Option<u32>,
    place: MemberAddress,
    since: Instant,
    until: Instant,
    /// Ranks that this member considers lost, so that the meeting does not wait for them.
    lost: Vec<u32>,
}

struct Assembly {
    size: u32,
    link: String,
    members: Vec<WaitingMember>,
}

/// Name of an assembly. A name belongs to one secret: members with another secret neither meet nor disturb its members.
type AssemblyName = (KeyId, String, MeetingKind);

/// Kind of a [`Meeting`], without the parts in which members of one meeting may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MeetingKind {
    First,
    Growth,
    Rest(GroupId, u64, u32),
}

impl MeetingKind {
    fn of(meeting: Meeting) -> (Self, Vec<u32>) {
        match meeting {
            Meeting::First => (Self::First, Vec::new()),
            Meeting::Growth => (Self::Growth, Vec::new()),
            Meeting::Rest {
                of,
                context,
                number,
                lost,
            } => (Self::Rest(of, context, number), lost),
        }
    }

    fn is_rest(self) -> bool {
        matches!(self, Self::Rest(..))
    }
}

/// Time for which a meeting of the rest of a communicator is remembered. A member that arrives later was left out, and
/// must not take itself for the only remaining member.
const MEMORY: Duration = Duration::from_secs(60 * 60);
/// Maximum number of meetings of the rest of a communicator that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// Assemblies that wait for their members.
pub(super) struct Matchmaker {
    assemblies: HashMap<AssemblyName, Assembly>,
    names: HashMap<ConnectionId, AssemblyName>,
    /// Meetings of the rest of a communicator that are over, and the time until which each is remembered.
    over: HashMap<AssemblyName, Instant>,
    members_max: u32,
    /// Whether the rendezvous relays between members.
    relays: bool,
}

impl Matchmaker {
    pub(super) fn new(members_max: u32, relays: bool) -> Self {
        Self {
            assemblies: HashMap::new(),
            names: HashMap::new(),
            over: HashMap::new(),
            members_max,
            relays,
        }
    }

    /// Adds a member that has arrived; `mapped` is its address outside a NAT, if there is a NAT. Returns answers, and
    /// the connections that they are for.
    pub(super) fn join(
        &mut self,
        key: KeyId,
        connection: ConnectionId,
        join: Join,
        mapped: Option<NatMapping>,
        now: Instant,
        group: GroupId,
    ) -> Vec<(ConnectionId, JoinAnswer)> {
        let refuse = |refused| vec![(connection, JoinAnswer::Refused(refused))];
        if self.names.len() >= self.members_max as usize {
            let members = self.members_max;
            return refuse(JoinRejection::Full { members });
        }
        let (kind, lost) = MeetingKind::of(join.meeting);
        let name = (key, join.name, kind);
        if self.over.get(&name).is_some_and(|until| *until > now) {
            return refuse(JoinRejection::MetWithoutYou);
        }
        let assembly = self.assemblies.entry(name.clone()).or_insert(Assembly {
            size: join.size,
            link: join.link.clone(),
            members: Vec::new(),
        });
        // A new assembly has the size and the link of its first member, so only later members can differ.
        if assembly.size != join.size {
            return refuse(JoinRejection::OtherSize {
                theirs: assembly.size,
                ours: join.size,
            });
        }
        if assembly.link != join.link {
            return refuse(JoinRejection::OtherLink {
                theirs: assembly.link.clone(),
                ours: join.link,
            });
        }
        let same = |member: &&WaitingMember| join.rank.is_some() && member.rank == join.rank;
        if kind.is_rest() {
            // The connection of the member broke, and the member has connected again.
            let again = assembly.members.iter().position(|member| same(&member));
            if let Some(again) = again.map(|place| assembly.members.swap_remove(place)) {
                self.names.remove(&again.connection);
            }
        } else if let (Some(rank), Some(other)) = (join.rank, assembly.members.iter().find(same)) {
            return refuse(JoinRejection::DuplicateRank {
                rank,
                other: other.place.address,
            });
        }
        self.names.insert(connection, name.clone());
        assembly.members.push(WaitingMember {
            connection,
            rank: join.rank,
            place: MemberAddress {
                address: join.address,
                mapped,
            },
            since: now,
            until: now + Duration::from_millis(join.wait_ms),
            lost,
        });
        self.finish_if_whole(name, group, now)
    }

    /// Records that a member which waits for the rest of a communicator considers these ranks lost. Returns answers,
    /// and the connections that they are for, or `None` if the member waits for no such meeting or a rank does not
    /// exist.
    pub(super) fn report_lost(
        &mut self,
        connection: ConnectionId,
        ranks: Vec<u32>,
        now: Instant,
        group: GroupId,
    ) -> Option<Vec<(ConnectionId, JoinAnswer)>> {
        let name = self.names.get(&connection).filter(|name| name.2.is_rest())?.clone();
        let assembly = self.assemblies.get_mut(&name)?;
        if ranks.iter().any(|rank| *rank >= assembly.size) {
            return None;
        }
        let member = assembly
            .members
            .iter_mut()
            .find(|member| member.connection == connection)?;
        member.lost = ranks;
        Some(self.finish_if_whole(name, group, now))
    }

    /// Ends the assembly of this name if it is complete.
    fn finish_if_whole(&mut self, name: AssemblyName, group: GroupId, now: Instant) -> Vec<(ConnectionId, JoinAnswer)> {
        let is_whole = |assembly: &Assembly| assembly.is_whole(name.2);
        if !self.assemblies.get(&name).is_some_and(is_whole) {
            return Vec::new();
        }
        match self.assemblies.remove(&name) {
            Some(assembly) => self.finish(name, &assembly, group, now),
            None => Vec::new(),
        }
    }

    fn finish(
        &mut self,
        name: AssemblyName,
        assembly: &Assembly,
        group: GroupId,
        now: Instant,
    ) -> Vec<(ConnectionId, JoinAnswer)> {
        if name.2.is_rest() {
            self.over.retain(|_, until| *until > now);
            if self.over.len() >= REMEMBERED_MAX {
                let oldest = self.over.iter().min_by_key(|(_, until)| **until);
                if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                    self.over.remove(&oldest);
                }
            }
            self.over.insert(name, now + MEMORY);
        }
        let mut free = assembly.free().into_iter();
        let mut placed: Vec<(u32, &WaitingMember)> = assembly
            .members
            .iter()
            .filter_map(|member| Some((member.rank.or_else(|| free.next())?, member)))
            .collect();
        placed.sort_unstable_by_key(|(rank, _)| *rank);
        let members: Vec<MemberAddress> = placed.iter().map(|(_, member)| member.place).collect();
        // These ranks equal the ranks above, unless some members have not arrived.
        let answers = (0..).zip(&placed).map(|(rank, (_, member))| {
            self.names.remove(&member.connection);
            let answer = JoinAnswer::Together {
                group,
                rank,
                members: members.clone(),
                relays: self.relays,
            };
            (member.connection, answer)
        });
        answers.collect()
    }

    /// Removes a member whose connection was closed before the answer: another member may take its place.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        let Some(name) = self.names.remove(&connection) else {
            return;
        };
        if let Some(assembly) = self.assemblies.get_mut(&name) {
            assembly.members.retain(|member| member.connection != connection);
            if assembly.members.is_empty() {
                self.assemblies.remove(&name);
            }
        }
    }

    /// Number of members that wait.
    pub(super) fn waiting(&self) -> usize {
        self.names.len()
    }

    /// Earliest time at which a member's wait is over.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let members = self.assemblies.values().flat_map(|assembly| &assembly.members);
        members.map(|member| member.until).min()
    }

    /// Ends the assemblies in which a member's wait is over. Their members are told which ranks are missing. But the
    /// rest of a communicator meets without the missing members. `group` makes the id of a new group.
    pub(super) fn expire(&mut self, now: Instant, group: impl Fn() -> GroupId) -> Vec<(ConnectionId, JoinAnswer)> {
        let is_over = |assembly: &Assembly| assembly.members.iter().any(|member| member.until <= now);
        let over: Vec<AssemblyName> = self
            .assemblies
            .iter()
            .filter(|(_, assembly)| is_over(assembly))
            .map(|(name, _)| name.clone())
            .collect();
        let mut answers = Vec::new();
        for name in over {
            let Some(assembly) = self.assemblies.remove(&name) else {
                continue;
            };
            if name.2.is_rest() {
                answers.extend(self.finish(name, &assembly, group(), now));
                continue;
            }
            let waited = assembly.members.iter().filter(|member| member.until <= now);
            let waited = waited.map(|member| member.until - member.since).max();
            let refused = JoinRejection::Missing {
                ranks: assembly.missing(),
                size: assembly.size,
                waited_ms: waited.unwrap_or_default().as_millis() as u64,
            };
            answers.extend(self.refuse_all(&assembly, &refused));
        }
        answers
    }

    /// Refuses all members that wait, because the rendezvous stops.
    pub(super) fn stop(&mut self) -> Vec<(ConnectionId, JoinAnswer)> {
        let assemblies = std::mem::take(&mut self.assemblies);
        let refused = assemblies
            .values()
            .flat_map(|assembly| self.refuse_all(assembly, &JoinRejection::Stopping));
        refused.collect()
    }

    fn refuse_all(&mut self, assembly: &Assembly, refused: &JoinRejection) -> Vec<(ConnectionId, JoinAnswer)> {
        let peers = assembly.members.iter().map(|member| member.connection);
        let answers = peers.map(|connection| {
            self.names.remove(&connection);
            (connection, JoinAnswer::Refused(refused.clone()))
        });
        answers.collect()
    }
}

impl Assembly {
    /// Whether all members that can still arrive have arrived.
    fn is_whole(&self, kind: MeetingKind) -> bool {
        if !kind.is_rest() {
            return self.members.len() >= self.size as usize;
        }
        let come = self.members.iter().filter_map(|member| member.rank);
        let lost = self.members.iter().flat_map(|member| member.lost.iter().copied());
        come.chain(lost).collect::<HashSet<u32>>().len() >= self.size as usize
    }

    /// Ranks that no member has asked for.
    fn free(&self) -> Vec<u32> {
        let mut is_taken = vec![false; self.size as usize];
        for rank in self.members.iter().filter_map(|member| member.rank) {
            is_taken[rank as usize] = true;
        }
        (0..self.size).filter(|rank| !is_taken[*rank as usize]).collect()
    }

    /// Ranks for which no member has arrived: members that asked for no rank get the first free ranks.
    fn missing(&self) -> Vec<u32> {
        let unranked = self.members.iter().filter(|member| member.rank.is_none());
        self.free().split_off(unranked.count())
    }
}

#[cfg(test)]
mod tests;
