//! The slots of an invoker's leases: their channels, the choice among the channels, and the wait for a credit.

use crate::Error;
use crate::buffer::staging::Staging;
use crate::channel::Channel;
use crate::channel::cache;
use crate::channel::completions::Completions;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::control::Control;
use crate::lease::LeasePlan;
use crate::lease::acquire::ReadyLease;
use crate::lease::parts::{Parts, ended_error};
use hotlease_fabric::forks::ProcessMark;
use hotlease_wire::{EndReason, RunCertainty};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Pause between looks for a credit: no doorbell rings when another thread's harvest frees a credit.
const CREDIT_LOOK: Duration = Duration::from_millis(1);
/// How long dropping an invoker waits for the agent to end the lease.
const DROP_LIMIT: Duration = Duration::from_secs(1);
/// Pause before a slot is repaired again in the background, after a repair in the background has failed.
const REPAIR_PAUSE: Duration = Duration::from_millis(100);
/// Number of unanswered invocations up to which slots are compared when all are busy.
const LOAD_COMPARED: u64 = 16;

/// A slot of the lease: it stays when its worker or its lease is replaced.
#[derive(Default)]
struct Slot {
    /// `None` if the slot's worker was not granted yet.
    channel: RwLock<Option<Arc<Channel>>>,
    /// Whether the slot is being repaired in the background.
    repairing: AtomicBool,
    /// Earliest next repair in the background, milliseconds after `LeasedSlots::start`.
    repair_after_ms: AtomicU64,
}

/// State that the clones of an invoker and its functions share.
pub(crate) struct LeasedSlots {
    /// Number that is unique in the process.
    pub(crate) id: u64,
    pub(crate) plan: LeasePlan,
    /// All slots that were requested, granted or not.
    slots: Box<[Slot]>,
    /// Number of granted slots, which are the first in `slots`.
    granted: AtomicUsize,
    /// Locked by the task that asks for missing workers.
    pub(crate) completing: tokio::sync::Mutex<()>,
    pub(crate) parts: Parts,
    pub(crate) staging: Arc<Staging>,
    pub(crate) completions: Arc<Completions>,
    /// Counter that gives each thread another slot to begin with.
    spread: AtomicUsize,
    /// Number of calls of [`Invoker::wake`](crate::Invoker::wake).
    pub(crate) wakes: AtomicU64,
    start: Instant,
    made_by: ProcessMark,
}

impl LeasedSlots {
    pub(crate) fn new(plan: LeasePlan, taken: Vec<ReadyLease>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (parts, channels) = Parts::new(taken);
        let options = &plan.options;
        let most = usize::from(options.workers) * usize::from(options.slots);
        let slots = (0..most.max(channels.len())).map(|_| Slot::default());
        let inner = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: slots.collect(),
            granted: AtomicUsize::new(0),
            completing: tokio::sync::Mutex::default(),
            parts,
            staging: Arc::default(),
            completions: Completions::new(plan.doorbell.clone(), plan.options.completion),
            spread: AtomicUsize::new(0),
            wakes: AtomicU64::new(0),
            start: Instant::now(),
            made_by: ProcessMark::here(),
            plan,
        };
        inner.append(channels);
        inner
    }

    /// Whether this process is a fork of the process that has the leases.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Fails in a fork of the process that has the leases: messages of the fork would be taken for the parent's.
    #[inline]
    pub(crate) fn check_own(&self) -> Result<(), Error> {
        match self.is_foreign() {
            false => Ok(()),
            true => Err(Error::Options {
                what: "this invoker belongs to the process that was forked, and its workers answer only there; allocate one in \
                       this process"
                    .into(),
            }),
        }
    }

    /// The error of an invocation in a fork of the process that submitted it.
    #[cold]
    pub(crate) fn foreign_invocation() -> Error {
        Error::OutcomeUnknown {
            why: "the invocation belongs to the process that was forked, and its result arrives only there".into(),
        }
    }

    pub(crate) fn slots(&self) -> usize {
        // Acquire pairs with the release in `append`: a thread that sees the number also sees the channels of these
        // slots.
        self.granted.load(Ordering::Acquire)
    }

    /// Number of slots that were requested and not granted.
    pub(crate) fn missing(&self) -> usize {
        self.slots.len() - self.slots()
    }

    /// Adds the slots of further workers. One thread at a time.
    pub(crate) fn append(&self, channels: Vec<Arc<Channel>>) {
        let first = self.slots();
        let end = self.slots.len().min(first + channels.len());
        for (slot, channel) in (first..end).zip(channels) {
            self.put(slot, channel);
        }
        self.granted.store(end, Ordering::Release);
    }

    /// Releases the leases whose slots are all numbered `first` or higher, and removes their slots; waits until no task
    /// asks for missing workers.
    pub(crate) async fn suspend(self: Arc<Self>, first: usize) -> Result<(), Error> {
        let _alone = self.completing.lock().await;
        let slots = usize::from(self.plan.options.slots);
        let worker = self.parts.first_from(first.div_ceil(slots));
        let first = usize::from(worker) * slots;
        self.granted.store(first, Ordering::Release);
        self.parts.suspend(worker, || self.close_slots(first)).await
    }

    /// The channel of a slot, if it is open. A lost lease closes all its channels, but not at the same moment: so a
    /// channel whose connection is doomed is not returned either.
    pub(crate) fn open_channel(&self, slot: usize) -> Option<Arc<Channel>> {
        let channel = self.slots[slot].channel.read().unwrap_or_else(PoisonError::into_inner);
        let usable = |channel: &&Arc<Channel>| !channel.is_closed() && !channel.connection().is_doomed();
        channel.as_ref().filter(usable).cloned()
    }

    /// The latest channel of a slot, which may be closed.
    pub(crate) fn last_channel(&self, slot: usize) -> Option<Arc<Channel>> {
        let channel = self.slots[slot].channel.read();
        channel.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn put(&self, slot: usize, channel: Arc<Channel>) {
        *self.slots[slot].channel.write().unwrap_or_else(PoisonError::into_inner) = Some(channel);
    }

    /// Closes the channels of the slots from `first` on.
    pub(crate) fn close_slots(&self, first: usize) {
        for slot in &self.slots[first..] {
            let channel = slot.channel.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(channel) = &*channel {
                channel.connection().deallocate();
            }
        }
    }

    /// Picks a channel to invoke on. If a slot is given, picks its channel. Otherwise picks the channel of an idle slot
    /// (the search begins with the slot that this thread used last), or of the least busy slot if all are busy. Repairs
    /// the slot if needed, and waits at most `limit` for the repair.
    pub(crate) fn pick(
        self: &Arc<Self>,
        slot: Option<usize>,
        limit: Option<Duration>,
    ) -> Result<(usize, Arc<Channel>), Error> {
        self.check_own()?;
        let count = self.slots();
        if count == 0 {
            return Err(ended_error(EndReason::Released));
        }
        if let Some(slot) = slot.or((count == 1).then_some(0)) {
            return self.ready(slot, limit).map(|channel| (slot, channel));
        }
        let start = cache::slot(self.id).unwrap_or_else(|| self.spread.fetch_add(1, Ordering::Relaxed) % count);
        let mut best: Option<(u64, usize, Arc<Channel>)> = None;
        for slot in (start..count).chain(0..start) {
            let Some(channel) = self.open_channel(slot) else {
                self.repair_in_background(slot);
                continue;
            };
            let load = channel.load(LOAD_COMPARED);
            if load == 0 {
                return Ok((slot, channel));
            }
            if best.as_ref().is_none_or(|(least, ..)| load < *least) {
                best = Some((load, slot, channel));
            }
        }
        match best {
            Some((_, slot, channel)) => Ok((slot, channel)),
            None => self.ready(start, limit).map(|channel| (start, channel)),
        }
    }

    /// The channel of a slot, repaired if needed.
    fn ready(self: &Arc<Self>, slot: usize, limit: Option<Duration>) -> Result<Arc<Channel>, Error> {
        if let Some(channel) = self.open_channel(slot) {
            return Ok(channel);
        }
        let repaired = Control::get()?.run_within(limit, self.clone().repair(slot));
        repaired.unwrap_or_else(|| Err(Error::deadline(limit, RunCertainty::No)))
    }

    /// Starts to repair a slot, so that a later call finds it open. The repair ends when the last handle to the slots
    /// is dropped.
    pub(crate) fn repair_in_background(self: &Arc<Self>, slot: usize) {
        let state = &self.slots[slot];
        let now = self.start.elapsed();
        if now.as_millis() < u128::from(state.repair_after_ms.load(Ordering::Relaxed))
            || state.repairing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let inner = Arc::downgrade(self);
        let repair = async move {
            let result = match inner.upgrade() {
                Some(inner) => inner.repair(slot).await.map(drop),
                None => return,
            };
            let Some(inner) = inner.upgrade() else { return };
            let state = &inner.slots[slot];
            if let Err(error) = result {
                tracing::debug!(slot, %error, "slot not repaired");
                let after = (inner.start.elapsed() + REPAIR_PAUSE).as_millis();
                state
                    .repair_after_ms
                    .store(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            state.repairing.store(false, Ordering::Relaxed);
        };
        match Control::get() {
            Ok(control) => control.spawn(repair),
            Err(_) => state.repairing.store(false, Ordering::Relaxed),
        }
    }

    /// Waits until a slot may accept another invocation (or its channel closes).
    pub(crate) fn wait_for_credit(
        self: &Arc<Self>,
        slot: Option<usize>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let channels: Vec<Arc<Channel>> = match slot {
            Some(slot) => self.open_channel(slot).into_iter().collect(),
            None => (0..self.slots()).filter_map(|slot| self.open_channel(slot)).collect(),
        };
        let Some(first) = channels.first() else {
            return Ok(());
        };
        let credit = || {
            channels
                .iter()
                .any(|channel| channel.is_closed() || channel.has_credit())
                .then_some(())
        };
        let until = give_up_at(Instant::now(), timeout);
        loop {
            let look = Instant::now() + CREDIT_LOOK;
            let next = until.map_or(look, |until| until.min(look));
            match first.wait(|_| Some(next), credit) {
                Ok(()) | Err(WaitEnd::Closed) => return Ok(()),
                Err(WaitEnd::TimedOut) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(Error::deadline(timeout, RunCertainty::No));
                }
                Err(WaitEnd::TimedOut) => {}
            }
        }
    }
}

impl Drop for LeasedSlots {
    fn drop(&mut self) {
        let (parts, _) = Parts::new(Vec::new());
        let parts = std::mem::replace(&mut self.parts, parts);
        if self.is_foreign() {
            // These are the parent's sockets and registrations: closing them properly would end the parent's lease.
            let slots = std::mem::take(&mut self.slots);
            return std::mem::forget((parts, slots, self.staging.clone(), self.completions.clone()));
        }
        self.completions.stop();
        cache::forget(self.id);
        let Ok(control) = Control::get() else { return };
        let release = async move {
            match tokio::time::timeout(DROP_LIMIT, parts.release(|| {})).await {
                Ok(Ok(_) | Err(Error::LeaseEnded { .. })) => {}
                // The end of the session ends the lease as well.
                other => tracing::debug!(?other, "a dropped lease was not released in time"),
            }
        };
        if control.is_current() {
            control.spawn(release);
        } else {
            let _ = control.run(async move {
                release.await;
                Ok(())
            });
        }
    }
}
