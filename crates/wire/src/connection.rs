//! Client ↔ worker, over the socket that the agent introduced them with.
//!
//! One connection per client and worker, one channel per slot on it. Requests are answered in turn.
//! When either end closes it, all channels and registered buffers of the connection are gone.

use crate::ids::{RegionId, SlotIndex};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};

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
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionReply {
    /// To `Open`. Two descriptors: the request ring and the slot's doorbell.
    Opened {
        /// To put into every sequence word.
        generation: u32,
    },
    /// It was done.
    Done,
    /// It was refused; the connection goes on.
    Refused(Refusal),
}
