//! Ownership of the entries of a channel's rings: credits without a lock.
//!
//! Invocations are numbered 0, 1, 2 ... (64 bits here; the low 32 bits are sent). Invocation `n` uses entry `n %
//! depth`. Each entry has one word: a state, and the number of the invocation that it refers to:
//!
//! ```text
//!             claim                    harvest
//!  Open(n) ──────────► Open(n) ─────────────────────────────► Open(n + depth)
//!  free for n    │     in flight; the thread that claimed it        ▲
//!                │     waits for it and alone may touch it          │
//!                └───► Shared(n) ◄─► Taken(n) ──────────────────────┤
//!                      in flight,    a thread copies the reply,     │
//!                      a future      ▲ or withdraws the request     │
//!                      waits ──► Abandoned(n) ──────────────────────┘
//!                                reply not wanted; the thread that needs the entry frees it
//! ```
//!
//! A claim is one compare-and-swap on `next`: entry `n % depth` contains `Open(n)` only when invocation `n - depth` was
//! harvested, and only the claimer of `n` can change the entry from then on, so the entry cannot become unusable
//! between the check and the swap. A claim writes nothing into the entry: a second claim of `n` fails on `next`, and a
//! claim of `n + depth` does not find `Open(n + depth)`.

use std::sync::atomic::{AtomicU64, Ordering};

/// State in an entry's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Free for this invocation, or in flight and owned by the thread that claimed it.
    Open,
    /// In flight; the reply's output is in the ring.
    Shared,
    /// In flight; the reply's output is in a buffer, so that only its header needs to be kept.
    SharedBuffer,
    /// A thread is copying the reply, or withdraws the request.
    Taken,
    /// In flight, and its reply is not wanted any more.
    Abandoned,
}

/// An entry that cannot be claimed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OccupiedEntry {
    /// The invocation that occupies the entry.
    pub(crate) seq: u64,
    /// The state of that invocation.
    pub(crate) state: EntryState,
}

const STATE_SHIFT: u32 = 61;
const SEQ_MASK: u64 = (1 << STATE_SHIFT) - 1;

fn word(state: EntryState, seq: u64) -> u64 {
    (state as u64) << STATE_SHIFT | seq
}

fn decode_word(word: u64) -> OccupiedEntry {
    let state = match word >> STATE_SHIFT {
        0 => EntryState::Open,
        1 => EntryState::Shared,
        2 => EntryState::SharedBuffer,
        3 => EntryState::Taken,
        _ => EntryState::Abandoned,
    };
    OccupiedEntry {
        seq: word & SEQ_MASK,
        state,
    }
}

/// The entries of one channel.
pub(crate) struct Entries {
    /// The next invocation to be claimed.
    next: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl Entries {
    /// All entries are free. `depth` is a power of two.
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            next: AtomicU64::new(0),
            words: (0..u64::from(depth))
                .map(|seq| AtomicU64::new(word(EntryState::Open, seq)))
                .collect(),
        }
    }

    #[inline]
    fn depth(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline]
    fn word_of(&self, seq: u64) -> &AtomicU64 {
        &self.words[(seq & (self.depth() - 1)) as usize]
    }

    /// The next invocation to be claimed: all before it are or were in flight.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Claims the next number, if its entry is free. The caller must publish the request.
    #[inline]
    pub(crate) fn claim(&self) -> Result<u64, OccupiedEntry> {
        let mut seq = self.next.load(Ordering::Relaxed);
        loop {
            // Acquire pairs with the release in `free`: the last reader of this entry's reply is done before the next
            // request is published, and only that request lets the worker write the next reply.
            let current = self.word_of(seq).load(Ordering::Acquire);
            if current != word(EntryState::Open, seq) {
                let now = self.next.load(Ordering::Relaxed);
                if now == seq {
                    return Err(decode_word(current));
                }
                seq = now;
                continue;
            }
            // Relaxed: the number itself carries no data from one claimer to the next.
            match self
                .next
                .compare_exchange_weak(seq, seq + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(seq),
                Err(now) => seq = now,
            }
        }
    }

    /// Hands an invocation's entry over to a future. This thread must own the entry: it has claimed the entry and not
    /// published a request yet, or it has taken the entry.
    #[inline]
    pub(crate) fn share(&self, seq: u64, state: EntryState) {
        // Release pairs with the acquire in `take`: the entry is taken after the request was set up.
        self.word_of(seq).store(word(state, seq), Ordering::Release);
    }

    /// Wins the right to copy the reply of a shared invocation. Returns `true` to exactly one caller, which must call
    /// `free`.
    #[inline]
    pub(crate) fn take(&self, seq: u64) -> bool {
        let entry = self.word_of(seq);
        let current = entry.load(Ordering::Relaxed);
        (current == word(EntryState::Shared, seq) || current == word(EntryState::SharedBuffer, seq))
            && entry
                .compare_exchange(
                    current,
                    word(EntryState::Taken, seq),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Runs `act` while no other thread can take the entry of this shared invocation, so that no other invocation can
    /// get the entry; afterwards the invocation is shared again. Returns `None` if a thread has taken the reply
    /// already.
    pub(crate) fn hold<R>(&self, seq: u64, state: EntryState, act: impl FnOnce() -> R) -> Option<R> {
        self.take(seq).then(|| {
            let result = act();
            self.share(seq, state);
            result
        })
    }

    /// Frees an entry for the invocation one lap later. The owner of an open entry calls it, or the winner of `take`,
    /// after it has copied the reply.
    #[inline]
    pub(crate) fn free(&self, seq: u64) {
        // Release pairs with the acquire in `claim`.
        self.word_of(seq)
            .store(word(EntryState::Open, seq + self.depth()), Ordering::Release);
    }

    /// Abandons an invocation in flight that this thread owns (`Open`) or may take (`Shared`). Returns `false` if
    /// another thread has taken the reply already.
    pub(crate) fn abandon(&self, seq: u64, from: EntryState) -> bool {
        self.word_of(seq)
            .compare_exchange(
                word(from, seq),
                word(EntryState::Abandoned, seq),
                // Release: this thread's accesses to the entry happen before the accesses of the thread that frees it.
                Ordering::Release,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Wins the right to free an abandoned entry whose reply has arrived; the winner must call `free`.
    pub(crate) fn take_abandoned(&self, seq: u64) -> bool {
        self.word_of(seq)
            .compare_exchange(
                word(EntryState::Abandoned, seq),
                word(EntryState::Taken, seq),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Whether the invocation is still shared and untaken.
    #[inline]
    pub(crate) fn is_shared(&self, seq: u64) -> bool {
        let current = self.word_of(seq).load(Ordering::Acquire);
        current == word(EntryState::Shared, seq) || current == word(EntryState::SharedBuffer, seq)
    }

    /// Whether the entry still belongs to this invocation, and the reply is wanted.
    #[inline]
    pub(crate) fn is_wanted(&self, seq: u64) -> bool {
        let current = decode_word(self.word_of(seq).load(Ordering::Acquire));
        current.seq == seq && current.state != EntryState::Abandoned
    }

    /// Whether the entry has moved on from this invocation: its reply was harvested.
    #[inline]
    pub(crate) fn is_past(&self, seq: u64) -> bool {
        decode_word(self.word_of(seq).load(Ordering::Acquire)).seq > seq
    }

    /// The invocation that blocks the next claim; `None` if no invocation does.
    pub(crate) fn blocking(&self) -> Option<OccupiedEntry> {
        let seq = self.next();
        let current = decode_word(self.word_of(seq).load(Ordering::Acquire));
        (current.seq < seq).then_some(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn credits_are_the_free_entries() {
        let entries = Entries::new(2);
        assert_eq!((entries.claim(), entries.claim()), (Ok(0), Ok(1)));
        let occupied = OccupiedEntry {
            seq: 0,
            state: EntryState::Open,
        };
        assert_eq!(entries.claim(), Err(occupied));
        assert_eq!(entries.blocking(), Some(occupied));
        entries.free(1);
        assert_eq!(entries.claim(), Err(occupied), "numbers go out in order");
        entries.free(0);
        assert_eq!((entries.claim(), entries.claim()), (Ok(2), Ok(3)));
        assert!(entries.is_past(1) && !entries.is_past(2));
    }

    #[test]
    fn a_shared_reply_is_taken_once() {
        let entries = Entries::new(1);
        let seq = entries.claim().unwrap();
        assert!(!entries.take(seq), "an owned invocation belongs to its thread");
        entries.share(seq, EntryState::Shared);
        assert!(entries.is_shared(seq) && entries.take(seq) && !entries.take(seq));
        assert!(!entries.abandon(seq, EntryState::Shared), "its reply was taken");
        entries.free(seq);
        assert!(!entries.take(seq) && entries.is_past(seq));
    }

    #[test]
    fn an_entry_that_is_held_goes_to_no_other_invocation() {
        let entries = Entries::new(1);
        let seq = entries.claim().unwrap();
        entries.share(seq, EntryState::SharedBuffer);
        // Another thread finds the reply, and wants the entry for its own request.
        let held = entries.hold(seq, EntryState::SharedBuffer, || {
            assert!(!entries.take(seq), "its reply was moved away");
            assert_eq!(entries.claim().unwrap_err().seq, seq);
            assert!(entries.is_wanted(seq));
        });
        assert!(held.is_some() && entries.is_shared(seq));
        assert!(entries.take(seq));
        assert_eq!(
            entries.hold(seq, EntryState::SharedBuffer, || ()),
            None,
            "its reply was taken"
        );
        entries.free(seq);
        assert!(!entries.is_wanted(seq));
        assert_eq!(entries.hold(seq, EntryState::SharedBuffer, || ()), None);
    }

    #[test]
    fn an_abandoned_entry_is_freed_by_the_call_that_needs_it() {
        let entries = Entries::new(1);
        let seq = entries.claim().unwrap();
        assert!(entries.abandon(seq, EntryState::Open));
        assert_eq!(entries.claim().unwrap_err().state, EntryState::Abandoned);
        assert!(entries.take_abandoned(seq) && !entries.take_abandoned(seq));
        entries.free(seq);
        assert_eq!(entries.claim(), Ok(1));
    }

    /// Every number is claimed exactly once, and never while its entry is in use.
    #[test]
    fn claims_from_many_threads_never_share_an_entry() {
        const DEPTH: usize = 4;
        const EACH: u64 = 20_000;
        let entries = Entries::new(DEPTH as u32);
        let users: Vec<AtomicUsize> = (0..DEPTH).map(|_| AtomicUsize::new(0)).collect();
        let sum = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let seq = loop {
                            match entries.claim() {
                                Ok(seq) => break seq,
                                Err(_) => std::thread::yield_now(),
                            }
                        };
                        let user = &users[seq as usize % DEPTH];
                        assert_eq!(user.fetch_add(1, Ordering::Relaxed), 0, "entry of {seq} is in use");
                        sum.fetch_add(seq, Ordering::Relaxed);
                        user.fetch_sub(1, Ordering::Relaxed);
                        entries.free(seq);
                    }
                });
            }
        });
        let count = 4 * EACH;
        assert_eq!(sum.into_inner(), count * (count - 1) / 2);
    }
}
