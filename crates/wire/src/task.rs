//! Tasks of Python workers and their results, inside the payloads of invocations; in words: `bindings/python/FORMAT.md`.
//!
//! Where things lie, small [`plain`] values, what [`native`] functions are told, and how results that were [`left`] with a worker are had
//! from there. Objects are made of these in the Python package, and pickles are read there alone.

pub mod left;
pub mod native;
pub mod plain;

/// Buffers of one request or reply.
pub const BUFFERS_MAX: usize = 4096;
/// Buffers begin at multiples of this.
pub const ALIGNMENT: usize = 64;
/// Bytes of a function's key.
pub const KEY_BYTES: usize = 16;
/// Results of other tasks in one request.
pub const RESULTS_MAX: usize = 65_536;
/// Results from this size on begin at multiples of [`ALIGNMENT`]: their buffers may be handed out where they lie.
pub const ALIGNED_FROM: usize = 32 << 10;

/// The name of a function: the first bytes of the BLAKE3 hash of its pickle.
pub type Key = [u8; KEY_BYTES];

/// The key of a function.
pub fn key_of(blob: &[u8]) -> Key {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&blake3::hash(blob).as_bytes()[..KEY_BYTES]);
    key
}

/// Requests: what the arguments are.
pub mod request {
    /// A plain tuple, and pairs of names and values.
    pub const PLAIN: u8 = 0;
    /// A pickle of `(args, kwargs)`.
    pub const PICKLED: u8 = 1;
    /// A ticket.
    pub const TAKE: u8 = 2;
    /// What a native function needs to know; its input is a buffer, or the result of another task.
    pub const NATIVE: u8 = 3;
    /// Tickets of results that nobody needs any more.
    pub const RELEASE: u8 = 4;
    /// Flag: the buffers may be written to.
    pub const WRITABLE: u8 = 1;
    /// Flag: results of other tasks are in it.
    pub const RESULTS: u8 = 2;
    /// Flag: the reply is to say how long the function took.
    pub const TIMED: u8 = 4;
    /// Flag: the result may stay in the request's memory.
    pub const YIELDED: u8 = 8;
    /// Flag: a large result may stay with the worker.
    pub const STAYS: u8 = 16;
    /// Bytes before the lengths of buffers.
    pub const HEAD_BYTES: usize = 24;
}

/// Replies: what the body is.
pub mod reply {
    /// A plain value.
    pub const PLAIN: u8 = 0;
    /// A pickle.
    pub const PICKLED: u8 = 1;
    /// A traceback and a pickle.
    pub const EXCEPTION: u8 = 2;
    /// A traceback and `type: message`.
    pub const EXCEPTION_TEXT: u8 = 3;
    /// The function has to be sent.
    pub const UNKNOWN_FUNCTION: u8 = 4;
    /// Ticket and size.
    pub const KEPT: u8 = 5;
    /// Why.
    pub const REFUSED: u8 = 6;
    /// Where in the request's memory the result's only buffer is, its size, and the pickle.
    pub const IN_REQUEST: u8 = 7;
    /// Bytes of a body of that kind before its pickle.
    pub const IN_REQUEST_BYTES: usize = 16;
    /// Ticket, size, and where another worker gets the result; see [`super::left`].
    pub const LEFT: u8 = 8;
    /// Why a result of another task, which was left with its worker, was not had from there.
    pub const NOT_HAD: u8 = 9;
    /// Bytes before the body.
    pub const HEAD_BYTES: usize = 8;

    /// Bits of a time, of which the last five are its exponent: where it replaces the length of a traceback, and next to one.
    const BITS: [u32; 2] = [32, 24];

    /// Where a head has its time, and of how many bits; the others' bytes stay.
    fn place(head: &mut [u8]) -> Option<(&mut [u8], u32)> {
        let head = head.get_mut(..HEAD_BYTES)?;
        match head[0] {
            PLAIN | PICKLED | IN_REQUEST | LEFT => Some((&mut head[4..], BITS[0])),
            EXCEPTION | EXCEPTION_TEXT => Some((&mut head[1..4], BITS[1])),
            _ => None,
        }
    }

    /// Writes how long the function took into the head of a result or exception.
    pub fn put_time(head: &mut [u8], ns: u64) {
        let Some((place, bits)) = place(head) else { return };
        // 0 says that it is not known.
        let ns = ns.max(1);
        let mantissa_bits = bits - 5;
        let exponent = (64 - ns.leading_zeros()).saturating_sub(mantissa_bits).min(31);
        let mantissa = (ns >> exponent).min((1 << mantissa_bits) - 1);
        let word = ((mantissa as u32) << 5 | exponent).to_le_bytes();
        place.copy_from_slice(&word[..place.len()]);
    }

    /// Takes it out again, so that the reply is as if nobody had asked.
    pub fn take_time(head: &mut [u8]) -> Option<u64> {
        let (place, _) = place(head)?;
        let mut word = [0; 4];
        word[..place.len()].copy_from_slice(place);
        place.fill(0);
        let word = u32::from_le_bytes(word);
        // At most 27 bits, moved by 31 at most.
        let ns = u64::from(word >> 5) << (word & 31);
        (ns > 0).then_some(ns)
    }
}

/// What is wrong with bytes that should be a request or a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It ends before what it announces.
    #[error("it ends early")]
    Short,
    /// A kind or flag that there is not.
    #[error("it is of a kind that this version does not know")]
    Kind,
    /// Too many buffers.
    #[error("it has more than {BUFFERS_MAX} buffers")]
    Buffers,
    /// Too many results of other tasks, or none where some are announced.
    #[error("it does not have between 1 and {RESULTS_MAX} results of other tasks, as it says")]
    Results,
    /// Not a plain value.
    #[error("a plain value is damaged")]
    Plain,
    /// A result that was left with its worker, in numbers that make no sense.
    #[error("it does not say where its result is")]
    Left,
    /// No UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// Where a pickle and its buffers lie: the same in requests and replies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// First byte of the pickle.
    pub pickle: usize,
    /// Its bytes.
    pub pickle_bytes: usize,
    /// First byte of each buffer, and its bytes.
    pub buffers: Vec<(usize, usize)>,
    /// Bytes of all of it.
    pub end: usize,
}

impl Layout {
    /// Behind `before` bytes that are followed by the pickle. `None` where it is larger than any memory.
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

/// A request's head, and where the rest of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// See [`request`].
    pub kind: u8,
    /// Whether the buffers may be written to.
    pub writable: bool,
    /// Whether the reply is to say how long the function took.
    pub timed: bool,
    /// Whether the result may stay in the request's memory.
    pub yielded: bool,
    /// Whether a large result may stay with the worker.
    pub stays: bool,
    /// The function.
    pub key: Key,
    /// First byte and bytes of its pickle; none: not here.
    pub blob: Option<(usize, usize)>,
    /// The arguments: their pickle, plain values, or what a native function needs to know; and buffers.
    pub arguments: Layout,
    /// Results of other tasks, which the arguments name by number: first byte and bytes of each, which are a reply.
    pub results: Vec<(usize, usize)>,
}

impl Request {
    /// Of `size` bytes, of which `at` copies: `at(from, into)` is only called for what is inside.
    pub fn decode(size: usize, at: impl Fn(usize, &mut [u8])) -> Result<Self, FormatError> {
        let mut head = [0; request::HEAD_BYTES];
        if size < head.len() {
            return Err(FormatError::Short);
        }
        at(0, &mut head);
        let (kind, flags) = (head[0], head[1]);
        let has_results = flags & request::RESULTS != 0;
        if kind > request::RELEASE
            || flags
                > request::WRITABLE | request::RESULTS | request::TIMED | request::YIELDED | request::STAYS
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
        let arguments = Layout::new(blob_end, pickle_bytes.unwrap_or(rest), lengths);
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
            key,
            blob: (blob_bytes > 0).then_some((behind, blob_bytes)),
            arguments,
            results,
        })
    }

    /// The bytes before the function: head and lengths. `None` if there are too many buffers or results, or too large a
    /// function.
    pub fn head(
        kind: u8,
        writable: bool,
        key: &Key,
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

/// A reply's head, and where the rest of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// See [`reply`].
    pub kind: u8,
    /// Bytes of the traceback, which is the first of the body.
    pub traceback_bytes: usize,
    /// What follows it: a pickle with buffers, a plain value, or text.
    pub body: Layout,
}

impl Reply {
    /// Of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let at = |from: usize, into: &mut [u8]| into.copy_from_slice(&bytes[from..from + into.len()]);
        Self::decode_at(bytes.len(), at)
    }

    /// Of `size` bytes, of which `at` copies: `at(from, into)` is only called for what is inside.
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
        let body = Layout::new(start, pickle_bytes.unwrap_or(rest), lengths);
        Ok(Self {
            kind,
            traceback_bytes,
            body: body
                .filter(|layout| layout.end <= size)
                .ok_or(FormatError::Short)?,
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

/// Where results begin, behind `end`, and where the last one ends.
pub fn place_results(
    mut end: usize,
    lengths: impl IntoIterator<Item = usize>,
) -> Option<(Vec<(usize, usize)>, usize)> {
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

/// The lengths of results behind a request's head, and what is behind these.
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

/// Bytes of the pickle, bytes of each buffer, and what is behind these numbers.
type Lengths = (Option<usize>, Vec<usize>, usize);

/// The lengths behind a head.
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
