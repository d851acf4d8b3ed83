//! Contention: whether other threads want the core of a thread that polls.
//!
//! A thread that polls while another one wants its core is preempted sooner or later, and then waits for a whole time
//! slice of the other one: milliseconds, in which it cannot see what it polls for. A thread that sleeps does better
//! there, because the kernel lets a thread that wakes up run before one that computes all the time. On a core of its own it
//! is the other way round: a wake-up costs some ten times what a poll does.
//!
//! So a thread that was preempted while it polled does not poll for a while ([`CoreRecord`]). Then it tries again. If it is
//! preempted soon, the next pause is twice as long; if not for [`CALM`], it is as short as the first. A thread sees a preemption by itself:
//! the time between two polls is longer than [`GAP`], and the kernel has switched to another thread meanwhile
//! (otherwise an interrupt or the hypervisor took the time, and sleeping would not help).
//!
//! The thread that is waited for may want the same core. It does not preempt a thread that polls, so the answer comes soon
//! after that thread sleeps ([`PollingWait::note_sleep`]).

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Shortest time between two polls that may be a preemption. Polls are less than ten microseconds apart, and a time slice
/// is some hundred microseconds at least.
pub const GAP: Duration = Duration::from_micros(200);
/// A thread that polls for so long in vain, and gets what it waits for within `SOON` once it sleeps, has kept the other side from
/// running.
const IN_VAIN: Duration = Duration::from_micros(20);
const SOON: Duration = Duration::from_micros(100);
/// Shortest pause without polls after a preemption.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause. A preemption costs some 3 ms, so that a thread loses 2 % to its tries.
const PAUSE_MAX: Duration = Duration::from_millis(160);
/// Time from the end of a pause in which a thread that computes preempts one that polls, even if that polls now and then only.
const SOON_AGAIN: Duration = Duration::from_millis(50);
/// Time without a preemption after which the pauses begin anew.
const CALM: Duration = Duration::from_secs(1);

/// Preemptions of a polling thread: pure, with times as numbers of a unit that the owner chooses.
#[derive(Debug, Clone)]
pub struct CoreRecord {
    gap: u64,
    pause_min: u64,
    pause_max: u64,
    soon_again: u64,
    calm: u64,
    /// Pause after the last preemption; 0: there was none.
    pause: u64,
    /// Time of the last preemption.
    preempted: u64,
}

impl CoreRecord {
    /// Makes a record without preemptions; `unit_of_ns` converts nanoseconds to the owner's unit.
    pub fn new(unit_of_ns: impl Fn(u64) -> u64) -> Self {
        let unit = |time: Duration| unit_of_ns(time.as_nanos() as u64);
        Self {
            gap: unit(GAP),
            pause_min: unit(PAUSE_MIN),
            pause_max: unit(PAUSE_MAX),
            soon_again: unit(SOON_AGAIN),
            calm: unit(CALM),
            pause: 0,
            preempted: 0,
        }
    }

    /// Whether so much time between two polls may be a preemption.
    #[inline]
    pub fn is_gap(&self, between_polls: u64) -> bool {
        between_polls >= self.gap
    }

    /// Whether the thread should sleep at once instead of polling.
    #[inline]
    pub fn is_contended(&self, now: u64) -> bool {
        self.pause != 0 && now.wrapping_sub(self.preempted) < self.pause
    }

    /// Notes that the thread was preempted while it polled.
    pub fn note_preemption(&mut self, now: u64) {
        let since_pause = now.wrapping_sub(self.preempted).saturating_sub(self.pause);
        self.pause = match self.pause {
            0 => self.pause_min,
            _ if since_pause >= self.calm => self.pause_min,
            pause if since_pause >= self.soon_again => pause,
            pause => pause.saturating_mul(2).min(self.pause_max),
        };
        self.preempted = now;
    }
}

/// Involuntary context switches of the calling thread: how often the kernel let another one run although this one could.
/// A system call of some hundred nanoseconds.
#[derive(Debug, Default, Clone)]
pub struct SwitchCount(i64);

impl SwitchCount {
    /// Whether there were any since the last call, or since the thread began.
    pub fn has_grown(&mut self) -> bool {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
        let now = usage.map_or(self.0, |usage| usage.involuntary_context_switches());
        std::mem::replace(&mut self.0, now) != now
    }
}

/// Record of a thread that is not a slot, in nanoseconds since its first wait.
struct ThreadRecord {
    began: Instant,
    record: CoreRecord,
    switches: SwitchCount,
}

thread_local! {
    static THREAD: RefCell<ThreadRecord> = RefCell::new(ThreadRecord {
        began: Instant::now(),
        record: CoreRecord::new(|ns| ns),
        switches: SwitchCount::default(),
    });
}

/// Whether other threads want the core of the calling thread, as far as its waits have shown.
pub fn is_contended() -> bool {
    THREAD.with_borrow(|thread| thread.record.is_contended(thread.ns(Instant::now())))
}

/// One wait of the calling thread, in which it polls, and sleeps once that does not pay. It should not yield its core between
/// two polls (`sched_yield`): beside a thread that computes, Linux takes a whole time slice from a thread that yields.
#[derive(Debug)]
pub struct PollingWait {
    began: Instant,
    /// Time of the last look at the clock.
    looked: Instant,
    is_contended: bool,
}

impl PollingWait {
    /// Begins a wait.
    pub fn begin(now: Instant) -> Self {
        Self {
            began: now,
            looked: now,
            is_contended: THREAD.with_borrow(|thread| thread.record.is_contended(thread.ns(now))),
        }
    }

    /// Notes a look at the clock after some polls. Returns whether the thread should sleep at once.
    #[inline]
    pub fn is_contended(&mut self, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.looked, now);
        if !self.is_contended && now.saturating_duration_since(before) >= GAP {
            self.note_gap(now);
        }
        self.is_contended
    }

    /// Notes that the thread has slept since the last look at the clock; `is_answered`: until what it waits for was there. If
    /// that came soon after polls in vain, it came because the thread no longer held the core, which the other side needed.
    pub fn note_sleep(&mut self, is_answered: bool) {
        let now = Instant::now();
        let slept = now.saturating_duration_since(self.looked);
        let polled = self.looked.saturating_duration_since(self.began);
        self.looked = now;
        if is_answered && !self.is_contended && polled >= IN_VAIN && slept < SOON {
            THREAD.with_borrow_mut(|thread| {
                let now = thread.ns(now);
                thread.record.note_preemption(now);
            });
        }
    }

    #[cold]
    fn note_gap(&mut self, now: Instant) {
        self.is_contended = THREAD.with_borrow_mut(|thread| {
            let was_preempted = thread.switches.has_grown();
            if was_preempted {
                let now = thread.ns(now);
                thread.record.note_preemption(now);
            }
            was_preempted
        });
    }
}

impl ThreadRecord {
    fn ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SLICE: u64 = 3_000_000;
    const POLL: u64 = 1_000;
    const WAKE: u64 = 20_000;
    const MS: u64 = 1_000_000;

    /// Model of a core on which a thread waits for one reply after the other, each of which comes `reply` later. While
    /// `hogged`, the thread may poll for one slice in all before another one gets the next slice; when it sleeps, it is woken
    /// in [`WAKE`]. Returns the number of replies until `end`.
    fn replies(record: &mut CoreRecord, now: &mut u64, end: u64, reply: u64, hogged: bool) -> u64 {
        let (mut replies, mut ran) = (0, 0);
        while *now < end {
            if record.is_contended(*now) {
                *now += reply + WAKE;
                ran = 0;
            } else {
                let until = *now + reply;
                while *now < until {
                    *now += POLL;
                    ran += POLL;
                    if hogged && ran >= SLICE {
                        *now += SLICE;
                        ran = 0;
                        record.note_preemption(*now);
                    }
                }
            }
            replies += 1;
        }
        replies
    }

    #[test]
    fn a_thread_beside_a_hog_loses_little_more_than_its_wake_ups() {
        let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
        replies(&mut record, &mut now, 1_000 * MS, 10_000, true);
        let from = now;
        let number = replies(&mut record, &mut now, from + 5_000 * MS, 10_000, true);
        let sleeping = (now - from) / (10_000 + WAKE);
        assert!(number >= sleeping * 95 / 100, "{number} of {sleeping}");
    }

    #[test]
    fn a_thread_polls_again_soon_after_the_hog_has_ended() {
        let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
        replies(&mut record, &mut now, 5_000 * MS, 10_000, true);
        let end = now + 2 * PAUSE_MAX.as_nanos() as u64;
        while record.is_contended(now) {
            now += POLL;
            assert!(now < end, "it sleeps although nobody wants its core");
        }
        let from = now;
        assert_eq!(replies(&mut record, &mut now, from + 100 * MS, 10_000, false), 10_000);
    }

    #[test]
    fn pauses_double_if_a_preemption_follows_soon_and_begin_anew_after_a_calm() {
        let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
        assert!(!record.is_contended(now), "nothing has happened yet");
        let mut pauses = Vec::new();
        for _ in 0..7 {
            record.note_preemption(now);
            let since = now;
            while record.is_contended(now) {
                now += MS;
            }
            pauses.push((now - since) / MS);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160]);
        now += CALM.as_nanos() as u64;
        record.note_preemption(now);
        assert!(!record.is_contended(now + 5 * MS));
        // A daemon that runs for a moment ten times a second.
        for _ in 0..10 {
            now += 100 * MS;
            record.note_preemption(now);
            assert!(!record.is_contended(now + 5 * MS), "a longer pause would gain nothing");
        }
    }

    #[test]
    fn a_thread_that_polls_sees_a_hog_on_its_core() {
        let mut cores = sched_getaffinity(Pid::from_raw(0)).expect("cores");
        let core = (0..CpuSet::count()).find(|core| cores.is_set(*core).expect("in range"));
        cores = CpuSet::new();
        cores.set(core.expect("one")).expect("in range");
        // Threads inherit it.
        sched_setaffinity(Pid::from_raw(0), &cores).expect("pinned");
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| while !end.load(Ordering::Relaxed) {});
            let begin = Instant::now();
            let mut wait = PollingWait::begin(begin);
            while !wait.is_contended(Instant::now()) {
                assert!(begin.elapsed() < Duration::from_secs(30), "it is not preempted");
            }
            assert!(
                PollingWait::begin(Instant::now()).is_contended,
                "nor is the next wait a poll"
            );
            end.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn polls_in_vain_before_a_short_sleep_have_kept_the_core_from_the_other_side() {
        for (polled, slept, is_answered, is_contended) in [
            (IN_VAIN, Duration::ZERO, true, true),
            (IN_VAIN, Duration::ZERO, false, false),
            (IN_VAIN, 2 * SOON, true, false),
            (Duration::ZERO, Duration::ZERO, true, false),
        ] {
            // In a thread of its own: each has its own record.
            let wait = std::thread::spawn(move || {
                let looked = Instant::now() - slept;
                let mut wait = PollingWait {
                    began: looked - polled,
                    looked,
                    is_contended: false,
                };
                let begun = Instant::now();
                wait.note_sleep(is_answered);
                (super::is_contended(), begun.elapsed())
            });
            let (found, took) = wait.join().expect("it ends");
            // A loaded machine may stop the thread for longer than the sleep that is to be short.
            assert!(
                found == is_contended || took >= SOON,
                "{polled:?} {slept:?} {is_answered}"
            );
        }
    }
}
