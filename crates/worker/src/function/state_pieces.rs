//! Output of a state, in pieces.

use std::io::{self, Write};

/// Writer of a state: sends pieces, each after its length (64 bits, little endian), and an empty piece as the end mark.
/// So the total length need not be known in advance.
pub struct StatePieces<W> {
    pipe: W,
    /// Small pieces that are sent as one: each piece costs two system calls here, and two at the receiver.
    gathered: Vec<u8>,
}

/// Size of the gathering buffer; larger pieces are sent without a copy.
const GATHER_BYTES: usize = 64 << 10;

impl<W: Write> StatePieces<W> {
    pub(crate) fn new(pipe: W) -> Self {
        let gathered = Vec::with_capacity(GATHER_BYTES);
        Self { pipe, gathered }
    }

    /// Adds bytes to the state.
    ///
    /// # Errors
    /// The pipe's reader is gone, or writing failed.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.gathered.len() + bytes.len() > GATHER_BYTES {
            self.send_gathered()?;
        }
        if bytes.len() > GATHER_BYTES {
            self.pipe(bytes.len())?.write_all(bytes)
        } else {
            self.gathered.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// Starts a piece of `bytes` (not 0) bytes, which the caller must write to the returned pipe.
    ///
    /// # Errors
    /// The pipe's reader is gone, or writing failed.
    pub fn pipe(&mut self, bytes: usize) -> io::Result<&mut W> {
        self.send_gathered()?;
        self.pipe.write_all(&(bytes as u64).to_le_bytes())?;
        Ok(&mut self.pipe)
    }

    fn send_gathered(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            self.pipe.write_all(&(self.gathered.len() as u64).to_le_bytes())?;
            self.pipe.write_all(&self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }

    /// Sends the end mark.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.send_gathered()?;
        self.pipe.write_all(&0_u64.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits the bytes of a pipe into pieces.
    fn pieces(mut sent: &[u8]) -> Vec<&[u8]> {
        let mut pieces = Vec::new();
        loop {
            let (length, rest) = sent.split_first_chunk::<8>().expect("a length");
            let (piece, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            if piece.is_empty() {
                assert!(rest.is_empty(), "{} bytes behind the end", rest.len());
                return pieces;
            }
            pieces.push(piece);
            sent = rest;
        }
    }

    #[test]
    fn small_writes_become_one_piece_and_large_ones_are_not_copied() {
        let mut sent = Vec::new();
        let mut out = StatePieces::new(&mut sent);
        let large = vec![7; GATHER_BYTES + 1];
        for bytes in [&b"a"[..], b"", b"bc", &large, b"d", &large[1..], b"e"] {
            out.add(bytes).expect("memory");
        }
        out.end().expect("memory");
        let expected: [&[u8]; 5] = [b"abc", &large, b"d", &large[1..], b"e"];
        assert_eq!(pieces(&sent), expected);
        let mut sent = Vec::new();
        StatePieces::new(&mut sent).end().expect("memory");
        assert_eq!(sent, [0; 8], "an empty state has no piece");
    }
}
