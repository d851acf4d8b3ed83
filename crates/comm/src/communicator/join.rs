//! How members find each other, and what they talk over then.

use super::group::Group;
use super::member::Member;
use super::{Communicator, WORLD};
use crate::choice::{LinkKind, Table};
use crate::engine::Engine;
use crate::engine::keeper::Keeper;
use crate::error::Error;
use crate::link::mesh::{Joined, Plan, connect};
use crate::link::tcp::Tcp;
use crate::options::Options;
use crate::protocol::{Bounds, Protocol};
use crate::rendezvous::client::{self, Met};
use crate::route::Route;
use crate::schedule::Rank;
use hotlease_wire::comm::Loss;
use hotlease_wire::comm::rendezvous::Meeting;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

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
        let size = met.members.len() as Rank;
        // After the meeting a member that has failed is not waited for much longer than at any other time.
        let deadline = if is_partial {
            Instant::now() + 2 * options.failure_bound
        } else {
            began + options.join_timeout
        };
        let plan = Plan {
            name: &options.name,
            secret: &options.secret,
            group: met.group,
            me: met.rank,
            members: &met.members,
            relay: met.relay,
            is_sealed: options.is_sealed,
            is_partial,
            deadline,
        };
        let joined = connect(&plan, met.port)?;
        let missing: Vec<Rank> = (0..size)
            .filter(|rank| *rank != met.rank && joined[*rank as usize].is_none())
            .collect();
        // What a NAT made of it was of use until now.
        drop(met.stream);
        let route = |joined: &Option<Joined>| joined.as_ref().map_or(Route::Itself, |joined| joined.route);
        let routes = joined.iter().map(route).collect();
        let link = Tcp::new(joined).map_err(Error::local("wait for messages"))?;
        let bounds = Bounds {
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let mut protocol = Protocol::new(met.rank, size, bounds);
        let members: Arc<[Rank]> = (0..size).collect();
        protocol.open(WORLD, Arc::clone(&members));
        for rank in missing {
            protocol.lost(rank, Loss::Silent);
        }
        let engine = Arc::new(Engine::new(protocol, Box::new(link), options.spin));
        let keeper = Keeper::start(
            Arc::clone(&engine),
            met.rank,
            size,
            options.failure_bound,
            plan.deadline,
        );
        let keeper = keeper.map_err(Error::local("start a thread"))?;
        let member = Member {
            engine: Arc::clone(&engine),
            keeper: Mutex::new(Some(keeper)),
            options: options.clone(),
            id: met.group,
            size,
            link: LinkKind::Tcp,
            routes,
            nodes: None,
            table,
            is_checked: options.is_checked(),
            handles: AtomicUsize::new(0),
        };
        let group = Group::all(engine, WORLD, met.rank, members);
        Ok(Self::of(Arc::new(member), group))
    }
}
