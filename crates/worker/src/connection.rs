//! One client's connection, served by the main thread: opening channels, registering memory.
//!
//! Everything the client sends is checked here; what passes is handed to the slots. A client that does not
//! read its answers, or sends what is no request, loses its connection and disturbs nobody else.

use crate::control::Lease;
use crate::invoke::Regions;
use crate::mailbox::{ConnectionId, Letter};
use hotlease_fabric::channel::{RequestRing, WorkerChannel};
use hotlease_fabric::memory::{Memory, MemoryError};
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_wire::Refusal;
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::ids::{RegionId, SlotIndex};
use hotlease_wire::limits::{CHANNELS_PER_SLOT_MAX, REGION_BYTES_MAX, REGIONS_MAX};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Requests of one client that are served before the others'.
const REQUESTS_PER_TURN: usize = 16;

/// One client's.
pub struct Connection {
    id: ConnectionId,
    socket: Socket,
    /// Registered memory: to be known to channels opened later, too.
    regions: Regions,
    /// Of each open channel its slot.
    channels: Vec<usize>,
}

/// What to answer, with descriptors.
type Answered = Result<(ConnectionReply, Vec<OwnedFd>), Refusal>;

impl Connection {
    /// On a socket from the agent.
    pub fn new(id: ConnectionId, socket: Socket) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            id,
            socket,
            regions: Regions::new(),
            channels: Vec::new(),
        })
    }

    /// To wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Serves what is waiting on the socket, up to a limit so that others get their turn; false when the
    /// connection is over.
    pub fn serve(&mut self, lease: &mut Lease) -> bool {
        for _ in 0..REQUESTS_PER_TURN {
            let (request, fds) = match self.socket.receive::<ConnectionRequest>() {
                Ok(Some(received)) => received,
                Err(error) if error.would_block() => return true,
                Ok(None) | Err(SocketError::Io(_) | SocketError::Decode(_) | SocketError::Truncated) => {
                    return false;
                }
            };
            let answered = match request {
                ConnectionRequest::Open { slot, request, reply } => {
                    self.open(lease, slot, request, reply, fds)
                }
                ConnectionRequest::Register { region, size_bytes } => {
                    self.register(lease, region, size_bytes, fds)
                }
                ConnectionRequest::Deregister { region } => self.deregister(lease, region),
            };
            let (reply, fds) =
                answered.unwrap_or_else(|refusal| (ConnectionReply::Refused(refusal), Vec::new()));
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if self.socket.send(&reply, &fds).is_err() {
                return false;
            }
        }
        true
    }

    /// The connection is over.
    pub fn close(self, lease: &mut Lease) {
        for slot in self.channels {
            lease.channels[slot] -= 1;
        }
        for slot in &lease.slots {
            slot.put(Letter::Closed(self.id));
        }
    }

    fn open(
        &mut self,
        lease: &mut Lease,
        slot: SlotIndex,
        request: RingShape,
        reply: RingShape,
        fds: Vec<OwnedFd>,
    ) -> Answered {
        let index = usize::from(slot.0);
        let Some(mailbox) = lease.slots.get(index) else {
            return Err(Refusal::UnknownSlot {
                index: slot.0,
                slots: lease.slots.len() as u16,
            });
        };
        if lease.channels[index] >= CHANNELS_PER_SLOT_MAX {
            return Err(too_many("channels to one slot", CHANNELS_PER_SLOT_MAX as u64));
        }
        let [reply_ring, doorbell] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| bad_request(format!("open needs 2 descriptors, got {}", fds.len())))?;
        let requests = RequestRing::create(request).map_err(refused_memory)?;
        let to_client = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(|error| bad_request(format!("worker is out of descriptors: {error}")))
        };
        let answer_fds = vec![to_client(requests.fd())?, to_client(mailbox.doorbell.fd())?];
        let generation = lease.next_generation();
        let channel =
            WorkerChannel::open(requests, generation, reply, reply_ring, doorbell).map_err(refused_memory)?;
        lease.channels[index] += 1;
        self.channels.push(index);
        lease.slots[index].put(Letter::Channel(self.id, Box::new(channel), self.regions.clone()));
        Ok((ConnectionReply::Opened { generation }, answer_fds))
    }

    fn register(&mut self, lease: &Lease, region: RegionId, size_bytes: u64, fds: Vec<OwnedFd>) -> Answered {
        if size_bytes > REGION_BYTES_MAX {
            return Err(too_many("bytes in one buffer", REGION_BYTES_MAX));
        }
        if self.regions.len() >= REGIONS_MAX as usize {
            return Err(too_many("registered buffers", u64::from(REGIONS_MAX)));
        }
        if self.regions.contains_key(&region) {
            return Err(bad_request(format!("buffer {region} is registered already")));
        }
        let [fd] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|fds| bad_request(format!("register needs 1 descriptor, got {}", fds.len())))?;
        let memory = Arc::new(Memory::attach(fd, size_bytes).map_err(refused_memory)?);
        self.regions.insert(region, memory.clone());
        for slot in &lease.slots {
            slot.put(Letter::Region(self.id, region, memory.clone()));
        }
        Ok((ConnectionReply::Done, Vec::new()))
    }

    fn deregister(&mut self, lease: &Lease, region: RegionId) -> Answered {
        if self.regions.remove(&region).is_none() {
            return Err(bad_request(format!("buffer {region} is not registered")));
        }
        for slot in &lease.slots {
            slot.put(Letter::Forget(self.id, region));
        }
        Ok((ConnectionReply::Done, Vec::new()))
    }
}

fn bad_request(what: String) -> Refusal {
    Refusal::BadRequest { what }
}

fn too_many(what: &str, limit: u64) -> Refusal {
    Refusal::TooMany {
        what: what.to_owned(),
        limit,
    }
}

fn refused_memory(error: MemoryError) -> Refusal {
    bad_request(error.to_string())
}
