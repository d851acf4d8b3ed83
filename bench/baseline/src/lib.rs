//! Baselines of the benchmarks: the least that two processes can do to exchange a message through shared memory,
//! without lease, bounds, functions or credits.
//!
//! * [`RoundTripKind::Line`] — one cache line each way, with a sequence word and up to 56 bytes.
//! * [`RoundTripKind::Copy`] — contiguous payload: the client copies it in, the peer copies it from request to reply, and the
//!   client copies it out; the sequence word is written last.
//! * [`RoundTripKind::Futex`] — one futex word each way: the peer sleeps, the client sleeps or spins.
//!
//! The two cores of a virtual machine move, so the same code is fast at one time and slow at another. A baseline must
//! therefore run on the same two cores, in the same kind of memory, and within the same milliseconds as the code that
//! it is compared with. That is why the peer ([`serve_peer`]) is a function that runs *inside a leased slot* on a
//! registered buffer: it answers until it is told to stop, and returns; then the next invocations of the same slot are
//! measured.
//!
//! ```text
//! memory   | line 0: request  | request payload ... | half: reply line | reply payload ... |
//! line     | sequence word | up to 56 bytes |
//! ```
//!
//! The client is [`Client`], which is safe to use; all unsafe code of the baselines is in this crate.

mod area;
mod client;
mod futex;
mod peer;

pub use area::{LINE_PAYLOAD_BYTES, memory_bytes};
pub use client::{Client, PeerSilent, prepare};
pub use peer::serve_peer;

/// Kind of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundTripKind {
    /// One cache line each way, with this many payload words (at most 7).
    Line {
        /// Number of words, eight bytes each.
        words: usize,
    },
    /// Contiguous payload of this many bytes, copied three times.
    Copy {
        /// Length of the payload.
        bytes: usize,
    },
    /// One futex word each way.
    Futex {
        /// Whether the client sleeps, too; otherwise it spins, and the peer need not wake it.
        client_sleeps: bool,
    },
}

impl RoundTripKind {
    /// Encodes the kind as two words, for the peer's function.
    pub fn to_words(self) -> [u64; 2] {
        match self {
            Self::Line { words } => [0, words as u64],
            Self::Copy { bytes } => [1, bytes as u64],
            Self::Futex { client_sleeps } => [2, client_sleeps.into()],
        }
    }

    /// Decodes the words of [`to_words`](Self::to_words).
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        match words {
            [0, words] if words <= 7 => Some(Self::Line { words: words as usize }),
            [1, bytes] => Some(Self::Copy {
                bytes: usize::try_from(bytes).ok()?,
            }),
            [2, client_sleeps] => Some(Self::Futex {
                client_sleeps: client_sleeps != 0,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a client and a peer on two threads that share a vector's memory.
    fn round_trips(kind: RoundTripKind, payload: usize) {
        let mut memory = vec![0u64; memory_bytes(payload) / 8 + 8];
        let start = memory.as_ptr().align_offset(64);
        let memory = &mut memory[start..][..memory_bytes(payload) / 8];
        let bytes = size_of_val(memory);
        let address = memory.as_mut_ptr() as usize;
        prepare(memory);
        let mut client = Client::new(memory, kind).unwrap();
        std::thread::scope(|scope| {
            let peer = scope.spawn(move || {
                // SAFETY: the vector outlives the scope, and the client below follows the protocol.
                unsafe { serve_peer(address as *mut u8, bytes, kind) }
            });
            let mut output = vec![0; payload];
            for round in 0..2000u32 {
                let input: Vec<u8> = (0..payload).map(|i| (i as u32 + round) as u8).collect();
                client.echo(&input, &mut output).unwrap();
                assert_eq!(output, input, "{kind:?}, round {round}");
            }
            client.stop();
            assert!(peer.join().unwrap());
        });
    }

    #[test]
    fn lines_come_back() {
        for words in 1..=7 {
            round_trips(RoundTripKind::Line { words }, words * 8);
        }
    }

    #[test]
    fn copies_come_back() {
        for bytes in [1, 64, 100, 4096, 100_000] {
            round_trips(RoundTripKind::Copy { bytes }, bytes);
        }
    }

    #[test]
    fn sleepers_wake() {
        for client_sleeps in [false, true] {
            round_trips(RoundTripKind::Futex { client_sleeps }, 0);
        }
    }

    #[test]
    fn kinds_survive_the_wire_and_memory_must_fit() {
        for kind in [
            RoundTripKind::Line { words: 4 },
            RoundTripKind::Copy { bytes: 4096 },
            RoundTripKind::Futex { client_sleeps: true },
        ] {
            assert_eq!(RoundTripKind::from_words(kind.to_words()), Some(kind));
        }
        assert_eq!(RoundTripKind::from_words([0, 8]), None);
        assert_eq!(RoundTripKind::from_words([3, 0]), None);
        let mut small = vec![0u64; memory_bytes(64) / 8];
        assert!(Client::new(&mut small, RoundTripKind::Copy { bytes: 5000 }).is_none());
        // SAFETY: the memory is this test's; the call must return before it touches it.
        assert!(!unsafe { serve_peer(small.as_mut_ptr().cast(), 64, RoundTripKind::Line { words: 1 }) });
    }
}
