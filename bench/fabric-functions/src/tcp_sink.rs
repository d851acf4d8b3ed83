//! Receiving end of a copy through one TCP connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Length of the token by which the client recognises this connection.
const TOKEN_BYTES: usize = 16;
const PIECE_BYTES: usize = 1 << 20;
/// Time limit for connecting and for each read: a client that is gone must not occupy the slot.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects, reads frames (a length of 64 bits, then as many bytes), and answers each with one byte.
pub(crate) fn run(input: &[u8]) -> io::Result<()> {
    let bad = || io::Error::from(ErrorKind::InvalidInput);
    let (token, address) = input.split_at_checked(TOKEN_BYTES).ok_or_else(bad)?;
    let address: SocketAddr = str::from_utf8(address)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(bad)?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(token)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let mut length = [0; 8];
        match stream.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let mut left = u64::from_le_bytes(length);
        while left > 0 {
            let most = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            match stream.read(&mut piece[..most])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
        stream.write_all(&[1])?;
    }
}
