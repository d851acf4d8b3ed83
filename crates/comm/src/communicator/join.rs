//! Joining a communicator: the rendezvous of its members, and the link that they communicate over.

use super::group::MemberGroup;
use super::member::Member;
use super::{Communicator, WORLD};
use crate::engine::keeper::Keeper;
use crate::engine::{Engine, EnginePatience, EngineState};
use crate::error::Error;
use crate::link::mesh::{MemberConnection, MeshPlan, connect};
use crate::link::ofi::{Ofi, open};
use crate::link::shm::Shm;
use crate::link::shm::node::{members_per_processor, numbers, own_processor, processors, this_node};
use crate::link::tcp::Tcp;
use crate::link::{Link, StoreJoin};
use crate::options::{LinkChoice, Options};
use crate::protocol::{Bounds, Protocol};
use crate::rendezvous::client::{self, MeetingResult};
use crate::route::Route;
use crate::secret::Secret;
use hotlease_collectives::{LinkKind, Rank, Table};
use hotlease_fabric::contention::OwnProcessor;
use hotlease_fabric::ofi::Messenger;
use hotlease_wire::comm::frame::SMALL_BYTES_MAX;
use hotlease_wire::comm::greeting::MemberNode;
use hotlease_wire::comm::rendezvous::Meeting;
use hotlease_wire::comm::{GroupId, Loss};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Times for connecting members that have met.
#[derive(Clone, Copy)]
struct JoinTimes {
    began: Instant,
    deadline: Instant,
    /// Whether the set of members is settled. If so, a member that cannot be reached counts as failed.
    is_partial: bool,
}

/// Link between members that have met, and the nodes and processors of these members.
struct MemberLinks {
    link: Box<dyn Link>,
    routes: Vec<Route>,
    /// A number for the node of each member.
    nodes: Vec<u32>,
    /// Number of members that share each member's processor.
    crowds: Vec<u32>,
    /// This member's own processor, if there are other members on its node.
    own: Option<OwnProcessor>,
    missing: Vec<Rank>,
}

impl Communicator {
    /// Meets the other members at the rendezvous, and connects with all of them, or with the store that all members
    /// communicate through.
    ///
    /// # Errors
    /// [`Error::Options`]; [`Error::Table`] of a table that `HOTLEASE_COMM_TABLE` names; [`Error::Prices`] and
    /// [`Error::Model`] if the model is to choose the link; [`Error::NoRendezvous`], [`Error::SecretMismatch`],
    /// [`Error::Rejection`] of the rendezvous; [`Error::RendezvousRefused`] if the rendezvous says that a member is missing,
    /// that a rank is taken, or that members differ in size or link; [`Error::Unreachable`] of a member,
    /// [`Error::NoStore`] of a store, [`Error::NoFabric`] of libfabric.
    pub fn join(options: &Options) -> Result<Self, Error> {
        // These checks are made before any other member waits for this member.
        let options = &options.resolve()?;
        let table = options.table()?;
        let choice = options.choose_link(options.size)?;
        if let LinkChoice::Ofi { provider } = &choice {
            open::check(&options.name, provider.as_deref())?;
        }
        if choice.is_mediated() {
            options.opener(&choice)?;
        }
        let began = Instant::now();
        let meeting = if options.is_newcomer {
            Meeting::Growth
        } else {
            Meeting::First
        };
        let errand = client::MeetingRequest {
            options,
            size: options.size,
            rank: options.rank,
            meeting: &|| meeting.clone(),
        };
        let met = client::meet(&errand, began)?;
        Self::assemble((options, choice), table, met, began, options.is_newcomer)
    }

    /// Connects members that have met, over the link chosen for their number. `is_partial`: the set of members is
    /// settled, so a member that cannot be reached counts as failed.
    pub(super) fn assemble(
        (options, choice): (&Options, LinkChoice),
        table: Arc<Table>,
        met: MeetingResult,
        began: Instant,
        is_partial: bool,
    ) -> Result<Self, Error> {
        let (id, rank) = (met.group, met.rank);
        // If the set of members is settled, a failed member is detected within twice the failure bound, not only after the
        // join timeout.
        let deadline = if is_partial {
            Instant::now() + 2 * options.failure_bound
        } else {
            began + options.join_timeout
        };
        let times = JoinTimes {
            began,
            deadline,
            is_partial,
        };
        let talking = &Options {
            link: choice.clone(),
            ..options.clone()
        };
        let way = if choice.is_mediated() {
            connect_store(talking, &met, times)?
        } else {
            connect_members(talking, met, times)?
        };
        Self::start((options, choice), table, (rank, id), way, times)
    }

    /// Makes a communicator whose only member is this process. It needs no rendezvous.
    ///
    /// # Errors
    /// [`Error::Options`] if the name is invalid; [`Error::Table`] of a table that `HOTLEASE_COMM_TABLE` names;
    /// [`Error::LocalFailure`].
    pub fn alone(name: &str) -> Result<Self, Error> {
        // No peer ever asks for this secret.
        let secret = Secret::new(&rand::random::<[u8; 32]>())?;
        let options = Options::new(name, 1, "", secret);
        options.check()?;
        let group = GroupId(rand::random());
        let table = options.table()?;
        let way = make_links(member_node(&options), 0, vec![None], None)?;
        let now = Instant::now();
        let times = JoinTimes {
            began: now,
            deadline: now,
            is_partial: false,
        };
        let choice = options.link.clone();
        Self::start((&options, choice), table, (0, group), way, times)
    }

    /// Starts the communicator over these links. Members may still be joining until the deadline.
    fn start(
        (options, choice): (&Options, LinkChoice),
        table: Arc<Table>,
        (me, id): (Rank, GroupId),
        way: MemberLinks,
        times: JoinTimes,
    ) -> Result<Self, Error> {
        let size = way.routes.len() as Rank;
        let bounds = Bounds {
            small_bytes: options.eager_bytes.min(SMALL_BYTES_MAX),
            eager_bytes: options.eager_bytes,
            early_bytes: options.early_bytes,
        };
        let is_mediated = choice.is_mediated();
        let protocol = Protocol::new(me, size, bounds);
        let mut protocol = if is_mediated {
            protocol.through_a_store()
        } else {
            protocol
        };
        let members: Arc<[Rank]> = (0..size).collect();
        protocol.open(WORLD, Arc::clone(&members));
        for rank in way.missing {
            protocol.handle_loss(rank, Loss::Silent);
        }
        // With a store, another thread waits for objects, so polling here would find none sooner.
        let spin = if is_mediated { Duration::ZERO } else { options.spin };
        let patience = EnginePatience::of(spin, way.crowds[me as usize], way.own);
        let engine = Arc::new(Engine::new(protocol, way.link, patience));
        let keeper = Keeper::start(Arc::clone(&engine), me, size, options.failure_bound, times.deadline);
        let keeper = keeper.map_err(Error::local("start a thread"))?;
        let is_together = |state: &mut EngineState| state.link.unopened_member().is_none().then_some(());
        while engine.drive_until(false, Some(times.deadline), is_together).is_none() {
            let Some(apart) = engine.lock().link.unopened_member() else {
                break;
            };
            if !times.is_partial {
                return Err(open::silence_error(&options.name, apart));
            }
            engine.change(|protocol| protocol.handle_loss(apart, Loss::Silent));
            engine.lock().link.close(apart);
        }
        let member = Member {
            engine: Arc::clone(&engine),
            keeper: Mutex::new(Some(keeper)),
            options: options.clone(),
            id,
            size,
            link: choice.kind().unwrap_or(LinkKind::Tcp),
            choice,
            routes: way.routes,
            nodes: way.nodes,
            is_crowded: way.crowds.iter().any(|crowd| *crowd > 1),
            table,
            is_checked: options.is_checked(),
            handles: AtomicUsize::new(0),
        };
        let group = MemberGroup::all(engine, WORLD, me, members);
        Ok(Self::of(Arc::new(member), group))
    }
}

/// Connects with all other members.
fn connect_members(options: &Options, met: MeetingResult, times: JoinTimes) -> Result<MemberLinks, Error> {
    let messenger = match &options.link {
        LinkChoice::Ofi { provider } => {
            let local = met.stream.local_addr();
            let local = local.map_err(Error::local("tell this member's address"))?.ip();
            let size = met.members.len() as Rank;
            Some(open::open(&options.name, provider.as_deref(), local, size)?)
        }
        _ => None,
    };
    let member_node = member_node(options);
    let plan = MeshPlan {
        name: &options.name,
        secret: &options.secret,
        group: met.group,
        me: met.rank,
        members: &met.members,
        relay: met.relay,
        is_sealed: options.is_sealed,
        link: messenger
            .as_ref()
            .map_or(0, |messenger| open::digest(messenger.provider())),
        is_partial: times.is_partial,
        member_node,
        deadline: times.deadline,
    };
    let connected = connect(&plan, met.port)?;
    // The connection was open until now, so that a NAT retained the address that it had assigned to the port.
    drop(met.stream);
    make_links(member_node, met.rank, connected, messenger)
}

/// Makes the link of a member at `member_node` from the connections in `joined`, which are ordered by rank, and from the
/// messenger. Members without a connection are missing.
fn make_links(
    member_node: MemberNode,
    me: Rank,
    joined: Vec<Option<MemberConnection>>,
    messenger: Option<Messenger>,
) -> Result<MemberLinks, Error> {
    let missing = (0..joined.len() as Rank)
        .filter(|rank| *rank != me && joined[*rank as usize].is_none())
        .collect();
    let provider = messenger.as_ref().map(Messenger::provider);
    let route = |joined: &Option<MemberConnection>| match (joined, provider) {
        (None, _) => Route::Itself,
        (Some(_), Some(provider)) => Route::Fabric { provider },
        (Some(joined), None) => joined.route,
    };
    let routes = joined.iter().map(route).collect();
    let member_nodes = (0..).zip(&joined).map(|(rank, joined)| match joined {
        Some(joined) => joined.member_node,
        None if rank == me => member_node,
        None => MemberNode::UNKNOWN,
    });
    let member_nodes: Vec<MemberNode> = member_nodes.collect();
    let nodes = numbers(&member_nodes);
    let link = link(joined, messenger, me, &nodes).map_err(Error::local("wait for messages"))?;
    Ok(MemberLinks {
        link,
        routes,
        nodes,
        crowds: members_per_processor(&member_nodes),
        own: own_processor(&member_nodes, me),
        missing,
    })
}

/// Connects with the store that all other members use. If a member does not appear in the store, the link reports the
/// member as lost.
fn connect_store(options: &Options, met: &MeetingResult, times: JoinTimes) -> Result<MemberLinks, Error> {
    let size = met.members.len() as Rank;
    let link = (options.opener(&options.link)?.open)(&StoreJoin {
        options,
        group: met.group,
        me: met.rank,
        size,
        began: times.began,
        deadline: times.deadline,
        is_partial: times.is_partial,
    })?;
    let route = |rank| match rank == met.rank {
        true => Route::Itself,
        false => Route::Stored,
    };
    Ok(MemberLinks {
        link,
        routes: (0..size).map(route).collect(),
        nodes: (0..size).collect(),
        crowds: vec![1; size as usize],
        own: None,
        missing: Vec::new(),
    })
}

/// Node of this member, as it is announced to the other members.
fn member_node(options: &Options) -> MemberNode {
    this_node().map_or(MemberNode::UNKNOWN, |node| MemberNode {
        node,
        shares_memory: options.link == LinkChoice::Direct,
        processors: processors(),
    })
}

/// Makes the link: libfabric if there is a messenger, else lanes if another member is on this node, else TCP.
fn link(
    joined: Vec<Option<MemberConnection>>,
    messenger: Option<Messenger>,
    me: Rank,
    nodes: &[u32],
) -> io::Result<Box<dyn Link>> {
    let connected: Vec<bool> = joined.iter().map(Option::is_some).collect();
    let tcp = Tcp::new(joined)?;
    if let Some(messenger) = messenger {
        return Ok(Box::new(Ofi::new(tcp, messenger, &connected)?));
    }
    let is_shared = nodes.iter().filter(|node| **node == nodes[me as usize]).count() > 1;
    Ok(if is_shared {
        Box::new(Shm::new(tcp, me, nodes)?)
    } else {
        Box::new(tcp)
    })
}
