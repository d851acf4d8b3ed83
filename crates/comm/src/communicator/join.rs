//! How members find each other, and what they talk over then.

use super::group::Group;
use super::member::Member;
use super::{Communicator, WORLD};
use crate::choice::{LinkKind, Table};
use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::link::Link;
use crate::link::mesh::{Joined, Plan, connect};
use crate::link::shm::Shm;
use crate::link::shm::node::{here, numbers};
use crate::link::tcp::Tcp;
use crate::options::{LinkChoice, Options};
use crate::protocol::{Bounds, Protocol};
use crate::rendezvous::client::{self, Met};
use crate::route::Route;
use crate::schedule::Rank;
use crate::secret::Secret;
use hotlease_wire::comm::greeting::NodeId;
use hotlease_wire::comm::rendezvous::Meeting;
use hotlease_wire::comm::{GroupId, Loss};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

impl Communicator {
    /// Meets the other members at the rendezvous, and connects with all of them.
    ///
    /// # Errors
    /// [`Error::Options`]; [`Error::Table`] of a table that is named by `HOTLEASE_COMM_TABLE`;
    /// [`Error::NoRendezvous`], [`Error::OtherSecret`], [`Error::NotLetIn`] of the rendezvous;
    /// [`Error::NotTogether`] where it says that a member is missing, a rank taken, or a size another one;
    /// [`Error::Unreachable`] of a member.
    pub fn join(options: &Options) -> Result<Self, Error> {
        options.check()?;
        // Before others wait for this member.
        let table = options.table()?;
        options.link()?;
        let began = Instant::now();
        let meeting = if options.is_newcomer {
            Meeting::Growth
        } else {
            Meeting::First
        };
        let errand = client::Errand {
            options,
            size: options.size,
            rank: options.rank,
            meeting: &|| meeting.clone(),
        };
        let met = client::meet(&errand, began)?;
        Self::assemble(options, table, met, began, options.is_newcomer)
    }

    /// Of those that have met. `is_partial`: that they are the members is settled, also where one cannot be reached, which has failed then.
    pub(super) fn assemble(
        options: &Options,
        table: Arc<Table>,
        met: Met,
        began: Instant,
        is_partial: bool,
    ) -> Result<Self, Error> {
        // After the meeting a member that has failed is not waited for much longer than at any other time.
        let deadline = if is_partial {
            Instant::now() + 2 * options.failure_bound
        } else {
            began + options.join_timeout
        };
        let node = node(options)?;
        let plan = Plan {
            name: &options.name,
            secret: &options.secret,
            group: met.group,
            me: met.rank,
            members: &met.members,
            relay: met.relay,
            is_sealed: options.is_sealed,
            is_partial,
            node,
            deadline,
        };
        let joined = connect(&plan, met.port)?;
        // What a NAT made of it was of use until now.
        drop(met.stream);
        Self::over(options, table, (met.rank, met.group), joined, deadline)
    }

    /// One whose only member is this process. It needs no rendezvous.
    ///
    /// # Errors
    /// [`Error::Options`] of a name that cannot be; [`Error::Table`] of a table that is named by `HOTLEASE_COMM_TABLE`;
    /// [`Error::Local`].
    pub fn alone(name: &str) -> Result<Self, Error> {
        // Nobody is asked for it.
        let secret = Secret::new(&rand::random::<[u8; 32]>())?;
        let options = Options::new(name, 1, "", secret);
        options.check()?;
        let group = GroupId(rand::random());
        let table = options.table()?;
        Self::over(&options, table, (0, group), vec![None], Instant::now())
    }

    /// Over these connections, by rank. Others are lost. Until `joined_by` members may still be joining.
    fn over(
        options: &Options,
        table: Arc<Table>,
        (me, id): (Rank, GroupId),
        joined: Vec<Option<Joined>>,
        joined_by: Instant,
    ) -> Result<Self, Error> {
        let size = joined.len() as Rank;
        let missing: Vec<Rank> = (0..size)
            .filter(|rank| *rank != me && joined[*rank as usize].is_none())
            .collect();
        let route = |joined: &Option<Joined>| joined.as_ref().map_or(Route::Itself, |joined| joined.route);
        let routes = joined.iter().map(route).collect();
        let node = node(options)?;
        let nodes = (0..).zip(&joined).map(|(rank, joined)| match joined {
            Some(joined) => joined.node,
            None if rank == me => node,
            None => NodeId::ALONE,
        });
        let nodes = numbers(&nodes.collect::<Vec<_>>());
        let link = link(joined, me, &nodes).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(me, size, bounds);
        let members: Arc<[Rank]> = (0..size).collect();
        protocol.open(WORLD, Arc::clone(&members));
        for rank in missing {
            protocol.lost(rank, Loss::Silent);
        }
        let spin = if is_crowded(&nodes, me) {
            Duration::ZERO
        } else {
            options.spin
        };
        let engine = Arc::new(Engine::new(protocol, link, spin));
        let keeper = Keeper::start(Arc::clone(&engine), me, size, options.failure_bound, joined_by);
        let keeper = keeper.map_err(Error::local("start a thread"))?;
        let member = Member {
            engine: Arc::clone(&engine),
            keeper: Mutex::new(Some(keeper)),
            options: options.clone(),
            id,
            size,
            link: LinkKind::Tcp,
            routes,
            nodes,
            table,
            is_checked: options.is_checked(),
            handles: AtomicUsize::new(0),
        };
        let group = Group::all(engine, WORLD, me, members);
        Ok(Self::of(Arc::new(member), group))
    }
}

/// Where this member is, as far as others are to know.
fn node(options: &Options) -> Result<NodeId, Error> {
    Ok(match options.link()? {
        LinkChoice::Direct => here().unwrap_or(NodeId::ALONE),
        LinkChoice::Tcp => NodeId::ALONE,
    })
}

/// Whether this member's node has more members than processors: then who is waited for would not run meanwhile.
fn is_crowded(nodes: &[u32], me: Rank) -> bool {
    let here = nodes.iter().filter(|node| **node == nodes[me as usize]);
    here.count() > processors()
}

/// For the members of this node.
fn processors() -> usize {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        // Each member may have one of its own.
        1 => {
            let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
            online.ok().and_then(|list| count(list.trim())).unwrap_or(1)
        }
        processors => processors,
    }
}

/// Of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let parts = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    parts.sum()
}

/// Lanes where any other member is on this one's node.
fn link(joined: Vec<Option<Joined>>, me: Rank, nodes: &[u32]) -> io::Result<Box<dyn Link>> {
    let tcp = Tcp::new(joined)?;
    let is_shared = nodes.iter().filter(|node| **node == nodes[me as usize]).count() > 1;
    Ok(if is_shared {
        Box::new(Shm::new(tcp, me, nodes)?)
    } else {
        Box::new(tcp)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(
            ["0", "0-1", "0-3,8,10-11"].map(count),
            [Some(1), Some(2), Some(7)]
        );
        assert_eq!(["", "1-0", "a"].map(count), [None; 3]);
        assert!(processors() > 0);
    }
}
