//! The invoker: a lease with code on it, kept usable.

use crate::affinity;
use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::code::Code;
use crate::completions::Completions;
use crate::control::Control;
use crate::function::Function;
use crate::lease::{ColdPhases, Lease, Plan};
use crate::manager::Manager;
use crate::options::LeaseOptions;
use crate::session::End;
use crate::staging::Staging;
use crate::wait::{Interrupted, give_up_at};
use crate::{Error, LeaseId};
use bytemuck::Pod;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Ran, Refusal};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A credit that another thread's harvest makes rings no doorbell: whoever waits for one looks this often.
const CREDIT_LOOK: Duration = Duration::from_millis(1);

/// How long dropping an invoker waits for the agent to have ended the lease.
const DROP_LIMIT: Duration = Duration::from_secs(1);
/// After a slot could not be repaired in the background, how long it is left alone.
const REPAIR_PAUSE: Duration = Duration::from_millis(100);
/// How exactly slots are compared when all are busy.
const LOAD_COMPARED: u64 = 16;

/// A lease with code on it. Workers hold the code loaded and a channel to each of their slots is open, so
/// that an invocation is one write into a slot's memory and one write back.
///
/// Cheap to clone, `Send + Sync`: clones are the same lease. Several invokers are several leases. The lease
/// is given back by [`Invoker::deallocate`], or when the last of its invokers, functions and unresolved
/// invocations is dropped. When a worker dies, the next call starts another; when the lease ends, the
/// next call takes a new one (unless [`LeaseOptions::renew_lease`] is off).
///
/// A process that was forked must allocate its own.
#[derive(Clone)]
pub struct Invoker {
    inner: Arc<Inner>,
}

impl Invoker {
    /// Leases workers, loads the code into them and opens the channels. When it returns, everything is ready
    /// for the first hot call. Waits; in an async program, call it from a blocking task.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a platform, [`Error::Refused`] without capacity or if the library cannot
    /// be loaded, [`Error::Options`] for options that make no sense.
    pub fn allocate(code: &Code, options: LeaseOptions) -> Result<Self, Error> {
        options.check()?;
        let plan = Plan {
            code: code.clone(),
            options: Arc::new(options),
            doorbell: Arc::new(Doorbell::create()?),
        };
        let taken = plan.clone();
        let taken = Control::get()?.run(async move { Lease::take(&taken).await })?;
        Ok(Self::new(plan, taken))
    }

    pub(crate) fn new(plan: Plan, (lease, channels, phases): (Lease, Vec<Arc<Channel>>, ColdPhases)) -> Self {
        Self {
            inner: Arc::new(Inner::new(plan, lease, channels, phases)),
        }
    }

    /// A handle to a function of the code.
    ///
    /// # Errors
    /// [`Error::NoSuchFunction`] with the names that may have been meant.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        Function::new(&self.inner, name)
    }

    /// The code that its workers have loaded.
    pub fn code(&self) -> &Code {
        &self.inner.plan.code
    }

    /// The options that it was allocated with.
    pub fn options(&self) -> &LeaseOptions {
        &self.inner.plan.options
    }

    /// Slots of all workers together. They are numbered worker by worker, from 0.
    pub fn slots(&self) -> usize {
        self.inner.slots.len()
    }

    /// How bytes reach its first worker: `shm`, or the name of a libfabric provider.
    pub fn transport(&self) -> &'static str {
        let channel = self.inner.slots[0].channel.read();
        channel
            .unwrap_or_else(PoisonError::into_inner)
            .connection()
            .transport()
    }

    /// To the worker of a slot.
    #[cfg(test)]
    pub(crate) fn connection(&self, slot: usize) -> Arc<crate::connection::Connection> {
        self.inner.open_channel(slot).expect("open").connection().clone()
    }

    /// The lease that it holds, or held last.
    pub fn lease(&self) -> LeaseId {
        self.inner.facts().lease
    }

    /// Where the time of the latest cold start went.
    pub fn phases(&self) -> ColdPhases {
        self.inner.facts().phases
    }

    /// What the lease has used so far, as the manager knows it; up to a heartbeat (0.5 s) old. The final
    /// bill comes from [`Invoker::deallocate`].
    ///
    /// # Errors
    /// [`Error::NotRunning`], or [`Error::Refused`] if the lease is no longer known.
    pub fn usage(&self) -> Result<UsageTotals, Error> {
        let options = self.inner.plan.options.clone();
        let lease = self.lease();
        Control::get()?.run(async move { Manager::of(&options)?.usage(lease).await })
    }

    /// Zeroed registered memory for `elements` elements, made known to all workers of this invoker.
    ///
    /// # Errors
    /// [`Error::Memory`] if it cannot be had here, [`Error::Unregistered`] if it cannot be registered.
    pub fn buffer<T: Pod>(&self, elements: usize) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::new(elements)?;
        for slot in (0..self.slots()).step_by(usize::from(self.inner.plan.options.slots)) {
            // Workers that are dead now are told by the first call that uses the buffer.
            if let Some(channel) = self.inner.open_channel(slot) {
                match buffer.region().register(channel.connection()) {
                    // Those in flight may be done when it is used.
                    Err(Error::BuffersInUse { .. }) => {}
                    registered => registered?,
                }
            }
        }
        Ok(buffer)
    }

    /// Gives the lease back and returns what it used in all. Waits until the workers are gone. Clones and
    /// functions of this invoker, and its invocations in flight, fail from now on with
    /// [`Error::LeaseEnded`].
    ///
    /// # Errors
    /// Those of the connection to the agent; the lease then ends by itself, unbilled beyond its TTL. A lease
    /// that ended without being renewed gives [`Error::LeaseEnded`].
    pub fn deallocate(self) -> Result<UsageTotals, Error> {
        affinity::forget(self.inner.id);
        let inner = self.inner.clone();
        Control::get()?.run(async move {
            let held = std::mem::replace(&mut *inner.holding.lock().await, Holding::Deallocated);
            inner.close_slots();
            match held {
                Holding::Lease(lease) => lease.release().await,
                Holding::Ended(reason) => Err(ended(reason)),
                Holding::Deallocated => Err(ended(EndReason::Released)),
            }
        })
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

fn ended(reason: EndReason) -> Error {
    Error::LeaseEnded { reason, ran: Ran::No }
}

/// What an invoker has.
enum Holding {
    Lease(Lease),
    /// The last lease ended like this, and no other was taken yet.
    Ended(EndReason),
    Deallocated,
}

/// What is known of the lease without holding it.
#[derive(Clone, Copy)]
struct Facts {
    lease: LeaseId,
    phases: ColdPhases,
}

/// A slot of the lease: stays when its worker or the lease are replaced.
struct Slot {
    channel: RwLock<Arc<Channel>>,
    /// Being repaired in the background.
    repairing: AtomicBool,
    /// Not before this many milliseconds after `Inner::start`.
    repair_after_ms: AtomicU64,
}

/// What clones of an invoker and its functions share.
pub(crate) struct Inner {
    /// Unique in the process.
    pub(crate) id: u64,
    pub(crate) plan: Plan,
    slots: Box<[Slot]>,
    /// Whoever repairs holds it, across waiting for the agent: nobody repairs twice.
    holding: tokio::sync::Mutex<Holding>,
    facts: Mutex<Facts>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) completions: Arc<Completions>,
    /// Gives each thread another slot to begin with.
    spread: AtomicUsize,
    start: Instant,
}

impl Inner {
    fn new(plan: Plan, lease: Lease, channels: Vec<Arc<Channel>>, phases: ColdPhases) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let slot = |channel| Slot {
            channel: RwLock::new(channel),
            repairing: AtomicBool::new(false),
            repair_after_ms: AtomicU64::new(0),
        };
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: channels.into_iter().map(slot).collect(),
            facts: Mutex::new(Facts {
                lease: lease.id(),
                phases,
            }),
            holding: tokio::sync::Mutex::new(Holding::Lease(lease)),
            staging: Arc::default(),
            completions: Completions::new(plan.doorbell.clone(), plan.options.completion),
            spread: AtomicUsize::new(0),
            start: Instant::now(),
            plan,
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The channel of a slot, if it is open.
    pub(crate) fn open_channel(&self, slot: usize) -> Option<Arc<Channel>> {
        let channel = self.slots[slot]
            .channel
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        (!channel.is_closed()).then(|| channel.clone())
    }

    fn put(&self, slot: usize, channel: Arc<Channel>) {
        *self.slots[slot]
            .channel
            .write()
            .unwrap_or_else(PoisonError::into_inner) = channel;
    }

    fn close_slots(&self) {
        for slot in &self.slots {
            let channel = slot.channel.read().unwrap_or_else(PoisonError::into_inner);
            channel.connection().deallocate();
        }
    }

    /// A channel to invoke on: of the given slot, or else of the first idle one, beginning with the one
    /// that this thread used last; if all are busy, of the least busy. Repairs what is needed.
    pub(crate) fn pick(self: &Arc<Self>, slot: Option<usize>) -> Result<(usize, Arc<Channel>), Error> {
        let count = self.slots.len();
        if let Some(slot) = slot.or((count == 1).then_some(0)) {
            return self.ready(slot).map(|channel| (slot, channel));
        }
        let start =
            affinity::slot(self.id).unwrap_or_else(|| self.spread.fetch_add(1, Ordering::Relaxed) % count);
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
            None => self.ready(start).map(|channel| (start, channel)),
        }
    }

    /// The channel of a slot, repaired if need be.
    fn ready(self: &Arc<Self>, slot: usize) -> Result<Arc<Channel>, Error> {
        if let Some(channel) = self.open_channel(slot) {
            return Ok(channel);
        }
        Control::get()?.run(self.clone().repair(slot))
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

    /// Opens a slot's channel again: on a new incarnation of its worker, or on a new lease.
    pub(crate) async fn repair(self: Arc<Self>, slot: usize) -> Result<Arc<Channel>, Error> {
        let mut holding = self.holding.lock().await;
        if let Some(channel) = self.open_channel(slot) {
            return Ok(channel);
        }
        let slots = usize::from(self.plan.options.slots);
        if let Holding::Lease(lease) = &mut *holding {
            let mut over = lease.end();
            if over.is_none() {
                match lease.reconnect((slot / slots) as u16).await {
                    Ok(channels) => {
                        let first = slot / slots * slots;
                        for (offset, channel) in channels.iter().enumerate() {
                            self.put(first + offset, channel.clone());
                        }
                        return Ok(channels[slot % slots].clone());
                    }
                    Err(error) => over = Some(over_by(&error, lease).ok_or(error)?),
                }
            }
            let reason = match over {
                Some(End::Lease { reason, .. }) => reason,
                // The agent is gone, and with it the lease; who comes back has another boot.
                Some(End::Lost) | None => EndReason::AgentStopping,
            };
            *holding = Holding::Ended(reason);
        }
        match &*holding {
            Holding::Deallocated => return Err(ended(EndReason::Released)),
            Holding::Ended(reason) if !self.plan.options.renew_lease => return Err(ended(*reason)),
            _ => {}
        }
        let (lease, channels, phases) = Lease::take(&self.plan).await?;
        *self.facts() = Facts {
            lease: lease.id(),
            phases,
        };
        *holding = Holding::Lease(lease);
        for (slot, channel) in channels.iter().enumerate() {
            self.put(slot, channel.clone());
        }
        Ok(channels[slot].clone())
    }

    /// Waits until a slot may take another invocation (or its channel closes).
    pub(crate) fn wait_for_credit(
        self: &Arc<Self>,
        slot: Option<usize>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let channels: Vec<Arc<Channel>> = match slot {
            Some(slot) => self.open_channel(slot).into_iter().collect(),
            None => (0..self.slots.len())
                .filter_map(|slot| self.open_channel(slot))
                .collect(),
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
                Ok(()) | Err(Interrupted::Closed) => return Ok(()),
                Err(Interrupted::TimedOut) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(Error::Deadline {
                        timeout: timeout.unwrap_or_default(),
                        ran: Ran::No,
                    });
                }
                Err(Interrupted::TimedOut) => {}
            }
        }
    }
}

/// Whether the agent's refusal means that the lease is over, although no event has said so.
fn over_by(error: &Error, lease: &Lease) -> Option<End> {
    match error {
        Error::Refused(Refusal::LeaseEnded(_) | Refusal::UnknownLease | Refusal::Unavailable { .. }) => {
            Some(lease.end().unwrap_or(End::Lost))
        }
        _ => None,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.completions.stop();
        affinity::forget(self.id);
        let Holding::Lease(lease) = std::mem::replace(self.holding.get_mut(), Holding::Deallocated) else {
            return;
        };
        let Ok(control) = Control::get() else { return };
        let release = async move {
            match tokio::time::timeout(DROP_LIMIT, lease.release()).await {
                Ok(Ok(_)) => {}
                // The closing session ends it as well.
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
