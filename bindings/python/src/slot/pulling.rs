//! Results of other tasks that stayed with the workers that made them: got from there, without Python's lock.

use super::shelf::{self, random, read_until};
use super::task::{Failed, Input};
use hotlease_wire::task::left::{
    CHALLENGE_BYTES, CONTENT_CODE_BYTES, Challenge, DELIVERY_BYTES, Exchange, LEFT_REPLY_BYTES, Left,
};
use hotlease_wire::task::{ALIGNMENT, FormatError, reply};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// How long it may take until the other end has shown who it is.
const PROVING: Duration = Duration::from_secs(5);
/// How long no bytes may come.
const STALLED: Duration = Duration::from_secs(10);
/// Bytes that are read before they are looked at.
const PART_BYTES: usize = 1 << 20;

/// A reply that was got, in memory of its own.
pub struct Pulled {
    memory: Vec<u8>,
    /// From which on it has the alignment of all requests and replies.
    offset: usize,
}

impl Pulled {
    /// Zeros of so many bytes; `None`: no memory has them.
    fn new(bytes: usize) -> Option<Self> {
        let whole = bytes.checked_add(ALIGNMENT)?;
        // Only to see whether it can be had.
        Vec::<u8>::new().try_reserve_exact(whole).ok()?;
        let mut memory = vec![0; whole];
        let offset = memory.as_ptr().align_offset(ALIGNMENT);
        memory.truncate(offset + bytes);
        Some(Self { memory, offset })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..]
    }

    /// Where it is, and its bytes.
    pub fn place(&mut self) -> (NonNull<u8>, usize) {
        let bytes = self.bytes_mut();
        (NonNull::from(&mut *bytes).cast(), bytes.len())
    }
}

/// What is said of a result that is none.
pub fn damaged(_: FormatError) -> Failed {
    Failed::Refused("the result of another task is damaged".into())
}

/// Where a result of another task is, if it is not in the request but was left with its worker.
pub fn left_at(input: &Input, start: usize, length: usize) -> Result<Option<Left>, Failed> {
    let mut told = [0; LEFT_REPLY_BYTES];
    let Some(told) = told.get_mut(..length) else {
        return Ok(None);
    };
    input.copy(start, told);
    match told.first() {
        Some(&reply::LEFT) => Left::decode(told).map(Some).map_err(damaged),
        _ => Ok(None),
    }
}

/// Gets a result; or why not, in words for a person.
pub fn pull(left: &Left) -> Result<Pulled, String> {
    let bytes = usize::try_from(left.bytes).map_err(|_| "it is larger than any memory".to_owned())?;
    if let Some(standing) = shelf::find(left) {
        let mut pulled = Pulled::new(bytes).ok_or("there is no memory for it")?;
        // Another task may need it as it is.
        pulled.bytes_mut().copy_from_slice(&standing.whole);
        return Ok(pulled);
    }
    let failed = |error: io::Error| format!("{} does not give it: {error}", left.address);
    let until = Instant::now() + PROVING;
    let mut stream = TcpStream::connect_timeout(&left.address, PROVING).map_err(failed)?;
    receive(&mut stream, left, bytes, until).map_err(failed)
}

fn receive(stream: &mut TcpStream, left: &Left, bytes: usize, until: Instant) -> io::Result<Pulled> {
    let other = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PROVING))?;
    let mut said = [0; CHALLENGE_BYTES];
    read_until(stream, &mut said, until)?;
    let Challenge(challenge) = Challenge::decode(&said).map_err(|_| other("somebody else listens there"))?;
    let exchange = Exchange {
        secret: &left.secret,
        ticket: left.ticket,
        challenge,
        nonce: random()?,
    };
    stream.write_all(&exchange.claim().encode())?;
    let mut delivery = [0; DELIVERY_BYTES];
    read_until(stream, &mut delivery, until)?;
    let size = exchange.delivered(&delivery);
    let size = size.ok_or_else(|| other("who listens there does not have its secret"))?;
    // Before there is memory for it.
    if size != left.bytes {
        return Err(other("it has another length than its worker said first"));
    }
    let mut pulled = Pulled::new(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut content = exchange.content();
    stream.set_read_timeout(Some(STALLED))?;
    for part in pulled.bytes_mut().chunks_mut(PART_BYTES) {
        fill(stream, part)?;
        content.update(part);
    }
    let mut code = [0; CONTENT_CODE_BYTES];
    fill(stream, &mut code)?;
    match content.is(&code) {
        true => Ok(pulled),
        false => Err(other("its bytes were changed on the way")),
    }
}

fn fill(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    stream.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}
