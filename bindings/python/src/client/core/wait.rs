//! Waiting for one result: the thread that waits collects results itself, so that no other thread is between slot and
//! caller.

use crate::client::core::lane::Lane;
use crate::client::core::{CoreState, ExecutorCore};
use crate::client::tasks::state::TaskCell;
use crate::locks::locked;
use hotlease_client::AwaitedCall;
use hotlease_fabric::contention::{self, PollingWait};
use hotlease_flow::pace::{LATE, ResultWait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of polls between two readings of the clock.
const POLLS: u32 = 64;
/// Time that a thread spins for a result before it sleeps. For tasks that take longer, the time to wake up is small in
/// comparison.
const SPIN: Duration = Duration::from_micros(100);
/// Time that a thread spins if every core has a busy worker.
const SPIN_CROWDED: Duration = Duration::from_micros(20);
/// Interval at which a thread that waits for room checks whether there is room.
const ROOM_LOOK: Duration = Duration::from_millis(1);
/// Limit of the sleep of a thread that does not collect results itself, because the collecting thread may have just
/// left.
const FOLLOW_MAX: Duration = Duration::from_millis(5);

impl CoreState {
    /// Returns the way a thread waits for the next result, on a node with `cores` cores for this process.
    pub fn patience(&self, cores: usize) -> ResultWait {
        let busy = || self.lanes.iter().filter(|lane| !lane.flights.is_empty());
        // Workers on other hosts do not need the cores of this node.
        if busy().filter(|lane| lane.shares_memory).count() < cores && !contention::is_contended() {
            return ResultWait::Spin;
        }
        let least = busy().min_by_key(|lane| lane.flights.len());
        let (tasks, work_ns) = least.map_or((0, 0), |lane| (lane.flights.len(), lane.work_ns));
        ResultWait::on_busy_core(tasks, Duration::from_nanos(work_ns))
    }
}

impl ExecutorCore {
    /// Waits until a task has ended or the time is over. The core's own thread also returns when tasks have to be
    /// finished, because no other thread finishes them.
    pub fn wait(self: &Arc<Self>, cell: &TaskCell, until: Instant) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        while !self.is_enough(cell, until) {
            match self.try_collecting() {
                Some(mut scratch) => self.lead(cell, until, &mut scratch),
                None => self.follow(cell, until),
            }
        }
        self.waiters.fetch_sub(1, Ordering::AcqRel);
        // One of the sleeping threads has to continue to collect.
        if self.followers.load(Ordering::Acquire) > 0 {
            self.tell_followers();
        }
    }

    /// Makes room for a thread that waits for room: collects results if no other thread does. If no result was
    /// collected, sleeps for a moment.
    pub fn make_room(self: &Arc<Self>) {
        let taken = match self.try_collecting() {
            Some(mut scratch) => self.collect(&mut scratch),
            None => 0,
        };
        if taken == 0 {
            std::thread::park_timeout(ROOM_LOOK);
        }
    }

    fn is_enough(&self, cell: &TaskCell, until: Instant) -> bool {
        cell.has_ended()
            || Instant::now() >= until
            || self.has_to_finish.load(Ordering::Acquire) && self.keeper.is_current()
    }

    fn lead(self: &Arc<Self>, cell: &TaskCell, until: Instant, scratch: &mut [u8]) {
        let mut awaited = Vec::new();
        loop {
            self.collect(scratch);
            if self.is_enough(cell, until) {
                return;
            }
            let patience = self.state().patience(self.cores);
            match patience {
                ResultWait::Nap(nap) => std::thread::sleep(nap),
                ResultWait::Brief => self.await_any(&mut awaited, SPIN_CROWDED, until, || cell.has_ended()),
                ResultWait::Spin => self.await_any(&mut awaited, SPIN, until, || cell.has_ended()),
            }
            if self.is_enough(cell, until) {
                return;
            }
        }
    }

    /// Waits until a result has arrived, something has changed, or the time is over. Spins at first, unless other
    /// threads need the core, and then sleeps.
    pub fn await_any(&self, awaited: &mut Vec<AwaitedCall>, spin: Duration, until: Instant, enough: impl Fn() -> bool) {
        let version = self.version.load(Ordering::Acquire);
        self.awaited(awaited);
        let changed = || enough() || self.version.load(Ordering::Acquire) != version;
        let begin = Instant::now();
        let mut polling = PollingWait::begin(begin);
        loop {
            for _ in 0..POLLS {
                if awaited.iter().any(AwaitedCall::is_ready) {
                    polling.note_answer(Instant::now());
                    return;
                }
                std::hint::spin_loop();
            }
            if changed() {
                return;
            }
            let now = Instant::now();
            let waited = now - begin;
            if polling.note_look(now) || waited >= spin {
                break;
            }
        }
        let mut limit = until.saturating_duration_since(Instant::now());
        if self.state().is_uneven() {
            limit = limit.min(LATE);
        }
        if !limit.is_zero() {
            self.invoker.sleep(awaited, limit, changed);
            // Only workers on this host compete for its cores.
            polling.note_sleep(awaited.iter().any(|call| call.is_near() && call.is_ready()));
        }
    }

    /// Collects the oldest call of each slot, whose result arrives next.
    pub fn awaited(&self, into: &mut Vec<AwaitedCall>) {
        into.clear();
        into.extend(self.state().lanes.iter().filter_map(Lane::oldest));
    }

    /// Whether no task is pending, no more tasks are accepted, and no worker is being replaced.
    pub fn is_finished(&self) -> bool {
        let state = self.state();
        let busy = state.lanes.iter().any(|lane| lane.pipeline.is_none() && !lane.is_dead);
        state.is_unwanted() && !busy
    }

    fn follow(&self, cell: &TaskCell, until: Instant) {
        self.followers.fetch_add(1, Ordering::AcqRel);
        if self.keeper.has_lead() {
            // The keeper gives way to threads that wait.
            self.keeper.wake(&self.invoker);
        }
        let guard = locked(&self.progress.0);
        if !cell.has_ended() {
            let limit = until.saturating_duration_since(Instant::now()).min(FOLLOW_MAX);
            drop(self.progress.1.wait_timeout(guard, limit));
        }
        self.followers.fetch_sub(1, Ordering::AcqRel);
    }
}
