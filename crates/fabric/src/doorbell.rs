//! The doorbell: lets an idle process sleep until a peer wakes it.
//!
//! The doorbell is one word in shared memory, which is 1 while a process sleeps or is about to sleep. The protocol is
//! store buffering (Dekker):
//!
//! ```text
//!  sleeper                            ringer
//!  armed = 1                          publish a frame
//!  fence(SeqCst) ─────── either ───── fence(SeqCst)
//!  re-check the ring                  if armed: armed = 0, futex wake
//!  futex wait while armed == 1
//! ```
//!
//! One of the two fences comes first in the single total order, so either the sleeper's re-check sees the frame or the
//! ringer sees the armed word. The futex closes the rest of the window: with it a process sleeps only if the word is
//! still 1. A peer that writes nonsense into the word causes spurious wake-ups or misses its own answers, but never
//! breaks memory safety. When no process sleeps, ringing is one fence and one load of a line that stays in the ringer's
//! cache.

use crate::atomics::{AtomicU32, Ordering, fence};

/// Sleeper's side: frames that are published from now on ring the doorbell; the sleeper must check for earlier frames.
#[inline]
pub(crate) fn arm(armed: &AtomicU32) {
    armed.store(1, Ordering::Relaxed);
    // Pairs with the fence in `ring`.
    fence(Ordering::SeqCst);
}

/// Sleeps until `ready` returns true; returns false when `wait` reports that time is up. `wait` sleeps while the word
/// is 1 (it may also return early) and returns whether time is left.
fn sleep_unless(armed: &AtomicU32, mut ready: impl FnMut() -> bool, mut wait: impl FnMut() -> bool) -> bool {
    loop {
        arm(armed);
        if ready() {
            return true;
        }
        if !wait() {
            return ready();
        }
    }
}

/// Ringer's side, to be called after the frame is published.
#[inline]
pub(crate) fn ring(armed: &AtomicU32, wake: impl FnOnce()) {
    // Pairs with the fence in `arm`.
    fence(Ordering::SeqCst);
    if armed.load(Ordering::Relaxed) != 0 {
        ring_armed(armed, wake);
    }
}

#[cold]
fn ring_armed(armed: &AtomicU32, wake: impl FnOnce()) {
    // Due to the swap, only one of several ringers makes the system call. AcqRel: keeps the wake after it.
    if armed.swap(0, Ordering::AcqRel) != 0 {
        wake();
    }
}

#[cfg(not(loom))]
pub use shared::Doorbell;

#[cfg(not(loom))]
mod shared {
    use super::*;
    use crate::memory::{Memory, MemoryError, PAGE_BYTES};
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::time::{Duration, Instant};

    /// A doorbell in its own page of sealed shared memory; many threads may sleep on it and many may ring it.
    pub struct Doorbell(Memory);

    impl Doorbell {
        /// Creates a doorbell, to be passed to peers by its descriptor.
        pub fn create() -> Result<Self, MemoryError> {
            Ok(Self(Memory::create("hotlease-doorbell", PAGE_BYTES as u64)?))
        }

        /// Attaches a peer's doorbell.
        pub fn attach(fd: OwnedFd) -> Result<Self, MemoryError> {
            Ok(Self(Memory::attach(fd, PAGE_BYTES as u64)?))
        }

        /// Descriptor to pass to a peer.
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.0.fd()
        }

        fn armed(&self) -> &AtomicU32 {
            // SAFETY: the page is mapped as long as self lives, aligned, and only used as this atomic.
            unsafe { self.0.start().cast::<AtomicU32>().as_ref() }
        }

        /// Wakes all sleepers; one fence and one load if there are none. Call after publishing.
        #[inline]
        pub fn ring(&self) {
            ring(self.armed(), || futex_wake(self.armed()));
        }

        /// Wakes all sleepers, even if a peer has tampered with the word.
        pub fn ring_always(&self) {
            fence(Ordering::SeqCst);
            self.armed().store(0, Ordering::Release);
            futex_wake(self.armed());
        }

        /// Sleeps until `ready` returns true (checked first, and after every wake-up) or until `timeout`; returns the
        /// last result of `ready`.
        pub fn sleep_unless(&self, ready: impl FnMut() -> bool, timeout: Option<Duration>) -> bool {
            let until = timeout.map(|timeout| Instant::now() + timeout);
            sleep_unless(self.armed(), ready, || {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return false;
                }
                futex_wait(self.armed(), 1, left);
                true
            })
        }

        /// Disarms the doorbell, for a sole sleeper that found work without sleeping: spares the next ringer a system
        /// call.
        #[inline]
        pub fn disarm(&self) {
            self.armed().store(0, Ordering::Relaxed);
        }
    }

    fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the word and the timeout outlive the call; FUTEX_WAIT reads nothing else. Early returns
        // (value changed, signal, timeout) are all handled by the caller's loop.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, timeout);
        }
    }

    fn futex_wake(word: &AtomicU32) {
        // SAFETY: FUTEX_WAKE does not access the word; a wake without sleepers is fine.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::Arc;
        use std::sync::atomic::AtomicU64;

        #[test]
        fn every_ring_is_answered_across_threads() {
            let bell = Arc::new(Doorbell::create().unwrap());
            let count = Arc::new(AtomicU64::new(0));
            let sleeper = {
                let (bell, count) = (bell.clone(), count.clone());
                std::thread::spawn(move || {
                    for expected in 1..=2000 {
                        let ready = || count.load(Ordering::Acquire) >= expected;
                        assert!(bell.sleep_unless(ready, Some(Duration::from_secs(10))), "lost wake-up");
                    }
                })
            };
            for value in 1..=2000 {
                count.store(value, Ordering::Release);
                bell.ring();
                if value % 3 == 0 {
                    std::thread::yield_now();
                }
            }
            sleeper.join().unwrap();
        }

        #[test]
        fn timeout_ends_the_sleep() {
            let bell = Doorbell::create().unwrap();
            assert!(!bell.sleep_unless(|| false, Some(Duration::from_millis(5))));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::atomics::AtomicU64;
    use loom::sync::{Arc, Condvar, Mutex};

    /// Model of the kernel's futex: the check of the word and the sleep are one step with respect to wakes.
    #[derive(Default)]
    struct Futex {
        queue: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        fn wait(&self, word: &AtomicU32) {
            let queue = self.queue.lock().unwrap();
            if word.load(Ordering::Relaxed) == 1 {
                drop(self.sleepers.wait(queue).unwrap());
            }
        }
        fn wake(&self) {
            let _queue = self.queue.lock().unwrap();
            self.sleepers.notify_all();
        }
    }

    /// loom reports a deadlock if a wake-up is lost.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let shared = Arc::new((AtomicU32::new(0), AtomicU64::new(0), Futex::default()));
            let sleeper = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (armed, frame, futex) = &*shared;
                    let ready = || frame.load(Ordering::Acquire) == 1;
                    assert!(sleep_unless(armed, ready, || {
                        futex.wait(armed);
                        true
                    }));
                })
            };
            let (armed, frame, futex) = &*shared;
            frame.store(1, Ordering::Release);
            ring(armed, || futex.wake());
            sleeper.join().unwrap();
        });
    }

    /// Two clients ring one slot.
    #[test]
    fn two_ringers_one_sleeper() {
        // Three threads have too many schedules to check; all schedules with up to three preemptions are checked.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((AtomicU32::new(0), AtomicU64::new(0), Futex::default()));
            let ringers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let (armed, frames, futex) = &*shared;
                        frames.fetch_add(1, Ordering::Release);
                        ring(armed, || futex.wake());
                    })
                })
                .collect();
            let (armed, frames, futex) = &*shared;
            let ready = || frames.load(Ordering::Acquire) == 2;
            assert!(sleep_unless(armed, ready, || {
                futex.wait(armed);
                true
            }));
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }
}
