//! How members find each other, and what they talk over then.

use super::{Communicator, WORLD};
use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::link::mesh::{Joined, Plan, connect};
use crate::link::tcp::Tcp;
use crate::options::Options;
use crate::protocol::{Bounds, Protocol};
use crate::rendezvous::client;
use crate::route::Route;
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
        let plan = Plan {
            name: &options.name,
            secret: &options.secret,
            group: met.group,
            me: met.rank,
            members: &met.members,
            relay: met.relay,
            is_sealed: options.is_sealed,
            deadline: began + options.join_timeout,
        };
        let joined = connect(&plan, met.port)?;
        // What a NAT made of it was of use until now.
        drop(met.stream);
        let route = |joined: &Option<Joined>| joined.as_ref().map_or(Route::Itself, |joined| joined.route);
        let routes = joined.iter().map(route).collect();
        let link = Tcp::new(joined).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(met.rank, options.size, bounds);
        protocol.open(WORLD, (0..options.size).collect());
        let engine = Arc::new(Engine::new(protocol, Box::new(link), options.spin));
        let keeper = Keeper::start(
            Arc::clone(&engine),
            met.rank,
            options.size,
            options.failure_bound,
            plan.deadline,
        );
        Ok(Self {
            keeper: Some(keeper.map_err(Error::local("start a thread"))?),
            engine,
            name: options.name.clone(),
            rank: met.rank,
            size: options.size,
            linger: options.linger,
            routes,
        })
    }
}
