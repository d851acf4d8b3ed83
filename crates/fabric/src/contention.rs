//! Contention: whether other threads want the core of a thread that polls.
//!
//! If a thread polls while another thread wants its core, the kernel preempts it sooner or later. It then waits for a
//! whole time slice of the other thread: milliseconds, in which it cannot see its answer. On such a core it is better
//! to sleep: a sleeping thread runs soon after it is woken, as long as it has not used up its share of the core (26 us
//! in the median and 70 us at p99 beside a busy loop on the same core, Linux 6.18). On an uncontended core it is better
//! to poll: a wake-up costs some ten times as much as a poll.
//!
//! So a thread that was preempted while it polled does not poll for a while ([`CoreRecord`]). Then the thread polls
//! again. If it is soon preempted again, the next pause is twice as long. If it is not preempted for [`CALM`], the next
//! pause is as short as the first.
//!
//! A thread that gets its answers within a few microseconds should still poll: in each of its time slices it gets
//! thousands of answers. With sleeps, each of these answers would cost a wake-up, in total many times the other
//! thread's slice. So a preemption causes a pause only if it took longer than the wake-ups that polling has saved since
//! the last preemption.
//!
//! A thread detects a preemption by two signs: the time between two polls is longer than [`LOST`], and the kernel has
//! run another thread although this thread could run. (Without the second sign, an interrupt or the hypervisor took the
//! time, and sleeping would not help.) A thread also pauses if it polled in vain, slept, and then soon got its answer:
//! the answering thread may want the same core, and does not preempt a thread that polls. The next wait sleeps at once,
//! and so shows whether the core was the reason.
//!
//! The record belongs to the thread, and stays when the thread moves to another core.

mod own;

pub use own::OwnProcessor;

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Shortest time between two polls that may be a preemption: a time slice is some hundred microseconds at least.
const LOST: Duration = Duration::from_micros(200);
/// Shortest polling in vain after which a short sleep may mean that the other side wanted the core.
const IN_VAIN: Duration = Duration::from_micros(20);
/// Longest sleep after polls in vain that may mean that the other side wanted the core.
const SOON: Duration = Duration::from_micros(100);
/// Shortest pause without polls after a preemption.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause. A preemption costs some 3 ms, so a thread that polls after every pause loses 2 % of its time to
/// preemptions.
const PAUSE_MAX: Duration = Duration::from_millis(160);
/// Cost of a sleep and a wake-up on a contended core.
const WAKE_UP: Duration = Duration::from_micros(25);
/// Time from the end of a pause within which a computing thread preempts a polling thread.
const SOON_AGAIN: Duration = Duration::from_millis(10);
/// Time without a preemption after which the next pause is again as short as the first.
const CALM: Duration = Duration::from_secs(1);

/// Preemptions of a polling thread. Pure; times are numbers in a unit that the owner chooses.
#[derive(Debug, Clone)]
pub struct CoreRecord {
    lost: u64,
    pause_min: u64,
    pause_max: u64,
    soon_again: u64,
    calm: u64,
    wake_up: u64,
    /// Number of answers that polling has brought since the last preemption or sleep.
    answers: u64,
    /// Present or last pause; 0 if there was none.
    pause: u64,
    /// Beginning of the pause.
    since: u64,
    /// Time for which the thread had polled in vain before the pause, if these polls are the pause's reason and no wait
    /// has confirmed the reason; else 0.
    unconfirmed: u64,
}

impl CoreRecord {
    /// Makes a record without preemptions; `unit_of_ns` converts nanoseconds to the owner's unit.
    pub fn new(unit_of_ns: impl Fn(u64) -> u64) -> Self {
        let unit = |time: Duration| unit_of_ns(time.as_nanos() as u64);
        Self {
            lost: unit(LOST),
            pause_min: unit(PAUSE_MIN),
            pause_max: unit(PAUSE_MAX),
            soon_again: unit(SOON_AGAIN),
            calm: unit(CALM),
            wake_up: unit(WAKE_UP),
            answers: 0,
            pause: 0,
            since: 0,
            unconfirmed: 0,
        }
    }

    /// Whether a time of `between_polls` from one poll to the next may be a preemption.
    #[inline]
    pub fn may_be_lost(&self, between_polls: u64) -> bool {
        between_polls >= self.lost
    }

    /// Time until the end of the pause, in which the thread should not poll; 0 if there is no pause now.
    #[inline]
    pub fn pause_left(&self, now: u64) -> u64 {
        match self.pause {
            0 => 0,
            pause => pause.saturating_sub(now.wrapping_sub(self.since)),
        }
    }

    /// Notes an answer that arrived while the thread polled.
    #[inline]
    pub fn note_answer(&mut self) {
        self.answers += 1;
    }

    /// Notes a sleep: the thread had polled in vain.
    pub fn note_sleep(&mut self) {
        self.answers = 0;
    }

    /// Notes that the thread was preempted while it polled, for a time of `lost`. Begins a pause, unless the polls have
    /// saved more than `lost`.
    pub fn note_preemption(&mut self, lost: u64, now: u64) {
        if std::mem::take(&mut self.answers).saturating_mul(self.wake_up) > lost {
            return;
        }
        let since_pause = now.wrapping_sub(self.since).saturating_sub(self.pause);
        self.pause = match self.pause {
            0 => self.pause_min,
            _ if since_pause >= self.calm => self.pause_min,
            // The thread runs only now and then, like a thread of a daemon: a longer pause would gain nothing.
            pause if since_pause >= self.soon_again => (pause / 2).max(self.pause_min),
            pause => pause.saturating_mul(2).min(self.pause_max),
        };
        (self.since, self.unconfirmed) = (now, 0);
    }

    /// Ends the pause, because the thread is on another core.
    fn end_pause(&mut self) {
        (self.pause, self.unconfirmed) = (0, 0);
    }

    /// Notes that the thread polled in vain for a time of `polled`, slept, and soon got its answer.
    fn note_polls_in_vain(&mut self, polled: u64, now: u64) {
        self.pause = self.pause_min;
        (self.since, self.unconfirmed) = (now, polled);
    }

    /// Notes a wait of this length without polls, in a pause. If the wait was at least as long as the polls in vain
    /// that began the pause, the core was not the reason for them, and the pause ends.
    fn note_wait_without_polls(&mut self, waited: u64) {
        if waited >= self.unconfirmed && self.unconfirmed > 0 {
            self.pause = 0;
        }
        self.unconfirmed = 0;
    }
}

/// Involuntary context switches of the calling thread: how often the kernel has run another thread although this thread
/// could run. Reading it is a system call of some hundred nanoseconds.
#[derive(Debug, Clone)]
pub struct SwitchCount(i64);

impl SwitchCount {
    /// Reads the present count.
    pub fn now() -> Self {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
        Self(usage.map_or(0, |usage| usage.involuntary_context_switches()))
    }

    /// Reads the count again; returns whether there was a switch since the last reading.
    pub fn recount(&mut self) -> bool {
        let before = std::mem::replace(self, Self::now());
        self.0 > before.0
    }
}

/// Record of a thread that is not a slot, in nanoseconds since its first wait.
struct ThreadRecord {
    began: Instant,
    record: CoreRecord,
    switches: SwitchCount,
}

impl ThreadRecord {
    fn ns(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }

    fn is_contended(&self, now: Instant) -> bool {
        self.record.pause != 0 && self.record.pause_left(self.ns(now)) > 0
    }
}

thread_local! {
    // Without a destructor, so that it can be used while the thread ends.
    static THREAD: RefCell<ThreadRecord> = RefCell::new(ThreadRecord {
        began: Instant::now(),
        record: CoreRecord::new(|ns| ns),
        switches: SwitchCount::now(),
    });
}

/// Whether other threads want the core of the calling thread, as far as its waits have shown.
pub fn is_contended() -> bool {
    THREAD.with_borrow(|thread| thread.is_contended(Instant::now()))
}

/// Notes an answer that arrived while the calling thread polled ([`CoreRecord::note_answer`]).
#[inline]
pub fn note_answer() {
    THREAD.with_borrow_mut(|thread| thread.record.note_answer());
}

/// Notes a sleep of the calling thread ([`CoreRecord::note_sleep`]).
pub fn note_sleep() {
    THREAD.with_borrow_mut(|thread| thread.record.note_sleep());
}

/// One wait of the calling thread, which polls, and sleeps once polling does not pay. The thread should not yield its
/// core between two polls (`sched_yield`): beside a computing thread, Linux takes a whole time slice from a thread that
/// yields.
#[derive(Debug)]
pub struct PollingWait {
    /// Beginning of the wait, or end of its last sleep.
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
            is_contended: THREAD.with_borrow(|thread| thread.is_contended(now)),
        }
    }

    /// Notes a look at the clock after some polls. Must also be called after the last poll: the answer may have arrived
    /// while another thread had the core. Returns whether the thread should sleep instead of polling on.
    #[inline]
    pub fn note_look(&mut self, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.looked, now);
        let between = now.saturating_duration_since(before);
        if !self.is_contended && between >= LOST {
            self.note_lost_time(between, now);
        }
        self.is_contended
    }

    /// Notes the answer, which ends the wait, at the last look at the clock.
    #[inline]
    pub fn note_answer(&mut self, now: Instant) {
        self.note_look(now);
        note_answer();
    }

    /// Notes that the thread has slept since the last look at the clock. `is_answered`: whether the sleep ended with
    /// the answer of a thread that may want the same core.
    pub fn note_sleep(&mut self, is_answered: bool) {
        let now = Instant::now();
        let slept = now.saturating_duration_since(self.looked);
        let polled = self.looked.saturating_duration_since(self.began);
        THREAD.with_borrow_mut(|thread| {
            thread.switches = SwitchCount::now();
            thread.record.note_sleep();
            if is_answered && self.is_contended {
                thread
                    .record
                    .note_wait_without_polls((polled + slept).as_nanos() as u64);
            } else if is_answered && polled >= IN_VAIN && slept < SOON {
                let at = thread.ns(now);
                thread.record.note_polls_in_vain(polled.as_nanos() as u64, at);
            }
        });
        (self.began, self.looked) = (now, now);
    }

    #[cold]
    fn note_lost_time(&mut self, lost: Duration, now: Instant) {
        self.is_contended = THREAD.with_borrow_mut(|thread| {
            if thread.switches.recount() {
                let at = thread.ns(now);
                thread.record.note_preemption(lost.as_nanos() as u64, at);
            }
            thread.is_contended(now)
        });
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

    /// Model of a core on which a thread waits for one answer after the other; each answer arrives after `reply`. While
    /// `hogged`, the thread polls for one slice in total before another thread gets the next slice; when it sleeps, it
    /// is woken in [`WAKE`]. Returns the number of answers until `end`.
    fn replies(record: &mut CoreRecord, now: &mut u64, end: u64, reply: u64, hogged: bool) -> u64 {
        let (mut replies, mut ran) = (0, 0);
        while *now < end {
            if record.pause_left(*now) > 0 {
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
                        record.note_preemption(SLICE, *now);
                    }
                }
                record.note_answer();
            }
            replies += 1;
        }
        replies
    }

    #[test]
    fn a_thread_beside_a_hog_loses_little_more_than_its_wake_ups() {
        for reply in [1_000, 10_000, 20_000, 50_000, 100_000, 1_000_000] {
            let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
            replies(&mut record, &mut now, 1_000 * MS, reply, true);
            let from = now;
            let number = replies(&mut record, &mut now, from + 5_000 * MS, reply, true);
            let sleeping = (now - from) / (reply + WAKE);
            // Polls in every second slice.
            let polling = (now - from) / (2 * reply);
            let best = sleeping.max(polling);
            assert!(
                number >= best * 90 / 100,
                "{number} of {sleeping} or {polling}, {reply} ns each"
            );
        }
    }

    #[test]
    fn answers_before_a_sleep_do_not_count_for_polls_after_it() {
        let mut record = CoreRecord::new(|ns| ns);
        (0..10_000).for_each(|_| record.note_answer());
        record.note_preemption(SLICE, 0);
        assert_eq!(record.pause_left(0), 0, "polls have saved 250 ms");
        record.note_preemption(SLICE, 0);
        assert!(record.pause_left(0) > 0, "and nothing since then");
        let mut record = CoreRecord::new(|ns| ns);
        (0..10_000).for_each(|_| record.note_answer());
        record.note_sleep();
        record.note_preemption(SLICE, 0);
        assert!(record.pause_left(0) > 0);
    }

    #[test]
    fn a_thread_polls_again_soon_after_the_hog_has_ended() {
        let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
        replies(&mut record, &mut now, 5_000 * MS, 10_000, true);
        assert!(record.pause_left(now) <= PAUSE_MAX.as_nanos() as u64);
        now += record.pause_left(now);
        let from = now;
        assert_eq!(replies(&mut record, &mut now, from + 100 * MS, 10_000, false), 10_000);
    }

    #[test]
    fn pauses_double_if_a_preemption_follows_soon_and_begin_anew_after_a_calm() {
        let (mut record, mut now) = (CoreRecord::new(|ns| ns), 0);
        assert_eq!(record.pause_left(now), 0, "nothing has happened yet");
        let mut pauses = Vec::new();
        for _ in 0..7 {
            record.note_preemption(SLICE, now);
            pauses.push(record.pause_left(now) / MS);
            now += record.pause_left(now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160]);
        // A daemon that runs for a moment five times a second.
        for _ in 0..5 {
            now += 200 * MS;
            record.note_preemption(SLICE, now);
        }
        assert_eq!(record.pause_left(now), 5 * MS);
        for _ in 0..3 {
            record.note_preemption(SLICE, now);
        }
        assert_eq!(record.pause_left(now), 40 * MS);
        now += 40 * MS + CALM.as_nanos() as u64;
        record.note_preemption(SLICE, now);
        assert_eq!(record.pause_left(now), 5 * MS);
    }

    #[test]
    fn polls_in_vain_pause_polling_only_if_sleeping_brings_the_answer_sooner() {
        let polled = 100_000;
        for (waited, is_paused) in [(10_000, true), (110_000, false)] {
            let mut record = CoreRecord::new(|ns| ns);
            record.note_polls_in_vain(polled, 0);
            assert!(record.pause_left(1) > 0);
            record.note_wait_without_polls(waited);
            assert_eq!(record.pause_left(1) > 0, is_paused, "{waited}");
            record.note_wait_without_polls(2 * polled);
            assert_eq!(record.pause_left(1) > 0, is_paused, "confirmed once is enough");
        }
    }

    #[test]
    fn a_thread_that_polls_sees_a_hog_on_its_core() {
        let mut cores = sched_getaffinity(Pid::from_raw(0)).expect("cores");
        let core = (0..CpuSet::count()).find(|core| cores.is_set(*core).expect("in range"));
        cores = CpuSet::new();
        cores.set(core.expect("one")).expect("in range");
        // Threads that are started from here inherit the affinity.
        sched_setaffinity(Pid::from_raw(0), &cores).expect("pinned");
        let end = AtomicBool::new(false);
        let is_seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let begin = Instant::now();
            let mut wait = PollingWait::begin(begin);
            let mut now = begin;
            while !wait.note_look(now) && now - begin < Duration::from_secs(30) {
                now = Instant::now();
            }
            end.store(true, Ordering::Relaxed);
            wait.is_contended && PollingWait::begin(now).is_contended
        });
        assert!(is_seen, "this wait ends its polls, and the next one does not poll");
    }

    #[test]
    fn polls_in_vain_before_a_short_sleep_pause_polling() {
        for (polled, slept, is_answered, is_contended) in [
            (IN_VAIN, Duration::ZERO, true, true),
            (IN_VAIN, Duration::ZERO, false, false),
            (IN_VAIN, 2 * SOON, true, false),
            (Duration::ZERO, Duration::ZERO, true, false),
        ] {
            // Each case runs in a new thread, which has a record of its own.
            let wait = std::thread::spawn(move || {
                let looked = Instant::now() - slept;
                let mut wait = PollingWait {
                    began: looked - polled,
                    looked,
                    is_contended: false,
                };
                wait.note_sleep(is_answered);
                (super::is_contended(), looked.elapsed())
            });
            let (found, took) = wait.join().expect("it ends");
            // A loaded machine may stop the thread for longer than the intended short sleep, or for longer than the
            // pause.
            let is_late = took >= slept + SOON || took >= PAUSE_MIN;
            assert!(found == is_contended || is_late, "{polled:?} {slept:?} {is_answered}");
        }
    }

    #[test]
    fn answers_of_a_thread_count_until_it_sleeps() {
        let answers = || THREAD.with_borrow(|thread| thread.record.answers);
        let now = Instant::now();
        let mut wait = PollingWait::begin(now);
        wait.note_answer(now);
        note_answer();
        assert_eq!(answers(), 2);
        wait.note_sleep(false);
        assert_eq!(answers(), 0);
        note_answer();
        note_sleep();
        assert_eq!(answers(), 0);
    }

    #[test]
    fn a_sleep_is_no_poll() {
        let begin = Instant::now();
        let mut wait = PollingWait::begin(begin);
        std::thread::sleep(10 * IN_VAIN);
        wait.note_sleep(false);
        assert_eq!(wait.began, wait.looked, "the time before does not count as polled");
    }
}
