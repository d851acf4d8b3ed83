//! Receive side of one connection: takes in frames, and reads bodies straight into their memory.

use crate::link::Sink;
use crate::link::cipher::Cipher;
use crate::memory::Piece;
use hotlease_collectives::Rank;
use hotlease_wire::comm::frame::MemberFrame;
use hotlease_wire::comm::greeting::PREFIX_BYTES;
use hotlease_wire::comm::{Loss, RECORD_BYTES_MAX};
use mio::net::TcpStream;
use std::io::{self, IoSliceMut, Read};

/// Buffer size, bytes: there is room for the content of the longest record behind an incomplete frame.
const BUFFER_BYTES: usize = 68 * 1024;
/// Shortest missing part of a body that is read directly into its memory, bytes. A shorter part is read through the
/// buffer, together with the bytes that follow the body.
const DIRECT_BYTES_MIN: usize = 4 * 1024;
/// Length over which a body counts as long, bytes. The next read after a long body takes at most [`NEXT_BYTES`], which
/// contain the next frame. The sink then provides memory for the body of that frame, so most of this body is read
/// straight into the memory and not through the buffer.
const LONG_BYTES: usize = 32 * 1024;
const NEXT_BYTES: usize = 4 * 1024;
/// Number of bytes after which the other connections are read.
const TURN_BYTES: usize = 4 << 20;

/// State of a connection after a read.
pub(super) struct ReadState {
    /// Whether something was read.
    pub(super) any: bool,
    /// Whether nothing is left to read now.
    pub(super) is_empty: bool,
}

/// Body that is being received.
struct TcpBody {
    /// `None` if the body is discarded.
    into: Option<Piece>,
    at: usize,
    total: usize,
}

pub(super) struct TcpReceiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Beginning of a record that has not arrived completely, on an encrypted connection.
    sealed: Vec<u8>,
    coming: Option<TcpBody>,
    /// Whether the last body was long.
    was_long: bool,
}

impl TcpReceiver {
    /// Makes the receive side. `rest`: bytes that followed the handshake.
    pub(super) fn new(rest: &[u8], is_sealed: bool) -> Self {
        let mut inbound = Self {
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            sealed: Vec::new(),
            coming: None,
            was_long: false,
        };
        if is_sealed {
            inbound.sealed.extend_from_slice(rest);
        } else {
            // The bytes fit, because a handshake is read in pieces that are smaller than this buffer.
            inbound.buffer[..rest.len()].copy_from_slice(rest);
            inbound.end = rest.len();
        }
        inbound
    }

    /// Reads until nothing is left, or until other connections are to be read.
    pub(super) fn read(
        &mut self,
        stream: &mut TcpStream,
        cipher: Option<&mut Cipher>,
        from: Rank,
        sink: &mut dyn Sink,
    ) -> Result<ReadState, Loss> {
        match cipher {
            None => self.read_plain(stream, from, sink),
            Some(cipher) => self.read_sealed(stream, cipher, from, sink),
        }
    }

    fn read_plain(&mut self, stream: &mut TcpStream, from: Rank, sink: &mut dyn Sink) -> Result<ReadState, Loss> {
        let mut read = 0;
        // Bytes that followed the handshake, or that the last call left.
        let left = self.end - self.start;
        if self.parse(from, sink)? {
            return Ok(ReadState {
                any: true,
                is_empty: false,
            });
        }
        let was_left = self.end - self.start < left;
        while read < TURN_BYTES {
            self.compact();
            let (got, room) = match &mut self.coming {
                Some(coming) if coming.total - coming.at >= DIRECT_BYTES_MIN => {
                    let missing = coming.at..coming.total;
                    let length = missing.len();
                    let buffer = &mut self.buffer[self.end..][..NEXT_BYTES];
                    let room = length + buffer.len();
                    let direct = coming.into.as_ref().and_then(|into| {
                        into.part(missing).write(|body| {
                            let mut parts = [IoSliceMut::new(body), IoSliceMut::new(buffer)];
                            stream.read_vectored(&mut parts)
                        })
                    });
                    match direct {
                        Some(Ok(got)) => {
                            coming.at += got.min(length);
                            self.end += got.saturating_sub(length);
                            (Ok(got), room)
                        }
                        Some(Err(error)) => (Err(error), room),
                        // The body is not wanted, or its memory was taken back: read through the buffer and discard.
                        None => fill(stream, &mut self.buffer, &mut self.end),
                    }
                }
                None if self.was_long => {
                    let most = self.end + NEXT_BYTES;
                    fill(stream, &mut self.buffer[..most], &mut self.end)
                }
                _ => fill(stream, &mut self.buffer, &mut self.end),
            };
            let Some(got) = read_length(got)? else {
                return Ok(ReadState {
                    any: was_left || read > 0,
                    is_empty: true,
                });
            };
            read += got;
            let is_over = self.parse(from, sink)?;
            // A read of less than there is room for means that nothing is left (see epoll(7)).
            if is_over || got < room {
                return Ok(ReadState {
                    any: true,
                    is_empty: got < room && !(is_over && self.start < self.end),
                });
            }
        }
        Ok(ReadState {
            any: true,
            is_empty: false,
        })
    }

    fn read_sealed(
        &mut self,
        stream: &mut TcpStream,
        cipher: &mut Cipher,
        from: Rank,
        sink: &mut dyn Sink,
    ) -> Result<ReadState, Loss> {
        let mut content = Vec::new();
        let mut read = 0;
        let left = self.end - self.start;
        let mut is_over = self.parse(from, sink)?;
        let mut was_left = self.end - self.start < left;
        loop {
            if is_over {
                return Ok(ReadState {
                    any: true,
                    is_empty: false,
                });
            }
            let mut at = 0;
            while let Some(prefix) = self.sealed[at..].first_chunk::<PREFIX_BYTES>() {
                let end = at + PREFIX_BYTES + u16::from_le_bytes(*prefix) as usize;
                let Some(record) = self.sealed.get(at + PREFIX_BYTES..end) else {
                    break;
                };
                content.clear();
                if !cipher.open(record, &mut content) {
                    return Err(Loss::Protocol);
                }
                at = end;
                // The buffer has less than one frame in front of the content, so the content fits.
                self.compact();
                self.buffer[self.end..self.end + content.len()].copy_from_slice(&content);
                self.end += content.len();
                is_over = self.parse(from, sink)?;
                if is_over {
                    break;
                }
            }
            self.sealed.drain(..at);
            was_left |= at > 0;
            if is_over {
                continue;
            }
            if read >= TURN_BYTES {
                return Ok(ReadState {
                    any: true,
                    is_empty: false,
                });
            }
            let had = self.sealed.len();
            self.sealed.resize(had + PREFIX_BYTES + RECORD_BYTES_MAX, 0);
            let got = stream.read(&mut self.sealed[had..]);
            self.sealed.truncate(had + got.as_ref().copied().unwrap_or(0));
            match read_length(got)? {
                Some(got) => read += got,
                None => {
                    return Ok(ReadState {
                        any: was_left || read > 0,
                        is_empty: true,
                    });
                }
            }
        }
    }

    /// Moves the unparsed bytes to the beginning of the buffer.
    fn compact(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Takes all frames and bodies out of the buffer, except an incomplete frame. Returns `true` if the turn ends
    /// earlier: when the sink is satisfied; before a frame that the sink does not accept yet; or after a body that
    /// arrived in pieces, because the thread that waited for this body may provide memory for the next one.
    fn parse(&mut self, from: Rank, sink: &mut dyn Sink) -> Result<bool, Loss> {
        loop {
            if let Some(coming) = &mut self.coming {
                let got = (self.end - self.start).min(coming.total - coming.at);
                let bytes = &self.buffer[self.start..self.start + got];
                if let Some(into) = &coming.into {
                    // No effect if the memory was taken back.
                    into.part(coming.at..coming.at + got)
                        .write(|body| body.copy_from_slice(bytes));
                }
                self.start += got;
                coming.at += got;
                if coming.at < coming.total {
                    return Ok(false);
                }
                let total = coming.total;
                self.was_long = total > LONG_BYTES;
                // Dropped first, because the sink may hand the memory to the caller.
                self.coming = None;
                sink.body(from, total as u64);
                return Ok(true);
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<{ MemberFrame::BYTES }>() else {
                return Ok(false);
            };
            let frame = MemberFrame::decode(bytes).map_err(|_| Loss::Protocol)?;
            let has_body = frame.has_body();
            let total = frame.body_bytes() as usize;
            let is_whole = total <= self.end - self.start - MemberFrame::BYTES;
            if has_body && !is_whole && sink.hold(from, &frame) {
                return Ok(true);
            }
            self.start += MemberFrame::BYTES;
            // This frame shows that the member is alive, and contains nothing else.
            if frame == MemberFrame::Alive {
                continue;
            }
            if has_body && is_whole {
                self.was_long = total > LONG_BYTES;
                let body = &self.buffer[self.start..self.start + total];
                sink.whole(from, frame, &mut |into| {
                    into.copy_from_slice(body);
                    Ok(())
                })?;
                self.start += total;
                if sink.is_satisfied() {
                    return Ok(true);
                }
                continue;
            }
            let into = sink.frame(from, frame)?;
            if has_body {
                self.coming = Some(TcpBody { into, at: 0, total });
            }
        }
    }
}

/// Reads into the buffer. Returns how much was read, and how much there was room for.
fn fill(stream: &mut TcpStream, buffer: &mut [u8], end: &mut usize) -> (io::Result<usize>, usize) {
    let room = buffer.len() - *end;
    let got = stream.read(&mut buffer[*end..]);
    *end += got.as_ref().copied().unwrap_or(0);
    (got, room)
}

/// Returns the number of bytes read, or `None` if there is nothing to read now.
fn read_length(got: io::Result<usize>) -> Result<Option<usize>, Loss> {
    match got {
        Ok(0) => Err(Loss::Closed),
        Ok(got) => Ok(Some(got)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        // Interrupted: read again when the connection is next reported as ready.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(super::loss_of(&error)),
    }
}
