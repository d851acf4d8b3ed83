//! Which members share a node.

use hotlease_wire::comm::greeting::NodeId;
use std::os::unix::fs::MetadataExt;

/// Of this process: the same for those that the kernel lets look into each other. None where it cannot be told.
pub(crate) fn here() -> Option<NodeId> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    // Numbers of processes mean the same there.
    let processes = std::fs::read_link("/proc/self/ns/pid").ok()?;
    // They see the same `/proc`.
    let own = std::fs::metadata("/proc/self").ok()?;
    let mut hasher = blake3::Hasher::new_derive_key("hotlease 2026 comm node");
    for part in [
        &boot[..],
        processes.as_os_str().as_encoded_bytes(),
        &own.uid().to_le_bytes(),
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let (id, _) = hasher
        .finalize()
        .as_bytes()
        .split_first_chunk::<16>()
        .map(|(id, rest)| (*id, rest.len()))?;
    Some(NodeId(id))
}

/// A number for the node of each rank, from 0.
pub(crate) fn numbers(of: &[NodeId]) -> Vec<u32> {
    let mut known: Vec<NodeId> = Vec::new();
    let mut numbers = Vec::with_capacity(of.len());
    for node in of {
        let place = known
            .iter()
            .position(|other| other == node && *node != NodeId::ALONE);
        numbers.push(place.unwrap_or(known.len()) as u32);
        if place.is_none() {
            known.push(*node);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_shares_with_nobody() {
        let node = |byte| NodeId([byte; 16]);
        let of = [node(0), node(3), node(2), node(0), node(3), node(2)];
        assert_eq!(numbers(&of), [0, 1, 2, 3, 1, 2]);
    }

    #[test]
    fn this_node_has_a_name_that_stays() {
        assert!(here().is_some());
        assert_eq!(here(), here());
    }
}
