//! How long tasks take lately, on whichever slot: how many of them may be under way on each, and how long a thread that waits for
//! their results may leave the core to a worker.
//!
//! One estimate for all slots: each has the next task of the same queue. With estimates of their own, a slot that had ended many
//! short tasks would be sent many long ones ahead, while another one that had ended few has one. But what is on a slot cannot be taken
//! back: one that has not ended anything yet, or has had its task for longer than it is sent ahead, is sent no other one.

use std::time::{Duration, Instant};

/// Work that may be under way on a slot: more hides what a refill costs, but waits behind whatever is first, and cannot
/// be cancelled.
const AHEAD: Duration = Duration::from_millis(1);
/// Of tasks shorter than this a second one waits on the slot, so that what is seen of their time is theirs, and not what it takes
/// to send the next one.
const FOLLOWED: Duration = Duration::from_millis(10);

/// A shorter nap is not worth its system call, and in a longer one nobody looks after results.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_micros(500);
/// The result of a shorter task is there sooner than a thread that slept is awake.
const SHORT: Duration = Duration::from_micros(50);
/// Tasks on each slot from which on one of them is hardly waited for alone.
const MANY: usize = 4;

/// How a thread waits for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It has a core, or a result comes soon: it looks for one all the time, for a while.
    Spin,
    /// A worker needs the core: it looks for a moment, then sleeps until there is one.
    Yield,
    /// Slots have work for longer than this, and would be disturbed: it looks again afterwards, and takes in many at once.
    Nap(Duration),
}

/// What was seen of the tasks of all slots.
pub struct Pace {
    /// Seconds that a task took lately.
    task_seconds: f64,
    /// Tasks of that time that are enough.
    fitting: usize,
    /// Tasks that a channel takes.
    depth: usize,
}

/// What was seen of the tasks of one slot.
pub struct Beat {
    /// Seconds from one result to the next, as seen last.
    last_seconds: f64,
    /// When the last result was seen, or the first task sent.
    since: Instant,
    /// Tasks that may be under way, as far as its own results say: twice as many each time.
    grown: usize,
    /// Of what comes now, so many replies say nothing about tasks.
    unlike: usize,
}

impl Beat {
    /// Of a slot that has ended nothing.
    pub fn new() -> Self {
        Self {
            last_seconds: 0.0,
            since: Instant::now(),
            grown: 1,
            unlike: 0,
        }
    }

    /// It was idle, and has a task now.
    pub fn begins(&mut self) {
        self.since = Instant::now();
    }

    /// One of the replies that come now says nothing about how long tasks take.
    pub fn overlook(&mut self) {
        self.unlike += 1;
    }

    /// So many results have come: the seconds of one of them. One long turn may be a pause of the machine; after the second the tasks
    /// are long.
    fn seconds(&mut self, results: usize) -> f64 {
        let now = Instant::now();
        let each = (now - self.since).as_secs_f64() / results as f64;
        self.since = now;
        each.min(std::mem::replace(&mut self.last_seconds, each))
    }
}

impl Pace {
    /// Nothing is known; a channel takes so many tasks.
    pub fn new(depth: usize) -> Self {
        Self {
            task_seconds: 0.0,
            fitting: 1,
            depth,
        }
    }

    /// Whether a slot that has so many tasks may be sent another one.
    pub fn allows(&self, beat: &Beat, under_way: usize) -> bool {
        under_way == 0 || under_way < self.fitting.min(beat.grown) && beat.since.elapsed() < AHEAD
    }

    /// So many replies have come from a slot: learns from it how many tasks may be under way.
    pub fn learn(&mut self, beat: &mut Beat, replies: usize) {
        if replies == 0 {
            return;
        }
        let results = replies.saturating_sub(std::mem::take(&mut beat.unlike));
        if results == 0 {
            return beat.begins();
        }
        let lasting = beat.seconds(results);
        // Short ones have to be the rule.
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

    /// How a thread waits on a core that a worker needs, while each busy slot has at least so many tasks.
    pub fn patience(&self, least: usize) -> Patience {
        let ahead = Duration::from_secs_f64((self.task_seconds * least as f64).min(1.0));
        // Half of it: a slot that runs dry costs more than looking once more.
        let nap = (ahead / 2).min(NAP_MAX);
        if least >= MANY && nap >= NAP_MIN {
            Patience::Nap(nap)
        } else if self.task_seconds < SHORT.as_secs_f64() {
            Patience::Spin
        } else {
            Patience::Yield
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(task: Duration, batches: usize, results: usize) -> (Pace, Beat) {
        let mut pace = Pace::new(512);
        let mut beat = Beat::new();
        for _ in 0..batches {
            beat.since = Instant::now() - task * results as u32;
            pace.learn(&mut beat, results);
        }
        // However long it takes until it is looked at.
        beat.since += Duration::from_secs(60);
        (pace, beat)
    }

    fn most(pace: &Pace, beat: &Beat) -> usize {
        (0..1000)
            .take_while(|under_way| pace.allows(beat, *under_way))
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
            most(&pace, &Beat::new()),
            1,
            "another slot's tasks are short, of this one's nothing is known"
        );
        beat.since = Instant::now() - AHEAD;
        assert_eq!(
            most(&pace, &beat),
            1,
            "it has had its task for longer than others take"
        );
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
            Patience::Spin,
            "it may be the one that is waited for"
        );
        let Patience::Nap(nap) = pace.patience(40) else {
            panic!("40 tasks of 20 us on each slot are enough to sleep over");
        };
        assert!(
            nap <= Duration::from_micros(500),
            "{nap:?} of 800 us that slots have"
        );
        assert_eq!(
            learned(Duration::from_micros(1), 20, 8).0.patience(16),
            Patience::Spin
        );
        assert_eq!(
            learned(Duration::from_millis(2), 20, 1).0.patience(2),
            Patience::Yield
        );
    }
}
