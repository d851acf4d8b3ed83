//! Bodies that stay in the writer's memory: the line of such a body says where the body is, and the reader copies it
//! straight from the writer's process (`process_vm_readv`), so each byte is copied once. If the reader is late, the
//! writer withdraws it and copies it into the lane, so that a send does not wait for a reader that
//! computes. One word of the line decides between the two:
//!
//! ```text
//!  writer                                        reader
//!  EXPOSED (published with the line)
//!                                                EXPOSED -> CLAIMED; copies from the writer's memory
//!                                                CLAIMED -> DONE
//!  copies the body into the lane
//!  EXPOSED -> WITHDRAWN                          sees WITHDRAWN; copies from the lane
//! ```

use super::LaneError;
use crate::atomics::{AtomicU64, Ordering};

/// Word of a line whose body is exposed. Lengths of pieces, which other lines have in this place, are much smaller than
/// these numbers.
pub(super) const EXPOSED: u64 = u64::MAX;
const CLAIMED: u64 = u64::MAX - 1;
const DONE: u64 = u64::MAX - 2;
const WITHDRAWN: u64 = u64::MAX - 3;

/// Whether a word is that of an exposed body, in any state.
#[cfg(not(loom))]
pub(super) fn is_exposed(word: u64) -> bool {
    word >= WITHDRAWN
}

/// Place from which the reader copies an exposed body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPlace {
    /// The writer's memory. The writer changes it only after [`finish`].
    Source,
    /// The lane.
    Lane,
}

/// Claims the body for the reader, unless the writer has withdrawn it. Fails if the body is not exposed.
pub(super) fn claim(word: &AtomicU64) -> Result<BodyPlace, LaneError> {
    // Acquire pairs with the release in `withdraw`: the reader sees the bytes that the writer has copied into the lane.
    match word.compare_exchange(EXPOSED, CLAIMED, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(BodyPlace::Source),
        Err(WITHDRAWN) => Ok(BodyPlace::Lane),
        Err(_) => Err(LaneError),
    }
}

/// Reports that the reader has copied the body that it had claimed.
pub(super) fn finish(word: &AtomicU64) {
    // Pairs with the acquire in `is_done`: the reader's copy ends before the writer changes its memory.
    word.store(DONE, Ordering::Release);
}

/// Whether the reader has not claimed the body yet.
#[cfg(not(loom))]
pub(super) fn is_open(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) == EXPOSED
}

/// Withdraws a body that the writer has copied into the lane; returns `false` if the reader has claimed it.
pub(super) fn withdraw(word: &AtomicU64) -> bool {
    word.compare_exchange(EXPOSED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

/// Whether the reader has copied the body.
pub(super) fn is_done(word: &AtomicU64) -> bool {
    // Pairs with the release in `finish`.
    word.load(Ordering::Acquire) == DONE
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// Exposed body: its source and its copy in the lane are one cell each.
    struct ExposedCell {
        word: AtomicU64,
        source: UnsafeCell<u64>,
        lane: UnsafeCell<u64>,
    }
    // SAFETY: the test checks that accesses do not overlap: loom fails if both threads use a cell at once.
    unsafe impl Sync for ExposedCell {}

    #[test]
    fn the_reader_copies_from_the_source_or_from_the_lane_and_never_while_it_is_written() {
        loom::model(|| {
            let exposed = Arc::new(ExposedCell {
                word: AtomicU64::new(EXPOSED),
                source: UnsafeCell::new(7),
                lane: UnsafeCell::new(0),
            });
            let theirs = exposed.clone();
            let reader = loom::thread::spawn(move || match claim(&theirs.word) {
                Ok(BodyPlace::Source) => {
                    // SAFETY: the protocol under test.
                    let value = theirs.source.with(|cell| unsafe { *cell });
                    finish(&theirs.word);
                    value
                }
                // SAFETY: the protocol under test.
                Ok(BodyPlace::Lane) => theirs.lane.with(|cell| unsafe { *cell }),
                Err(LaneError) => 0,
            });
            // SAFETY: the protocol under test.
            exposed.lane.with_mut(|cell| unsafe { *cell = 7 });
            if !withdraw(&exposed.word) {
                while !is_done(&exposed.word) {
                    loom::thread::yield_now();
                }
            }
            // The send has ended: its memory is the program's again.
            // SAFETY: the protocol under test.
            exposed.source.with_mut(|cell| unsafe { *cell = 9 });
            assert_eq!(reader.join().unwrap(), 7);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_claimed_once_and_only_if_it_is_exposed() {
        let word = AtomicU64::new(EXPOSED);
        assert!(is_exposed(EXPOSED) && is_exposed(WITHDRAWN) && !is_exposed(1 << 20) && is_open(&word));
        assert_eq!(claim(&word), Ok(BodyPlace::Source));
        assert!(!withdraw(&word) && !is_done(&word) && !is_open(&word));
        assert_eq!(claim(&word), Err(LaneError), "it was claimed before");
        finish(&word);
        assert!(is_done(&word) && !withdraw(&word));
        assert_eq!(claim(&word), Err(LaneError));
        let word = AtomicU64::new(EXPOSED);
        assert!(withdraw(&word) && !withdraw(&word));
        assert_eq!(claim(&word), Ok(BodyPlace::Lane));
        assert_eq!(claim(&AtomicU64::new(100)), Err(LaneError), "a piece is not exposed");
    }
}
