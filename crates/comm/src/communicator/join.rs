//! How members find each other, and what they talk over then.

use super::{Communicator, WORLD};
use crate::engine::keeper::Keeper;
use crate::engine::{Engine, Patience};
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
use std::time::Instant;

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
        let nodes = joined.iter().map(|joined| joined.as_ref().map_or(node, |joined| joined.node));
        let nodes = numbers(&nodes.collect::<Vec<_>>());
        let link = link(joined, met.rank, &nodes).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(met.rank, options.size, bounds);
        protocol.open(WORLD, (0..options.size).collect());
        let patience = Patience {
            polls: polls(&nodes, met.rank, options),
            spin: options.spin,
        };
        let engine = Arc::new(Engine::new(protocol, link, patience));
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

/// Polls that follow each other at once before others may have the processor. None where this node has more members than processors:
/// who is waited for would not run meanwhile.
const POLLS: u32 = 200;

fn polls(nodes: &[u32], me: Rank, options: &Options) -> u32 {
    let here = nodes.iter().filter(|node| **node == nodes[me as usize]).count();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if here > processors || options.spin.is_zero() {
        0
    } else {
        POLLS
    }
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
