//! Valid encodings of the messages between a client and a worker.

use super::refusals::refusals;
use hotlease_wire::comm::seat::{Seat, SeatSecret};
use hotlease_wire::connection::{ConnectionReply, ConnectionRequest, RingShape};
use hotlease_wire::encode;
use hotlease_wire::fabric::{PortAddress, RingDescription, RmaMemory};
use hotlease_wire::ids::{RegionId, SlotIndex};
use hotlease_wire::limits::{ENTRY_BYTES_MAX, REGION_BYTES_MAX, RING_DEPTH_MAX};

pub fn connection_request() -> Vec<Vec<u8>> {
    let shape = |depth, entry_bytes| RingShape { depth, entry_bytes };
    let open = |slot, shape| ConnectionRequest::Open {
        slot: SlotIndex(slot),
        request: shape,
        reply: shape,
    };
    [
        open(0, shape(64, 4096)),
        open(1023, shape(RING_DEPTH_MAX, ENTRY_BYTES_MAX)),
        ConnectionRequest::Register {
            region: RegionId(7),
            size_bytes: REGION_BYTES_MAX,
        },
        ConnectionRequest::Deregister { region: RegionId(7) },
        ConnectionRequest::Link {
            slot: SlotIndex(2),
            port: port_address(),
            key: u64::MAX,
            host: Some(std::net::Ipv6Addr::LOCALHOST.into()),
        },
        ConnectionRequest::OpenFabric {
            slot: SlotIndex(2),
            request: shape(64, 8128),
            key: 1,
            end: channel_end(),
        },
        ConnectionRequest::RegisterFabric {
            region: RegionId(8),
            memory: channel_end().ring,
        },
        ConnectionRequest::Seat {
            slot: SlotIndex(1),
            seat: Seat {
                name: "gang".into(),
                size: 4,
                rank: 3,
                rendezvous: "10.77.0.1:40123".into(),
                secret: SeatSecret(vec![0xa5; 32]),
                join_ms: 15_000,
            },
        },
        ConnectionRequest::Memory,
        ConnectionRequest::ShareMemory,
        ConnectionRequest::LinkMemory {
            port: port_address(),
            key: u64::MAX,
            host: Some(std::net::Ipv4Addr::LOCALHOST.into()),
        },
    ]
    .iter()
    .map(encode)
    .collect()
}

fn port_address() -> PortAddress {
    PortAddress {
        provider: "tcp;ofi_rxm".into(),
        address: vec![2, 0, 0x9c, 0x40, 10, 77, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

fn channel_end() -> RingDescription {
    RingDescription {
        channel: 0x8000_0003,
        key: u64::MAX,
        shape: RingShape {
            depth: 64,
            entry_bytes: 8128,
        },
        ring: RmaMemory {
            address: 0x7f00_0000_0000,
            key: 3,
            size: 1 << 20,
        },
        message_bytes: 4192,
    }
}

pub fn connection_reply() -> Vec<Vec<u8>> {
    let mut replies = vec![
        ConnectionReply::Opened { generation: 77 },
        ConnectionReply::Done,
        ConnectionReply::Linked { port: port_address() },
        ConnectionReply::OpenedFabric {
            generation: 78,
            end: channel_end(),
        },
        ConnectionReply::Memory {
            size_bytes: 1 << 40,
            reserved_bytes: 1 << 20,
        },
        ConnectionReply::MemoryLinked {
            port: port_address(),
            memory: RmaMemory {
                address: u64::MAX - 4096,
                key: 7,
                size: 4096,
            },
        },
    ];
    replies.extend(refusals().into_iter().map(ConnectionReply::Refused));
    replies.iter().map(encode).collect()
}
