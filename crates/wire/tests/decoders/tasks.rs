//! Decoders of tasks of Python workers and their results: promises for any bytes, with a second implementation of the
//! rules of `bindings/python/FORMAT.md`.

use hotlease_wire::task::left_results::{
    Challenge, Claim, Exchange, LEFT_BYTES_MAX, LEFT_BYTES_MIN, LeftResult, ResultSecret,
};
use hotlease_wire::task::plain::{DEPTH_MAX, PlainItem, PlainReader};
use hotlease_wire::task::{
    ALIGNED_FROM, ALIGNMENT, BUFFERS_MAX, FormatError, KEY_BYTES, RESULTS_MAX, TaskLayout, TaskReply, TaskRequest,
    key_of, place_results, reply as kinds, request as asked,
};
use std::cell::RefCell;

/// Bytes that another process may write to while they are decoded: each may be read only once.
struct Shared<'a> {
    bytes: &'a [u8],
    seen: RefCell<Vec<bool>>,
}

impl<'a> Shared<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let seen = RefCell::new(vec![false; bytes.len()]);
        Self { bytes, seen }
    }

    fn copy(&self, from: usize, into: &mut [u8]) {
        let place = from..from + into.len();
        assert!(place.end <= self.bytes.len(), "a look beyond the end: {place:?}");
        let seen = &mut self.seen.borrow_mut()[place.clone()];
        assert!(!seen.contains(&true), "looked at twice: {place:?}");
        seen.fill(true);
        into.copy_from_slice(&self.bytes[place]);
    }
}

pub fn request(bytes: &[u8]) -> bool {
    let shared = Shared::new(bytes);
    let Ok(request) = TaskRequest::decode(bytes.len(), |from, into| shared.copy(from, into)) else {
        return false;
    };
    let TaskRequest {
        kind, ref arguments, ..
    } = request;
    assert!(kind <= asked::RELEASE);
    assert!(arguments.buffers.is_empty() || matches!(kind, asked::PICKLED | asked::NATIVE));
    let is_flagged = request.timed || request.yielded || request.stays || request.guarded;
    assert!(request.results.is_empty() && !is_flagged || !matches!(kind, asked::TAKE | asked::RELEASE));
    assert!(request.results.len() <= RESULTS_MAX);
    let blob_bytes = request.blob.map_or(0, |(_, length)| length);
    let behind = arguments.pickle - blob_bytes;
    assert!(request.blob.is_none_or(|(start, length)| start == behind && length > 0));
    let mut end = place_of(arguments, bytes.len());
    for &(start, length) in &request.results {
        let expected = if length >= ALIGNED_FROM {
            end.next_multiple_of(ALIGNMENT)
        } else {
            end
        };
        assert_eq!(start, expected, "a result is not where it is to be");
        end = start + length;
    }
    assert!(end <= bytes.len(), "{request:?} of {} bytes", bytes.len());

    let lengths: Vec<_> = arguments.buffers.iter().map(|(_, length)| *length).collect();
    let results: Vec<_> = request.results.iter().map(|(_, length)| *length).collect();
    let (writable, key) = (request.writable, &request.key);
    let pickle_bytes = arguments.pickle_bytes;
    let head = TaskRequest::head(kind, writable, key, blob_bytes, pickle_bytes, &lengths, &results);
    let mut head = head.expect("what was decoded is within the bounds");
    if request.timed {
        head[1] |= asked::TIMED;
    }
    if request.yielded {
        head[1] |= asked::YIELDED;
    }
    if request.stays {
        head[1] |= asked::STAYS;
    }
    if request.guarded {
        head[1] |= asked::GUARDED;
    }
    assert_eq!(head, bytes[..behind], "an accepted head has one form only");
    if kind == asked::PLAIN {
        plain(&bytes[arguments.pickle..][..pickle_bytes]);
    }
    true
}

pub fn reply(bytes: &[u8]) -> bool {
    times(bytes);
    let shared = Shared::new(bytes);
    let decoded = TaskReply::decode_at(bytes.len(), |from, into| shared.copy(from, into));
    assert_eq!(decoded, TaskReply::decode(bytes));
    let Ok(reply) = decoded else { return false };
    let TaskReply {
        kind,
        traceback_bytes,
        ref body,
    } = reply;
    assert!(kind <= kinds::NOT_HAD);
    assert!(body.buffers.is_empty() || kind == kinds::PICKLED);
    assert!(traceback_bytes == 0 || matches!(kind, kinds::EXCEPTION | kinds::EXCEPTION_TEXT));
    let behind = body.pickle - traceback_bytes;
    place_of(body, bytes.len());
    let lengths: Vec<_> = body.buffers.iter().map(|(_, length)| *length).collect();
    let head = TaskReply::head(kind, traceback_bytes as u32, body.pickle_bytes, &lengths);
    assert_eq!(
        head.as_deref(),
        Some(&bytes[..behind]),
        "an accepted head has one form only"
    );
    if kind == kinds::PLAIN {
        plain(&bytes[body.pickle..][..body.pickle_bytes]);
    }
    true
}

/// Checks that a pickle, and its buffers at multiples of 64, are within `size`; returns their end.
fn place_of(layout: &TaskLayout, size: usize) -> usize {
    assert!(layout.buffers.len() <= BUFFERS_MAX);
    let mut end = layout.pickle + layout.pickle_bytes;
    for &(start, length) in &layout.buffers {
        assert_eq!(
            start,
            end.next_multiple_of(ALIGNMENT),
            "a buffer is not where it is to be"
        );
        end = start + length;
    }
    assert_eq!(end, layout.end);
    assert!(end <= size, "{layout:?} of {size} bytes");
    end
}

/// A duration is removed from a reply once, the rest of the reply stays, and the removed value is the one that was
/// written.
fn times(bytes: &[u8]) {
    let mut with = bytes.to_vec();
    let taken = kinds::take_time(&mut with);
    let place = match bytes.first() {
        Some(&(kinds::PLAIN | kinds::PICKLED | kinds::IN_REQUEST | kinds::LEFT))
            if bytes.len() >= kinds::HEAD_BYTES =>
        {
            4..8
        }
        Some(&(kinds::EXCEPTION | kinds::EXCEPTION_TEXT)) if bytes.len() >= kinds::HEAD_BYTES => 1..4,
        _ => 0..0,
    };
    let mut without = bytes.to_vec();
    without[place.clone()].fill(0);
    assert_eq!(with, without, "the time goes, and nothing else");
    assert_eq!(kinds::take_time(&mut with), None);
    if place.is_empty() {
        kinds::put_time(&mut with, 1);
        assert_eq!(with, without, "there is no place for a time");
        assert_eq!(taken, None);
        return;
    }
    // A duration that fits is exact.
    if let Some(ns) = taken {
        kinds::put_time(&mut with, ns);
        assert_eq!(kinds::take_time(&mut with), Some(ns));
    }
    // Any other duration is rounded down: by less than the mantissa's last bit.
    let mut word = [0; 8];
    word.iter_mut()
        .zip(bytes.iter().skip(kinds::HEAD_BYTES))
        .for_each(|(to, from)| *to = *from);
    let mantissa_bits = 8 * place.len() as u32 - 5;
    let longest = ((1 << mantissa_bits) - 1) << 31;
    for shift in [0, 20, 40] {
        let ns = u64::from_le_bytes(word) >> shift;
        kinds::put_time(&mut with, ns);
        let got = kinds::take_time(&mut with).expect("a time was put there");
        let ns = ns.clamp(1, longest);
        assert!(
            got <= ns && ns - got <= ns >> (mantissa_bits - 1),
            "{ns} ns became {got}"
        );
        assert_eq!(with, without, "the reply is as without the question");
    }
}

/// A value, modelled without Python.
#[derive(Debug, Clone)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    Tuple(Vec<Value>),
    Result(u16),
}

fn value(reader: &mut PlainReader<'_>, depth: usize) -> Result<Value, FormatError> {
    Ok(match reader.item(depth)? {
        PlainItem::None => Value::None,
        PlainItem::Bool(value) => Value::Bool(value),
        PlainItem::Int(value) => Value::Int(value),
        PlainItem::Float(value) => Value::Float(value),
        PlainItem::Str(text) => Value::Str(text.into()),
        PlainItem::Bytes(bytes) => Value::Bytes(bytes.into()),
        PlainItem::Tuple(length) => {
            assert!(depth > 0, "deeper than {DEPTH_MAX}");
            let values = (0..length).map(|_| value(reader, depth - 1));
            Value::Tuple(values.collect::<Result<_, _>>()?)
        }
        PlainItem::Result(number) => Value::Result(number),
    })
}

fn all(bytes: &[u8]) -> Result<Vec<Value>, FormatError> {
    let mut reader = PlainReader::new(bytes);
    let mut values = Vec::new();
    while !reader.is_at_end() {
        values.push(value(&mut reader, DEPTH_MAX)?);
    }
    Ok(values)
}

/// Plain values are read to the end, or refused; written in the shortest form, they are no longer than the input.
fn plain(bytes: &[u8]) {
    let Ok(values) = all(bytes) else { return };
    let again = written(&values);
    assert!(again.len() <= bytes.len(), "the shortest form of {values:?}");
    let read = all(&again).expect("the shortest form is one of its forms");
    assert_eq!(written(&read), again);
}

fn written(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| write(value, &mut bytes));
    bytes
}

fn write(value: &Value, into: &mut Vec<u8>) {
    let mut sized = |tag: u8, length: usize| match u8::try_from(length) {
        Ok(length) => into.extend([tag + 3, length]),
        Err(_) => {
            into.push(tag);
            into.extend((length as u32).to_le_bytes());
        }
    };
    match value {
        Value::None => into.push(0x00),
        Value::Bool(value) => into.push(if *value { 0x02 } else { 0x01 }),
        Value::Int(value) => match i8::try_from(*value) {
            Ok(small) => into.extend([0x04, small as u8]),
            Err(_) => {
                into.push(0x03);
                into.extend(value.to_le_bytes());
            }
        },
        Value::Float(value) => {
            into.push(0x05);
            into.extend(value.to_le_bytes());
        }
        Value::Str(text) => {
            sized(0x06, text.len());
            into.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            sized(0x07, bytes.len());
            into.extend(bytes);
        }
        Value::Tuple(values) => {
            sized(0x08, values.len());
            values.iter().for_each(|value| write(value, into));
        }
        Value::Result(number) => {
            into.push(0x0c);
            into.extend(number.to_le_bytes());
        }
    }
}

/// A value of each kind.
fn some_values() -> Value {
    let nested = (0..DEPTH_MAX - 2).fold(Value::None, |inner, _| Value::Tuple(vec![inner]));
    Value::Tuple(vec![
        Value::Bool(true),
        Value::Bool(false),
        Value::Int(-128),
        Value::Int(i64::MIN),
        Value::Float(-0.5),
        Value::Str("kurz, aber nicht ASCII: ü".into()),
        Value::Str("x".repeat(300)),
        Value::Bytes(vec![0xff; 2]),
        Value::Bytes(vec![7; 256]),
        nested,
    ])
}

/// A pickle, and buffers at their positions.
fn filled(head: Vec<u8>, pickle: &[u8], buffers: &[&[u8]]) -> Vec<u8> {
    let layout = TaskLayout::new(head.len(), pickle.len(), buffers.iter().map(|buffer| buffer.len()));
    let layout = layout.expect("it fits into memory");
    let mut bytes = head;
    bytes.extend(pickle);
    for ((start, _), buffer) in layout.buffers.iter().zip(buffers) {
        bytes.resize(*start, 0);
        bytes.extend(*buffer);
    }
    bytes
}

/// A request with all optional parts.
fn asking(kind: u8, flags: u8, blob: &[u8], pickle: &[u8], buffers: &[&[u8]], results: &[&[u8]]) -> Vec<u8> {
    let lengths: Vec<_> = buffers.iter().map(|buffer| buffer.len()).collect();
    let result_lengths: Vec<_> = results.iter().map(|result| result.len()).collect();
    let key = if blob.is_empty() && matches!(kind, asked::TAKE | asked::RELEASE) {
        [0; KEY_BYTES]
    } else {
        key_of(blob)
    };
    let head = TaskRequest::head(kind, false, &key, blob.len(), pickle.len(), &lengths, &result_lengths);
    let mut head = head.expect("within the bounds");
    head[1] |= flags;
    head.extend(blob);
    let mut bytes = filled(head, pickle, buffers);
    let placed = place_results(bytes.len(), result_lengths);
    let (places, _) = placed.expect("it fits into memory");
    for ((start, _), result) in places.iter().zip(results) {
        bytes.resize(*start, 0);
        bytes.extend(*result);
    }
    bytes
}

/// Descriptions of left results, and the messages of their two ends: an accepted description is within all bounds, and
/// has one encoding only.
pub fn left_reply(bytes: &[u8]) -> bool {
    let Ok(left) = LeftResult::decode(bytes) else {
        return false;
    };
    assert!((LEFT_BYTES_MIN as u64..=LEFT_BYTES_MAX as u64).contains(&left.bytes));
    assert!(left.address.port() > 0 && !left.address.ip().is_unspecified());
    assert_eq!(left.encode()[..], *bytes, "what is accepted has one form only");
    assert!(TaskReply::decode(bytes).is_ok(), "it is a reply");
    true
}

pub fn left_exchange(bytes: &[u8]) -> bool {
    let secret = ResultSecret([9; 32]);
    let (ticket, challenge, nonce) = (7, [1; 32], [2; 32]);
    let exchange = Exchange {
        secret: &secret,
        ticket,
        challenge,
        nonce,
    };
    if let Ok(bytes) = bytes.try_into() {
        let challenge = Challenge::decode(bytes);
        challenge.iter().for_each(|read| assert_eq!(read.encode(), *bytes));
        // A delivery has the same size.
        let delivered = exchange.delivered(bytes);
        delivered
            .iter()
            .for_each(|size| assert_eq!(exchange.delivery(*size), *bytes));
        return challenge.is_ok() || delivered.is_some();
    }
    let Ok(bytes) = bytes.try_into() else {
        return false;
    };
    let claim = Claim::decode(bytes);
    assert_eq!(claim.encode(), *bytes);
    let is_accepted = exchange.accepts(&claim);
    assert_eq!(is_accepted, claim == exchange.claim(), "there is one claim only");
    is_accepted
}

fn left() -> Vec<u8> {
    left_reply_seeds().swap_remove(0)
}

pub fn left_reply_seeds() -> Vec<Vec<u8>> {
    let addresses = ["10.78.0.3:40000", "[fd00::3]:1"];
    let left = addresses.map(|address| LeftResult {
        ticket: 7,
        bytes: 1 << 20,
        secret: ResultSecret([9; 32]),
        address: address.parse().expect("an address"),
    });
    left.map(|left| left.encode().to_vec()).into()
}

pub fn left_exchange_seeds() -> Vec<Vec<u8>> {
    let secret = ResultSecret([9; 32]);
    let (ticket, challenge, nonce) = (7, [1; 32], [2; 32]);
    let exchange = Exchange {
        secret: &secret,
        ticket,
        challenge,
        nonce,
    };
    vec![
        Challenge(challenge).encode().to_vec(),
        exchange.claim().encode().to_vec(),
        exchange.delivery(1 << 20).to_vec(),
    ]
}

pub fn request_seeds() -> Vec<Vec<u8>> {
    let arguments = written(&[some_values()]);
    let named = written(&[
        Value::Tuple(vec![Value::Result(0), Value::Result(1)]),
        Value::Str("name".into()),
        Value::Int(300),
    ]);
    let small = answering(kinds::PLAIN, b"", &written(&[Value::Int(1)]), &[]);
    let large = answering(kinds::PLAIN, b"", &written(&[Value::Bytes(vec![3; 33_000])]), &[]);
    let results: [&[u8]; 2] = [&small, &large];
    let buffers: [&[u8]; 3] = [&[5; 100], b"", &[6; 64]];
    let empty = written(&[Value::Tuple(Vec::new())]);
    vec![
        asking(asked::PLAIN, 0, b"", &empty, &[], &[]),
        asking(asked::PLAIN, asked::TIMED, b"a function", &arguments, &[], &[]),
        asking(asked::PLAIN, 0, b"", &named, &[], &results),
        asking(asked::PICKLED, asked::YIELDED, b"a function", b"a pickle", &[], &[]),
        asking(asked::PICKLED, asked::WRITABLE, b"", b"a pickle", &buffers, &[]),
        asking(asked::PICKLED, asked::TIMED, b"f", b"a pickle", &buffers, &results),
        asking(asked::NATIVE, asked::YIELDED, b"", b"arguments", &buffers[..1], &[]),
        asking(asked::TAKE, 0, b"", &7_u64.to_le_bytes(), &[], &[]),
        asking(asked::PICKLED, asked::STAYS, b"", b"a pickle", &[], &[&left()]),
        asking(asked::RELEASE, 0, b"", &[7; 24], &[], &[]),
    ]
}

fn answering(kind: u8, traceback: &[u8], pickle: &[u8], buffers: &[&[u8]]) -> Vec<u8> {
    let lengths: Vec<_> = buffers.iter().map(|buffer| buffer.len()).collect();
    let head = TaskReply::head(kind, traceback.len() as u32, pickle.len(), &lengths);
    let mut head = head.expect("within the bounds");
    head.extend(traceback);
    filled(head, pickle, buffers)
}

pub fn reply_seeds() -> Vec<Vec<u8>> {
    let buffers: [&[u8]; 3] = [&[5; 100], b"", &[6; 64]];
    let words = |words: [u64; 2]| words.map(u64::to_le_bytes).concat();
    let in_request = [&words([4096, 1 << 20])[..], b"a pickle"].concat();
    let mut seeds = vec![
        answering(kinds::PLAIN, b"", &written(&[some_values()]), &[]),
        answering(kinds::PICKLED, b"", b"a pickle", &[]),
        answering(kinds::PICKLED, b"", b"a pickle", &buffers),
        answering(kinds::EXCEPTION, b"its traceback", b"a pickle", &[]),
        answering(kinds::EXCEPTION_TEXT, b"its traceback", b"Kind: message", &[]),
        answering(kinds::UNKNOWN_FUNCTION, b"", b"", &[]),
        answering(kinds::KEPT, b"", &words([7, 1 << 20]), &[]),
        answering(kinds::REFUSED, b"", b"why", &[]),
        answering(kinds::IN_REQUEST, b"", &in_request, &[]),
        left(),
        answering(kinds::NOT_HAD, b"", b"why", &[]),
    ];
    // With a body from which a long duration is read.
    let long = [0xff; 8];
    seeds.push(answering(kinds::EXCEPTION, &long, b"", &[]));
    seeds
}
