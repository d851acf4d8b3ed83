//! Fetching of other tasks' results that stayed with their workers, without the GIL.

use super::aligned::AlignedMemory;
use super::failure::TaskFailure;
use super::request::RequestBytes;
use super::shelf::{self, random, read_until};
use hotlease_wire::task::left_results::{
    CHALLENGE_BYTES, CONTENT_CODE_BYTES, Challenge, DELIVERY_BYTES, Exchange, LEFT_REPLY_BYTES, LeftResult,
};
use hotlease_wire::task::{FormatError, reply};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Limit of the time until the other end has proved its identity.
const PROVING: Duration = Duration::from_secs(5);
/// Limit of the time in which no byte arrives.
const STALLED: Duration = Duration::from_secs(10);
/// Bytes that are read before they are hashed.
const PART_BYTES: usize = 1 << 20;

/// Failure for a reply that is not a valid result.
pub fn damaged(_: FormatError) -> TaskFailure {
    TaskFailure::Refused("the result of another task is damaged".into())
}

/// Returns the location of another task's result if it stayed with its worker; `None` if the result is in the request.
pub fn left_at(input: &RequestBytes, start: usize, length: usize) -> Result<Option<LeftResult>, TaskFailure> {
    let mut told = [0; LEFT_REPLY_BYTES];
    let Some(told) = told.get_mut(..length) else {
        return Ok(None);
    };
    input.copy(start, told);
    match told.first() {
        Some(&reply::LEFT) => LeftResult::decode(told).map(Some).map_err(damaged),
        _ => Ok(None),
    }
}

/// Fetches a result. The error is a text for users.
pub fn pull(left: &LeftResult) -> Result<AlignedMemory, String> {
    let bytes = usize::try_from(left.bytes).map_err(|_| "it is larger than any memory".to_owned())?;
    if let Some(standing) = shelf::find(left) {
        let mut pulled = AlignedMemory::new(bytes).ok_or("there is no memory for it")?;
        // The result is copied, because another task may need it unchanged.
        pulled.bytes_mut().copy_from_slice(&standing.whole);
        return Ok(pulled);
    }
    let failed = |error: io::Error| format!("{} does not give it: {error}", left.address);
    let until = Instant::now() + PROVING;
    let mut stream = TcpStream::connect_timeout(&left.address, PROVING).map_err(failed)?;
    receive(&mut stream, left, bytes, until).map_err(failed)
}

fn receive(stream: &mut TcpStream, left: &LeftResult, bytes: usize, until: Instant) -> io::Result<AlignedMemory> {
    let other = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PROVING))?;
    let mut said = [0; CHALLENGE_BYTES];
    read_until(stream, &mut said, until)?;
    let Challenge(challenge) = Challenge::decode(&said).map_err(|_| other("another program listens there"))?;
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
    let size = size.ok_or_else(|| other("the listener there does not have the secret of the worker"))?;
    // The size is checked before memory is allocated for the result.
    if size != left.bytes {
        return Err(other("it has another length than its worker said first"));
    }
    let mut pulled = AlignedMemory::new(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut content = exchange.content();
    stream.set_read_timeout(Some(STALLED))?;
    for part in pulled.bytes_mut().chunks_mut(PART_BYTES) {
        fill(stream, part)?;
        content.update(part);
    }
    let mut code = [0; CONTENT_CODE_BYTES];
    fill(stream, &mut code)?;
    match content.matches_code(&code) {
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
