//! Pace: estimate of how long tasks took lately, over all slots. It sets how many tasks may be under way on each slot,
//! and how long a thread that waits for their results may leave the core to a worker.
//!
//! One estimate serves all slots, because each slot gets the next task of the same queue. With separate estimates, a
//! slot that had ended many short tasks would be sent many long ones ahead, while another that had ended few has one.
//! But a task on a slot cannot be taken back: a slot that has not ended anything yet, or has had its task for longer
//! than the work that is sent ahead, gets no other task.

use std::time::{Duration, Instant};

/// Work that may be under way on a slot. More hides the cost of a refill, but waits behind the first task, and cannot
/// be cancelled.
const AHEAD: Duration = Duration::from_millis(1);
/// For tasks shorter than this, a second one waits on the slot, so that the measured time is that of the task, without
/// the time to send the next one.
const FOLLOWED: Duration = Duration::from_millis(10);

/// A shorter nap is not worth its system call, and during a longer one no thread collects results.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_micros(500);
/// The result of a shorter task arrives sooner than a thread wakes up.
const SHORT: Duration = Duration::from_micros(50);
/// With this many tasks on each slot, a thread hardly waits for one of them alone.
const MANY: usize = 4;

/// Way in which a thread waits for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultWait {
    /// A core is free for the thread, or a result comes soon: poll for a while.
    Spin,
    /// A worker needs the core: poll for a moment, then sleep until there is a result.
    Yield,
    /// Slots have work for longer than this, and polling would disturb them: nap, then collect many results at once.
    Nap(Duration),
}

/// Estimate over the tasks of all slots.
pub struct Pace {
    /// Recent seconds for each task.
    task_seconds: f64,
    /// Number of tasks that fill the time `AHEAD`.
    fitting: usize,
    /// Number of tasks that a channel holds.
    depth: usize,
}

/// Observations of one slot.
pub struct SlotPace {
    /// Last observed seconds from one result to the next.
    last_seconds: f64,
    /// Time of the last result, or of the first task sent.
    since: Instant,
    /// Limit of the tasks under way by the slot's own results: doubles each time.
    grown: usize,
    /// Number of the next replies that say nothing about tasks.
    unlike: usize,
}

impl SlotPace {
    /// Pace of a slot that has not ended any task.
    pub fn new() -> Self {
        Self {
            last_seconds: 0.0,
            since: Instant::now(),
            grown: 1,
            unlike: 0,
        }
    }

    /// Marks that an idle slot was sent a task.
    pub fn begins(&mut self) {
        self.since = Instant::now();
    }

    /// Marks that one of the next replies says nothing about how long tasks take.
    pub fn skip_reply(&mut self) {
        self.unlike += 1;
    }

    /// Seconds of one of the `results` that have come, the smaller of the last two values. One long value may be a
    /// pause of the node; after the second the tasks are long.
    fn seconds(&mut self, results: usize) -> f64 {
        let now = Instant::now();
        let each = (now - self.since).as_secs_f64() / results as f64;
        self.since = now;
        each.min(std::mem::replace(&mut self.last_seconds, each))
    }
}

impl Pace {
    /// Pace without observations, for channels that hold `depth` tasks.
    pub fn new(depth: usize) -> Self {
        Self {
            task_seconds: 0.0,
            fitting: 1,
            depth,
        }
    }

    /// Whether a slot that has `under_way` tasks may be sent another one.
    pub fn can_send(&self, beat: &SlotPace, under_way: usize) -> bool {
        under_way == 0 || under_way < self.fitting.min(beat.grown) && beat.since.elapsed() < AHEAD
    }

    /// Learns from replies of a slot how many tasks may be under way.
    pub fn learn(&mut self, beat: &mut SlotPace, replies: usize) {
        if replies == 0 {
            return;
        }
        let results = replies.saturating_sub(std::mem::take(&mut beat.unlike));
        if results == 0 {
            return beat.begins();
        }
        let lasting = beat.seconds(results);
        // A short time must repeat to count; a long one counts at once.
        self.task_seconds = if lasting > self.task_seconds {
            lasting
        } else {
            (3.0 * self.task_seconds + lasting) / 4.0
        };
        let least = match self.task_seconds < FOLLOWED.as_secs_f64() {
            true => 2,
            false => 1,
        };
        let fitting = (AHEAD.as_secs_f64() / self.task_seconds.max(1e-9)) as usize;
        self.fitting = fitting.max(least).min(self.depth);
        beat.grown = (2 * beat.grown).min(self.depth);
    }

    /// Returns the way a thread waits on a core that a worker needs, while each busy slot has at least `least` tasks.
    pub fn patience(&self, least: usize) -> ResultWait {
        let ahead = Duration::from_secs_f64((self.task_seconds * least as f64).min(1.0));
        // Half of it: a slot that runs dry costs more than one more look.
        let nap = (ahead / 2).min(NAP_MAX);
        if least >= MANY && nap >= NAP_MIN {
            ResultWait::Nap(nap)
        } else if self.task_seconds < SHORT.as_secs_f64() {
            ResultWait::Spin
        } else {
            ResultWait::Yield
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(task: Duration, batches: usize, results: usize) -> (Pace, SlotPace) {
        let mut pace = Pace::new(512);
        let mut beat = SlotPace::new();
        for _ in 0..batches {
            beat.since = Instant::now() - task * results as u32;
            pace.learn(&mut beat, results);
        }
        // Any time may pass before the look.
        beat.since += Duration::from_secs(60);
        (pace, beat)
    }

    fn most(pace: &Pace, beat: &SlotPace) -> usize {
        (0..1000)
            .take_while(|under_way| pace.can_send(beat, *under_way))
            .count()
    }

    #[test]
    fn a_slot_is_sent_a_millisecond_of_work_ahead_and_of_long_tasks_one() {
        let of = |task, batches, results| {
            let (pace, beat) = learned(task, batches, results);
            most(&pace, &beat)
        };
        let short = of(Duration::from_micros(20), 20, 8);
        assert!((25..=50).contains(&short), "of 20 us each: {short} ahead");
        assert_eq!(
            of(Duration::from_micros(1), 20, 8),
            512,
            "no more than the channel takes"
        );
        assert_eq!(of(Duration::from_micros(1), 3, 8), 8, "twice as many each time");
        assert_eq!(of(Duration::from_millis(2), 20, 1), 2);
        assert_eq!(of(Duration::from_millis(50), 20, 1), 1);
    }

    #[test]
    fn nothing_is_sent_behind_the_first_task_of_a_slot_or_a_long_one() {
        let (pace, mut beat) = learned(Duration::from_micros(20), 20, 8);
        assert_eq!(
            most(&pace, &SlotPace::new()),
            1,
            "another slot's tasks are short, of this one's nothing is known"
        );
        beat.since = Instant::now() - AHEAD;
        assert_eq!(most(&pace, &beat), 1, "it has had its task for longer than others take");
    }

    #[test]
    fn one_long_turn_is_a_pause_and_the_second_is_not() {
        let (mut pace, mut beat) = learned(Duration::from_micros(20), 20, 8);
        let before = pace.fitting;
        beat.since = Instant::now() - Duration::from_millis(50);
        pace.learn(&mut beat, 1);
        assert!(
            pace.fitting >= before,
            "after one: {} ahead, before {before}",
            pace.fitting
        );
        beat.since = Instant::now() - Duration::from_millis(50);
        pace.learn(&mut beat, 1);
        assert_eq!(pace.fitting, 1);
    }

    #[test]
    fn a_waiting_thread_naps_only_while_slots_have_more_than_it_sleeps() {
        let (pace, _) = learned(Duration::from_micros(20), 20, 8);
        assert_eq!(
            pace.patience(1),
            ResultWait::Spin,
            "it may be the one that is waited for"
        );
        let ResultWait::Nap(nap) = pace.patience(40) else {
            panic!("40 tasks of 20 us on each slot are enough to sleep over");
        };
        assert!(nap <= Duration::from_micros(500), "{nap:?} of 800 us that slots have");
        assert_eq!(
            learned(Duration::from_micros(1), 20, 8).0.patience(16),
            ResultWait::Spin
        );
        assert_eq!(
            learned(Duration::from_millis(2), 20, 1).0.patience(2),
            ResultWait::Yield
        );
    }
}
