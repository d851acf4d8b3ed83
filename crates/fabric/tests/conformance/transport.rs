//! Two connected ends in one process, over each transport.

use hotlease_fabric::channel::{ClientChannel, ReplyRing, RequestRing, WorkerChannel};
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::{Libfabric, OfiRing, Port, PortOptions, PortPeer, Provider, providers};
use hotlease_fabric::ring::FarRing;
use hotlease_fabric::shm::ShmRing;
use hotlease_wire::connection::RingShape;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit of every operation that must succeed.
pub const LONG: Duration = Duration::from_secs(20);

/// The part of a channel's end that makes progress and sleeps.
pub enum Side {
    Bell(Doorbell),
    Port(Arc<Port>),
}

impl Side {
    pub fn progress(&self) {
        if let Self::Port(port) = self {
            port.progress();
        }
    }

    /// Sleeps until `ready` returns true, or for 100 ms.
    pub fn sleep(&self, ready: impl Fn() -> bool) {
        let a_while = Duration::from_millis(100);
        match self {
            Self::Bell(bell) => bell.sleep_unless(ready, Some(a_while)),
            Self::Port(port) => port.sleep(a_while, ready),
        };
    }
}

/// Both ends of a channel.
pub struct Ends<F: FarRing> {
    pub client: ClientChannel<F>,
    pub worker: WorkerChannel<F>,
    pub client_side: Arc<Side>,
    pub worker_side: Arc<Side>,
}

/// A transport that makes both ends of a channel.
pub trait Pair {
    type Far: FarRing + 'static;
    fn connect(&self, requests: RingShape, replies: RingShape) -> Ends<Self::Far>;
}

pub const GENERATION: u32 = 7;

pub fn shape(depth: u32, entry_bytes: u32) -> RingShape {
    RingShape { depth, entry_bytes }
}

/// The transport `shm`.
pub struct Shm;

impl Pair for Shm {
    type Far = ShmRing;

    fn connect(&self, requests: RingShape, replies: RingShape) -> Ends<ShmRing> {
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        let reply_ring = ReplyRing::create(replies).unwrap();
        let request_ring = RequestRing::create(requests).unwrap();
        let (client_bell, slot_bell) = (Doorbell::create().unwrap(), Doorbell::create().unwrap());
        let request_fd = own(request_ring.fd());
        let (reply_fd, bell) = (own(reply_ring.fd()), own(client_bell.fd()));
        let worker = WorkerChannel::open(request_ring, GENERATION, replies, reply_fd, bell).unwrap();
        let bell = own(slot_bell.fd());
        let client = ClientChannel::open(reply_ring, GENERATION, requests, request_fd, bell).unwrap();
        Ends {
            client,
            worker,
            client_side: Arc::new(Side::Bell(client_bell)),
            worker_side: Arc::new(Side::Bell(slot_bell)),
        }
    }
}

/// Source of the libfabric under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibfabricChoice {
    System,
    Second,
}

/// A provider of one libfabric.
pub struct Fabric {
    pub provider: Provider,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Fabric {
    /// Runs a test on a provider, or prints why it is skipped.
    pub fn with(which: LibfabricChoice, name: &str, test: fn(&Self)) {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let path = match which {
            LibfabricChoice::System => "libfabric.so.1".into(),
            LibfabricChoice::Second => match std::env::var("HOTLEASE_LIBFABRIC_TEST") {
                Ok(path) if !path.is_empty() => path,
                _ => return eprintln!("skipped: HOTLEASE_LIBFABRIC_TEST names no second libfabric"),
            },
        };
        let library = match Libfabric::load_from(Path::new(&path)) {
            Ok(library) => library,
            Err(error) if which == LibfabricChoice::System => return eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        };
        let loopback = "127.0.0.1".parse().unwrap();
        match providers::find_provider(&library, name, Some(loopback)) {
            Ok(provider) => {
                eprintln!("{library:?}: {provider:?}");
                test(&Self { provider });
            }
            Err(error) => eprintln!("skipped: {library:?}: {error}"),
        }
    }

    pub fn port(&self) -> Arc<Port> {
        Port::open(&self.provider).unwrap()
    }

    /// Opens a port with this send timeout.
    pub fn impatient_port(&self, send_timeout: Duration) -> Arc<Port> {
        let options = PortOptions {
            send_timeout,
            ..PortOptions::default()
        };
        Port::open_with(&self.provider, options).unwrap()
    }
}

/// Makes two ports known to each other; returns the first port's peer and the second port's peer.
pub fn introduce(first: &Arc<Port>, second: &Arc<Port>) -> (Arc<PortPeer>, Arc<PortPeer>) {
    let key = rand::random();
    let seen_by_first = first.peer(&second.address(), key).unwrap();
    let seen_by_second = second.peer(&first.address(), key).unwrap();
    (Arc::new(seen_by_first), Arc::new(seen_by_second))
}

/// As [`introduce`], with the connection set up: a first send needs both ends to make progress.
pub fn connected(first: &Arc<Port>, second: &Arc<Port>) -> (Arc<PortPeer>, Arc<PortPeer>) {
    let (to_second, to_first) = introduce(first, second);
    crate::ports::attended(second, || first.probe(&to_second, LONG).unwrap());
    crate::ports::attended(first, || second.probe(&to_first, LONG).unwrap());
    (to_second, to_first)
}

/// Opens a channel between two peers: `to_worker` belongs to the client's port.
pub fn open(
    to_worker: &Arc<PortPeer>,
    to_client: &Arc<PortPeer>,
    requests: RingShape,
    replies: RingShape,
) -> Ends<OfiRing> {
    let reply_ring = ReplyRing::create(replies).unwrap();
    let request_ring = RequestRing::create(requests).unwrap();
    let client_end = to_worker.port().open_channel(reply_ring.near()).unwrap();
    let worker_end = to_client.port().open_channel(request_ring.near()).unwrap();
    let (client_says, worker_says) = (*client_end.end(), *worker_end.end());
    let replies = worker_end.connect(to_client, &client_says, true).unwrap();
    let requests = client_end.connect(to_worker, &worker_says, false).unwrap();
    Ends {
        client: ClientChannel::over(reply_ring, GENERATION, requests),
        worker: WorkerChannel::over(request_ring, GENERATION, replies),
        client_side: Arc::new(Side::Port(to_worker.port().clone())),
        worker_side: Arc::new(Side::Port(to_client.port().clone())),
    }
}

impl Pair for Fabric {
    type Far = OfiRing;

    fn connect(&self, requests: RingShape, replies: RingShape) -> Ends<OfiRing> {
        let (to_worker, to_client) = introduce(&self.port(), &self.port());
        open(&to_worker, &to_client, requests, replies)
    }
}
