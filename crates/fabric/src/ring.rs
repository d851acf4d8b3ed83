//! The line protocol: how one cache line carries a frame, and the seam between channels and transports.
//!
//! A line is eight 64-bit words; word 0 is the sequence word. The writer stores words 1 to 7, then word 0
//! with release; the reader loads word 0 with acquire. If this is the expected word, it loads the other words.
//!
//! ```text
//!  writer                         reader
//!  payload bytes                  w0 = load(word 0, Acquire) ──┐ pairs with
//!  store(words 1..7, Relaxed)     if w0 == expected:           │
//!  store(word 0, Release) ────────────────────────────────────┘
//!                                   load(words 1..7, Relaxed), payload bytes
//! ```
//!
//! The reader may then read everything that the writer wrote before the store. The writer may write the entry again
//! only after the reader has finished with the entry, which the channel's credits ensure; see [`crate::channel`]. A
//! hostile writer can break this rule, but harms only itself: the reader works on a private copy.

use crate::atomics::{AtomicU64, Ordering};
use hotlease_wire::frame::{LineWords, RequestClaim, RequestHeader, Seq};
use std::ptr::NonNull;

/// One cache line of a ring.
#[repr(C, align(64))]
pub struct Line([AtomicU64; 8]);

impl Line {
    /// Makes a line that contains no frame. (Zeroed memory is such a line too, because no sequence word is 0.)
    pub fn empty() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Makes a frame, and every payload byte written before it, visible to the reader.
    #[inline]
    pub fn publish(&self, words: &LineWords) {
        for (cell, word) in self.0.iter().zip(words).skip(1) {
            cell.store(*word, Ordering::Relaxed);
        }
        // Pairs with the acquire load in `poll`.
        self.0[0].store(words[0], Ordering::Release);
    }

    /// Claims the request `seq` in this line. Returns `false` if the line contains another request, or if the request
    /// cannot be withdrawn or was claimed before. No other request may be published in the line during the call: the
    /// claim could hit that request.
    pub fn claim(&self, seq: Seq, claim: RequestClaim) -> bool {
        // Pairs with the release store in `publish`.
        if self.0[0].load(Ordering::Acquire) != seq.word() {
            return false;
        }
        let word = &self.0[RequestHeader::CLAIM_WORD];
        let open = word.load(Ordering::Relaxed);
        // Acquire and release: the party that claims second sees what the first party did before its claim.
        RequestHeader::claimed(open, claim).is_some_and(|claimed| {
            word.compare_exchange(open, claimed, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// A word of this line, for a state that both sides change after the line was published.
    pub(crate) fn word(&self, number: usize) -> &AtomicU64 {
        &self.0[number]
    }

    /// A hint that this line will be read soon.
    #[inline]
    pub fn prefetch_read(&self) {
        prefetch_read(NonNull::from(self).cast());
    }

    /// A hint that this line will be written soon.
    #[inline]
    pub fn prefetch_write(&self) {
        prefetch_write(NonNull::from(self).cast());
    }

    /// Private copy of the line, which may hold an incomplete frame.
    pub fn read(&self) -> LineWords {
        std::array::from_fn(|word| self.0[word].load(Ordering::Relaxed))
    }

    /// Private copy of the frame `seq`, if the line contains this frame.
    #[inline(always)]
    pub fn poll(&self, seq: Seq) -> Option<LineWords> {
        // Pairs with the release store in `publish`.
        if self.0[0].load(Ordering::Acquire) != seq.word() {
            return None;
        }
        let mut words = [seq.word(); 8];
        for (word, cell) in words.iter_mut().zip(&self.0).skip(1) {
            *word = cell.load(Ordering::Relaxed);
        }
        Some(words)
    }
}

/// A hint that the cache line of this address will be read soon.
#[inline]
pub(crate) fn prefetch_read(at: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch has no effect that a program can see at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// A hint that the cache line of this address will be written soon.
#[inline]
pub(crate) fn prefetch_write(at: NonNull<u8>) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch has no effect that a program can see at any address; processors without PREFETCHW treat
    // it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// A ring in the peer's memory that this end writes. A transport implements this trait.
///
/// On `shm` [`FarRing::payload`] is the peer's memory itself. On a fabric it is a registered staging area, which
/// [`FarRing::publish`] sends to the peer.
///
/// Entries are independent: calls for different entries may come from different threads at once, calls for
/// one entry may not.
pub trait FarRing: Send + Sync {
    /// Memory in which the payload of `entry` is built: [`FarRing::payload_bytes`] bytes, which only the caller writes
    /// until the next `publish` of the same entry. `entry` must be less than the ring's depth.
    fn payload(&self, entry: u32) -> NonNull<u8>;
    /// Capacity of each entry's payload.
    fn payload_bytes(&self) -> usize;
    /// Makes the first `payload_bytes` bytes of the entry's payload, and then `words`, visible to the peer.
    fn publish(&self, entry: u32, payload_bytes: usize, words: &LineWords);
    /// Wakes the peer if it sleeps; cheap if it does not.
    fn ring(&self);
    /// Private copy of the line last published in `entry`, and the address of its payload, for reading both back before
    /// the entry is used again. The caller must check both, because the peer may have changed them. Does not wait.
    fn published(&self, entry: u32) -> Option<(LineWords, NonNull<u8>)>;
    /// Withdraws the request `seq` in `entry`. Returns `false` if the peer has begun the request, or if it cannot be
    /// withdrawn, as on transports that copy lines. No other request may be published in the entry during the call.
    fn withdraw(&self, _entry: u32, _seq: Seq) -> bool {
        false
    }
    /// Hints that `entry` will be published soon.
    fn prefetch(&self, _entry: u32) {}
    /// Hints that the first `bytes` bytes (at most [`FarRing::payload_bytes`]) of the entry's payload will be written
    /// soon.
    fn prefetch_payload(&self, _entry: u32, _bytes: usize) {}
    /// Drives a transport that makes no progress by itself. Returns whether a new frame may have arrived; always
    /// `false` on transports where frames arrive without this call.
    #[inline]
    fn progress(&self) -> bool {
        false
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// An entry and its payload, which only the protocol protects.
    struct Entry {
        line: Line,
        payload: UnsafeCell<u64>,
    }
    // SAFETY: the tests check that accesses do not overlap: loom fails if two threads touch the payload at once.
    unsafe impl Sync for Entry {}

    fn ring(depth: usize) -> Arc<Vec<Entry>> {
        Arc::new(
            (0..depth)
                .map(|_| Entry {
                    line: Line::empty(),
                    payload: UnsafeCell::new(0),
                })
                .collect(),
        )
    }

    fn words(seq: Seq, value: u64) -> LineWords {
        let mut words = [value; 8];
        words[0] = seq.word();
        words
    }

    fn wait(entry: &Entry, seq: Seq) -> LineWords {
        loop {
            match entry.line.poll(seq) {
                Some(words) => return words,
                None => loom::thread::yield_now(),
            }
        }
    }

    /// A request ring and a reply ring whose entries are reused. The client writes entry n % depth again only after the
    /// reply to n - depth. So header and payload never race, and every value arrives once and whole.
    fn round_trips(depth: usize, count: u32) {
        loom::model(move || {
            let (requests, replies) = (ring(depth), ring(depth));
            let worker = {
                let (requests, replies) = (requests.clone(), replies.clone());
                loom::thread::spawn(move || {
                    for id in 0..count {
                        let (seq, entry) = (Seq::new(1, id.into()), id as usize % depth);
                        let words_in = wait(&requests[entry], seq);
                        assert!(
                            words_in[1..].iter().all(|word| *word == u64::from(id) + 7),
                            "torn header"
                        );
                        // SAFETY: the protocol under test; loom reports any race.
                        let value = requests[entry].payload.with(|payload| unsafe { *payload });
                        // SAFETY: as above.
                        replies[entry]
                            .payload
                            .with_mut(|payload| unsafe { *payload = value + 1 });
                        replies[entry].line.publish(&words(seq, value));
                    }
                })
            };
            let harvest = |id: u32| {
                let entry = &replies[id as usize % depth];
                wait(entry, Seq::new(1, id.into()));
                // SAFETY: as above.
                let value = entry.payload.with(|payload| unsafe { *payload });
                assert_eq!(value, u64::from(id) * 10 + 1, "wrong payload");
            };
            for id in 0..count {
                if let Some(oldest) = id.checked_sub(depth as u32) {
                    harvest(oldest);
                }
                let entry = &requests[id as usize % depth];
                // SAFETY: as above.
                entry
                    .payload
                    .with_mut(|payload| unsafe { *payload = u64::from(id) * 10 });
                entry.line.publish(&words(Seq::new(1, id.into()), u64::from(id) + 7));
            }
            for id in count.saturating_sub(depth as u32)..count {
                harvest(id);
            }
            worker.join().unwrap();
        });
    }

    /// A worker that begins a request and a client that withdraws it, at the same time: one of them wins.
    #[test]
    fn the_first_claim_holds() {
        loom::model(|| {
            let seq = Seq::new(1, 0);
            let line = Arc::new(Line::empty());
            let flags = u64::from(1u16 << 7) << 48;
            line.publish(&[seq.word(), flags, 0, 0, 0, 0, 0, 0]);
            let worker = {
                let line = line.clone();
                loom::thread::spawn(move || line.claim(seq, RequestClaim::Begun))
            };
            let withdrawn = line.claim(seq, RequestClaim::Withdrawn);
            assert_ne!(worker.join().unwrap(), withdrawn);
        });
    }

    #[test]
    fn an_entry_can_be_reused() {
        round_trips(1, 2);
    }

    #[test]
    fn two_in_flight_then_reuse() {
        round_trips(2, 3);
    }
}
