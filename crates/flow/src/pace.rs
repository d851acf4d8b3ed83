//! Pace: recent durations of each function's tasks, the amount of work that may be under way on a slot, and the time
//! for which a thread that waits for results may leave its core to a worker.
//!
//! Times are measured for each function, not for each slot, because each slot gets the next task of the common queue.
//! With times for each slot, a slot that had ended many short tasks would be sent many long tasks ahead, while a slot
//! that had ended few would get one task. An estimate may be wrong: if a task takes longer than expected, the tasks
//! behind it are taken back when another slot is idle ([`SlotPace::is_late`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Work that may be under way on a slot. More work would hide the cost of a refill better, but it would wait behind the
/// first task, and could not be cancelled.
const AHEAD: Duration = Duration::from_millis(1);
/// Duration below which a second task is sent behind a task. The measured time then does not include the time for
/// sending the next task.
const FOLLOWED: Duration = Duration::from_millis(10);
/// Time without a result after which idle slots take over the tasks that a slot has not begun. After a shorter time,
/// moving tasks costs more than it saves.
pub const LATE: Duration = Duration::from_micros(50);

/// Shortest nap; a shorter nap is not worth its system call. `NAP_MAX` limits the time in which no thread collects
/// results.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_micros(500);
/// The result of a shorter task arrives sooner than a thread wakes up.
const SHORT: Duration = Duration::from_micros(50);
/// If each slot has at least this number of tasks, the thread rarely waits for one particular task.
const MANY: usize = 4;

/// Marks that no time has been learned yet.
const UNKNOWN: u64 = u64::MAX;

/// Way in which a thread waits for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultWait {
    /// A core is free for the thread, or a result arrives soon: poll for a while.
    Spin,
    /// A worker needs the core: poll for a moment, then sleep until there is a result.
    Brief,
    /// Slots have work for longer than this time, and polling would disturb them: nap, then collect many results at
    /// once.
    Nap(Duration),
}

impl ResultWait {
    /// Chooses how to wait on a core that a worker needs, while each busy slot has at least `tasks` tasks with at least
    /// this much work.
    pub fn on_busy_core(tasks: usize, work: Duration) -> Self {
        // Half of the work: a slot without work costs more than one additional look for results.
        let nap = (work / 2).min(NAP_MAX);
        if tasks >= MANY && nap >= NAP_MIN {
            Self::Nap(nap)
        } else if work < SHORT * tasks.max(1) as u32 {
            Self::Spin
        } else {
            Self::Brief
        }
    }
}

/// Estimate of how long a task of one function takes. Must be changed by one thread at a time.
#[derive(Debug)]
pub struct FunctionPace {
    task_ns: AtomicU64,
    /// Last observed time.
    last_ns: AtomicU64,
}

impl Default for FunctionPace {
    fn default() -> Self {
        Self {
            task_ns: AtomicU64::new(UNKNOWN),
            last_ns: AtomicU64::new(UNKNOWN),
        }
    }
}

impl FunctionPace {
    /// Work to count for one more task, nanoseconds. Behind a task of unknown duration at most one other task is sent.
    #[inline]
    pub fn work_ns(&self) -> u32 {
        match self.task_ns.load(Ordering::Relaxed) {
            UNKNOWN => AHEAD.as_nanos() as u32,
            ns => u32::try_from(ns).unwrap_or(u32::MAX),
        }
    }

    /// Learns how long a task took. The estimate follows the smaller of the last two times, because one long time may
    /// be a pause of the node, or imports of the first call. If this time is longer than the estimate, it becomes the
    /// estimate at once. If it is shorter, the estimate approaches it step by step.
    pub fn learn(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(UNKNOWN).min(UNKNOWN - 1);
        let last = self.last_ns.load(Ordering::Relaxed);
        self.last_ns.store(ns, Ordering::Relaxed);
        if last == UNKNOWN {
            return;
        }
        let lasting = ns.min(last);
        let before = self.task_ns.load(Ordering::Relaxed);
        let task_ns = match before {
            UNKNOWN => lasting,
            before if lasting > before => lasting,
            before => before - (before - lasting).div_ceil(4),
        };
        self.task_ns.store(task_ns, Ordering::Relaxed);
    }
}

/// Observations of one slot.
#[derive(Debug)]
pub struct SlotPace {
    /// Time of the last result, or of the first task sent.
    since: Instant,
    /// Limit of the tasks under way, which doubles with each result of the slot.
    grown: usize,
    /// Number of the next replies that are not results of tasks.
    unlike: usize,
    /// Number of tasks for which the slot's channel has room.
    depth: usize,
    /// Whether tasks were taken back since the last result.
    is_overtaken: bool,
}

impl SlotPace {
    /// Makes the pace of a slot that has ended no task yet, and whose channel has room for `depth` tasks.
    pub fn new(depth: usize, now: Instant) -> Self {
        Self {
            since: now,
            grown: 1,
            unlike: 0,
            depth,
            is_overtaken: false,
        }
    }

    /// Marks that an idle slot was sent a task.
    pub fn begins(&mut self, now: Instant) {
        self.since = now;
        self.is_overtaken = false;
    }

    /// Marks that one of the next replies is not the result of a task, and so must not be used for times.
    pub fn skip_reply(&mut self) {
        self.unlike += 1;
    }

    /// Whether another task may be sent to the slot behind `under_way` tasks, which have `work_ns` of work. A slot that
    /// has not ended any task yet, or has been on its task for longer than the work that may be sent ahead, gets no
    /// other task.
    #[inline]
    pub fn can_send(&self, under_way: usize, work_ns: u64, now: impl FnOnce() -> Instant) -> bool {
        if under_way == 0 {
            return true;
        }
        let most = if under_way == 1 { FOLLOWED } else { AHEAD };
        under_way < self.grown
            && work_ns < most.as_nanos() as u64
            && !self.is_overtaken
            && now().saturating_duration_since(self.since) < AHEAD
    }

    /// Records that replies of the slot have arrived; returns how long each task took, if that is known.
    pub fn end_tasks(&mut self, replies: usize, now: Instant) -> Option<Duration> {
        if replies == 0 {
            return None;
        }
        let results = replies.saturating_sub(std::mem::take(&mut self.unlike));
        let took = now.saturating_duration_since(self.since);
        self.begins(now);
        if results == 0 {
            return None;
        }
        self.grown = (2 * self.grown).min(self.depth);
        Some(took / u32::try_from(results).unwrap_or(u32::MAX))
    }

    /// Whether the slot has not ended a task for a long time: idle slots then take over the tasks that the slot has not
    /// begun.
    pub fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= LATE
    }

    /// Marks that tasks were taken back: the slot gets no other tasks before it has ended a task.
    pub fn overtake(&mut self) {
        self.is_overtaken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AFTER: Duration = Duration::from_secs(60);

    /// A function, and a slot that has ended batches of its tasks, at a time right after the last batch.
    fn learned(task: Duration, batches: usize, results: u32) -> (FunctionPace, SlotPace, Instant) {
        let mut now = Instant::now();
        let (function, mut slot) = (FunctionPace::default(), SlotPace::new(512, now));
        for _ in 0..batches {
            now += task * results;
            let took = slot.end_tasks(results as usize, now).expect("there are results");
            assert_eq!(took, task);
            function.learn(took);
        }
        (function, slot, now)
    }

    /// Number of tasks of a function that the slot may have.
    fn most(function: &FunctionPace, slot: &SlotPace, now: Instant) -> usize {
        let (mut under_way, mut work_ns) = (0, 0);
        while slot.can_send(under_way, work_ns, || now) {
            under_way += 1;
            work_ns += u64::from(function.work_ns());
        }
        under_way
    }

    #[test]
    fn a_slot_is_sent_a_millisecond_of_work_ahead_and_of_long_tasks_one() {
        let of = |task, batches, results| {
            let (function, slot, now) = learned(task, batches, results);
            most(&function, &slot, now)
        };
        assert_eq!(of(Duration::from_micros(20), 20, 8), 50);
        let channel = of(Duration::from_micros(1), 20, 8);
        assert_eq!(channel, 512, "no more than the channel takes");
        assert_eq!(of(Duration::from_micros(1), 3, 8), 8, "twice as many each time");
        assert_eq!(of(Duration::from_millis(2), 20, 1), 2);
        assert_eq!(of(Duration::from_millis(50), 20, 1), 1);
    }

    #[test]
    fn the_times_of_one_function_say_nothing_about_another() {
        let (short, slot, now) = learned(Duration::from_micros(1), 20, 8);
        assert_eq!(most(&FunctionPace::default(), &slot, now), 2, "nothing is known of it");
        let (long, ..) = learned(Duration::from_millis(50), 2, 1);
        assert!(slot.can_send(3, 3 * u64::from(short.work_ns()), || now));
        let behind_long = 3 * u64::from(short.work_ns()) + u64::from(long.work_ns());
        assert!(!slot.can_send(4, behind_long, || now), "one of them is long");
    }

    #[test]
    fn nothing_is_sent_behind_the_first_task_of_a_slot_or_a_long_one() {
        let (function, slot, now) = learned(Duration::from_micros(20), 20, 8);
        let other = SlotPace::new(512, now);
        assert_eq!(most(&function, &other, now), 1, "of this slot nothing is known");
        let later = now + AHEAD;
        assert_eq!(most(&function, &slot, later), 1, "its task takes longer than others");
    }

    #[test]
    fn a_slot_that_tasks_were_taken_from_gets_others_when_it_has_ended_one() {
        let (function, mut slot, now) = learned(Duration::from_micros(20), 20, 8);
        assert!(!slot.is_late(now));
        let late = now + LATE;
        assert!(slot.is_late(late));
        slot.overtake();
        assert_eq!(most(&function, &slot, late), 1);
        slot.end_tasks(1, late);
        assert!(!slot.is_late(late) && most(&function, &slot, late) > 1);
    }

    #[test]
    fn one_long_turn_is_a_pause_and_the_second_is_not() {
        let (function, ..) = learned(Duration::from_micros(20), 20, 8);
        function.learn(Duration::from_millis(50));
        assert_eq!(function.work_ns(), 20_000);
        function.learn(Duration::from_millis(50));
        assert_eq!(function.work_ns(), 50_000_000);
        function.learn(LONG_AFTER);
        function.learn(LONG_AFTER);
        assert_eq!(function.work_ns(), u32::MAX);
        for _ in 0..100 {
            function.learn(Duration::from_nanos(7));
        }
        assert_eq!(function.work_ns(), 7, "it has become short");
    }

    #[test]
    fn replies_that_are_no_tasks_end_no_task() {
        let now = Instant::now();
        let mut slot = SlotPace::new(512, now);
        slot.skip_reply();
        assert_eq!(slot.end_tasks(1, now + LONG_AFTER), None);
        let ended = slot.end_tasks(2, now + LONG_AFTER + LATE * 2);
        assert_eq!(ended, Some(LATE), "counted from the reply before");
    }

    #[test]
    fn a_waiting_thread_naps_only_while_slots_have_more_than_it_sleeps() {
        let us = Duration::from_micros;
        let one = ResultWait::on_busy_core(1, us(20));
        assert_eq!(one, ResultWait::Spin, "it may be the one that is waited for");
        assert_eq!(ResultWait::on_busy_core(40, us(800)), ResultWait::Nap(us(400)));
        assert_eq!(ResultWait::on_busy_core(40, LONG_AFTER), ResultWait::Nap(NAP_MAX));
        assert_eq!(ResultWait::on_busy_core(16, us(16)), ResultWait::Spin);
        assert_eq!(ResultWait::on_busy_core(2, us(4000)), ResultWait::Brief);
    }
}
