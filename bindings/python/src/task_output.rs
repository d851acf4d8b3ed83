//! Output and log records of a task: kept in bounded memory while the task runs, and encoded behind its reply. Pure:
//! nothing here depends on Python.

use std::collections::VecDeque;

/// Flag of a reply's first byte: the output of the task follows the reply.
pub const FLAG: u8 = 0x80;

/// Kind of a piece: text on standard output.
pub const STDOUT: u8 = 1;
/// Kind of a piece: text on standard error.
pub const STDERR: u8 = 2;
/// Kind of a piece: a log record of plain values, in the form of `hotlease._records`.
pub const RECORD: u8 = 3;
/// Kind of a piece: number of bytes that were left out here (u64).
pub const LEFT_OUT: u8 = 4;
/// Kind of a piece: name of the function, if it is not the submitted function.
pub const NAME: u8 = 5;

/// Limit of the bytes that are kept from the beginning of a task's output, and of the bytes from its end.
pub const HALF_BYTES: usize = 32 << 10;
/// Limit of the bytes of one record.
pub const RECORD_BYTES_MAX: usize = 24 << 10;
/// Bytes that are counted for each piece in addition to its content: more than its head has.
const PIECE_BYTES: usize = 16;
/// Text among the last bytes is split into pieces of at most this size, which are dropped one at a time.
const CHUNK_BYTES: usize = 1 << 10;
/// Bytes of the head of a piece: its kind and length.
const HEAD_BYTES: usize = 5;
/// Bytes of the trailer behind all pieces: their length.
const TRAILER_BYTES: usize = 4;

struct Piece {
    kind: u8,
    bytes: Vec<u8>,
}

/// Output of a task so far.
pub struct TaskOutput {
    first: Vec<Piece>,
    last: VecDeque<Piece>,
    /// Bytes that are counted for the pieces in `first`.
    first_bytes: usize,
    last_bytes: usize,
    left_out: u64,
    name: String,
}

impl TaskOutput {
    /// No output.
    pub const fn new() -> Self {
        Self {
            first: Vec::new(),
            last: VecDeque::new(),
            first_bytes: 0,
            last_bytes: 0,
            left_out: 0,
            name: String::new(),
        }
    }

    /// Adds text on a stream.
    pub fn text(&mut self, stream: u8, text: &[u8]) {
        let mut rest = text;
        if self.last.is_empty() {
            let (fitting, more) = text.split_at(cut(text, HALF_BYTES.saturating_sub(self.first_bytes)));
            match self.first.last_mut() {
                Some(piece) if piece.kind == stream => piece.bytes.extend_from_slice(fitting),
                _ if fitting.is_empty() => {}
                _ => {
                    self.first.push(Piece::new(stream, fitting));
                    self.first_bytes += PIECE_BYTES;
                }
            }
            self.first_bytes += fitting.len();
            rest = more;
        }
        match self.last.back_mut() {
            Some(piece) if piece.kind == stream && piece.bytes.len() + rest.len() <= CHUNK_BYTES => {
                piece.bytes.extend_from_slice(rest);
                self.last_bytes += rest.len();
                self.drop_oldest();
            }
            _ => {
                while !rest.is_empty() {
                    let (chunk, more) = rest.split_at(cut(rest, CHUNK_BYTES));
                    self.push_last(Piece::new(stream, chunk));
                    rest = more;
                }
            }
        }
    }

    /// Adds a record, of at most [`RECORD_BYTES_MAX`] bytes.
    pub fn record(&mut self, record: &[u8]) {
        let piece = Piece::new(RECORD, record);
        if self.last.is_empty() && self.first_bytes + piece.cost() <= HALF_BYTES {
            self.first_bytes += piece.cost();
            self.first.push(piece);
        } else {
            self.push_last(piece);
        }
    }

    /// Sets the name of the function that printed.
    pub fn name(&mut self, name: String) {
        self.name = name;
    }

    /// Upper bound of the bytes that [`TaskOutput::take`] would return.
    pub fn bytes(&self) -> usize {
        // The last term covers the head of the name, the piece for omitted bytes, and the trailer.
        self.first_bytes + self.last_bytes + self.name.len() + 3 * PIECE_BYTES
    }

    /// Takes all output, in the encoding that follows a reply.
    pub fn take(&mut self) -> Vec<u8> {
        let taken = std::mem::replace(self, Self::new());
        let mut bytes = Vec::with_capacity(taken.bytes());
        if !taken.name.is_empty() {
            push(&mut bytes, NAME, taken.name.as_bytes());
        }
        let put = |bytes: &mut Vec<u8>, piece: &Piece| push(bytes, piece.kind, &piece.bytes);
        taken.first.iter().for_each(|piece| put(&mut bytes, piece));
        if taken.left_out > 0 {
            push(&mut bytes, LEFT_OUT, &taken.left_out.to_le_bytes());
        }
        taken.last.iter().for_each(|piece| put(&mut bytes, piece));
        let length = bytes.len() as u32;
        bytes.extend(length.to_le_bytes());
        bytes
    }

    fn push_last(&mut self, piece: Piece) {
        self.last_bytes += piece.cost();
        self.last.push_back(piece);
        self.drop_oldest();
    }

    /// Drops the oldest pieces of `last` while its pieces exceed the limit. Each piece is smaller than the limit, so at
    /// least one piece is left.
    fn drop_oldest(&mut self) {
        while self.last_bytes > HALF_BYTES
            && let Some(piece) = self.last.pop_front()
        {
            self.last_bytes -= piece.cost();
            self.left_out += piece.bytes.len() as u64;
        }
    }
}

impl Piece {
    fn new(kind: u8, bytes: &[u8]) -> Self {
        Self {
            kind,
            bytes: bytes.into(),
        }
    }

    fn cost(&self) -> usize {
        PIECE_BYTES + self.bytes.len()
    }
}

/// Appends a piece.
pub fn push(bytes: &mut Vec<u8>, kind: u8, piece: &[u8]) {
    bytes.push(kind);
    bytes.extend((piece.len() as u32).to_le_bytes());
    bytes.extend_from_slice(piece);
}

/// Offset at which to cut a text if at most `room` bytes fit. UTF-8 text is cut before a character.
fn cut(text: &[u8], room: usize) -> usize {
    if room >= text.len() {
        return text.len();
    }
    let is_inside = |at: usize| text[at] & 0xc0 == 0x80;
    let cut = (room.saturating_sub(3)..=room).rev().find(|&at| !is_inside(at));
    cut.unwrap_or(room)
}

/// Splits a reply with the flag: returns the length of the reply itself, and the output of its task. Returns `None` if
/// there is no output, or it is damaged.
#[inline]
pub fn split(reply: &[u8]) -> Option<(usize, &[u8])> {
    if reply.first()? & FLAG == 0 {
        return None;
    }
    let (rest, length) = reply.split_last_chunk::<TRAILER_BYTES>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let end = rest.len().checked_sub(length).filter(|end| *end > 0)?;
    Some((end, &rest[end..]))
}

/// Iterator over the kinds and bytes of pieces, up to the first damaged piece.
pub struct OutputPieces<'a>(pub &'a [u8]);

impl<'a> Iterator for OutputPieces<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, length @ ..] = *head;
        let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(length) as usize)?;
        self.0 = rest;
        Some((kind, piece))
    }
}
