//! Progress of a lane's reader, and the flag of a writer that waits for it.

use super::LINES;
use crate::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The other side of a lane has written an impossible value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other process has written nonsense into shared memory")]
pub struct LaneError;

/// Gives words cache lines of their own, so that the words of one side are not on the cache lines of the other side.
#[repr(C, align(128))]
struct CacheAligned<T>(T);

/// Control words of a lane: the reader's progress, and the writer's flag. Zeroed memory is a valid `LaneControl` of an
/// unused lane.
#[repr(C)]
pub(super) struct LaneControl {
    /// Key of this memory. A process that opens the memory compares the key, to check that this is the intended memory.
    pub(super) key: AtomicU64,
    /// Address of a word with the key in the writer's process, by which the reader finds out whether it can read the
    /// memory of that process.
    pub(super) key_address: AtomicU64,
    /// Whether the reader can read the memory of the writer's process.
    pub(super) is_readable: AtomicU32,
    /// Whether the writer's end is gone, and with it the memory of the bodies that it has exposed.
    pub(super) is_closed: AtomicU32,
    taken: CacheAligned<[AtomicU64; 2]>,
    stalled: CacheAligned<AtomicU32>,
}

impl LaneControl {
    #[cfg(test)]
    fn of_unused_lane() -> Self {
        Self {
            key: AtomicU64::new(0),
            key_address: AtomicU64::new(0),
            is_readable: AtomicU32::new(0),
            is_closed: AtomicU32::new(0),
            taken: CacheAligned([AtomicU64::new(0), AtomicU64::new(0)]),
            stalled: CacheAligned(AtomicU32::new(0)),
        }
    }
}

/// Number of lines and bytes since the lane was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LaneCount {
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

/// The writer's view of a lane.
pub(super) struct LaneRoom {
    /// Capacity of the lane in bytes.
    capacity: u64,
    pub(super) written: LaneCount,
    taken: LaneCount,
}

impl LaneRoom {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            written: LaneCount::default(),
            taken: LaneCount::default(),
        }
    }

    /// Whether the reader is known to have taken this line.
    pub(super) fn is_taken(&self, line: u64) -> bool {
        self.taken.lines > line
    }

    /// Whether there is room for a line and this many bytes.
    #[inline]
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.written.lines - self.taken.lines < LINES && self.bytes() >= bytes
    }

    /// Number of bytes that may be written.
    pub(super) fn bytes(&self) -> u64 {
        self.capacity - (self.written.bytes - self.taken.bytes)
    }

    /// Whether there is room for a line and this many bytes. Reads the reader's progress only if the last known
    /// progress leaves too little room.
    #[inline]
    pub(super) fn check_room(&mut self, control: &LaneControl, bytes: u64) -> Result<bool, LaneError> {
        if self.has_room(bytes) {
            return Ok(true);
        }
        self.refresh(control)?;
        Ok(self.has_room(bytes))
    }

    fn refresh(&mut self, control: &LaneControl) -> Result<(), LaneError> {
        let [lines, bytes] = &control.taken.0;
        // Pairs with the release in `ReaderProgress::report`.
        let taken = LaneCount {
            lines: lines.load(Ordering::Acquire),
            bytes: bytes.load(Ordering::Acquire),
        };
        let is_between = |taken: u64, before: u64, written: u64| (before..=written).contains(&taken);
        if !is_between(taken.lines, self.taken.lines, self.written.lines)
            || !is_between(taken.bytes, self.taken.bytes, self.written.bytes)
        {
            return Err(LaneError);
        }
        self.taken = taken;
        Ok(())
    }

    /// Announces to the reader that the writer waits, and checks the room once more.
    pub(super) fn stall(&mut self, control: &LaneControl, bytes: u64) -> Result<bool, LaneError> {
        control.stalled.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `ReaderProgress::report`.
        fence(Ordering::SeqCst);
        self.check_room(control, bytes)
    }
}

/// The reader's view of a lane.
pub(super) struct ReaderProgress {
    capacity: u64,
    pub(super) taken: LaneCount,
    reported: LaneCount,
}

impl ReaderProgress {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            taken: LaneCount::default(),
            reported: LaneCount::default(),
        }
    }

    /// Reports the reader's progress if it has read a quarter of the lines or bytes since its last report. So a writer
    /// always gets the room for which it waits, which is at most half of the bytes. Returns whether the writer waits
    /// and must be woken.
    #[inline]
    pub(super) fn report(&mut self, control: &LaneControl) -> bool {
        let lines = self.taken.lines - self.reported.lines;
        // A hostile writer can move the position by any number.
        let bytes = self.taken.bytes.wrapping_sub(self.reported.bytes);
        if lines < LINES / 4 && bytes < self.capacity / 4 {
            return false;
        }
        self.reported = self.taken;
        control.taken.0[0].store(self.taken.lines, Ordering::Release);
        control.taken.0[1].store(self.taken.bytes, Ordering::Release);
        // Pairs with the fence in `LaneRoom::stall`.
        fence(Ordering::SeqCst);
        control.stalled.0.load(Ordering::Relaxed) != 0 && control.stalled.0.swap(0, Ordering::AcqRel) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn progress_that_cannot_be_is_noticed() {
        let claims = [(11, 0), (0, 4097), (u64::MAX, 0), (4, 0), (5, 63)];
        for (lines, bytes) in claims {
            let (control, mut room) = (LaneControl::of_unused_lane(), LaneRoom::new(4096));
            room.written = LaneCount { lines: 10, bytes: 4096 };
            room.taken = LaneCount { lines: 5, bytes: 64 };
            control.taken.0[0].store(lines, Ordering::Relaxed);
            control.taken.0[1].store(bytes, Ordering::Relaxed);
            assert_eq!(
                room.check_room(&control, 4096),
                Err(LaneError),
                "{lines} lines, {bytes} bytes"
            );
        }
    }

    #[test]
    fn a_reader_that_has_taken_everything_leaves_room_for_half_of_the_bytes() {
        for step in [1, 63, 1000] {
            let control = LaneControl::of_unused_lane();
            let (mut room, mut progress) = (LaneRoom::new(4096), ReaderProgress::new(4096));
            for _ in 0..10_000 {
                assert_eq!(room.check_room(&control, 2048), Ok(true));
                room.written.lines += 1;
                room.written.bytes += step;
                progress.taken = room.written;
                assert!(!progress.report(&control), "no writer waits");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::ring::Line;
    use hotlease_wire::frame::{LineWords, Seq};
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};

    /// A lane with one cell for bodies and one line for each message. The test checks that the cell is not written
    /// again too early, and that no side sleeps for ever.
    struct Lane {
        control: LaneControl,
        lines: [Line; 2],
        cell: UnsafeCell<u64>,
        /// Works like an eventfd: a wake-up is kept until the sleeper consumes it.
        bell: (Mutex<bool>, Condvar),
    }
    // SAFETY: the test checks that accesses do not overlap: loom fails if both threads touch the cell at once.
    unsafe impl Sync for Lane {}

    #[test]
    fn unread_lines_are_not_overwritten_and_no_wake_up_is_lost() {
        loom::model(|| {
            let lane = Arc::new(Lane {
                control: LaneControl::of_unused_lane(),
                lines: [Line::empty(), Line::empty()],
                cell: UnsafeCell::new(0),
                bell: (Mutex::new(false), Condvar::new()),
            });
            let theirs = lane.clone();
            let reader = loom::thread::spawn(move || {
                let mut progress = ReaderProgress::new(1);
                for number in 0..2 {
                    while theirs.lines[number].poll(Seq::new(1, number as u64)).is_none() {
                        loom::thread::yield_now();
                    }
                    // SAFETY: the protocol under test.
                    let value = theirs.cell.with(|cell| unsafe { *cell });
                    assert_eq!(value, number as u64 + 10);
                    progress.taken.lines += 1;
                    progress.taken.bytes += 1;
                    if progress.report(&theirs.control) {
                        *theirs.bell.0.lock().unwrap() = true;
                        theirs.bell.1.notify_one();
                    }
                }
            });
            let mut room = LaneRoom::new(1);
            for number in 0..2_u64 {
                while !room.check_room(&lane.control, 1).unwrap() {
                    if room.stall(&lane.control, 1).unwrap() {
                        break;
                    }
                    let mut is_rung = lane.bell.0.lock().unwrap();
                    while !*is_rung {
                        is_rung = lane.bell.1.wait(is_rung).unwrap();
                    }
                    *is_rung = false;
                }
                // SAFETY: the protocol under test.
                lane.cell.with_mut(|cell| unsafe { *cell = number + 10 });
                let words: LineWords = [Seq::new(1, number).word(); 8];
                lane.lines[number as usize].publish(&words);
                room.written.lines += 1;
                room.written.bytes += 1;
            }
            reader.join().unwrap();
        });
    }
}
