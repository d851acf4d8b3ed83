//! Nearly valid messages: valid messages and mutations of them.

use crate::connection::SHAPE;
use hotlease_wire::connection::ConnectionRequest;
use hotlease_wire::encode;
use hotlease_wire::ids::{CodeHash, RegionId, SlotIndex};
use hotlease_wire::session::SessionRequest;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A generator whose seed is shown if the test fails.
pub fn random(what: &str) -> StdRng {
    let seed = rand::random();
    eprintln!("{what}: seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// One of the valid messages with some bits flipped, cut or prolonged.
pub fn mutated(random: &mut StdRng, valid: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = valid[random.random_range(0..valid.len())].clone();
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..bytes.len());
        bytes[at] ^= 1 << random.random_range(0..8);
    }
    match random.random_range(0..4) {
        0 => bytes.truncate(random.random_range(1..=bytes.len())),
        1 => bytes.extend((0..random.random_range(0..100)).map(|_| random.random::<u8>())),
        _ => {}
    }
    bytes
}

/// Requests of a client to an agent.
pub fn session_requests() -> Vec<Vec<u8>> {
    let worker = hotlease_wire::ids::WorkerIndex(0);
    let hash = CodeHash([1; 32]);
    vec![
        encode(&SessionRequest::Attach {
            version: 1,
            token: vec![7; 100],
        }),
        encode(&SessionRequest::Load { hash, size_bytes: 100 }),
        encode(&SessionRequest::Connect {
            worker,
            over_fabric: false,
        }),
        encode(&SessionRequest::Renew),
    ]
}

/// Requests of a client to a worker.
pub fn connection_requests() -> Vec<Vec<u8>> {
    vec![
        encode(&ConnectionRequest::Open {
            slot: SlotIndex(0),
            request: SHAPE,
            reply: SHAPE,
        }),
        encode(&ConnectionRequest::Register {
            region: RegionId(1),
            size_bytes: 4096,
        }),
        encode(&ConnectionRequest::Deregister { region: RegionId(1) }),
        encode(&ConnectionRequest::Memory),
        encode(&ConnectionRequest::ShareMemory),
    ]
}
