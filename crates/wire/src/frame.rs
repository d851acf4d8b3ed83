//! The data plane: request and reply headers, one 64-byte cache line each.
//!
//! A header is eight little-endian 64-bit words. Word 0 is the in-band sequence word; its arrival completes the frame,
//! so no transport needs remote-CQ data, RMA events or atomics. Up to [`INLINE_BYTES`] of payload are in words 4 to 7.
//! A longer payload is in the entry's payload area, and is complete before the sequence word is written (the inlining
//! of the rFaaS paper, section 4.2, without its gap at 128 bytes).
//!
//! ```text
//! request  0      8      12   14     16      20     24       28      32              64
//!          | seq  | epoch| fn | flags| length| entry|timeout | outcap| inline payload |
//! reply    0      8      10   12     16             24              32              64
//!          | seq  |status| 0  | code | length       | 0             | inline payload |
//! ```
//!
//! A receiver copies the line to private memory first and decodes the copy: the sender may be hostile
//! and go on writing.

mod claim;
mod invocation;

pub use claim::RequestClaim;
pub use invocation::InvocationId;

use crate::DecodeError;
use crate::ids::{Epoch, FunctionIndex, RegionId};
use crate::limits::{INLINE_BYTES, PARTS_MAX, REGION_BYTES_MAX};

/// The number of the express entry of a ring: see the fabric crate's `channel`.
pub const EXPRESS_ENTRY: u32 = u32::MAX;

/// A header as it is in memory: eight words, little-endian.
pub type LineWords = [u64; 8];

/// The in-band sequence word: the generation of the channel, and the number of an invocation on it.
///
/// It is the generation, moved to the upper half, plus the invocation's number, counted in 64 bits. No word is repeated
/// in the life of a channel, so a line never matches a later invocation, no matter how long ago it was written. Zeroed
/// memory matches no invocation, because no word is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seq(u64);

impl Seq {
    /// Sequence word of invocation `number`, counted from 0, on a channel of `generation` (not 0).
    #[inline]
    pub fn new(generation: u32, number: u64) -> Self {
        debug_assert_ne!(generation, 0);
        Self((u64::from(generation) << 32).wrapping_add(number))
    }
    /// The word as it is in memory.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }
}

/// Numbers of parts of registered buffers that form an invocation's input and output, in place of bytes in the ring.
///
/// The payload then ends with a [`Span`] for each part, spans of the input first. Input bytes that are not in a buffer
/// precede the spans, so that these bytes are aligned. Several parts of an input are read one after the other, as if
/// they were one part; an output fills one part after the other.
///
/// Two numbers of 8 bits: parts of the input, parts of the output. The upper bits of the first say whether the client
/// may withdraw the request, and which party has claimed it since ([`RequestClaim`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// No data in buffers.
    pub const NONE: Self = Self(0);
    /// The input is one part of a buffer, which the function reads in place.
    pub const INPUT_BUFFER: Self = Self(1);
    /// The output is one part of a buffer, which the function writes in place.
    pub const OUTPUT_BUFFER: Self = Self(1 << 8);

    /// Flags for these numbers of parts; `None` if one number is over [`PARTS_MAX`].
    pub fn of_parts(inputs: usize, outputs: usize) -> Option<Self> {
        let fits = inputs <= PARTS_MAX && outputs <= PARTS_MAX;
        fits.then_some(Self((inputs | outputs << 8) as u16))
    }
    /// Combines two flags that have no bits in common.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Number of buffer parts that form the input; 0: the input is in the ring.
    #[inline]
    pub fn inputs(self) -> usize {
        usize::from(self.0 & 0x1f)
    }
    /// Number of buffer parts that form the output; 0: the output is sent through the ring.
    #[inline]
    pub fn outputs(self) -> usize {
        usize::from(self.0 >> 8)
    }
    /// Bytes of spans at the end of the payload.
    #[inline]
    pub fn span_bytes(self) -> usize {
        (self.inputs() + self.outputs()) * Span::BYTES
    }
}

/// Header of a request, which a client writes into a slot's request ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Sequence word; completes the frame.
    pub seq: Seq,
    /// Epoch; the request is refused unless it equals the slot's epoch.
    pub epoch: Epoch,
    /// Function to run.
    pub function: FunctionIndex,
    /// Number of buffer parts.
    pub flags: Flags,
    /// Number of payload bytes.
    pub length: u32,
    /// Entry of the reply ring for the reply, or [`EXPRESS_ENTRY`].
    pub reply_entry: u32,
    /// Time limit of the function from the moment that the slot sees the request, microseconds; 0: unlimited. Relative,
    /// so that client and worker need no common clock.
    pub timeout_us: u32,
    /// Largest number of output bytes that the client accepts in the ring. (The capacity of a buffer is its span's
    /// length.)
    pub output_capacity: u32,
    /// The payload if `length <= INLINE_BYTES`, zero-padded.
    pub inline: Inline,
}

fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// A payload inside a header. It is stored as words of the line: building words from bytes and splitting them again
/// costs more than all other work on a header (stores of one width and loads of another wait for each other).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct Inline([u64; INLINE_BYTES / 8]);

impl Inline {
    /// The first bytes of `bytes`, zero-padded.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut inline = Self::default();
        for (word, chunk) in inline.0.iter_mut().zip(bytes.chunks(8)) {
            *word = match chunk.first_chunk() {
                Some(whole) => u64::from_le_bytes(*whole),
                None => {
                    let mut padded = [0; 8];
                    padded[..chunk.len()].copy_from_slice(chunk);
                    u64::from_le_bytes(padded)
                }
            };
        }
        inline
    }

    /// Copies the first bytes to `output`, as many as fit.
    #[inline]
    pub fn read(&self, output: &mut [u8]) {
        for (chunk, word) in output.chunks_mut(8).zip(&self.0) {
            let bytes = word.to_le_bytes();
            match chunk.first_chunk_mut() {
                Some(whole) => *whole = bytes,
                None => chunk.copy_from_slice(&bytes[..chunk.len()]),
            }
        }
    }

    /// All bytes.
    pub fn to_bytes(&self) -> [u8; INLINE_BYTES] {
        let mut bytes = [0; INLINE_BYTES];
        self.read(&mut bytes);
        bytes
    }

    #[inline]
    fn from_line(words: &LineWords) -> Self {
        Self([words[4], words[5], words[6], words[7]])
    }
}

impl RequestHeader {
    /// Encodes the header as words of a line.
    #[inline]
    pub fn encode(&self) -> LineWords {
        let mut words = [0; 8];
        words[0] = self.seq.0;
        words[1] = pack(self.epoch.0, u32::from(self.function.0) | u32::from(self.flags.0) << 16);
        words[2] = pack(self.length, self.reply_entry);
        words[3] = pack(self.timeout_us, self.output_capacity);
        words[4..].copy_from_slice(&self.inline.0);
        words
    }

    /// Decodes a private copy of a line. Checks the form only; the worker checks epoch, index and lengths against the
    /// channel.
    #[inline]
    pub fn decode(words: &LineWords) -> Result<Self, DecodeError> {
        let flags = Flags((words[1] >> 48) as u16);
        if flags.inputs() > PARTS_MAX || flags.outputs() > PARTS_MAX || flags.has_stray_claim() {
            return Err(DecodeError::Malformed { what: "request flags" });
        }
        Ok(Self {
            seq: Seq(words[0]),
            epoch: Epoch(words[1] as u32),
            function: FunctionIndex((words[1] >> 32) as u16),
            flags,
            length: words[2] as u32,
            reply_entry: (words[2] >> 32) as u32,
            timeout_us: words[3] as u32,
            output_capacity: (words[3] >> 32) as u32,
            inline: Inline::from_line(words),
        })
    }
}

/// Status of an invocation, as its worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum InvocationStatus {
    /// Ran; the output is the reply's payload.
    Ok = 0,
    /// Ran and returned an error of its own, `code`; any output that it wrote is the payload.
    FunctionError = 1,
    /// Ran, and claimed or needs more output bytes (`length`) than the client accepts; no output.
    OutputTooLarge = 2,
    /// Did not run: the lease that this frame belongs to is over.
    StaleEpoch = 16,
    /// Did not run: no function has this index.
    UnknownFunction = 17,
    /// Did not run: a length exceeds the entry, or is less than the spans that the payload must contain.
    BadLength = 18,
    /// Did not run: a buffer is not registered.
    UnknownRegion = 19,
    /// Did not run: a span reaches past its buffer, or writes to a read-only buffer.
    BadSpan = 20,
    /// Did not run: malformed header.
    BadHeader = 21,
    /// Did not run: the worker is draining.
    Draining = 22,
    /// Ran past its deadline, noticed the cancel flag and returned.
    DeadlineExceeded = 3,
    /// Ran; its output could not be written to the client's buffer over the fabric.
    OutputUnreachable = 4,
    /// Did not run: its input could not be read from the client's buffer over the fabric.
    InputUnreachable = 23,
    /// Did not run: the slot's core is shared, and another slot has it now. The client may try another slot at once, or
    /// this slot a little later.
    Busy = 24,
    /// Did not run: the client has withdrawn the invocation.
    Withdrawn = 25,
}

impl InvocationStatus {
    /// The status of this number.
    pub fn from_number(number: u16) -> Option<Self> {
        use InvocationStatus::*;
        [
            Ok,
            FunctionError,
            OutputTooLarge,
            DeadlineExceeded,
            OutputUnreachable,
            StaleEpoch,
            UnknownFunction,
            BadLength,
            UnknownRegion,
            BadSpan,
            BadHeader,
            Draining,
            InputUnreachable,
            Busy,
            Withdrawn,
        ]
        .into_iter()
        .find(|status| *status as u16 == number)
    }
    /// Whether the function ran.
    pub fn has_run(self) -> bool {
        (self as u16) < 16
    }
}

/// Header of a reply, which a worker writes into a client's reply ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Sequence word of the request, echoed; completes the frame.
    pub seq: Seq,
    /// Status of the invocation.
    pub status: InvocationStatus,
    /// The function's own error number, 0 unless `status` is [`InvocationStatus::FunctionError`].
    pub code: i32,
    /// Number of output bytes.
    pub length: u64,
    /// The payload if it is in the ring and `length <= INLINE_BYTES`, zero-padded.
    pub inline: Inline,
}

impl ReplyHeader {
    /// Header of a success with `length` output bytes and no inline payload yet.
    #[inline]
    pub fn ok(seq: Seq, length: u64) -> Self {
        Self {
            seq,
            status: InvocationStatus::Ok,
            code: 0,
            length,
            inline: Inline::default(),
        }
    }
    /// Header of a failure without output.
    #[inline]
    pub fn failed(seq: Seq, status: InvocationStatus) -> Self {
        Self {
            status,
            ..Self::ok(seq, 0)
        }
    }
    /// Encodes the header as words of a line.
    #[inline]
    pub fn encode(&self) -> LineWords {
        let mut words = [0; 8];
        words[0] = self.seq.0;
        words[1] = pack(u32::from(self.status as u16), self.code as u32);
        words[2] = self.length;
        words[4..].copy_from_slice(&self.inline.0);
        words
    }
    /// Decodes a private copy of a line.
    #[inline]
    pub fn decode(words: &LineWords) -> Result<Self, DecodeError> {
        // Success is the only status on the fast path.
        let number = words[1] as u32;
        let status = if number == 0 {
            InvocationStatus::Ok
        } else {
            u16::try_from(number)
                .ok()
                .and_then(InvocationStatus::from_number)
                .ok_or(DecodeError::Malformed { what: "reply status" })?
        };
        Ok(Self {
            seq: Seq(words[0]),
            status,
            code: (words[1] >> 32) as u32 as i32,
            length: words[2],
            inline: Inline::from_line(words),
        })
    }
}

/// A part of a registered buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The buffer.
    pub region: RegionId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes: input length, or output capacity.
    pub length: u64,
}

impl Span {
    /// Encoded size.
    pub const BYTES: usize = 24;

    /// Encodes the span.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes the first [`Span::BYTES`] of `bytes`; refuses a span that no buffer can hold.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = DecodeError::Malformed { what: "span" };
        let Some((head, _)) = bytes.split_first_chunk::<{ Self::BYTES }>() else {
            return Err(malformed);
        };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let span = Self {
            region: RegionId(word(0) as u32),
            offset: word(8),
            length: word(16),
        };
        match span.offset.checked_add(span.length) {
            Some(end) if end <= REGION_BYTES_MAX && word(0) >> 32 == 0 => Ok(span),
            _ => Err(malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_round_trips() {
        let header = RequestHeader {
            seq: Seq::new(3, u64::MAX),
            epoch: Epoch(9),
            function: FunctionIndex(65535),
            flags: Flags::INPUT_BUFFER.with(Flags::OUTPUT_BUFFER),
            length: 48,
            reply_entry: 63,
            timeout_us: 1_000_000,
            output_capacity: 4096,
            inline: Inline::from_bytes(&std::array::from_fn::<u8, 32, _>(|i| i as u8)),
        };
        assert_eq!(RequestHeader::decode(&header.encode()).unwrap(), header);
    }

    #[test]
    fn inline_payload_of_every_length_comes_back() {
        let bytes: [u8; INLINE_BYTES] = std::array::from_fn(|i| i as u8 + 1);
        for length in 0..=INLINE_BYTES {
            let inline = Inline::from_bytes(&bytes[..length]);
            assert_eq!(inline.to_bytes()[..length], bytes[..length]);
            assert!(inline.to_bytes()[length..].iter().all(|byte| *byte == 0), "padded");
            let mut output = [0; INLINE_BYTES];
            inline.read(&mut output[..length]);
            assert_eq!(output[..length], bytes[..length]);
        }
    }

    #[test]
    fn no_sequence_word_comes_again() {
        let first = Seq::new(7, 5);
        for lap in 1..100u64 {
            assert_ne!(Seq::new(7, 5 + (lap << 32)), first);
        }
    }

    #[test]
    fn unknown_flags_and_statuses_are_refused() {
        let mut words = [0; 8];
        // Too many parts; claims on requests that cannot be withdrawn.
        for flags in [17, 17 << 8, 0xffff, 1 << 5, 1 << 6, 3 << 5] {
            words[1] = flags << 48;
            assert!(RequestHeader::decode(&words).is_err(), "flags {flags:x}");
        }
        assert_eq!((Flags::of_parts(17, 0), Flags::of_parts(0, 17)), (None, None));
        words[1] = 0x1010 << 48;
        let most = RequestHeader::decode(&words).map(|header| header.flags);
        assert_eq!(most, Ok(Flags::of_parts(16, 16).unwrap()));
        for number in [5, 15, 26, 0x1_0000, u64::from(u32::MAX)] {
            words[1] = number;
            assert!(ReplyHeader::decode(&words).is_err(), "status {number} does not exist");
        }
    }

    #[test]
    fn every_status_has_one_number() {
        for number in 0..=u16::MAX {
            if let Some(status) = InvocationStatus::from_number(number) {
                assert_eq!(status as u16, number);
            }
        }
    }

    #[test]
    fn span_that_wraps_is_refused() {
        let span = Span {
            region: RegionId(1),
            offset: u64::MAX,
            length: 2,
        };
        assert!(Span::decode(&span.encode()).is_err());
        assert!(Span::decode(&[0; 23]).is_err());
        let fine = Span {
            region: RegionId(1),
            offset: 64,
            length: 2,
        };
        assert_eq!(Span::decode(&fine.encode()).unwrap(), fine);
    }
}
