//! Landing buffers: memory of a slot for data that a function cannot use in place.
//!
//! Such data belongs to a client on another host, or lies in several parts of a client's buffers. The slot brings the
//! input into a landing buffer before the call and moves the output back after it: by RMA, or by copying if both sides
//! map the memory. The memory is reused from call to call, because making and registering it costs more than most
//! transfers: with 256 MiB made anew for each call, the rate was 1.1 GB/s instead of 4.5.

use crate::function::arguments::{Arguments, MemoryPart, MemoryPlace, RemoteSpan, SlotChannel};
use hotlease_fabric::memory::{Memory, PAGE_BYTES};
use hotlease_fabric::ofi::{Access, OfiRing, Registration, TransferSpans};
use hotlease_fabric::transport::TransportRing;
use hotlease_wire::frame::InvocationStatus;
use std::sync::Arc;
use std::time::Duration;

/// Smallest landing buffer; each further size is twice as large.
const BYTES_MIN: u64 = 64 << 10;
/// Largest input or output: limit of the node's memory for one call.
const BYTES_MAX: u64 = 8 << 30;
/// Size above which a buffer is freed when the slot sleeps and has not used it for [`KEPT_FOR`].
const KEPT_MAX: u64 = 1 << 20;
/// Time without use after which a buffer larger than [`KEPT_MAX`] is freed.
pub const KEPT_FOR: Duration = Duration::from_secs(1);
/// Limit of a transfer, if the invocation has no shorter timeout: after that the client's host is considered gone.
const TRANSFER_LIMIT: Duration = Duration::from_secs(30);

/// Landing buffers of one channel.
#[derive(Default)]
pub struct LandingBuffers {
    input: Option<LandingBuffer>,
    output: Option<LandingBuffer>,
    /// Time of the last use, ticks.
    used: u64,
}

/// A landing buffer, registered if the channel is on a fabric.
struct LandingBuffer {
    memory: Arc<Memory>,
    registration: Option<Registration>,
}

impl LandingBuffers {
    /// Makes landing buffers for the arguments, and fetches the input. `now`: ticks. On failure the function must not
    /// run.
    #[cold]
    #[inline(never)]
    pub fn fetch(
        &mut self,
        channel: &SlotChannel,
        arguments: &mut Arguments,
        timeout_us: u32,
        now: u64,
    ) -> Result<(), InvocationStatus> {
        self.used = now;
        let Some(remote) = &arguments.remote else {
            return Ok(());
        };
        let ring = ring(channel);
        let (input, output) = (&remote.input[..], &remote.output[..]);
        if self.make_room(ring, input, output).is_err() {
            // Buffers kept from earlier calls may leave too little memory.
            (self.input, self.output) = (None, None);
            self.make_room(ring, input, output)?;
        }
        if let (false, Some(room)) = (output.is_empty(), &self.output) {
            (arguments.output, arguments.guard) = room.place(total(output)?);
        }
        if let (false, Some(room)) = (input.is_empty(), &self.input) {
            (arguments.input, _) = room.place(total(input)?);
            let spans = room.map_parts(input, u64::MAX, |shared, here, bytes| {
                // SAFETY: a checked part of mapped memory, and as many bytes of this landing buffer; the two do not
                // overlap.
                unsafe { std::ptr::copy_nonoverlapping(shared, here, bytes) }
            })?;
            if !spans.is_empty()
                && let Some(ring) = ring
                && ring.port().read(ring.peer(), &spans, limit(timeout_us)).is_err()
            {
                // Late pieces may still arrive: they must not land in the next call's input.
                self.input = None;
                return Err(InvocationStatus::InputUnreachable);
            }
        }
        Ok(())
    }

    fn make_room(
        &mut self,
        ring: Option<&OfiRing>,
        input: &[MemoryPart],
        output: &[MemoryPart],
    ) -> Result<(), InvocationStatus> {
        LandingBuffer::make(&mut self.output, ring, output)?;
        LandingBuffer::make(&mut self.input, ring, input)
    }

    /// Moves the first `bytes` of the output to the client's memory, so that they are in place before the reply. On
    /// `Err` a part of these bytes may be in place.
    #[cold]
    #[inline(never)]
    pub fn store(
        &mut self,
        channel: &SlotChannel,
        parts: &[MemoryPart],
        bytes: u64,
        timeout_us: u32,
    ) -> Result<(), InvocationStatus> {
        let Some(room) = &self.output else {
            return Err(InvocationStatus::OutputUnreachable);
        };
        let spans = room.map_parts(parts, bytes, |shared, here, bytes| {
            // SAFETY: as in `fetch`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(here, shared, bytes) }
        })?;
        if !spans.is_empty()
            && let Some(ring) = ring(channel)
            && ring.port().write(ring.peer(), &spans, limit(timeout_us)).is_err()
        {
            // Late pieces may still be read from the buffer: they must not contain the next call's output.
            self.output = None;
            return Err(InvocationStatus::OutputUnreachable);
        }
        Ok(())
    }

    /// Frees buffers that are large and were not used for `idle` ticks.
    pub fn trim(&mut self, now: u64, idle: u64) {
        if now.wrapping_sub(self.used) < idle {
            return;
        }
        for room in [&mut self.input, &mut self.output] {
            room.take_if(|kept| kept.memory.size_bytes() > KEPT_MAX);
        }
    }
}

impl LandingBuffer {
    /// Ensures that there is memory for these parts, registered if there is a ring to move them over.
    fn make(kept: &mut Option<Self>, ring: Option<&OfiRing>, parts: &[MemoryPart]) -> Result<(), InvocationStatus> {
        let bytes = total(parts)?;
        let enough = |room: &Self| room.memory.size_bytes() >= bytes;
        if parts.is_empty() || kept.as_ref().is_some_and(enough) {
            return Ok(());
        }
        // Frees the old buffer first: there may not be enough memory for both.
        *kept = None;
        let memory = Memory::create("hotlease-landing", bytes.next_power_of_two().max(BYTES_MIN));
        let memory = Arc::new(memory.map_err(|_| InvocationStatus::InputUnreachable)?);
        let registration = ring.map(|ring| ring.port().register(&memory, Access::Local));
        let registration = registration
            .transpose()
            .map_err(|_| InvocationStatus::InputUnreachable)?;
        *kept = Some(Self { memory, registration });
        Ok(())
    }

    /// Place of its first bytes, and the first address of the guard page behind it.
    fn place(&self, bytes: u64) -> (MemoryPlace, u64) {
        let start = self.memory.start();
        let end = start.as_ptr() as usize + self.memory.size_bytes() as usize;
        (MemoryPlace { start, bytes }, end.next_multiple_of(PAGE_BYTES) as u64)
    }

    /// Maps the first `bytes` of the concatenated parts to this buffer: for a part that both sides map, calls `copy`
    /// (address there, address here, bytes); for parts on the client's host, returns the spans.
    fn map_parts<'a>(
        &'a self,
        parts: &'a [MemoryPart],
        bytes: u64,
        copy: impl Fn(*mut u8, *mut u8, usize),
    ) -> Result<Vec<TransferSpans<'a>>, InvocationStatus> {
        let mut spans = Vec::new();
        let mut done = 0;
        for part in parts {
            let length = part.bytes().min(bytes - done);
            match (part, &self.registration) {
                (MemoryPart::Shared(place), _) => {
                    // SAFETY: the parts together are at most as long as the memory: `make` ensured that.
                    let here = unsafe { self.memory.start().add(done as usize) };
                    copy(place.start.as_ptr(), here.as_ptr(), length as usize);
                }
                (MemoryPart::Fabric(remote), Some(local)) => spans.push(TransferSpans {
                    remote: &remote.memory,
                    remote_offset: remote.offset,
                    local,
                    local_offset: done,
                    length,
                }),
                // Memory of another host is registered with channels over fabrics only.
                (MemoryPart::Fabric(RemoteSpan { .. }), None) => return Err(InvocationStatus::UnknownRegion),
            }
            done += length;
        }
        Ok(spans)
    }
}

fn ring(channel: &SlotChannel) -> Option<&OfiRing> {
    match channel.far() {
        TransportRing::Ofi(ring) => Some(ring),
        TransportRing::Shm(_) => None,
    }
}

fn limit(timeout_us: u32) -> Duration {
    match timeout_us {
        0 => TRANSFER_LIMIT,
        _ => Duration::from_micros(timeout_us.into()).min(TRANSFER_LIMIT),
    }
}

/// Size of all parts; there are few, and each has its limit, but together they may exceed [`BYTES_MAX`].
fn total(parts: &[MemoryPart]) -> Result<u64, InvocationStatus> {
    let bytes = parts.iter().map(MemoryPart::bytes).sum();
    if bytes > BYTES_MAX {
        Err(InvocationStatus::BadSpan)
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(memory: &Memory, offset: u64, bytes: u64) -> MemoryPart {
        assert!(offset + bytes <= memory.size_bytes());
        // SAFETY: inside the mapping, as just checked.
        let start = unsafe { memory.start().add(offset as usize) };
        MemoryPart::Shared(MemoryPlace { start, bytes })
    }

    #[allow(clippy::mut_from_ref)] // For tests: no other code uses the mapping.
    fn bytes(memory: &Memory) -> &mut [u8] {
        // SAFETY: the mapping, which no other code uses.
        unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), memory.size_bytes() as usize) }
    }

    #[test]
    fn parts_meet_the_memory_one_behind_the_other_and_no_further_than_asked() {
        let client = Memory::create("client", 4096).unwrap();
        for (at, byte) in bytes(&client).iter_mut().enumerate() {
            *byte = at as u8;
        }
        let parts = [shared(&client, 100, 3), shared(&client, 50, 0), shared(&client, 7, 2)];
        let mut room = None;
        LandingBuffer::make(&mut room, None, &parts).unwrap();
        let room = room.unwrap();
        let copied = |limit: u64| {
            let calls = std::cell::RefCell::new(Vec::new());
            let remote = room.map_parts(&parts, limit, |there, here, length| {
                let offset = |address: *mut u8, memory: &Memory| address as usize - memory.start().as_ptr() as usize;
                calls
                    .borrow_mut()
                    .push((offset(there, &client), offset(here, &room.memory), length));
            });
            assert!(remote.unwrap().is_empty());
            calls.into_inner()
        };
        assert_eq!(copied(u64::MAX), [(100, 0, 3), (50, 3, 0), (7, 3, 2)]);
        assert_eq!(copied(4), [(100, 0, 3), (50, 3, 0), (7, 3, 1)]);
        assert_eq!(copied(0), [(100, 0, 0), (50, 0, 0), (7, 0, 0)]);
    }

    #[test]
    fn memory_of_another_host_needs_a_channel_over_a_fabric() {
        let memory = hotlease_wire::fabric::RmaMemory {
            address: 0,
            key: 0,
            size: 8,
        };
        let part = MemoryPart::Fabric(RemoteSpan {
            memory,
            offset: 0,
            length: 8,
        });
        let mut room = None;
        LandingBuffer::make(&mut room, None, &[part]).unwrap();
        assert!(matches!(
            room.unwrap().map_parts(&[part], 8, |_, _, _| ()),
            Err(InvocationStatus::UnknownRegion)
        ));
    }

    #[test]
    fn parts_that_are_too_long_together_are_refused() {
        let memory = hotlease_wire::fabric::RmaMemory {
            address: 0,
            key: 0,
            size: u64::MAX,
        };
        let part = MemoryPart::Fabric(RemoteSpan {
            memory,
            offset: 0,
            length: BYTES_MAX,
        });
        assert_eq!(total(&[part]), Ok(BYTES_MAX));
        assert_eq!(total(&[part, part]), Err(InvocationStatus::BadSpan));
    }
}
