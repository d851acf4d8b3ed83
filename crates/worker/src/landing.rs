//! Where data of a client on another host stands while a function works on it.
//!
//! The slot reads the input from the client's registered memory before the call and writes the output back
//! after it, both by RMA. The memory on this side is kept from call to call, because making and registering
//! it costs more than most transfers.

use crate::invoke::{Arguments, Place, Remote, SlotChannel};
use hotlease_fabric::memory::{Memory, PAGE_BYTES};
use hotlease_fabric::ofi::{Access, OfiRing, Registration, Spans};
use hotlease_fabric::transport::TransportRing;
use hotlease_wire::frame::Status;
use std::sync::Arc;
use std::time::Duration;

/// Smallest piece of memory; each further size has twice as much.
const BYTES_MIN: u64 = 64 << 10;
/// Largest input or output: what one call may take of the node's memory.
const BYTES_MAX: u64 = 8 << 30;
/// What is larger is given back after its call.
const KEPT_MAX: u64 = 64 << 20;
/// The longest transfer, if the invocation has no shorter timeout: then the client's host is gone.
const TRANSFER_LIMIT: Duration = Duration::from_secs(30);

/// One channel's.
#[derive(Default)]
pub struct Landing {
    input: Option<Registration>,
    output: Option<Registration>,
}

impl Landing {
    /// Gives the arguments a place here, and reads the input. `Err`: the function must not run.
    pub fn fetch(
        &mut self,
        channel: &SlotChannel,
        arguments: &mut Arguments,
        timeout_us: u32,
    ) -> Result<(), Status> {
        let TransportRing::Ofi(ring) = channel.far() else {
            return Err(Status::UnknownRegion);
        };
        let Some(remote) = &arguments.remote else {
            return Ok(());
        };
        let (remote_input, remote_output) = (remote.input, remote.output);
        if let Some(remote) = &remote_output {
            let output = room(&mut self.output, ring, remote.length)?;
            (arguments.output, arguments.guard) = place(output, remote.length);
        }
        if let Some(remote) = &remote_input {
            let input = room(&mut self.input, ring, remote.length)?;
            (arguments.input, _) = place(input, remote.length);
            let spans = spans(remote, input, remote.length);
            let read = ring.port().read(ring.peer(), spans, limit(timeout_us));
            read.map_err(|_| Status::InputUnreachable)?;
        }
        Ok(())
    }

    /// Writes the output to the client's memory, where it is before the reply. `Err`: it may be there in part.
    pub fn store(
        &mut self,
        channel: &SlotChannel,
        remote: &Remote,
        bytes: u64,
        timeout_us: u32,
    ) -> Result<(), Status> {
        let (TransportRing::Ofi(ring), Some(output)) = (channel.far(), &self.output) else {
            return Err(Status::OutputUnreachable);
        };
        let spans = spans(remote, output, bytes);
        let written = ring.port().write(ring.peer(), spans, limit(timeout_us));
        written.map_err(|_| Status::OutputUnreachable)
    }

    /// Gives back what is too large to be kept.
    pub fn trim(&mut self) {
        for registration in [&mut self.input, &mut self.output] {
            registration.take_if(|kept| kept.memory().size_bytes() > KEPT_MAX);
        }
    }
}

fn limit(timeout_us: u32) -> Duration {
    match timeout_us {
        0 => TRANSFER_LIMIT,
        _ => Duration::from_micros(timeout_us.into()).min(TRANSFER_LIMIT),
    }
}

fn spans<'a>(remote: &'a Remote, local: &'a Registration, length: u64) -> Spans<'a> {
    Spans {
        remote: &remote.memory,
        remote_offset: remote.offset,
        local,
        local_offset: 0,
        length,
    }
}

fn place(registration: &Registration, bytes: u64) -> (Place, u64) {
    let memory = registration.memory();
    let start = memory.start();
    let end = start.as_ptr() as usize + memory.size_bytes() as usize;
    (Place { start, bytes }, end.next_multiple_of(PAGE_BYTES) as u64)
}

/// Memory of at least this size, registered with the channel's port.
fn room<'a>(
    kept: &'a mut Option<Registration>,
    ring: &OfiRing,
    bytes: u64,
) -> Result<&'a Registration, Status> {
    if bytes > BYTES_MAX {
        return Err(Status::BadSpan);
    }
    let enough = |registration: &Registration| registration.memory().size_bytes() >= bytes;
    if !kept.as_ref().is_some_and(enough) {
        // The old piece first: both at once may be too much.
        *kept = None;
        let memory = Memory::create("hotlease-landing", bytes.next_power_of_two().max(BYTES_MIN));
        let memory = Arc::new(memory.map_err(|_| Status::InputUnreachable)?);
        let registered = ring.port().register(&memory, Access::Local);
        *kept = Some(registered.map_err(|_| Status::InputUnreachable)?);
    }
    kept.as_ref().ok_or(Status::InputUnreachable)
}
