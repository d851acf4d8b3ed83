//! The client's side of a channel over a fabric, without the client library.

use crate::connection::{RawConnection, SHAPE};
use crate::platform::LIMIT;
use hotlease_fabric::channel::{CallParameters, ClientChannel, ReplyRing};
use hotlease_fabric::ofi::providers::Addressing;
use hotlease_fabric::ofi::{Libfabric, OfiRing, Port, PortPeer, Provider, providers};
use hotlease_wire::Rejection;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest};
use hotlease_wire::fabric::{RingDescription, RmaMemory};
use hotlease_wire::frame::{Flags, ReplyHeader};
use hotlease_wire::ids::{Epoch, FunctionIndex, RegionId, SlotIndex};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the best provider that can connect this machine with itself; prints a message and returns `None` if there is
/// none.
pub fn provider() -> Option<Provider> {
    let library = Libfabric::load()
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()?;
    let mut found = providers(&library, Some(HERE)).into_iter();
    let found = found.find(|provider| provider.quirks().addressing != Addressing::Node);
    if found.is_none() {
        eprintln!("skipped: {library:?} has no provider over sockets");
    }
    found
}

/// A port of this process that is connected with a worker's slot.
pub struct RawLink {
    /// Port of this process.
    pub port: Arc<Port>,
    /// The slot's port.
    pub peer: Arc<PortPeer>,
    key: u64,
}

impl RawLink {
    /// Connects the first slot with a new port.
    ///
    /// # Panics
    /// If the worker refuses, or the provider does not start.
    pub fn make(connection: &RawConnection, provider: &Provider) -> Self {
        let port = Port::open(provider).expect("a port");
        let key = Port::draw_key();
        let link = ConnectionRequest::Link {
            slot: SlotIndex(0),
            port: port.address(),
            key,
            host: Some(HERE),
        };
        let worker = match connection.ask(&link, &[]) {
            Some((ConnectionReply::Linked { port }, _)) => port,
            other => panic!("to Link: {other:?}"),
        };
        let peer = Arc::new(port.peer(&worker, key).expect("a peer"));
        Self { port, peer, key }
    }

    /// Makes the provider do its lazy set-up now.
    ///
    /// # Panics
    /// If no bytes are returned.
    pub fn probe(&self) {
        self.port.probe(&self.peer, LIMIT).expect("bytes there and back");
    }

    /// Opens a channel.
    ///
    /// # Panics
    /// If the worker refuses.
    pub fn channel(&self, connection: &RawConnection) -> RawFabricChannel {
        let replies = ReplyRing::create(SHAPE).expect("a ring");
        let near = self.port.open_channel(replies.near()).expect("an end");
        let (generation, worker) = self
            .open(connection, *near.end())
            .unwrap_or_else(|refusal| panic!("no channel: {refusal}"));
        let requests = near.connect(&self.peer, &worker, false).expect("connected");
        RawFabricChannel {
            client: ClientChannel::over(replies, generation, requests),
            next: 0,
        }
    }

    /// Asks for a channel whose replies go to `end`.
    ///
    /// # Panics
    /// If the answer is neither yes nor no.
    pub fn open(&self, connection: &RawConnection, end: RingDescription) -> Result<(u32, RingDescription), Rejection> {
        let open = ConnectionRequest::OpenFabric {
            slot: SlotIndex(0),
            request: SHAPE,
            key: self.key,
            end,
        };
        match connection.ask(&open, &[]) {
            Some((ConnectionReply::OpenedFabric { generation, end }, _)) => Ok((generation, end)),
            Some((ConnectionReply::Refused(refusal), _)) => Err(refusal),
            other => panic!("to OpenFabric: {other:?}"),
        }
    }
}

/// One channel; checks nothing that it sends.
pub struct RawFabricChannel {
    client: ClientChannel<OfiRing>,
    next: u64,
}

impl RawFabricChannel {
    /// Publishes a request and does not wait.
    ///
    /// # Panics
    /// If the request does not fit.
    pub fn publish(&mut self, epoch: Epoch, function: FunctionIndex, flags: Flags, payload: &[u8]) {
        let call = CallParameters {
            epoch,
            function,
            flags,
            timeout_us: 0,
            output_capacity: 64,
        };
        self.client.publish(self.next, &call, &[payload]).expect("it fits");
        self.next += 1;
    }

    /// Waits for the reply to the last request; `None` if the link breaks instead.
    ///
    /// # Panics
    /// If neither happens in time.
    pub fn reply(&self) -> Option<ReplyHeader> {
        let start = Instant::now();
        loop {
            if let Some(header) = self.client.poll(self.next - 1) {
                return Some(header.expect("well-formed"));
            }
            if self.client.far().break_reason().is_some() {
                return None;
            }
            assert!(start.elapsed() < LIMIT, "neither a reply nor an error");
            self.client.far().port().sleep(Duration::from_millis(1), || false);
        }
    }
}

/// Registers memory that the worker is to access over the fabric; does not check that it can.
///
/// # Panics
/// If the worker refuses.
pub fn register(connection: &RawConnection, region: u32, memory: RmaMemory) {
    let region = RegionId(region);
    let registered = connection.done(&ConnectionRequest::RegisterFabric { region, memory }, &[]);
    registered.unwrap_or_else(|refusal| panic!("not registered: {refusal}"));
}
