//! Messages over the machine's port: see [`hotlease_wire::machine`].

use hotlease_wire::machine::MachineHead;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Sends a message, with the bytes that it carries.
pub fn send(to: &mut impl Write, message: &impl Serialize, brought: &[u8]) -> io::Result<()> {
    let message = hotlease_wire::encode(message);
    let head = MachineHead {
        message_bytes: message.len() as u32,
        brought_bytes: brought.len() as u64,
    };
    let mut first = head.encode().to_vec();
    first.extend_from_slice(&message);
    // Most messages carry few bytes: one write, one interrupt.
    if brought.len() <= 4096 {
        first.extend_from_slice(brought);
        return to.write_all(&first);
    }
    to.write_all(&first)?;
    to.write_all(brought)
}

/// Receives the next message; returns `None` if the other side is gone.
pub fn receive<M: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<(M, Vec<u8>)>> {
    let mut head = [0; MachineHead::BYTES];
    match from.read_exact(&mut head[..1]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    // After the first byte, an end of file means half a message.
    from.read_exact(&mut head[1..])?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let head = MachineHead::decode(&head).map_err(invalid)?;
    let message = read(from, u64::from(head.message_bytes))?;
    let message = hotlease_wire::decode(&message).map_err(invalid)?;
    Ok(Some((message, read(from, head.brought_bytes)?)))
}

/// Reads this many bytes. Memory is allocated as they arrive.
fn read(from: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    from.by_ref().take(bytes).read_to_end(&mut read)?;
    match read.len() as u64 == bytes {
        true => Ok(read),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::machine::ToGuest;

    #[test]
    fn messages_arrive_as_they_were_sent_and_half_ones_are_errors() {
        let load = |base| ToGuest::Load { base };
        let mut bytes = Vec::new();
        for (base, brought) in [(0, 0), (1, 10), (2, 4096), (3, 4097), (4, 100_000)] {
            send(&mut bytes, &load(base), &vec![base as u8; brought]).expect("a vector takes all");
        }
        let mut from = bytes.as_slice();
        for (base, brought) in [(0, 0), (1, 10), (2, 4096), (3, 4097), (4, 100_000)] {
            let received = receive::<ToGuest>(&mut from).expect("whole");
            assert_eq!(received, Some((load(base), vec![base as u8; brought])));
        }
        assert_eq!(receive::<ToGuest>(&mut from).expect("the end"), None);
        for cut in [13, 20, bytes.len() - 1] {
            let mut from = &bytes[..cut];
            let last = loop {
                match receive::<ToGuest>(&mut from) {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            assert!(last.is_err(), "{cut}: {last:?}");
        }
        let nonsense = [0xff; 64];
        assert!(receive::<ToGuest>(&mut nonsense.as_slice()).is_err());
    }
}
