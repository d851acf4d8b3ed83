//! Decoders of heads of saved states, and of orders about them.

use hotlease_wire::control::WorkerOrder;
use hotlease_wire::encode;
use hotlease_wire::state::StateHead;

pub fn head(bytes: &[u8]) -> bool {
    if let Some(sealed) = with_their_hash(bytes)
        && let Ok(head) = StateHead::decode(&sealed)
    {
        let again = head.encode().expect("what was decoded is within its limits");
        assert_eq!(StateHead::decode(&again), Ok(head));
    }
    StateHead::decode(bytes).is_ok()
}

/// Encodes the same head with a valid hash, as an attacker who knows the format could: otherwise the hash would stop
/// most mutated bytes before the checks behind it.
fn with_their_hash(bytes: &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?) as usize;
    let end = 12_usize.checked_add(length)?;
    let hash = blake3::hash(bytes.get(..end)?);
    let mut sealed = bytes.to_vec();
    sealed.get_mut(end..)?.get_mut(..32)?.copy_from_slice(hash.as_bytes());
    Some(sealed)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = StateHead {
        tenant: "uid:1000".into(),
        name: "model".into(),
        program: [7; 32],
        host: "node1".into(),
        saved_ms: 1_764_000_000_000,
        size_bytes: 100 << 20,
        hash: [9; 32],
    };
    let empty = StateHead {
        size_bytes: 0,
        host: String::new(),
        ..head.clone()
    };
    [head, empty].map(|head| head.encode().expect("small").to_vec()).into()
}

pub fn orders() -> Vec<Vec<u8>> {
    let some = WorkerOrder::Restore {
        size_bytes: Some(100 << 20),
    };
    [some, WorkerOrder::Restore { size_bytes: None }, WorkerOrder::Save]
        .iter()
        .map(encode)
        .collect()
}
