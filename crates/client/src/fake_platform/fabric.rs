//! A fake worker's end of fabrics: real ports on the loopback interface.

use hotlease_fabric::ofi::providers::find_provider;
use hotlease_fabric::ofi::{Libfabric, OfiRing, Port, PortPeer};
use hotlease_fabric::shm::NearRing;
use hotlease_wire::Rejection;
use hotlease_wire::connection::{ConnectionReply, RingShape};
use hotlease_wire::fabric::{PortAddress, RingDescription};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Reaction of a fake worker to a client's request for a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkBehaviour {
    /// The worker links.
    Link,
    /// The worker refuses.
    Refuse,
    /// The worker names a port that never sends anything.
    Mute,
}

#[derive(Default)]
pub(super) struct Fabric {
    peers: HashMap<u64, Arc<PortPeer>>,
    mute: Vec<Arc<Port>>,
}

impl Fabric {
    /// Links; returns the answer, and a port that must be driven from now on.
    pub(super) fn link(
        &mut self,
        client: &PortAddress,
        key: u64,
        welcome: LinkBehaviour,
    ) -> (ConnectionReply, Option<Arc<Port>>) {
        if welcome == LinkBehaviour::Refuse {
            let what = format!("there is no {} today", client.provider);
            return (ConnectionReply::Refused(Rejection::Unavailable { what }), None);
        }
        let library = Libfabric::load().unwrap();
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = Port::open(&find_provider(&library, &client.provider, Some(local)).unwrap()).unwrap();
        let linked = ConnectionReply::Linked { port: port.address() };
        if welcome == LinkBehaviour::Mute {
            self.mute.push(port);
            return (linked, None);
        }
        let peer = port.peer(client, key).unwrap();
        self.peers.insert(key, Arc::new(peer));
        (linked, Some(port))
    }

    /// Opens the rings of a channel over a link; also returns the answer.
    pub(super) fn open(
        &self,
        request: RingShape,
        key: u64,
        client: &RingDescription,
        generation: u32,
    ) -> (NearRing, OfiRing, ConnectionReply) {
        let peer = &self.peers[&key];
        let requests = NearRing::create("fake", request).unwrap();
        let near = peer.port().open_channel(&requests).unwrap();
        let end = *near.end();
        let replies = near.connect(peer, client, true).unwrap();
        (requests, replies, ConnectionReply::OpenedFabric { generation, end })
    }
}
