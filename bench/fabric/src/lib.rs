//! Baseline of the transport `ofi`: the least that two ends can do over libfabric to exchange a message or to move
//! memory, without channel, keys, checks, ring or locks.
//!
//! * [`Client::echo`] and [`Peer::answer`] — one message each way, polling or sleeping on the completion
//!   queue's descriptor.
//! * [`Client::write`] — RMA writes into the peer's memory, then one echo, which shows that the bytes have arrived.
//!
//! Both use the libfabric, provider, operation table and modes of the transport ([`hotlease_fabric::ofi::endpoint`]),
//! and nothing else of the transport. The program of this crate measures baseline and transport in turn, in the same
//! seconds.

mod peer_parameters;
mod raw;

pub use peer_parameters::PeerParameters;
pub use raw::{Client, EndAddress, MESSAGE_BYTES, Peer, RawError, Rma};

/// Copies input to output, as an echoing function does.
///
/// # Safety
/// `bytes` bytes may be read from `input` and written to `output`, which do not overlap.
pub unsafe fn copy(input: std::ptr::NonNull<u8>, output: std::ptr::NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(input.as_ptr(), output.as_ptr(), bytes) }
}
