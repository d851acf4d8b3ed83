//! Patience of a waiting thread: how long it polls before it sleeps, and whether it yields the processor between two
//! polls.
//!
//! To wake a sleeping thread takes a system call and then a processor: several times the time of a message. So each
//! thread first polls for a while. If each member has a processor, the thread only polls. If members share processors,
//! polling would keep the awaited member from running. So such members yield the processor to each other by
//! `sched_yield`, and no thread has to be woken as long as messages arrive.
//!
//! Yielding helps only among members. If another process wants the processor to compute, Linux gives this process a
//! whole time slice: milliseconds, while a message that wakes its receiver takes some 20 us. Before a yield, a thread
//! cannot find out whether a member or another process will get the processor. After the yield, its duration shows this
//! ([`ProcessorRecord`]). A thread that does not yield detects preemptions in the same way
//! ([`hotlease_fabric::contention`]).
//!
//! Even if there is a processor for each member, the kernel may have put two members on one. They wake each other for
//! each message, so only one of them runs at a time, and the kernel leaves them there. So a thread moves to its
//! member's own processor ([`OwnProcessor`]) after a preemption, and after a short sleep that followed polls without a
//! result. The kernel may move the thread away again.

use hotlease_fabric::contention::{self, OwnProcessor, PollingWait};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Number of polls between two reads of the clock, in a thread that does not yield.
const CLOCK_POLLS: u32 = 32;
/// Shortest duration of a yield that counts as slow. A yield among members takes much less, and a yield to another
/// process takes more.
const SLOW: Duration = Duration::from_micros(400);
/// Number of worthwhile yields that outweigh a slow one.
const WAITS_FOR_SLOW: u32 = 10;
/// Number of slow yields, with hardly any worthwhile yields between them, after which threads stop yielding.
const SLOW_MAX: u32 = 8;
/// First and longest pause without yields, after [`SLOW_MAX`] slow yields.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Shortest time between two moves of a thread to its member's own processor.
const MOVE_AGAIN: Duration = Duration::from_millis(20);
/// Shortest time until the next move of a thread that was preempted on its own processor, because another program uses
/// that processor.
const MOVE_LATER: Duration = Duration::from_secs(1);
/// A sleep of at most this time, after polls that found nothing, suggests that members share a processor.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

fn this_thread() -> ThreadId {
    std::thread::current().id()
}

/// Patience of a waiting thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EnginePatience {
    /// Time for which the thread polls.
    time: Duration,
    /// Whether members share a processor.
    gives_way: bool,
    /// This member's own processor, if each member has one and other members are on the node.
    own: Option<OwnProcessor>,
}

impl EnginePatience {
    /// Patience of a thread if `members` share a processor and each of them is to poll for `time`. `own`: this member's
    /// own processor, if there are other members on the node.
    pub(crate) fn of(time: Duration, members: u32, own: Option<OwnProcessor>) -> Self {
        Self {
            time: time * members,
            gives_way: members > 1,
            own: own.filter(|_| members == 1),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.time.is_zero()
    }
}

/// Next action of a thread after a poll that found nothing.
pub(super) enum IdleAction {
    /// Polls again, without the instruction `pause`, which takes as long as a cache line takes from one core to
    /// another.
    Look,
    /// Lets others run, and polls again.
    GiveWay,
    Sleep,
}

/// Series of polls that found nothing.
#[derive(Default)]
pub(super) struct IdlePolls {
    polls: u32,
    since: Option<Instant>,
    polling: Option<PollingWait>,
    /// Time of the last yield.
    gave_way: Option<Instant>,
}

impl IdlePolls {
    /// Counts one more poll that found nothing; returns what to do next.
    pub(super) fn next(&mut self, patience: &EnginePatience, processor: &mut ProcessorRecord) -> IdleAction {
        if patience.is_none() {
            return IdleAction::Sleep;
        }
        self.polls += 1;
        if !patience.gives_way && !self.polls.is_multiple_of(CLOCK_POLLS) {
            return IdleAction::Look;
        }
        let now = Instant::now();
        let is_over = now - *self.since.get_or_insert(now) >= patience.time;
        if !patience.gives_way {
            let polling = self.polling.get_or_insert_with(|| PollingWait::begin(now));
            let is_contended = polling.note_look(now);
            if is_contended && processor.occupy_own_processor(patience, MOVE_LATER, now) {
                *self = Self::default();
                return IdleAction::Look;
            }
            if is_contended || is_over {
                // The sleep must not count as time between two polls.
                self.polling = None;
                return IdleAction::Sleep;
            }
            return IdleAction::Look;
        }
        if let Some(before) = self.gave_way.take() {
            processor.note_yield(now - before, now);
        }
        if is_over || processor.is_paused(now) {
            return IdleAction::Sleep;
        }
        self.gave_way = Some(now);
        IdleAction::GiveWay
    }

    /// Ends the series, because there is news.
    pub(super) fn end(&mut self, processor: &mut ProcessorRecord) {
        match &mut self.polling {
            Some(polling) => polling.note_answer(Instant::now()),
            None => contention::note_answer(),
        }
        if let Some(before) = self.gave_way {
            let now = Instant::now();
            if !processor.note_yield(now - before, now) {
                processor.note_success();
            }
        }
        *self = Self::default();
    }
}

/// Record of how a member has used processors: whether yields were worthwhile lately, and its moves to its own
/// processor.
#[derive(Default)]
pub(super) struct ProcessorRecord {
    /// Number of slow yields, times [`WAITS_FOR_SLOW`], minus the number of worthwhile yields.
    losses: u32,
    paused: Option<(Instant, Duration)>,
    /// Earliest time of the next move to the own processor.
    move_at: Option<Instant>,
    /// The only thread that moves: the first thread that had a reason to move.
    mover: Option<ThreadId>,
}

impl ProcessorRecord {
    /// Notes the duration of a yield; returns whether it was slow.
    fn note_yield(&mut self, took: Duration, now: Instant) -> bool {
        let is_slow = took >= SLOW;
        if is_slow {
            self.losses += WAITS_FOR_SLOW;
            if self.losses >= SLOW_MAX * WAITS_FOR_SLOW {
                let longer = |(_, pause): (Instant, Duration)| (pause * 2).min(PAUSE_MAX);
                let pause = self.paused.map_or(PAUSE_MIN, longer);
                self.paused = Some((now + pause, pause));
                // After the pause, yields are tried again: one slow yield is then enough for the next pause.
                self.losses = (SLOW_MAX - 1) * WAITS_FOR_SLOW;
            }
        }
        is_slow
    }

    /// Notes a sleep of this length after polls that found nothing. If it was short, the member that ended the sleep
    /// may share this member's processor, so the thread moves.
    pub(super) fn note_sleep(&mut self, slept: Duration, patience: &EnginePatience) {
        if slept < SHORT_SLEEP && !patience.is_none() {
            self.occupy_own_processor(patience, MOVE_AGAIN, Instant::now());
        }
    }

    /// Moves the thread to this member's own processor; returns whether it moved. Does not move it if a move was tried
    /// lately, if other programs want that processor, or if another thread of this member is the one that moves.
    /// `later`: time until the next try, if the thread could not be moved because it was there already.
    fn occupy_own_processor(&mut self, patience: &EnginePatience, later: Duration, now: Instant) -> bool {
        let Some(own) = patience.own else { return false };
        if self.move_at.is_some_and(|at| now < at) || *self.mover.get_or_insert_with(this_thread) != this_thread() {
            return false;
        }
        let has_moved = own.occupy();
        self.move_at = Some(now + if has_moved { MOVE_AGAIN } else { later });
        has_moved
    }

    fn note_success(&mut self) {
        self.losses = self.losses.saturating_sub(1);
        if self.losses == 0 {
            self.paused = None;
        }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.paused.is_some_and(|(until, _)| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(5);
    const SLICE: Duration = Duration::from_millis(3);

    /// Notes yields of duration `took` until yields are paused; returns their number.
    fn tries(processor: &mut ProcessorRecord, now: &mut Instant, took: Duration) -> u32 {
        let mut tries = 0;
        while !processor.is_paused(*now) && tries < 10_000 {
            *now += took;
            if !processor.note_yield(took, *now) {
                processor.note_success();
            }
            tries += 1;
        }
        tries
    }

    #[test]
    fn a_busy_process_beside_members_stops_them_from_yielding() {
        let (mut processor, mut now) = (ProcessorRecord::default(), Instant::now());
        assert_eq!(tries(&mut processor, &mut now, TURN), 10_000);
        assert_eq!(tries(&mut processor, &mut now, SLICE), SLOW_MAX);
        // After each pause, one yield is tried; the pauses grow.
        let began = now;
        for _ in 0..10 {
            now = processor.paused.expect("it is paused").0;
            assert_eq!(tries(&mut processor, &mut now, SLICE), 1);
        }
        assert!(10 * SLICE * 100 < now - began, "little is lost by that");
        assert_eq!(processor.paused.expect("it is paused").1, PAUSE_MAX);
        // The process that computed has ended.
        now += PAUSE_MAX;
        assert_eq!(tries(&mut processor, &mut now, TURN), 10_000);
        assert!(processor.losses == 0 && processor.paused.is_none());
    }

    #[test]
    fn now_and_then_a_member_may_be_off_its_processor() {
        let (mut processor, mut now) = (ProcessorRecord::default(), Instant::now());
        for turn in 0..10_000 {
            let took = if turn % 20 == 0 { SLICE } else { TURN };
            assert_eq!(processor.note_yield(took, now), took == SLICE);
            if took == TURN {
                processor.note_success();
            }
            now += took;
            assert!(!processor.is_paused(now), "turn {turn}");
        }
    }

    #[test]
    fn one_thread_moves_to_its_own_processor_after_short_sleeps_and_not_all_the_time() {
        let patience = EnginePatience::of(Duration::from_millis(1), 1, OwnProcessor::of(0));
        let mut processor = ProcessorRecord::default();
        processor.note_sleep(2 * SHORT_SLEEP, &patience);
        assert!(processor.move_at.is_none(), "a long sleep says nothing");
        processor.note_sleep(SHORT_SLEEP / 2, &patience);
        let at = processor.move_at.expect("it was looked at");
        let soon = at.checked_sub(Duration::from_nanos(1)).expect("after the start");
        processor.occupy_own_processor(&patience, MOVE_AGAIN, soon);
        assert_eq!(processor.move_at, Some(at), "not again so soon");
        let has_moved = std::thread::scope(|scope| {
            let other = scope.spawn(|| processor.occupy_own_processor(&patience, MOVE_AGAIN, at));
            other.join().expect("it ends")
        });
        assert!(!has_moved, "this is not the thread that moves");
        assert_eq!(processor.move_at, Some(at));
        processor.occupy_own_processor(&patience, MOVE_AGAIN, at);
        assert_eq!(processor.move_at, Some(at + MOVE_AGAIN), "and now again");
        let crowded = EnginePatience::of(Duration::from_millis(1), 2, OwnProcessor::of(0));
        let mut processor = ProcessorRecord::default();
        processor.note_sleep(SHORT_SLEEP / 2, &crowded);
        assert!(processor.move_at.is_none(), "no member has a processor of its own");
    }

    #[test]
    fn a_thread_that_finds_nothing_sleeps() {
        for (patience, ways) in [
            (EnginePatience::of(Duration::ZERO, 1, None), 0),
            (EnginePatience::of(Duration::ZERO, 4, None), 0),
            (EnginePatience::of(Duration::from_millis(1), 1, None), 0),
            (EnginePatience::of(Duration::from_millis(1), 4, None), 1),
        ] {
            let (mut idle, mut processor) = (IdlePolls::default(), ProcessorRecord::default());
            let began = Instant::now();
            let mut gave_way = 0;
            loop {
                match idle.next(&patience, &mut processor) {
                    IdleAction::Look => {}
                    IdleAction::GiveWay => gave_way += 1,
                    IdleAction::Sleep => break,
                }
            }
            // A loaded machine may preempt this thread, which then sleeps earlier.
            assert!(began.elapsed() >= patience.time || contention::is_contended());
            assert!(gave_way >= ways, "{patience:?}");
            assert!(ways > 0 || gave_way == 0, "{patience:?}");
        }
    }
}
