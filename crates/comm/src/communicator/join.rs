//! How members find each other, and what they talk over then.

use super::{Communicator, WORLD};
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
use crate::rendezvous::client;
use crate::schedule::Rank;
use hotlease_wire::comm::greeting::NodeId;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Communicator {
    /// Meets the other members at the rendezvous, and connects with all of them.
    ///
    /// # Errors
    /// [`Error::Options`]; [`Error::NoRendezvous`], [`Error::OtherSecret`], [`Error::NotLetIn`] of the rendezvous;
    /// [`Error::NotTogether`] where it says that a member is missing, a rank taken, or a size another one;
    /// [`Error::Unreachable`] of a member.
    pub fn join(options: &Options) -> Result<Self, Error> {
        options.check()?;
        let began = Instant::now();
        let met = client::meet(options, began)?;
        let node = match options.link {
            LinkChoice::Direct => here().unwrap_or(NodeId::ALONE),
            LinkChoice::Tcp => NodeId::ALONE,
        };
        let plan = Plan {
            name: &options.name,
            secret: &options.secret,
            group: met.group,
            me: met.rank,
            members: &met.members,
            is_sealed: options.is_sealed,
            node,
            deadline: began + options.join_timeout,
        };
        let joined = connect(&plan, met.port)?;
        let nodes = joined
            .iter()
            .map(|joined| joined.as_ref().map_or(node, |joined| joined.node));
        let nodes = numbers(&nodes.collect::<Vec<_>>());
        let link = link(joined, met.rank, &nodes).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(met.rank, options.size, bounds);
        protocol.open(WORLD, (0..options.size).collect());
        let spin = if is_crowded(&nodes, met.rank) {
            Duration::ZERO
        } else {
            options.spin
        };
        let engine = Arc::new(Engine::new(protocol, link, spin));
        let keeper = Keeper::start(Arc::clone(&engine), met.rank, options.size, options.failure_bound);
        Ok(Self {
            keeper: Some(keeper.map_err(Error::local("start a thread"))?),
            engine,
            name: options.name.clone(),
            rank: met.rank,
            size: options.size,
            nodes,
            linger: options.linger,
        })
    }
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
