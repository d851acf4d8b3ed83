//! One client's connection, served by the main thread: opening channels, registering memory.
//!
//! Everything that the client sends is checked here; valid requests are passed to the slots. A client that does not
//! read its replies, or that sends malformed requests, loses its connection and disturbs no other client.

use crate::function::arguments::{ClientRegion, Regions, SlotChannel};
use crate::host::set_reached_at;
use crate::lease::WorkerLease;
use crate::memory_server::MemoryServer;
use crate::slot::mailbox::{ConnectionId, SlotMessage};
use hotlease_fabric::channel::{RequestRing, WorkerChannel};
use hotlease_fabric::memory::{Memory, MemoryError};
use hotlease_fabric::ofi::{OfiError, PortPeer};
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_fabric::transport::TransportRing;
use hotlease_wire::Rejection;
use hotlease_wire::comm::seat::Seat;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::control::LentSlots;
use hotlease_wire::fabric::{PortAddress, RingDescription};
use hotlease_wire::ids::{RegionId, SlotIndex};
use hotlease_wire::limits::{
    CHANNELS_PER_SLOT_MAX, PEER_CONNECTIONS_MAX, REGION_BYTES_MAX, REGIONS_MAX, SEAT_BYTES_MAX,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Largest number of requests of one client that are served in one turn.
const REQUESTS_PER_TURN: usize = 16;
/// Largest number of links of one connection: a client tries a few providers for each slot.
const LINKS_MAX: usize = 4096;
/// Largest number of links of one connection to a memory block: a client tries a few providers.
const MEMORY_LINKS_MAX: usize = 64;

/// One client's connection.
pub struct ClientConnection {
    id: ConnectionId,
    socket: Socket,
    /// Registered memory, kept for channels that are opened later.
    regions: Regions,
    /// Slot of each open channel.
    channels: Vec<usize>,
    /// Delegation that the client may use, if it is a peer of the lease's holder.
    lent: Option<LentSlots>,
    /// Links by key: the slot of the link, and its peer (the client's port, as registered with the slot's port).
    links: BTreeMap<u64, (SlotIndex, Arc<PortPeer>)>,
    /// Peers of the memory block's ports: this client's ports.
    memory_links: Vec<PortPeer>,
}

/// A reply with its descriptors, or a rejection.
type ReplyResult = Result<(ConnectionReply, Vec<OwnedFd>), Rejection>;

impl ClientConnection {
    /// Makes a connection on a socket from the agent.
    pub fn new(id: ConnectionId, socket: Socket, lent: Option<LentSlots>) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            id,
            socket,
            regions: Regions::new(),
            channels: Vec::new(),
            lent,
            links: BTreeMap::new(),
            memory_links: Vec::new(),
        })
    }

    /// Whether the client is a peer of the lease's holder.
    pub fn is_peer(&self) -> bool {
        self.lent.is_some()
    }

    /// Whether the client uses slots of this delegation.
    pub fn uses_delegation(&self, delegation: u32) -> bool {
        let lent = self.lent.as_ref();
        lent.is_some_and(|lent| lent.delegation == delegation)
    }

    /// Descriptor to wait on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Serves the waiting requests, up to a limit so that other clients get their turn. Returns false if the connection
    /// has to be closed.
    pub fn serve(&mut self, lease: &mut WorkerLease) -> bool {
        for _ in 0..REQUESTS_PER_TURN {
            let (request, fds) = match self.socket.receive::<ConnectionRequest>() {
                Ok(Some(received)) => received,
                Err(error) if error.would_block() => return true,
                Ok(None) | Err(SocketError::Io(_) | SocketError::Decode(_) | SocketError::Truncated) => {
                    return false;
                }
            };
            let answered = match request {
                ConnectionRequest::Open { slot, request, reply } => self.open(lease, slot, request, reply, fds),
                ConnectionRequest::Register { region, size_bytes } => self.register(lease, region, size_bytes, fds),
                ConnectionRequest::Deregister { region } => self.deregister(lease, region),
                ConnectionRequest::Link { slot, port, key, host } => self.link(lease, slot, &port, key, host),
                ConnectionRequest::OpenFabric {
                    slot,
                    request,
                    key,
                    end,
                } => self.open_fabric(lease, slot, request, key, &end),
                ConnectionRequest::RegisterFabric { region, memory } => {
                    self.add_region(lease, region, memory.size, || Ok(ClientRegion::Fabric(memory)))
                }
                ConnectionRequest::Seat { slot, seat } => self.seat(lease, slot, seat),
                ConnectionRequest::Memory => self.memory_state(lease),
                ConnectionRequest::ShareMemory => self.share_memory(lease),
                ConnectionRequest::LinkMemory { port, key, host } => self.link_memory(lease, &port, key, host),
            };
            let (reply, fds) = answered.unwrap_or_else(|refusal| (ConnectionReply::Refused(refusal), Vec::new()));
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if self.socket.send(&reply, &fds).is_err() {
                return false;
            }
        }
        true
    }

    /// Closes the connection: its slots drop their channels, regions and links.
    pub fn close(self, lease: &mut WorkerLease) {
        // Before all other steps, because a slot may be in the middle of a transfer with this client, and reads its
        // mail only after the transfer.
        for (_, peer) in self.links.values() {
            peer.give_up();
        }
        self.memory_links.iter().for_each(PortPeer::give_up);
        for slot in self.channels {
            lease.channels[slot] -= 1;
        }
        for slot in &lease.slots {
            slot.put(SlotMessage::Disconnected(self.id));
        }
    }

    /// Index of the slot for a new channel, if one more channel is allowed.
    fn check_slot(&self, lease: &WorkerLease, slot: SlotIndex) -> Result<usize, Rejection> {
        let index = usize::from(slot.0);
        if index >= lease.slots.len() {
            return Err(Rejection::UnknownSlot {
                index: slot.0,
                slots: lease.slots.len() as u16,
            });
        }
        let most = match &self.lent {
            None => CHANNELS_PER_SLOT_MAX,
            Some(lent) if lent.slots.contains(&slot) => PEER_CONNECTIONS_MAX,
            Some(_) => {
                return Err(Rejection::NotPermitted {
                    what: format!("slot {slot} was not lent to this client"),
                });
            }
        };
        if lease.channels[index] >= most {
            return Err(too_many("channels to one slot", most as u64));
        }
        Ok(index)
    }

    fn open(
        &mut self,
        lease: &mut WorkerLease,
        slot: SlotIndex,
        request: RingShape,
        reply: RingShape,
        fds: Vec<OwnedFd>,
    ) -> ReplyResult {
        let index = self.check_slot(lease, slot)?;
        let [reply_ring, doorbell] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| bad_request(format!("open needs 2 descriptors, got {}", fds.len())))?;
        let requests = RequestRing::create(request).map_err(refused_memory)?;
        let to_client = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|error| bad_request(format!("worker is out of descriptors: {error}")))
        };
        let answer_fds = vec![to_client(requests.fd())?, to_client(lease.slots[index].doorbell.fd())?];
        let generation = lease.next_generation();
        let channel = WorkerChannel::open(requests, generation, reply, reply_ring, doorbell).map_err(refused_memory)?;
        self.serve_channel(lease, index, channel.map(TransportRing::Shm));
        Ok((ConnectionReply::Opened { generation }, answer_fds))
    }

    fn serve_channel(&mut self, lease: &mut WorkerLease, slot: usize, channel: SlotChannel) {
        lease.channels[slot] += 1;
        self.channels.push(slot);
        let message = SlotMessage::Channel(self.id, Box::new(channel), self.regions.clone());
        lease.slots[slot].put(message);
    }

    fn link(
        &mut self,
        lease: &mut WorkerLease,
        slot: SlotIndex,
        client: &PortAddress,
        key: u64,
        host: Option<IpAddr>,
    ) -> ReplyResult {
        let index = self.check_slot(lease, slot)?;
        if self.links.len() >= LINKS_MAX {
            return Err(too_many("links", LINKS_MAX as u64));
        }
        let mailbox = &lease.slots[index];
        let port = lease.fabrics.port(index, mailbox, &client.provider, host);
        let port = port.map_err(unavailable)?;
        if let Some(host) = host {
            set_reached_at(host);
        }
        let peer = port.peer(client, key).map_err(unavailable)?;
        self.links.insert(key, (slot, Arc::new(peer)));
        let port = port.address();
        Ok((ConnectionReply::Linked { port }, Vec::new()))
    }

    fn open_fabric(
        &mut self,
        lease: &mut WorkerLease,
        slot: SlotIndex,
        request: RingShape,
        key: u64,
        client: &RingDescription,
    ) -> ReplyResult {
        let index = self.check_slot(lease, slot)?;
        let peer = match self.links.get(&key) {
            Some((linked, peer)) if *linked == slot => peer.clone(),
            _ => return Err(bad_request("a channel over a link that does not exist".into())),
        };
        let requests = RequestRing::create(request).map_err(refused_memory)?;
        let near = peer.port().open_channel(requests.near()).map_err(unavailable)?;
        let end = *near.end();
        let replies = near.connect(&peer, client, true).map_err(unavailable)?;
        let generation = lease.next_generation();
        let ring = TransportRing::Ofi(Box::new(replies));
        self.serve_channel(lease, index, WorkerChannel::over(requests, generation, ring));
        Ok((ConnectionReply::OpenedFabric { generation, end }, Vec::new()))
    }

    fn seat(&self, lease: &WorkerLease, slot: SlotIndex, seat: Seat) -> ReplyResult {
        if self.is_peer() {
            return Err(Rejection::NotPermitted {
                what: "only the holder of a lease can use it for a gang, and this client's slots are lent".into(),
            });
        }
        if !seat.is_bounded() {
            return Err(too_many("bytes in a seat", SEAT_BYTES_MAX as u64));
        }
        if !lease.has_gangs {
            return Err(Rejection::NotPermitted {
                what: "functions in a virtual machine reach no other process, so they cannot take part in a gang: ask for another kind of \
                       sandbox"
                    .into(),
            });
        }
        let slots = lease.slots.len() as u16;
        let mailbox = lease.slots.get(usize::from(slot.0));
        let mailbox = mailbox.ok_or(Rejection::UnknownSlot { index: slot.0, slots })?;
        mailbox.put(SlotMessage::Seat(Box::new(seat)));
        Ok((ConnectionReply::Done, Vec::new()))
    }

    /// The memory server, if the worker is one and this client holds its lease.
    fn memory_server<'l>(&self, lease: &'l mut WorkerLease) -> Result<&'l mut MemoryServer, Rejection> {
        if self.is_peer() {
            return Err(Rejection::NotPermitted {
                what: "only the holder of a lease can use its memory block".into(),
            });
        }
        let none = || bad_request("this worker has slots, and no memory block".into());
        lease.memory.as_mut().ok_or_else(none)
    }

    fn memory_state(&self, lease: &mut WorkerLease) -> ReplyResult {
        let (size_bytes, reserved_bytes) = self.memory_server(lease)?.progress()?;
        let reply = ConnectionReply::Memory {
            size_bytes,
            reserved_bytes,
        };
        Ok((reply, Vec::new()))
    }

    fn share_memory(&self, lease: &mut WorkerLease) -> ReplyResult {
        let block = self.memory_server(lease)?.share()?;
        Ok((ConnectionReply::Done, vec![block]))
    }

    fn link_memory(
        &mut self,
        lease: &mut WorkerLease,
        client: &PortAddress,
        key: u64,
        host: Option<IpAddr>,
    ) -> ReplyResult {
        if self.memory_links.len() >= MEMORY_LINKS_MAX {
            return Err(too_many("links", MEMORY_LINKS_MAX as u64));
        }
        let (port, memory, peer) = self.memory_server(lease)?.link(client, key, host)?;
        self.memory_links.push(peer);
        Ok((ConnectionReply::MemoryLinked { port, memory }, Vec::new()))
    }

    fn register(&mut self, lease: &WorkerLease, region: RegionId, size_bytes: u64, fds: Vec<OwnedFd>) -> ReplyResult {
        self.add_region(lease, region, size_bytes, || {
            let [fd] = <[OwnedFd; 1]>::try_from(fds)
                .map_err(|fds| bad_request(format!("register needs 1 descriptor, got {}", fds.len())))?;
            let memory = Memory::attach(fd, size_bytes).map_err(refused_memory)?;
            Ok(ClientRegion::Shared(Arc::new(memory)))
        })
    }

    fn add_region(
        &mut self,
        lease: &WorkerLease,
        id: RegionId,
        size_bytes: u64,
        region: impl FnOnce() -> Result<ClientRegion, Rejection>,
    ) -> ReplyResult {
        if size_bytes > REGION_BYTES_MAX {
            return Err(too_many("bytes in one buffer", REGION_BYTES_MAX));
        }
        if self.regions.len() >= REGIONS_MAX as usize {
            return Err(too_many("registered buffers", u64::from(REGIONS_MAX)));
        }
        if self.regions.contains_key(&id) {
            return Err(bad_request(format!("buffer {id} is registered already")));
        }
        let region = region()?;
        self.regions.insert(id, region.clone());
        for slot in &lease.slots {
            slot.put(SlotMessage::Region(self.id, id, region.clone()));
        }
        Ok((ConnectionReply::Done, Vec::new()))
    }

    fn deregister(&mut self, lease: &WorkerLease, region: RegionId) -> ReplyResult {
        if self.regions.remove(&region).is_none() {
            return Err(bad_request(format!("buffer {region} is not registered")));
        }
        for slot in &lease.slots {
            slot.put(SlotMessage::Forget(self.id, region));
        }
        Ok((ConnectionReply::Done, Vec::new()))
    }
}

fn bad_request(what: String) -> Rejection {
    Rejection::BadRequest { what }
}

fn too_many(what: &str, limit: u64) -> Rejection {
    Rejection::TooMany {
        what: what.to_owned(),
        limit,
    }
}

fn unavailable(error: OfiError) -> Rejection {
    Rejection::Unavailable {
        what: format!("a channel over the fabric: {error}"),
    }
}

fn refused_memory(error: MemoryError) -> Rejection {
    bad_request(error.to_string())
}
