//! Tasks of Python workers and their results, inside the payloads of invocations; described in
//! `bindings/python/FORMAT.md`.
//!
//! This module has the layouts, small [`plain`] values, the arguments of [`native`] functions, and the protocol by
//! which [`left_results`] are fetched from their worker. The Python package makes objects from these, and only the
//! Python package reads pickles; it first passes pickles from a sandbox to [`pickle::check`].

pub mod left_results;
pub mod native;
pub mod pickle;
pub mod plain;

/// Largest number of buffers of one request or reply.
pub const BUFFERS_MAX: usize = 4096;
/// Alignment of buffers.
pub const ALIGNMENT: usize = 64;
/// Bytes of a function's key.
pub const KEY_BYTES: usize = 16;
/// Largest number of results of other tasks in one request.
pub const RESULTS_MAX: usize = 65_536;
/// Results of this size or more begin at multiples of [`ALIGNMENT`], so that their buffers can be used in place.
pub const ALIGNED_FROM: usize = 32 << 10;

/// Key of a function: the first bytes of the BLAKE3 hash of its pickle.
pub type FunctionKey = [u8; KEY_BYTES];

/// The key of a function.
pub fn key_of(blob: &[u8]) -> FunctionKey {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&blake3::hash(blob).as_bytes()[..KEY_BYTES]);
    key
}

/// Kinds of requests, each with a form of the arguments, and flags of requests.
pub mod request {
    /// A plain tuple, and pairs of names and values.
    pub const PLAIN: u8 = 0;
    /// A pickle of `(args, kwargs)`.
    pub const PICKLED: u8 = 1;
    /// A ticket of a kept result.
    pub const TAKE: u8 = 2;
    /// Data for a native function; its input is a buffer, or the result of another task.
    pub const NATIVE: u8 = 3;
    /// Tickets of results that are not needed any more.
    pub const RELEASE: u8 = 4;
    /// Flag: the buffers may be written.
    pub const WRITABLE: u8 = 1;
    /// Flag: the request contains results of other tasks.
    pub const RESULTS: u8 = 2;
    /// Flag: the reply must state the function's duration.
    pub const TIMED: u8 = 4;
    /// Flag: the result may stay in the request's memory.
    pub const YIELDED: u8 = 8;
    /// Flag: a large result may stay with the worker.
    pub const STAYS: u8 = 16;
    /// Flag: the client reads the result, or the exception, as untrusted: code in a sandbox may have made it.
    pub const GUARDED: u8 = 32;
    /// All flags.
    pub const FLAGS: u8 = WRITABLE | RESULTS | TIMED | YIELDED | STAYS | GUARDED;
    /// Bytes before the lengths of buffers.
    pub const HEAD_BYTES: usize = 24;
}

/// Kinds of replies: the form of the body.
pub mod reply {
    /// A plain value.
    pub const PLAIN: u8 = 0;
    /// A pickle.
    pub const PICKLED: u8 = 1;
    /// A traceback and a pickle.
    pub const EXCEPTION: u8 = 2;
    /// A traceback and `type: message`.
    pub const EXCEPTION_TEXT: u8 = 3;
    /// The worker lacks the function: it must be sent.
    pub const UNKNOWN_FUNCTION: u8 = 4;
    /// Ticket and size of a kept result.
    pub const KEPT: u8 = 5;
    /// Text of a rejection.
    pub const REFUSED: u8 = 6;
    /// Offset of the result's only buffer in the request's memory, its size, and the pickle.
    pub const IN_REQUEST: u8 = 7;
    /// Bytes of a body of kind [`IN_REQUEST`] before its pickle.
    pub const IN_REQUEST_BYTES: usize = 16;
    /// Ticket and size of a result that stays with its worker, and the data by which another worker gets it; see
    /// [`super::left_results`].
    pub const LEFT: u8 = 8;
    /// Reason why a result of another task, which was left with its worker, could not be fetched.
    pub const NOT_HAD: u8 = 9;
    /// Bytes of the head, before the body.
    pub const HEAD_BYTES: usize = 8;

    /// Number of bits of a duration: if it replaces the length of a traceback, and if it is beside that length. The
    /// last five bits are the exponent.
    const BITS: [u32; 2] = [32, 24];

    /// Bytes of a head for the duration, and its number of bits.
    fn place(head: &mut [u8]) -> Option<(&mut [u8], u32)> {
        let head = head.get_mut(..HEAD_BYTES)?;
        match head[0] {
            PLAIN | PICKLED | IN_REQUEST | LEFT => Some((&mut head[4..], BITS[0])),
            EXCEPTION | EXCEPTION_TEXT => Some((&mut head[1..4], BITS[1])),
            _ => None,
        }
    }

    /// Writes the function's duration into the head of a result or exception.
    pub fn put_time(head: &mut [u8], ns: u64) {
        let Some((place, bits)) = place(head) else { return };
        // 0 means that the duration is not known.
        let ns = ns.max(1);
        let mantissa_bits = bits - 5;
        let exponent = (64 - ns.leading_zeros()).saturating_sub(mantissa_bits).min(31);
        let mantissa = (ns >> exponent).min((1 << mantissa_bits) - 1);
        let word = ((mantissa as u32) << 5 | exponent).to_le_bytes();
        place.copy_from_slice(&word[..place.len()]);
    }

    /// Removes the duration from the head and returns it; the reply is then as if no duration was requested.
    pub fn take_time(head: &mut [u8]) -> Option<u64> {
        let (place, _) = place(head)?;
        let mut word = [0; 4];
        word[..place.len()].copy_from_slice(place);
        place.fill(0);
        let word = u32::from_le_bytes(word);
        // At most 27 bits, shifted by 31 at most.
        let ns = u64::from(word >> 5) << (word & 31);
        (ns > 0).then_some(ns)
    }
}

/// Error in bytes that should be a request or a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end before the announced length.
    #[error("it ends early")]
    Short,
    /// The kind or a flag is unknown.
    #[error("it is of a kind that this version does not know")]
    Kind,
    /// There are too many buffers.
    #[error("it has more than {BUFFERS_MAX} buffers")]
    Buffers,
    /// There are too many results of other tasks, or none although some are announced.
    #[error("it announces results of other tasks, but does not have between 1 and {RESULTS_MAX} of them")]
    Results,
    /// A plain value is malformed.
    #[error("a plain value is damaged")]
    Plain,
    /// The description of a result that was left with its worker has impossible numbers.
    #[error("it does not say where its result is")]
    Left,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// Positions of a pickle and its buffers, in a request or a reply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskLayout {
    /// Offset of the pickle.
    pub pickle: usize,
    /// Size of the pickle.
    pub pickle_bytes: usize,
    /// Offset and size of each buffer.
    pub buffers: Vec<(usize, usize)>,
    /// Size of everything.
    pub end: usize,
}

impl TaskLayout {
    /// Layout of a pickle that follows `before` bytes, and of its buffers. `None` if the layout is larger than any
    /// memory.
    pub fn new(before: usize, pickle_bytes: usize, lengths: impl IntoIterator<Item = usize>) -> Option<Self> {
        let mut end = before.checked_add(pickle_bytes)?;
        let mut buffers = Vec::new();
        for length in lengths {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(length)?;
            buffers.push((start, length));
        }
        Some(Self {
            pickle: before,
            pickle_bytes,
            buffers,
            end,
        })
    }
}

/// A request's head, and the positions of its other parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRequest {
    /// Kind of the arguments; see [`request`].
    pub kind: u8,
    /// Whether the buffers may be written.
    pub writable: bool,
    /// Whether the reply must state the function's duration.
    pub timed: bool,
    /// Whether the result may stay in the request's memory.
    pub yielded: bool,
    /// Whether a large result may stay with the worker.
    pub stays: bool,
    /// Whether the client reads the result as untrusted: code in a sandbox may have made it.
    pub guarded: bool,
    /// Key of the function.
    pub key: FunctionKey,
    /// Offset and size of the function's pickle; `None` if the request does not contain it.
    pub blob: Option<(usize, usize)>,
    /// Positions of the arguments: their pickle, plain values, or the data for a native function; and their buffers.
    pub arguments: TaskLayout,
    /// Offset and size of each result of another task, which is a reply; the arguments name results by number.
    pub results: Vec<(usize, usize)>,
}

impl TaskRequest {
    /// Decodes a request of `size` bytes. `at(from, into)` copies bytes of the request; it is only called for positions
    /// inside it.
    pub fn decode(size: usize, at: impl Fn(usize, &mut [u8])) -> Result<Self, FormatError> {
        let mut head = [0; request::HEAD_BYTES];
        if size < head.len() {
            return Err(FormatError::Short);
        }
        at(0, &mut head);
        let (kind, flags) = (head[0], head[1]);
        let has_results = flags & request::RESULTS != 0;
        if kind > request::RELEASE
            || flags & !request::FLAGS != 0
            || flags & !request::WRITABLE != 0 && matches!(kind, request::TAKE | request::RELEASE)
        {
            return Err(FormatError::Kind);
        }
        let number: usize = u16::from_le_bytes([head[2], head[3]]).into();
        if number > 0 && !matches!(kind, request::PICKLED | request::NATIVE) {
            return Err(FormatError::Kind);
        }
        let blob_bytes = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&head[8..]);
        let (results, behind) = match has_results {
            true => result_lengths(size, &at)?,
            false => (Vec::new(), head.len()),
        };
        let (pickle_bytes, lengths, behind) = lengths(size, behind, number, has_results, at)?;
        let blob_end = behind.checked_add(blob_bytes).ok_or(FormatError::Short)?;
        let rest = size.checked_sub(blob_end).ok_or(FormatError::Short)?;
        let arguments = TaskLayout::new(blob_end, pickle_bytes.unwrap_or(rest), lengths);
        let arguments = arguments.ok_or(FormatError::Short)?;
        let (results, end) = place_results(arguments.end, results).ok_or(FormatError::Short)?;
        if end > size {
            return Err(FormatError::Short);
        }
        Ok(Self {
            kind,
            writable: flags & request::WRITABLE != 0,
            timed: flags & request::TIMED != 0,
            yielded: flags & request::YIELDED != 0,
            stays: flags & request::STAYS != 0,
            guarded: flags & request::GUARDED != 0,
            key,
            blob: (blob_bytes > 0).then_some((behind, blob_bytes)),
            arguments,
            results,
        })
    }

    /// The bytes before the function's pickle: head and lengths. `None` if there are too many buffers or results, or if
    /// the function is too large.
    pub fn head(
        kind: u8,
        writable: bool,
        key: &FunctionKey,
        blob_bytes: usize,
        pickle_bytes: usize,
        lengths: &[usize],
        results: &[usize],
    ) -> Option<Vec<u8>> {
        if lengths.len() > BUFFERS_MAX || results.len() > RESULTS_MAX {
            return None;
        }
        let words = lengths.len() + results.len() + 2;
        let mut head = Vec::with_capacity(request::HEAD_BYTES + 8 * words);
        let mut flags = if writable { request::WRITABLE } else { 0 };
        if !results.is_empty() {
            flags |= request::RESULTS;
        }
        head.extend([kind, flags]);
        head.extend((lengths.len() as u16).to_le_bytes());
        head.extend(u32::try_from(blob_bytes).ok()?.to_le_bytes());
        head.extend(key);
        if !results.is_empty() {
            for word in std::iter::once(&results.len()).chain(results) {
                head.extend((*word as u64).to_le_bytes());
            }
        }
        push_lengths(&mut head, pickle_bytes, lengths, !results.is_empty());
        Some(head)
    }
}

/// A reply's head, and the positions of its other parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReply {
    /// Kind of the body; see [`reply`].
    pub kind: u8,
    /// Size of the traceback, which is first in the body.
    pub traceback_bytes: usize,
    /// Positions after the traceback: a pickle with buffers, a plain value, or text.
    pub body: TaskLayout,
}

impl TaskReply {
    /// Decodes a reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
        Self::decode_at(bytes.len(), at)
    }

    /// Decodes a reply of `size` bytes. `at(from, into)` copies bytes of the reply; it is only called for positions
    /// inside it.
    pub fn decode_at(size: usize, at: impl Fn(usize, &mut [u8])) -> Result<Self, FormatError> {
        let mut head = [0; reply::HEAD_BYTES];
        if size < head.len() {
            return Err(FormatError::Short);
        }
        at(0, &mut head);
        let kind = head[0];
        if kind > reply::NOT_HAD {
            return Err(FormatError::Kind);
        }
        let number: usize = u16::from_le_bytes([head[2], head[3]]).into();
        let traceback_bytes = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let is_exception = matches!(kind, reply::EXCEPTION | reply::EXCEPTION_TEXT);
        if head[1] != 0 || number > 0 && kind != reply::PICKLED || traceback_bytes > 0 && !is_exception {
            return Err(FormatError::Kind);
        }
        let (pickle_bytes, lengths, behind) = lengths(size, head.len(), number, false, at)?;
        let start = behind.checked_add(traceback_bytes).ok_or(FormatError::Short)?;
        let rest = size.checked_sub(start).ok_or(FormatError::Short)?;
        let body = TaskLayout::new(start, pickle_bytes.unwrap_or(rest), lengths);
        Ok(Self {
            kind,
            traceback_bytes,
            body: body.filter(|layout| layout.end <= size).ok_or(FormatError::Short)?,
        })
    }

    /// The bytes before the body's pickle: head and lengths. `None` if there are too many buffers.
    pub fn head(kind: u8, traceback_bytes: u32, pickle_bytes: usize, lengths: &[usize]) -> Option<Vec<u8>> {
        if lengths.len() > BUFFERS_MAX {
            return None;
        }
        let mut head = Vec::with_capacity(reply::HEAD_BYTES + 8 * (lengths.len() + 1));
        head.extend([kind, 0]);
        head.extend((lengths.len() as u16).to_le_bytes());
        head.extend(traceback_bytes.to_le_bytes());
        push_lengths(&mut head, pickle_bytes, lengths, false);
        Some(head)
    }
}

/// Offsets and sizes of results that follow `end`, and the end of the last result.
pub fn place_results(mut end: usize, lengths: impl IntoIterator<Item = usize>) -> Option<(Vec<(usize, usize)>, usize)> {
    let mut results = Vec::new();
    for length in lengths {
        let start = match length >= ALIGNED_FROM {
            true => end.checked_next_multiple_of(ALIGNMENT)?,
            false => end,
        };
        end = start.checked_add(length)?;
        results.push((start, length));
    }
    Some((results, end))
}

/// The lengths of results, which follow a request's head, and the offset after them.
fn result_lengths(size: usize, at: &impl Fn(usize, &mut [u8])) -> Result<(Vec<usize>, usize), FormatError> {
    let word = |from: usize| {
        let mut bytes = [0; 8];
        if from.checked_add(bytes.len()).is_none_or(|end| end > size) {
            return Err(FormatError::Short);
        }
        at(from, &mut bytes);
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| FormatError::Short)
    };
    let number = word(request::HEAD_BYTES)?;
    if number == 0 || number > RESULTS_MAX {
        return Err(FormatError::Results);
    }
    let begin = request::HEAD_BYTES + 8;
    let behind = begin + 8 * number;
    if behind > size {
        return Err(FormatError::Short);
    }
    let lengths = (0..number).map(|index| word(begin + 8 * index));
    Ok((lengths.collect::<Result<_, _>>()?, behind))
}

fn push_lengths(head: &mut Vec<u8>, pickle_bytes: usize, lengths: &[usize], always: bool) {
    if always || !lengths.is_empty() {
        head.extend((pickle_bytes as u64).to_le_bytes());
        lengths
            .iter()
            .for_each(|length| head.extend((*length as u64).to_le_bytes()));
    }
}

/// Size of the pickle, sizes of the buffers, and the offset after these numbers.
type Lengths = (Option<usize>, Vec<usize>, usize);

/// Decodes the lengths that follow a head.
fn lengths(
    size: usize,
    head_bytes: usize,
    number: usize,
    always: bool,
    at: impl Fn(usize, &mut [u8]),
) -> Result<Lengths, FormatError> {
    if number == 0 && !always {
        return Ok((None, Vec::new(), head_bytes));
    }
    if number > BUFFERS_MAX {
        return Err(FormatError::Buffers);
    }
    let behind = head_bytes + 8 * (number + 1);
    if behind > size {
        return Err(FormatError::Short);
    }
    let mut words = vec![0; behind - head_bytes];
    at(head_bytes, &mut words);
    let mut words = words.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| FormatError::Short)
    });
    let pickle = words.next().ok_or(FormatError::Short)??;
    Ok((Some(pickle), words.collect::<Result<_, _>>()?, behind))
}
