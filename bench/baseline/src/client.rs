//! Client's side of the raw round trips.

use crate::RoundTripKind;
use crate::area::{Area, Line, STOP};
use crate::futex;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Error of a peer that has not answered for ten seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSilent;

impl fmt::Display for PeerSilent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer of the raw round trip has stopped answering; did its worker die?")
    }
}

impl std::error::Error for PeerSilent {}

const PATIENCE: Duration = Duration::from_secs(10);
/// Number of looks at the reply between two looks at the clock.
const SPINS: u32 = 1 << 20;

/// Makes memory ready for a new pair of peer and client, after any earlier use.
pub fn prepare(memory: &mut [u64]) {
    memory.fill(0);
}

/// Client of one peer. Payloads longer than the memory has room for are cut to that length.
pub struct Client<'a> {
    area: Area,
    kind: RoundTripKind,
    last: u64,
    memory: PhantomData<&'a mut [u64]>,
}

impl<'a> Client<'a> {
    /// Connects to a peer that was started with the same kind, after [`prepare`]. Returns `None` if the memory is too
    /// small (see [`crate::memory_bytes`]) or does not begin on a line of 64 bytes.
    pub fn new(memory: &'a mut [u64], kind: RoundTripKind) -> Option<Self> {
        // SAFETY: the slice is borrowed exclusively as long as self lives. The peer is in another process, which the
        // language does not see; both sides access the sequence words as atomics, and the payloads only in turn.
        let area = unsafe { Area::new(memory.as_mut_ptr().cast(), size_of_val(memory)) }?;
        let fits = match kind {
            RoundTripKind::Line { words } => words <= 7,
            RoundTripKind::Copy { bytes } => bytes <= area.payload_bytes,
            RoundTripKind::Futex { .. } => true,
        };
        fits.then_some(Self {
            area,
            kind,
            last: 0,
            memory: PhantomData,
        })
    }

    /// Does one round trip of this client's kind.
    ///
    /// # Errors
    /// [`PeerSilent`] if the peer does not answer within ten seconds.
    #[inline]
    pub fn echo(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), PeerSilent> {
        self.last += 1;
        let (request, reply) = (self.area.request.line(), self.area.reply.line());
        match self.kind {
            RoundTripKind::Line { .. } => echo_line(request, reply, self.last, input, output),
            RoundTripKind::Copy { bytes } => {
                let (ingoing, outgoing) = (bytes.min(input.len()), bytes.min(output.len()));
                // SAFETY: `bytes` fits the payload areas (checked in `new`), and both counts are at most `bytes`; the
                // peer has answered the last request, and so touches neither area.
                unsafe { copy_nonoverlapping(input.as_ptr(), self.area.request.payload(), ingoing) };
                request.seq.store(self.last, Release);
                spin(&reply.seq, self.last)?;
                // SAFETY: as above; the peer has just finished writing.
                unsafe { copy_nonoverlapping(self.area.reply.payload(), output.as_mut_ptr(), outgoing) };
                Ok(())
            }
            RoundTripKind::Futex { client_sleeps } => {
                request.seq.store(self.last, Release);
                futex::wake(&request.seq);
                if client_sleeps {
                    futex::sleep_while(&reply.seq, self.last - 1);
                    Ok(())
                } else {
                    spin(&reply.seq, self.last)
                }
            }
        }
    }

    /// Makes the peer return. The client is of no use afterwards.
    pub fn stop(self) {
        self.area.request.line().seq.store(STOP, Release);
        futex::wake(&self.area.request.line().seq);
    }
}

#[inline]
fn echo_line(request: &Line, reply: &Line, seq: u64, input: &[u8], output: &mut [u8]) -> Result<(), PeerSilent> {
    // Whole words, as any such protocol would use; a shorter rest is padded.
    for (cell, bytes) in request.words.iter().zip(input.chunks(8)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        cell.store(u64::from_le_bytes(word), Relaxed);
    }
    request.seq.store(seq, Release);
    spin(&reply.seq, seq)?;
    for (cell, bytes) in reply.words.iter().zip(output.chunks_mut(8)) {
        let word = cell.load(Relaxed).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
    Ok(())
}

#[inline]
fn spin(word: &AtomicU64, expected: u64) -> Result<(), PeerSilent> {
    for _ in 0..SPINS {
        if word.load(Acquire) == expected {
            return Ok(());
        }
    }
    spin_long(word, expected)
}

#[cold]
fn spin_long(word: &AtomicU64, expected: u64) -> Result<(), PeerSilent> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for _ in 0..SPINS {
            if word.load(Acquire) == expected {
                return Ok(());
            }
        }
    }
    Err(PeerSilent)
}
