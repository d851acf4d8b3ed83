//! Nodes of members: shared memory and shared processors.

use hotlease_collectives::Rank;
use hotlease_fabric::contention::OwnProcessor;
use hotlease_wire::comm::greeting::{MemberNode, NodeId};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

/// Returns the node of this process, or `None` if it is unknown. Processes that the kernel lets access each other have
/// the same node.
pub(crate) fn this_node() -> Option<NodeId> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    // Process numbers have one meaning only within a process namespace.
    let processes = std::fs::read_link("/proc/self/ns/pid").ok()?;
    // The owner that `/proc` shows is comparable, because all processes of the namespace see the same `/proc`.
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

/// Returns the number of each rank's node, from 0. Members that can access each other's memory have the same number.
pub(crate) fn numbers(of: &[MemberNode]) -> Vec<u32> {
    let mut known: Vec<Option<NodeId>> = Vec::new();
    let mut numbers = Vec::with_capacity(of.len());
    for member_node in of {
        let shares = member_node.shares_memory && member_node.node != NodeId::UNKNOWN;
        let node = shares.then_some(member_node.node);
        let place = known.iter().position(|other| shares && *other == node);
        numbers.push(place.unwrap_or(known.len()) as u32);
        if place.is_none() {
            known.push(node);
        }
    }
    numbers
}

/// Number of processors for the members of this node.
pub(crate) fn processors() -> u16 {
    let processors = match std::thread::available_parallelism().map_or(1, usize::from) {
        // Each member may be bound to one processor, so the processors of the node are counted.
        1 => {
            let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
            online.ok().and_then(|list| count(list.trim())).unwrap_or(1)
        }
        processors => processors,
    };
    processors.min(u16::MAX.into()) as u16
}

/// Number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let parts = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    parts.sum()
}

/// Returns, for each rank, the number of members that share a processor on the rank's node: 1 if each member has a
/// processor, or if the number is unknown. All members compute the same numbers, because they use the data that each
/// member has announced.
pub(crate) fn members_per_processor(of: &[MemberNode]) -> Vec<u32> {
    let mut nodes: HashMap<NodeId, (u32, u32)> = HashMap::new();
    let is_known = |member_node: &&MemberNode| member_node.node != NodeId::UNKNOWN && member_node.processors > 0;
    for member_node in of.iter().filter(is_known) {
        let (members, processors) = nodes.entry(member_node.node).or_insert((0, u32::MAX));
        *members += 1;
        *processors = u32::from(member_node.processors).min(*processors);
    }
    let crowd = |member_node: &MemberNode| {
        let node = nodes.get(&member_node.node);
        node.map_or(1, |(members, processors)| members.div_ceil(*processors))
    };
    of.iter().map(crowd).collect()
}

/// Own processor of this member, if there are other members on its node.
pub(crate) fn own_processor(of: &[MemberNode], me: Rank) -> Option<OwnProcessor> {
    index_on_node(of, me).and_then(OwnProcessor::of)
}

/// Index of this member among the members of its node, in the order of their ranks; `None` if it is alone on its node.
fn index_on_node(of: &[MemberNode], me: Rank) -> Option<usize> {
    let node = of[me as usize].node;
    let is_near = |member_node: &&MemberNode| member_node.node == node && node != NodeId::UNKNOWN;
    let is_alone = of.iter().filter(is_near).count() < 2;
    (!is_alone).then(|| of[..me as usize].iter().filter(is_near).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member_node(byte: u8, shares_memory: bool, processors: u16) -> MemberNode {
        MemberNode {
            node: NodeId([byte; 16]),
            shares_memory,
            processors,
        }
    }

    #[test]
    fn a_member_without_a_known_node_or_shared_memory_is_alone() {
        let member_node = |byte, shares_memory| member_node(byte, shares_memory, 1);
        let of = [
            member_node(0, true),
            member_node(3, true),
            member_node(2, true),
            member_node(0, true),
            member_node(3, true),
            member_node(2, false),
            member_node(2, false),
            member_node(2, true),
        ];
        assert_eq!(numbers(&of), [0, 1, 2, 3, 1, 4, 5, 2]);
    }

    #[test]
    fn a_node_is_crowded_over_any_link() {
        let of = [
            member_node(1, true, 2),
            member_node(1, false, 2),
            member_node(2, false, 1),
            member_node(2, false, 2),
            member_node(1, true, 3),
            member_node(0, true, 1),
            member_node(0, true, 1),
            member_node(3, true, 0),
        ];
        assert_eq!(members_per_processor(&of), [2, 2, 2, 2, 2, 1, 1, 1]);
        assert_eq!(members_per_processor(&of[..2]), [1, 1]);
        assert_eq!(members_per_processor(&[of[2]; 5]), [5; 5]);
    }

    #[test]
    fn members_of_a_node_have_different_numbers() {
        let of = [1, 2, 1, 0, 1, 0].map(|byte| member_node(byte, true, 4));
        let numbers = [0, 1, 2, 3, 4, 5].map(|me| index_on_node(&of, me));
        assert_eq!(numbers, [Some(0), None, Some(1), None, Some(2), None]);
    }

    #[test]
    fn this_node_has_a_name_that_stays() {
        assert!(this_node().is_some());
        assert_eq!(this_node(), this_node());
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!(["0", "0-1", "0-3,8,10-11"].map(count), [Some(1), Some(2), Some(7)]);
        assert_eq!(["", "1-0", "a"].map(count), [None; 3]);
        assert!(processors() > 0);
    }
}
