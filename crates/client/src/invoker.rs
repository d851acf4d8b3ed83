//! The invoker: a lease with code on it, kept usable.

use crate::buffer::Buffer;
use crate::buffer::staging::Staging;
use crate::channel::Channel;
use crate::channel::cache;
use crate::channel::completions::Completions;
use crate::channel::wait::{WaitEnd, give_up_at};
use crate::code::Code;
use crate::control::Control;
use crate::invocation::function::Function;
use crate::lease::acquire::{self, ReadyLease};
use crate::lease::manager::Manager;
use crate::lease::parts::Parts;
use crate::lease::{ColdPhases, LeasePlan};
use crate::options::LeaseOptions;
use crate::{Error, LeaseId};
use bytemuck::Pod;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::RunCertainty;
use hotlease_wire::session::UsageTotals;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Pause between looks for a credit: a credit that another thread's harvest frees rings no doorbell.
const CREDIT_LOOK: Duration = Duration::from_millis(1);

/// How long dropping an invoker waits for the agent to end the lease.
const DROP_LIMIT: Duration = Duration::from_secs(1);
/// How long a slot is left alone after it could not be repaired in the background.
const REPAIR_PAUSE: Duration = Duration::from_millis(100);
/// Number of unanswered invocations up to which slots are compared when all are busy.
const LOAD_COMPARED: u64 = 16;

/// A lease with code on it. Its workers have loaded the code, and a channel to each of their slots is open, so that
/// an invocation is one write into a slot's memory and one write back.
///
/// Cheap to clone, `Send + Sync`: clones share the lease. Several invokers are several leases. The lease is
/// released by [`Invoker::deallocate`], or when the last of its invokers, functions and unresolved invocations is
/// dropped. When a worker dies, the next call starts another; when the lease ends, the next call takes a new one
/// (unless [`LeaseOptions::renew_lease`] is off).
///
/// A forked process must allocate its own.
#[derive(Clone)]
pub struct Invoker {
    inner: Arc<Inner>,
}

impl Invoker {
    /// Leases workers, loads the code into them and opens the channels. When it returns, everything is ready for
    /// the first hot call. It blocks; in an async program, call it from a blocking task.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a platform, [`Error::Refused`] without capacity or if the library cannot
    /// be loaded, [`Error::Options`] for options that make no sense.
    pub fn allocate(code: &Code, options: LeaseOptions) -> Result<Self, Error> {
        options.check()?;
        if code.is_python() != options.python.is_some() {
            let what = "the library of Python workers and LeaseOptions::python belong together".into();
            return Err(Error::Options { what });
        }
        if !options.state.is_empty() && options.python.is_none() && code.state_format().is_none() {
            let what = format!(
                "state needs a library that says how it is saved and restored: {} declares neither HOTLEASE_STATE_SAVE nor \
                 HOTLEASE_STATE_RESTORE (hotlease/function.h). Nothing ran",
                code.name()
            );
            return Err(Error::Options { what });
        }
        let plan = LeasePlan {
            code: code.clone(),
            options: Arc::new(options),
            doorbell: Arc::new(Doorbell::create()?),
        };
        let taken = plan.clone();
        let patience = taken.options.patience;
        let taken = Control::get()?.run(async move {
            let workers = taken.options.workers;
            acquire::take(&taken, workers, patience).await
        })?;
        Ok(Self::new(plan, taken))
    }

    pub(crate) fn new(plan: LeasePlan, taken: Vec<ReadyLease>) -> Self {
        Self {
            inner: Arc::new(Inner::new(plan, taken)),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// A handle to a function of the code.
    ///
    /// # Errors
    /// [`Error::NoSuchFunction`] with the names that may have been meant.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        Function::new(&self.inner, name)
    }

    /// The code that the workers have loaded.
    pub fn code(&self) -> &Code {
        &self.inner.plan.code
    }

    /// The options with which the invoker was allocated.
    pub fn options(&self) -> &LeaseOptions {
        &self.inner.plan.options
    }

    /// Number of slots of all workers together, counted worker by worker, from 0. [`Invoker::complete`] may add
    /// some.
    pub fn slots(&self) -> usize {
        self.inner.slots()
    }

    /// Asks once more for the workers that were not granted ([`Spread::AtLeast`](crate::Spread::AtLeast)), until
    /// some of them are granted or `within` is over, and adds their slots after the others. Cores that were
    /// released just now become known to a manager with their agent's next report, after half a second or, with
    /// thousands of agents, two. Returns at once if no worker is missing; calls go on meanwhile. Thread-safe: one
    /// thread asks at a time.
    ///
    /// # Errors
    /// Those of [`Invoker::allocate`]; [`Error::LeaseEnded`] if the invoker is deallocated meanwhile. Present slots
    /// stay.
    pub fn complete(&self, within: Duration) -> Result<(), Error> {
        Control::get()?.run(self.inner.clone().complete(within))
    }

    /// Name of the transport to the first worker: `shm`, or a libfabric provider.
    pub fn transport(&self) -> &'static str {
        let channel = self.inner.slots[0].channel.read();
        let channel = channel.unwrap_or_else(PoisonError::into_inner);
        channel.as_ref().map_or("", |channel| channel.connection().transport())
    }

    /// The connection to the worker of a slot.
    #[cfg(test)]
    pub(crate) fn connection(&self, slot: usize) -> Arc<crate::session::connection::Connection> {
        self.inner.open_channel(slot).expect("open").connection().clone()
    }

    /// The lease that the invoker holds, or held last; of several parts, the first part's.
    pub fn lease(&self) -> LeaseId {
        self.leases()[0]
    }

    /// The lease of each part, in the order of their slots: one for each agent that has workers of this invoker.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.inner.parts.leases()
    }

    /// Phases of the latest cold start; of several parts, those of the part that took longest.
    pub fn phases(&self) -> ColdPhases {
        self.inner.parts.phases()
    }

    /// Usage of the invoker's leases so far, as the manager knows it; up to a heartbeat (0.5 s) old. The final bill
    /// comes from [`Invoker::deallocate`].
    ///
    /// # Errors
    /// [`Error::NotRunning`], or [`Error::Refused`] if a lease is no longer known.
    pub fn usage(&self) -> Result<UsageTotals, Error> {
        let options = self.inner.plan.options.clone();
        let leases = self.leases();
        Control::get()?.run(async move { Manager::of(&options)?.usage(&leases).await })
    }

    /// Zeroed registered memory for `elements` elements, registered with all workers of this invoker.
    ///
    /// # Errors
    /// [`Error::Memory`] if it cannot be allocated here, [`Error::Unregistered`] if it cannot be registered.
    pub fn buffer<T: Pod>(&self, elements: usize) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::new(elements)?;
        for slot in (0..self.slots()).step_by(usize::from(self.inner.plan.options.slots)) {
            // Workers that are dead now are told by the first call that uses the buffer.
            if let Some(channel) = self.inner.open_channel(slot) {
                match buffer.region().register(channel.connection()) {
                    // The invocations that use buffers now may have ended when this one is used.
                    Err(Error::BuffersInUse { .. }) => {}
                    registered => registered?,
                }
            }
        }
        Ok(buffer)
    }

    /// Releases the lease and returns its total usage. Waits until the workers are gone. Clones and functions of
    /// this invoker, and its invocations in flight, fail from now on with [`Error::LeaseEnded`].
    ///
    /// # Errors
    /// Those of the connection to the agent; the lease then ends by itself, unbilled beyond its TTL. A lease
    /// that ended without being renewed gives [`Error::LeaseEnded`].
    pub fn deallocate(self) -> Result<UsageTotals, Error> {
        cache::forget(self.inner.id);
        let inner = self.inner.clone();
        inner.parts.stop_replacing();
        Control::get()?.run(async move { inner.parts.release(|| inner.close_slots()).await })
    }
}

impl fmt::Debug for Invoker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invoker")
            .field("lease", &self.lease())
            .field("code", self.code())
            .field("slots", &self.slots())
            .finish()
    }
}

/// A slot of the lease: it stays when its worker or the lease are replaced.
#[derive(Default)]
struct Slot {
    /// `None`: the slot's worker was not granted yet.
    channel: RwLock<Option<Arc<Channel>>>,
    /// Whether the slot is being repaired in the background.
    repairing: AtomicBool,
    /// Earliest next repair in the background, milliseconds after `Inner::start`.
    repair_after_ms: AtomicU64,
}

/// State that the clones of an invoker and its functions share.
pub(crate) struct Inner {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) plan: LeasePlan,
    /// All slots that were requested, granted or not.
    slots: Box<[Slot]>,
    /// Number of granted slots: they are the first ones.
    granted: AtomicUsize,
    /// Held by the task that asks for missing workers.
    pub(crate) completing: tokio::sync::Mutex<()>,
    pub(crate) parts: Parts,
    pub(crate) staging: Arc<Staging>,
    pub(crate) completions: Arc<Completions>,
    /// Gives each thread another slot to begin with.
    spread: AtomicUsize,
    /// Number of calls of [`Invoker::rouse`].
    pub(crate) roused: AtomicU64,
    start: Instant,
}

impl Inner {
    fn new(plan: LeasePlan, taken: Vec<ReadyLease>) -> Self {
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
            roused: AtomicU64::new(0),
            start: Instant::now(),
            plan,
        };
        inner.append(channels);
        inner
    }

    pub(crate) fn slots(&self) -> usize {
        // Acquire pairs with the release in `append`: a thread that sees a slot counted finds its channel.
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

    /// The channel of a slot, if it is open. A lost lease closes all its channels, but not at the same moment: so a
    /// channel of a doomed connection does not count as open.
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

    fn close_slots(&self) {
        for slot in &self.slots {
            let channel = slot.channel.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(channel) = &*channel {
                channel.connection().deallocate();
            }
        }
    }

    /// Picks a channel to invoke on: that of the given slot, or else of the first idle slot, beginning with the one
    /// that this thread used last; if all are busy, of the least busy. Repairs the slot if needed, and waits for
    /// that at most `limit`.
    pub(crate) fn pick(
        self: &Arc<Self>,
        slot: Option<usize>,
        limit: Option<Duration>,
    ) -> Result<(usize, Arc<Channel>), Error> {
        let count = self.slots();
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
        repaired.unwrap_or_else(|| {
            Err(Error::Deadline {
                timeout: limit.unwrap_or_default(),
                ran: RunCertainty::No,
            })
        })
    }

    /// Starts to repair a slot, so that a later call finds it open.
    pub(crate) fn repair_in_background(self: &Arc<Self>, slot: usize) {
        let state = &self.slots[slot];
        let now = self.start.elapsed();
        if now.as_millis() < u128::from(state.repair_after_ms.load(Ordering::Relaxed))
            || state.repairing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let inner = self.clone();
        let repair = async move {
            let result = inner.clone().repair(slot).await;
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
                    return Err(Error::Deadline {
                        timeout: timeout.unwrap_or_default(),
                        ran: RunCertainty::No,
                    });
                }
                Err(WaitEnd::TimedOut) => {}
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.completions.stop();
        cache::forget(self.id);
        let Ok(control) = Control::get() else { return };
        let (parts, _) = Parts::new(Vec::new());
        let parts = std::mem::replace(&mut self.parts, parts);
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
