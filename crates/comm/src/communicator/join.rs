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
use crate::schedule::Rank;
use crate::secret::Secret;
use hotlease_wire::comm::rendezvous::Meeting;
use hotlease_wire::comm::{GroupId, Loss};
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
            is_sealed: options.is_sealed,
            is_partial,
            deadline,
        };
        let joined = connect(&plan, met.port)?;
        Self::over(options, table, (met.rank, met.group), joined)
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
        Self::over(&options, table, (0, group), vec![None])
    }

    /// Over these connections, by rank. Others are lost.
    fn over(
        options: &Options,
        table: Arc<Table>,
        (me, id): (Rank, GroupId),
        joined: Vec<Option<Joined>>,
    ) -> Result<Self, Error> {
        let size = joined.len() as Rank;
        let missing: Vec<Rank> = (0..size)
            .filter(|rank| *rank != me && joined[*rank as usize].is_none())
            .collect();
        let link = Tcp::new(joined).map_err(Error::local("wait for messages"))?;
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
        let engine = Arc::new(Engine::new(protocol, Box::new(link), options.spin));
        let keeper = Keeper::start(Arc::clone(&engine), me, size, options.failure_bound);
        let keeper = keeper.map_err(Error::local("start a thread"))?;
        let member = Member {
            engine: Arc::clone(&engine),
            keeper: Mutex::new(Some(keeper)),
            options: options.clone(),
            id,
            size,
            link: LinkKind::Tcp,
            nodes: None,
            table,
            is_checked: options.is_checked(),
            handles: AtomicUsize::new(0),
        };
        let group = Group::all(engine, WORLD, me, members);
        Ok(Self::of(Arc::new(member), group))
    }
}
