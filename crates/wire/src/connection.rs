//! Client ↔ worker, over the socket by which the agent introduced them.
//!
//! There is one connection per client and worker, with one channel per slot. Requests are answered in turn. When either
//! end closes the connection, all its channels and registered buffers are gone.
//!
//! Between processes of one node, memory is passed as descriptors (`Open`, `Register`). Between hosts no
//! request has a descriptor, and channels go over a fabric:
//!
//! ```text
//! client                                     worker
//! Link{slot, provider, port, key}   ───────► a port for the slot, linked to the client's port
//!                                   ◄─────── Linked{port}
//! probe over the fabric             ◄──────► a provider is used only if bytes come through
//! OpenFabric{slot, reply ring}      ───────► a request ring, open to the client's port
//!                                   ◄─────── OpenedFabric{generation, request ring}
//! ```
//!
//! A memory server, which is a worker without slots, serves its memory block instead. Its client reads and writes the
//! block itself, on the node through the block's descriptor (`ShareMemory`), between hosts by RMA (`LinkMemory`).

use crate::comm::seat::Seat;
use crate::fabric::{PortAddress, RingDescription, RmaMemory};
use crate::ids::{RegionId, SlotIndex};
use crate::rejection::Rejection;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Size of a channel's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingShape {
    /// Entries, a power of two; also the credits: invocations in flight.
    pub depth: u32,
    /// Payload bytes of an entry.
    pub entry_bytes: u32,
}

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionRequest {
    /// Opens a channel to a slot. Two descriptors: the reply ring and the doorbell that the worker rings after a reply,
    /// both sealed. Answer: [`ConnectionReply::Opened`].
    Open {
        /// The slot.
        slot: SlotIndex,
        /// Shape of the request ring that the worker makes.
        request: RingShape,
        /// Shape of the attached reply ring; the same depth.
        reply: RingShape,
    },
    /// Registers memory with all slots of the worker. One descriptor: a memfd sealed against resizing. Answer:
    /// [`ConnectionReply::Done`].
    Register {
        /// Number of the region in spans.
        region: RegionId,
        /// Size of the memory.
        size_bytes: u64,
    },
    /// Deregisters memory. Invocations that use it must have ended. Answer: [`ConnectionReply::Done`].
    Deregister {
        /// The region.
        region: RegionId,
    },
    /// Exchanges the addresses of a port of the slot and a port of the client. Answer: [`ConnectionReply::Linked`];
    /// refused if the worker cannot use the provider.
    Link {
        /// The slot.
        slot: SlotIndex,
        /// The client's port.
        port: PortAddress,
        /// Key of the link, drawn at random; probes over the fabric must carry it.
        key: u64,
        /// Address at which the client reaches the worker's host. If the provider can use several interfaces, the
        /// address selects the interface.
        host: Option<IpAddr>,
    },
    /// Opens a channel to a slot over a link that exists. Answer: [`ConnectionReply::OpenedFabric`].
    OpenFabric {
        /// The slot.
        slot: SlotIndex,
        /// Shape of the request ring that the worker makes.
        request: RingShape,
        /// Key of the link.
        key: u64,
        /// The client's end: its reply ring, of the same depth.
        end: RingDescription,
    },
    /// Registers memory of the client that the worker reads and writes over the fabric. Answer:
    /// [`ConnectionReply::Done`].
    RegisterFabric {
        /// Number of the region in spans.
        region: RegionId,
        /// Description of the memory.
        memory: RmaMemory,
    },
    /// Gives the functions of a slot a seat in a gang, in place of the previous seat. Only the lease's holder may do
    /// this. Answer: [`ConnectionReply::Done`].
    Seat {
        /// The slot.
        slot: SlotIndex,
        /// The slot's seat in the gang.
        seat: Seat,
    },
    /// Asks how much of the memory block is reserved. Answer: [`ConnectionReply::Memory`]. This request and the next two
    /// are for memory servers only, and only for the lease's holder.
    Memory,
    /// Asks for the descriptor of the memory block, whose pages are all reserved. Answer: [`ConnectionReply::Done`]
    /// with one descriptor.
    ShareMemory,
    /// Registers the memory block, whose pages are all reserved, for RMA, and exchanges the addresses of a port of the
    /// memory server and a port of the client. Answer: [`ConnectionReply::MemoryLinked`]; refused if the memory server
    /// cannot use the provider.
    LinkMemory {
        /// The client's port.
        port: PortAddress,
        /// Key of the link, drawn at random; probes over the fabric must carry it.
        key: u64,
        /// Address at which the client reaches the memory server's host.
        host: Option<IpAddr>,
    },
}

/// Reply of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionReply {
    /// Reply to `Open`. Two descriptors: the request ring and the slot's doorbell.
    Opened {
        /// Generation for every sequence word.
        generation: u32,
    },
    /// Reply to `Link`.
    Linked {
        /// The slot's port.
        port: PortAddress,
    },
    /// Reply to `OpenFabric`.
    OpenedFabric {
        /// Generation for every sequence word.
        generation: u32,
        /// The worker's end: the request ring.
        end: RingDescription,
    },
    /// Reply to `Memory`. The block can be used once all its bytes are reserved.
    Memory {
        /// Size of the block.
        size_bytes: u64,
        /// Bytes that are reserved so far.
        reserved_bytes: u64,
    },
    /// Reply to `LinkMemory`.
    MemoryLinked {
        /// The memory server's port.
        port: PortAddress,
        /// The block, as the client's RMA names it.
        memory: RmaMemory,
    },
    /// The request was carried out.
    Done,
    /// The request was rejected; the connection goes on.
    Refused(Rejection),
}
