//! Input and output of calls: located and checked.

use hotlease_fabric::channel::{CheckedRequest, WorkerChannel};
use hotlease_fabric::memory::{Memory, PAGE_BYTES};
use hotlease_fabric::transport::TransportRing;
use hotlease_wire::fabric::RmaMemory;
use hotlease_wire::frame::{Flags, InvocationStatus, Span};
use hotlease_wire::ids::RegionId;
use hotlease_wire::limits::PARTS_MAX;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// A channel of a slot, over either transport.
pub type SlotChannel = WorkerChannel<TransportRing>;

/// Registered memory of one connection, in the table of one slot.
pub type Regions = BTreeMap<RegionId, ClientRegion>;

/// Memory that a client has registered.
#[derive(Clone)]
pub enum ClientRegion {
    /// Memory that is mapped here too.
    Shared(Arc<Memory>),
    /// Memory on the client's host; read and written over the fabric.
    Fabric(RmaMemory),
}

/// A part of memory on the client's host.
#[derive(Clone, Copy)]
pub struct RemoteSpan {
    /// The registered memory.
    pub memory: RmaMemory,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// A checked place in memory.
#[derive(Clone, Copy)]
pub struct MemoryPlace {
    /// First byte.
    pub start: NonNull<u8>,
    /// Number of bytes.
    pub bytes: u64,
}

impl MemoryPlace {
    const NOWHERE: Self = Self {
        start: NonNull::dangling(),
        bytes: 0,
    };
}

/// Input and output of a call.
pub struct Arguments {
    /// Input.
    pub input: MemoryPlace,
    /// Output; its size is the capacity.
    pub output: MemoryPlace,
    /// Whether the output is in the reply ring.
    pub output_in_ring: bool,
    /// First address of the guard page behind the output's ring entry or buffer.
    pub guard: u64,
    /// Parts that have to be fetched or stored. Boxed, so that it adds only one word to calls without such parts.
    pub remote: Option<Box<RemoteArguments>>,
}

/// Arguments that the function cannot use in place: on the client's host, or in several parts.
#[derive(Default)]
pub struct RemoteArguments {
    /// Parts of the input, which are concatenated before the call; until then `Arguments::input` is empty.
    pub input: Vec<MemoryPart>,
    /// Parts of the output, which are filled in turn after the call; until the output has a landing buffer,
    /// `Arguments::output` is empty.
    pub output: Vec<MemoryPart>,
}

/// A checked part of a client's memory.
#[derive(Clone, Copy)]
pub enum MemoryPart {
    /// A part that is mapped here too.
    Shared(MemoryPlace),
    /// A part on the client's host.
    Fabric(RemoteSpan),
}

impl MemoryPart {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Shared(place) => place.bytes,
            Self::Fabric(remote) => remote.length,
        }
    }
}

impl Arguments {
    /// Whether any argument has to be fetched or stored.
    #[inline]
    pub fn has_remote(&self) -> bool {
        self.remote.is_some()
    }
}

/// Locates and checks the arguments. The spans of a request are copied before they are decoded: the client may still
/// write to them.
#[inline]
pub fn locate(
    channel: &SlotChannel,
    request: &CheckedRequest,
    regions: &Regions,
) -> Result<Arguments, InvocationStatus> {
    let payload = channel.input(request);
    let in_ring = MemoryPlace {
        start: payload.start,
        bytes: payload.bytes as u64,
    };
    let output = MemoryPlace {
        start: channel.output(request),
        bytes: u64::from(request.header.output_capacity),
    };
    let in_ring = Arguments {
        input: in_ring,
        output,
        output_in_ring: true,
        guard: (output.start.as_ptr() as usize + channel.output_bytes()).next_multiple_of(64) as u64,
        remote: None,
    };
    match request.header.flags {
        Flags::NONE => Ok(in_ring),
        flags => in_buffers(in_ring, flags, regions),
    }
}

/// Arguments of a call with buffers: `in_ring.input` is the whole payload in the ring, spans included. Not inlined, so
/// that calls without buffers do not pay for it.
#[cold]
#[inline(never)]
fn in_buffers(in_ring: Arguments, flags: Flags, regions: &Regions) -> Result<Arguments, InvocationStatus> {
    let (payload, ring_output, ring_guard) = (in_ring.input, in_ring.output, in_ring.guard);
    let payload_bytes = payload.bytes as usize;
    let mut spans = [0; 2 * PARTS_MAX * Span::BYTES];
    let span_bytes = flags.span_bytes();
    let input_bytes = payload_bytes - span_bytes;
    // SAFETY: the channel checked that the payload is at least span_bytes long, which is at most the
    // array's size.
    unsafe {
        let from = payload.start.as_ptr().add(input_bytes);
        std::ptr::copy_nonoverlapping(from, spans.as_mut_ptr(), span_bytes);
    }
    let mut rest = &spans[..span_bytes];
    let mut next = |parts: usize| {
        let found = (0..parts).map(|_| {
            let (span, behind) = rest.split_at(Span::BYTES);
            rest = behind;
            let span = Span::decode(span).map_err(|_| InvocationStatus::BadSpan)?;
            find(&span, regions)
        });
        ArgumentData::of(found)
    };
    let mut remote = RemoteArguments::default();
    let input = match next(flags.inputs())? {
        ArgumentData::InRing => MemoryPlace {
            start: payload.start,
            bytes: input_bytes as u64,
        },
        ArgumentData::InPlace(found) => found.place,
        ArgumentData::Remote(parts) => {
            remote.input = parts;
            MemoryPlace::NOWHERE
        }
    };
    let output_in_ring = flags.outputs() == 0;
    let (output, guard) = match next(flags.outputs())? {
        ArgumentData::InRing => (ring_output, ring_guard),
        ArgumentData::InPlace(found) => (found.place, found.guard),
        ArgumentData::Remote(parts) => {
            remote.output = parts;
            (MemoryPlace::NOWHERE, 0)
        }
    };
    let is_remote = !remote.input.is_empty() || !remote.output.is_empty();
    Ok(Arguments {
        input,
        output,
        output_in_ring,
        guard,
        remote: is_remote.then(|| Box::new(remote)),
    })
}

/// A place in memory that both sides map.
struct GuardedPlace {
    place: MemoryPlace,
    /// First address of the guard page behind the region.
    guard: u64,
}

/// Memory of one span.
enum SpanMemory {
    Shared(GuardedPlace),
    Fabric(RemoteSpan),
}

/// Location of an input or output, from all its spans.
enum ArgumentData {
    InRing,
    InPlace(GuardedPlace),
    Remote(Vec<MemoryPart>),
}

impl ArgumentData {
    fn of(mut found: impl Iterator<Item = Result<SpanMemory, InvocationStatus>>) -> Result<Self, InvocationStatus> {
        let part = |found| match found {
            SpanMemory::Shared(found) => MemoryPart::Shared(found.place),
            SpanMemory::Fabric(remote) => MemoryPart::Fabric(remote),
        };
        let Some(first) = found.next().transpose()? else {
            return Ok(Self::InRing);
        };
        match (first, found.next().transpose()?) {
            (SpanMemory::Shared(only), None) => Ok(Self::InPlace(only)),
            (first, second) => {
                let mut parts = vec![part(first)];
                parts.extend(second.map(part));
                for found in found {
                    parts.push(part(found?));
                }
                Ok(Self::Remote(parts))
            }
        }
    }
}

/// Memory of a span, if the span lies inside its region.
fn find(span: &Span, regions: &Regions) -> Result<SpanMemory, InvocationStatus> {
    let region = regions.get(&span.region).ok_or(InvocationStatus::UnknownRegion)?;
    let size_bytes = match region {
        ClientRegion::Shared(memory) => memory.size_bytes(),
        ClientRegion::Fabric(memory) => memory.size,
    };
    // Offset and length were bounded when the span was decoded, so the sum does not wrap.
    if span.offset + span.length > size_bytes {
        return Err(InvocationStatus::BadSpan);
    }
    Ok(match region {
        ClientRegion::Shared(memory) => {
            // SAFETY: offset is inside the mapping, as just checked.
            let start = unsafe { memory.start().add(span.offset as usize) };
            let end = memory.start().as_ptr() as usize + memory.size_bytes() as usize;
            SpanMemory::Shared(GuardedPlace {
                place: MemoryPlace {
                    start,
                    bytes: span.length,
                },
                guard: end.next_multiple_of(PAGE_BYTES) as u64,
            })
        }
        ClientRegion::Fabric(memory) => SpanMemory::Fabric(RemoteSpan {
            memory: *memory,
            offset: span.offset,
            length: span.length,
        }),
    })
}
