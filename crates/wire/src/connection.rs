//! Client ↔ worker, over the socket that the agent introduced them with.
//!
//! One connection per client and worker, one channel per slot on it. Requests are answered in turn.
//! When either end closes it, all channels and registered buffers of the connection are gone.
//!
//! Between processes of one node, memory is passed as descriptors (`Open`, `Register`). Between hosts no
//! request has a descriptor, and channels go over a fabric:
//!
//! ```text
//! client                                     worker
//! Link{slot, provider, port, key}   ───────► a port for the slot, which knows the client's
//!                                   ◄─────── Linked{port}
//! probe over the fabric             ◄──────► only bytes that came through prove a provider
//! OpenFabric{slot, reply ring}      ───────► a request ring, open to the client's port
//!                                   ◄─────── OpenedFabric{generation, request ring}
//! ```

use crate::comm::seat::Seat;
use crate::fabric::{ChannelEnd, PortAddress, RemoteMemory};
use crate::ids::{RegionId, SlotIndex};
use crate::refusal::Refusal;
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

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionRequest {
    /// Open a channel to a slot. Two descriptors: the reply ring and the doorbell that the worker rings
    /// after a reply, both sealed. Answer: [`ConnectionReply::Opened`].
    Open {
        /// Which.
        slot: SlotIndex,
        /// Of the request ring that the worker makes.
        request: RingShape,
        /// Of the attached reply ring; the same depth.
        reply: RingShape,
    },
    /// Make memory known to all slots of the worker. One descriptor: a memfd sealed against resizing.
    /// Answer: [`ConnectionReply::Done`].
    Register {
        /// Its number in spans.
        region: RegionId,
        /// Its size.
        size_bytes: u64,
    },
    /// Forget it. Invocations that use it must have ended. Answer: [`ConnectionReply::Done`].
    Deregister {
        /// Which.
        region: RegionId,
    },
    /// Make ports of a slot and of the client known to each other. Answer: [`ConnectionReply::Linked`]; refused
    /// if the worker cannot use the provider.
    Link {
        /// Which.
        slot: SlotIndex,
        /// The client's port.
        port: PortAddress,
        /// Of the link, drawn at random: what probes over the fabric must carry.
        key: u64,
        /// Address of the worker's host as the client reaches it: says which interface to use, for
        /// providers that have a choice.
        host: Option<IpAddr>,
    },
    /// Open a channel to a slot over a link that exists. Answer: [`ConnectionReply::OpenedFabric`].
    OpenFabric {
        /// Which.
        slot: SlotIndex,
        /// Of the request ring that the worker makes.
        request: RingShape,
        /// Key of the link.
        key: u64,
        /// The client's end: its reply ring, of the same depth.
        end: ChannelEnd,
    },
    /// Make memory of the client's known that the worker reads and writes over the fabric. Answer:
    /// [`ConnectionReply::Done`].
    RegisterFabric {
        /// Its number in spans.
        region: RegionId,
        /// Where it is.
        memory: RemoteMemory,
    },
    /// Tell the functions of a slot of the gang that they run in, instead of what they were told before. Only the lease's holder may.
    /// Answer: [`ConnectionReply::Done`].
    Seat {
        /// Which.
        slot: SlotIndex,
        /// Its place in the gang.
        seat: Seat,
    },
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionReply {
    /// To `Open`. Two descriptors: the request ring and the slot's doorbell.
    Opened {
        /// To put into every sequence word.
        generation: u32,
    },
    /// To `Link`.
    Linked {
        /// The slot's port.
        port: PortAddress,
    },
    /// To `OpenFabric`.
    OpenedFabric {
        /// To put into every sequence word.
        generation: u32,
        /// The worker's end: the request ring.
        end: ChannelEnd,
    },
    /// It was done.
    Done,
    /// It was refused; the connection goes on.
    Refused(Refusal),
}
