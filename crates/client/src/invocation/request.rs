//! An invocation's data, laid out for a channel: bytes that are copied into the ring, and data in buffers.

use crate::Error;
use crate::buffer::staging::{StagedPiece, Staging};
use crate::buffer::{BufferSlice, BufferSliceMut, Input};
use crate::channel::{CallTarget, Channel};
use crate::session::region::Region;
use hotlease_wire::frame::{Flags, Span};
use hotlease_wire::limits::{PARTS_MAX, REGION_BYTES_MAX};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Destination of the output.
#[derive(Clone, Copy)]
pub(crate) enum OutputPlace<'a> {
    /// Bytes, at most this many.
    Bytes(usize),
    /// A buffer, written in place.
    Buffer(BufferSlice<'a>),
    /// Several parts of buffers.
    Parts(&'a [BufferSliceMut<'a>]),
}

/// Memory that the worker uses while the invocation is in flight, kept alive until it has ended.
#[derive(Default)]
pub(crate) struct UsedMemory {
    pub(crate) staged_input: Option<StagedPiece>,
    pub(crate) staged_output: Option<StagedPiece>,
    /// All of the memory, staged pieces included. Regions in this list are in use: no connection closes their
    /// registrations.
    regions: SmallVec<[Arc<Region>; 2]>,
}

impl UsedMemory {
    /// Registers with the channel's worker all of the memory that is not registered there yet.
    pub(crate) fn register(&self, channel: &Channel) -> Result<(), Error> {
        let mut regions = self.regions.iter();
        regions.try_for_each(|region| region.register(channel.connection()))
    }

    fn stage_input(&mut self, piece: StagedPiece) {
        self.regions.push(piece.region().clone());
        self.staged_input = Some(piece);
    }

    fn stage_output(&mut self, piece: StagedPiece) {
        self.regions.push(piece.region().clone());
        self.staged_output = Some(piece);
    }

    /// Drops the staged output, because a worker may still write to it. Returns whether there was one.
    fn discard_output(&mut self) -> bool {
        let Some(piece) = self.staged_output.take() else {
            return false;
        };
        self.regions.retain(|region| !Arc::ptr_eq(region, piece.region()));
        piece.discard();
        true
    }

    fn add(&mut self, slice: &BufferSlice<'_>, spans: &mut SmallVec<[u8; 2 * Span::BYTES]>) {
        spans.extend(slice.span().encode());
        self.regions.push(slice.region().clone());
    }

    /// Whether there is no memory to keep alive.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

/// The end of the payload: spans that name the buffers.
pub(crate) struct PayloadTail {
    spans: SmallVec<[u8; 2 * Span::BYTES]>,
    /// Whether the input bytes precede the spans.
    pub(crate) input_in_ring: bool,
}

impl PayloadTail {
    /// The payload of the ring entry, for these input bytes.
    pub(crate) fn payload<'a>(&'a self, input: &'a [u8]) -> [&'a [u8]; 2] {
        let input = if self.input_in_ring { input } else { &[] };
        [input, &self.spans]
    }
}

/// A request that can be published on any channel of an invoker. It does not contain the input bytes that go
/// through the ring.
pub(crate) struct ChannelRequest {
    pub(crate) target: CallTarget,
    pub(crate) tail: PayloadTail,
    /// Largest number of output bytes, for any destination.
    pub(crate) capacity: u64,
    pub(crate) uses: UsedMemory,
}

impl ChannelRequest {
    /// Lays out an invocation; stages data that is larger than a ring entry.
    pub(crate) fn new(
        mut target: CallTarget,
        input: &Input<'_>,
        wanted: OutputPlace<'_>,
        request_bytes: usize,
        reply_bytes: usize,
        staging: &Arc<Staging>,
    ) -> Result<Self, Error> {
        let mut uses = UsedMemory::default();
        let mut spans = SmallVec::new();
        let output_in_ring = matches!(wanted, OutputPlace::Bytes(bytes) if bytes <= reply_bytes);
        let outputs = match wanted {
            OutputPlace::Parts(parts) => parts.len(),
            _ => usize::from(!output_in_ring),
        };
        let room = request_bytes.checked_sub(outputs * Span::BYTES);
        let input_in_ring = matches!((input, room), (Input::Bytes(bytes), Some(room)) if bytes.len() <= room);
        let inputs = match input {
            Input::Parts(parts) => parts.len(),
            _ => usize::from(!input_in_ring),
        };
        target.flags = target.flags.with(flags(inputs, outputs, request_bytes)?);

        match input {
            Input::Bytes(_) if input_in_ring => {}
            Input::Bytes(bytes) => {
                check_size(bytes.len())?;
                let mut piece = staging.piece(bytes.len())?;
                piece[..bytes.len()].copy_from_slice(bytes);
                spans.extend(piece.slice(..bytes.len()).span().encode());
                uses.stage_input(piece);
            }
            Input::Buffer(slice) => uses.add(slice, &mut spans),
            Input::Parts(parts) => parts.iter().for_each(|slice| uses.add(slice, &mut spans)),
        }

        let capacity = match wanted {
            OutputPlace::Bytes(bytes) if output_in_ring => {
                target.output_capacity = (bytes as u32).max(target.message_room);
                bytes as u64
            }
            OutputPlace::Bytes(bytes) => {
                check_size(bytes)?;
                let piece = staging.piece(bytes)?;
                spans.extend(piece.slice(..bytes).span().encode());
                uses.stage_output(piece);
                bytes as u64
            }
            OutputPlace::Buffer(slice) => {
                uses.add(&slice, &mut spans);
                slice.size_bytes()
            }
            OutputPlace::Parts(parts) => {
                let slices = parts.iter().map(BufferSliceMut::as_slice);
                slices.clone().for_each(|slice| uses.add(&slice, &mut spans));
                slices.map(|slice| slice.size_bytes()).sum()
            }
        };
        Ok(Self {
            target,
            tail: PayloadTail { spans, input_in_ring },
            capacity,
            uses,
        })
    }

    /// Prepares for another submission, or for the end, after a failure on this channel. If the worker may still run,
    /// it may still write to the output. Staged output memory is then replaced; a caller's buffer cannot be replaced,
    /// so `error` is final.
    pub(crate) fn prepare_retry(
        &mut self,
        channel: &Channel,
        error: Error,
        staging: &Arc<Staging>,
    ) -> Result<Error, Error> {
        if !channel.can_still_run() {
            return Ok(error);
        }
        if self.uses.discard_output() {
            let Ok(bytes) = usize::try_from(self.capacity) else {
                return Err(error);
            };
            let Ok(piece) = staging.piece(bytes) else {
                return Err(error);
            };
            let at = self.tail.spans.len() - Span::BYTES;
            self.tail.spans[at..][..Span::BYTES].copy_from_slice(&piece.slice(..bytes).span().encode());
            self.uses.stage_output(piece);
        } else if !self.output_in_ring() {
            return Err(error);
        }
        Ok(error)
    }

    /// Whether the output is sent through the ring.
    pub(crate) fn output_in_ring(&self) -> bool {
        self.target.flags.outputs() == 0
    }
}

/// The input bytes that may go through the ring.
#[inline]
pub(crate) fn ring_bytes<'a>(input: &Input<'a>) -> &'a [u8] {
    match input {
        Input::Bytes(bytes) => bytes,
        Input::Buffer(_) | Input::Parts(_) => &[],
    }
}

/// The timeout as a request encodes it. 0 if there is none, or if it is too long for 32 bits (71 minutes): then only
/// the client enforces the timeout.
pub(crate) fn micros(timeout: Option<Duration>) -> u32 {
    timeout.map_or(0, |timeout| {
        u32::try_from(timeout.as_micros()).map_or(0, |micros| micros.max(1))
    })
}

/// Flags of a request with these numbers of inputs and outputs in buffers.
fn flags(inputs: usize, outputs: usize, request_bytes: usize) -> Result<Flags, Error> {
    let flags = Flags::of_parts(inputs, outputs);
    flags
        .filter(|flags| flags.span_bytes() <= request_bytes)
        .ok_or(Error::TooManyParts {
            parts: inputs.max(outputs),
            limit: PARTS_MAX.min(request_bytes / (2 * Span::BYTES)),
        })
}

fn check_size(bytes: usize) -> Result<(), Error> {
    if bytes as u64 > REGION_BYTES_MAX {
        return Err(Error::InputTooLarge {
            size: bytes as u64,
            limit: REGION_BYTES_MAX,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    const TARGET: CallTarget = CallTarget {
        function: 0,
        flags: Flags::NONE,
        timeout_us: 0,
        output_capacity: 0,
        message_room: 0,
    };

    fn lay_out(input: Input<'_>, wanted: OutputPlace<'_>) -> ChannelRequest {
        ChannelRequest::new(TARGET, &input, wanted, 4096, 4096, &Arc::default()).unwrap()
    }

    #[test]
    fn small_data_goes_through_the_ring() {
        let input = [7; 4096];
        let request = lay_out(Input::Bytes(&input), OutputPlace::Bytes(4096));
        assert_eq!(request.target.flags, Flags::NONE);
        assert_eq!(request.tail.payload(&input), [&input[..], &[][..]]);
        assert_eq!((request.target.output_capacity, request.capacity), (4096, 4096));
    }

    #[test]
    fn input_larger_than_an_entry_is_staged() {
        let input: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        let request = lay_out(Input::Bytes(&input), OutputPlace::Bytes(100_000));
        assert_eq!(request.target.flags, Flags::INPUT_BUFFER.with(Flags::OUTPUT_BUFFER));
        assert!(!request.tail.input_in_ring && !request.output_in_ring());
        assert_eq!(&request.uses.staged_input.as_ref().unwrap()[..5000], &input[..]);
        let [rest, spans] = request.tail.payload(&input);
        assert!(rest.is_empty());
        let (first, second) = (
            Span::decode(spans).unwrap(),
            Span::decode(&spans[Span::BYTES..]).unwrap(),
        );
        assert_eq!((first.length, second.length), (5000, 100_000));
        // The span of the output follows the input, so an entry has space for less input.
        let request = lay_out(Input::Bytes(&input[..4090]), OutputPlace::Bytes(5000));
        assert!(request.uses.staged_input.is_some());
    }

    #[test]
    fn parts_stand_in_order_and_each_buffer_is_kept() {
        let (input, output) = (Buffer::<u8>::new(100).unwrap(), Buffer::<u8>::new(100).unwrap());
        let inputs = [input.slice(50..60), input.slice(..5), output.slice(90..)];
        let outputs = [output.slice_shared(..1), input.slice_shared(60..80)];
        let request = lay_out(Input::Parts(&inputs), OutputPlace::Parts(&outputs));
        assert_eq!(request.target.flags, Flags::of_parts(3, 2).unwrap());
        let [rest, spans] = request.tail.payload(&[]);
        assert!(rest.is_empty());
        let spans = spans.chunks(Span::BYTES).map(|span| Span::decode(span).unwrap());
        let places: Vec<_> = spans.map(|span| (span.offset, span.length)).collect();
        assert_eq!(places, [(50, 10), (0, 5), (90, 10), (0, 1), (60, 20)]);
        assert_eq!((request.capacity, request.uses.regions.len()), (21, 5));
    }

    #[test]
    fn more_parts_than_a_request_can_name_are_refused() {
        let input = Buffer::<u8>::new(1).unwrap();
        let parts = [input.slice(..); PARTS_MAX + 1];
        let lay_out = |parts: usize, request_bytes: usize| {
            let (input, wanted) = (Input::Parts(&parts_of(&input)[..parts]), OutputPlace::Bytes(1));
            ChannelRequest::new(TARGET, &input, wanted, request_bytes, 4096, &Arc::default()).map(drop)
        };
        fn parts_of(buffer: &Buffer<u8>) -> Vec<BufferSlice<'_>> {
            vec![buffer.slice(..); PARTS_MAX + 1]
        }
        assert!(parts.len() > PARTS_MAX && lay_out(PARTS_MAX, 4096).is_ok());
        assert!(matches!(
            lay_out(PARTS_MAX + 1, 4096),
            Err(Error::TooManyParts { parts: 17, limit: 16 })
        ));
        assert!(matches!(
            lay_out(9, 192),
            Err(Error::TooManyParts { parts: 9, limit: 4 })
        ));
    }

    #[test]
    fn buffers_are_named_not_copied() {
        let mut output = Buffer::<f64>::new(1000).unwrap();
        let input = Buffer::<f32>::new(10).unwrap();
        let wanted = output.slice_mut(10..20);
        let request = lay_out(Input::from(&input), OutputPlace::Buffer(wanted.as_slice()));
        let [_, spans] = request.tail.payload(&[]);
        let second = Span::decode(&spans[Span::BYTES..]).unwrap();
        assert_eq!((second.offset, second.length, request.capacity), (80, 80, 80));
        assert!(request.uses.staged_input.is_none() && request.uses.staged_output.is_none());
    }
}
