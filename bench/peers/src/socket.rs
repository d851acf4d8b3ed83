//! Echo over a stream socket: four bytes of length, then the message, both ways.

use crate::BYTES_MAX;
use std::io::{self, ErrorKind, Read, Write};

const LENGTH_BYTES: usize = 4;

/// Serves until the client hangs up.
pub(crate) fn serve(mut stream: impl Read + Write) -> io::Result<()> {
    let mut frame = [0; LENGTH_BYTES + BYTES_MAX];
    loop {
        match receive(&mut stream, &mut frame) {
            Ok(length) => stream.write_all(&frame[..LENGTH_BYTES + length])?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a message and receives its echo.
pub(crate) fn echo(stream: &mut (impl Read + Write), input: &[u8], output: &mut [u8]) -> io::Result<()> {
    let mut frame = [0; LENGTH_BYTES + BYTES_MAX];
    let message = frame
        .get_mut(..LENGTH_BYTES + input.len())
        .ok_or(ErrorKind::InvalidInput)?;
    message[..LENGTH_BYTES].copy_from_slice(&(input.len() as u32).to_le_bytes());
    message[LENGTH_BYTES..].copy_from_slice(input);
    stream.write_all(message)?;
    let length = receive(stream, &mut frame)?;
    let reply = frame[LENGTH_BYTES..].get(..length).ok_or(ErrorKind::InvalidData)?;
    output
        .get_mut(..length)
        .ok_or(ErrorKind::InvalidData)?
        .copy_from_slice(reply);
    Ok(())
}

/// Reads one frame, with as few reads as possible: most arrive whole. Returns the message's length.
fn receive(stream: &mut impl Read, frame: &mut [u8; LENGTH_BYTES + BYTES_MAX]) -> io::Result<usize> {
    let mut have = 0;
    loop {
        match stream.read(&mut frame[have..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => have += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(length) = frame[..have].first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            if have >= LENGTH_BYTES + length {
                return Ok(length);
            }
        }
    }
}
