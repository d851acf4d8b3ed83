//! The completion thread: wakes async tasks and runs callbacks when replies arrive.
//!
//! It is started when the first future is polled or the first callback is registered, and only then. While an
//! invocation is pending, the thread sleeps on the doorbell that workers ring after a reply; otherwise on a condition
//! variable.

use crate::Error;
use crate::channel::{Channel, wait};
use crate::options::Completion;
use hotlease_fabric::contention::PollingWait;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_fabric::ofi::Port;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long the thread polls before it sleeps, unless the lease asked for sleeping or other threads want its core.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep between two looks, in case a worker misuses the doorbell.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Action at the end of an invocation, with or without success.
pub(crate) enum CompletionAction {
    /// Wake the task that waits for the invocation.
    Wake(Waker),
    /// Run this on the completion thread.
    Call(Box<dyn FnOnce() + Send>),
}

impl CompletionAction {
    fn run(self) {
        let run = || match self {
            Self::Wake(waker) => waker.wake(),
            Self::Call(call) => call(),
        };
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            tracing::error!("a completion callback panicked");
        }
    }
}

struct Watch {
    deadline: Option<Instant>,
    action: CompletionAction,
}

/// The pending invocations of one channel. Replies arrive in order, so only the first is checked.
struct PendingChannel {
    channel: Arc<Channel>,
    watches: BTreeMap<u64, Watch>,
}

impl PendingChannel {
    fn is_first_ready(&self) -> bool {
        self.watches
            .first_key_value()
            .is_some_and(|(seq, _)| self.channel.is_closed() || self.channel.is_done(*seq))
    }
}

#[derive(Default)]
struct CompletionState {
    /// Pending channels by their addresses. They are kept alive, so no two channels have the same address.
    channels: HashMap<usize, PendingChannel>,
    jobs: Vec<CompletionAction>,
    /// Actions to run at a given time.
    timers: Vec<(Instant, CompletionAction)>,
    /// Changes with every registration, so that a sleeper looks at deadlines again.
    version: u64,
    started: bool,
    stopped: bool,
}

impl CompletionState {
    fn is_idle(&self) -> bool {
        self.channels.is_empty() && self.jobs.is_empty() && self.timers.is_empty()
    }

    fn is_ready(&self) -> bool {
        !self.jobs.is_empty() || self.channels.values().any(PendingChannel::is_first_ready)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let watches = self.channels.values().flat_map(|pending| pending.watches.values());
        let timers = self.timers.iter().map(|(at, _)| *at);
        watches.filter_map(|watch| watch.deadline).chain(timers).min()
    }

    /// Removes the actions of invocations that have ended or are late.
    fn take_ready(&mut self) -> Vec<CompletionAction> {
        let mut ready = std::mem::take(&mut self.jobs);
        // The clock is read only if there is a deadline.
        let now = self.next_deadline().map(|_| Instant::now());
        for pending in self.channels.values_mut() {
            while pending.is_first_ready()
                && let Some((_, watch)) = pending.watches.pop_first()
            {
                ready.push(watch.action);
            }
            let late: Vec<u64> = pending
                .watches
                .iter()
                .filter(|(_, watch)| watch.deadline.is_some_and(|deadline| now >= Some(deadline)))
                .map(|(seq, _)| *seq)
                .collect();
            let late = late.iter().filter_map(|seq| pending.watches.remove(seq));
            ready.extend(late.map(|watch| watch.action));
        }
        self.channels.retain(|_, pending| !pending.watches.is_empty());
        let due = self.timers.extract_if(.., |(at, _)| now >= Some(*at));
        ready.extend(due.map(|(_, action)| action));
        ready
    }
}

/// The completion thread of an invoker, and its work.
pub(crate) struct Completions {
    doorbell: Arc<Doorbell>,
    completion: Completion,
    state: Mutex<CompletionState>,
    changed: Condvar,
}

impl Completions {
    pub(crate) fn new(doorbell: Arc<Doorbell>, completion: Completion) -> Arc<Self> {
        Arc::new(Self {
            doorbell,
            completion,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, CompletionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the action when the invocation has ended, or at the deadline. A second watch of the same invocation
    /// replaces the first.
    pub(crate) fn watch(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        seq: u64,
        deadline: Option<Instant>,
        action: CompletionAction,
    ) -> Result<(), Error> {
        self.change(|state| {
            let pending = state
                .channels
                .entry(address(channel))
                .or_insert_with(|| PendingChannel {
                    channel: channel.clone(),
                    watches: BTreeMap::new(),
                });
            pending.watches.insert(seq, Watch { deadline, action });
        })
    }

    /// Runs a job on the completion thread soon.
    pub(crate) fn run(self: &Arc<Self>, job: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.change(|state| state.jobs.push(CompletionAction::Call(job)))
    }

    /// Runs the action at this time.
    pub(crate) fn run_at(self: &Arc<Self>, at: Instant, action: CompletionAction) -> Result<(), Error> {
        self.change(|state| state.timers.push((at, action)))
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut CompletionState)) -> Result<(), Error> {
        let mut state = self.state();
        if !state.started {
            let completions = self.clone();
            std::thread::Builder::new()
                .name("hotlease-completion".into())
                .spawn(move || completions.serve())
                .map_err(Error::local("start the completion thread"))?;
            state.started = true;
        }
        change(&mut state);
        state.version += 1;
        drop(state);
        // The thread sleeps on the condition variable or on the doorbell.
        self.changed.notify_one();
        self.doorbell.ring();
        Ok(())
    }

    /// Forgets an invocation. Its action may be running already.
    pub(crate) fn unwatch(&self, channel: &Arc<Channel>, seq: u64) {
        let mut state = self.state();
        let forgotten = state
            .channels
            .get_mut(&address(channel))
            .and_then(|pending| pending.watches.remove(&seq));
        state.channels.retain(|_, pending| !pending.watches.is_empty());
        drop(state);
        // Dropped outside the lock, because dropping the action may run any code.
        drop(forgotten);
    }

    /// Ends the thread once nothing is pending.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_one();
    }

    fn serve(self: Arc<Self>) {
        loop {
            let mut state = self.state();
            while state.is_idle() {
                if state.stopped {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let ready = state.take_ready();
            let (deadline, version) = (state.next_deadline(), state.version);
            drop(state);
            if ready.is_empty() {
                self.wait(deadline, version);
            }
            for action in ready {
                action.run();
            }
        }
    }

    /// Waits until an action is ready, the deadline has passed, or there was a registration.
    fn wait(&self, deadline: Option<Instant>, version: u64) {
        let ready = || {
            let state = self.state();
            state.version != version || state.is_ready()
        };
        let start = Instant::now();
        let mut polling = PollingWait::begin(start);
        if self.completion != Completion::Sleep {
            let mut now = start;
            while !polling.note_look(now) && now - start < SPIN {
                if ready() {
                    polling.note_answer(now);
                    return;
                }
                std::hint::spin_loop();
                now = Instant::now();
            }
        }
        let left = deadline.map_or(SLEEP_MAX, |deadline| {
            deadline.saturating_duration_since(start).min(SLEEP_MAX)
        });
        wait::sleep(&self.doorbell, &self.ports(), left, ready);
        // Whether a reply ended the sleep does not matter here: the thread spins only briefly before it sleeps.
        polling.note_sleep(false);
    }

    /// Ports of the channels that have pending invocations.
    fn ports(&self) -> Vec<Arc<Port>> {
        let state = self.state();
        wait::ports_of(state.channels.values().map(|pending| &pending.channel))
    }
}

fn address(channel: &Arc<Channel>) -> usize {
    Arc::as_ptr(channel) as usize
}
