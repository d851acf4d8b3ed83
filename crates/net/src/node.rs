//! Identifier of this node and its boot.

use hotlease_wire::ids::BootId;
use std::fs;

/// Identifies the node until it boots again. Processes with different identifiers share no memory. Equal identifiers
/// do not prove that two processes can reach each other's sockets: containers of one node have the same identifier.
pub fn node_id() -> Option<BootId> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let hash = blake3::derive_key("hotlease 2026 node id", boot.trim().as_bytes());
    let (id, _) = hash.split_first_chunk::<8>()?;
    Some(BootId(*id))
}
