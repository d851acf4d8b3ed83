//! The invoker: a lease with code on it, kept usable.

use crate::buffer::Buffer;
use crate::channel::{cache, wait};
use crate::code::Code;
use crate::control::Control;
use crate::invocation::function::Function;
use crate::invocation::pipeline::AwaitedCall;
use crate::lease::acquire::{self, ReadyLease};
use crate::lease::manager::ManagerConnection;
use crate::lease::slots::LeasedSlots;
use crate::lease::{ColdPhases, LeasePlan};
use crate::options::LeaseOptions;
use crate::{Error, LeaseId};
use bytemuck::Pod;
use hotlease_fabric::doorbell::Doorbell;
use hotlease_wire::session::UsageTotals;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A lease with code on it. Its workers have loaded the code, and a channel to each of their slots is open, so that
/// an invocation is one write into a slot's memory and one write back.
///
/// Cheap to clone, `Send + Sync`: clones share the lease. Each call of [`Invoker::allocate`] takes a lease of its own.
/// The lease is released by [`Invoker::deallocate`], or when the last of its invokers, functions and unresolved
/// invocations is dropped. When a worker dies, the next call starts another; when the lease ends, the next call takes a
/// new one (unless [`LeaseOptions::replace_lease`] is off).
///
/// A forked process must allocate its own invokers. The invokers of its parent do not work there, and dropping them
/// there does not affect the parent's leases.
#[derive(Clone)]
pub struct Invoker {
    inner: Arc<LeasedSlots>,
}

impl Invoker {
    /// Leases workers, loads the code into them and opens the channels. When it returns, everything is ready for
    /// the first hot call. It blocks; in an async program, call it from a blocking task.
    ///
    /// # Errors
    /// [`Error::NotRunning`] without a platform, [`Error::NoRoom`] without capacity, [`Error::Refused`] if the library
    /// cannot be loaded, [`Error::Options`] for options that make no sense.
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
        let plan = LeasePlan::new(code.clone(), options, Doorbell::create()?);
        let taken = plan.clone();
        let patience = taken.options.patience;
        let taken = Control::get()?.run(async move {
            let workers = taken.options.workers;
            acquire::take_or_explain(&taken, workers, patience).await
        })?;
        Ok(Self::new(plan, taken))
    }

    pub(crate) fn new(plan: LeasePlan, taken: Vec<ReadyLease>) -> Self {
        Self {
            inner: Arc::new(LeasedSlots::new(plan, taken)),
        }
    }

    pub(crate) fn inner(&self) -> &Arc<LeasedSlots> {
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

    /// Number of slots of all workers together. Slots are numbered from 0, worker by worker. [`Invoker::complete`] may
    /// add some.
    pub fn slots(&self) -> usize {
        self.inner.slots()
    }

    /// Asks once more for the workers that were not granted ([`Spread::AtLeast`](crate::Spread::AtLeast)), until some
    /// of them are granted or `within` is over, and adds their slots after the present slots. An agent tells the
    /// manager of released cores in its next report, which follows after half a second or, with thousands of agents,
    /// after two seconds. Returns at once if no worker is missing; calls go on during the wait. Thread-safe: one thread
    /// asks at a time.
    ///
    /// # Errors
    /// Errors of [`Invoker::allocate`]; [`Error::LeaseEnded`] if the invoker is deallocated meanwhile. Present slots
    /// stay.
    pub fn complete(&self, within: Duration) -> Result<(), Error> {
        self.inner.check_own()?;
        Control::get()?.run(self.inner.clone().complete(within))
    }

    /// Calls `receiver` whenever another client finds no room on a node where this invoker has workers. A holder that
    /// does not need its workers now can give them up ([`Invoker::suspend`]). The call is made on the library's control
    /// thread and should be brief; only the first receiver has an effect.
    pub fn on_room_wanted(&self, receiver: impl Fn() + Send + Sync + 'static) {
        self.inner.plan.wanted.set(Box::new(receiver));
    }

    /// Releases all leases, and waits until the workers are gone. The invoker stays usable, but has no slots until
    /// [`Invoker::complete`] has taken other leases. Until then calls fail; calls in flight fail with
    /// [`Error::LeaseEnded`].
    ///
    /// # Errors
    /// Errors of the connection to an agent, whose lease then ends by itself.
    pub fn suspend(&self) -> Result<(), Error> {
        self.suspend_from(0)
    }

    /// Releases, as [`Invoker::suspend`] does, the leases that have only slots numbered `first` or higher; the other
    /// leases stay.
    ///
    /// # Errors
    /// Errors of the connection to an agent, whose lease then ends by itself.
    pub fn suspend_from(&self, first: usize) -> Result<(), Error> {
        self.inner.check_own()?;
        cache::forget(self.inner.id);
        Control::get()?.run(self.inner.clone().suspend(first))
    }

    /// Ends all searches for other leases with an error, and lets none begin: a worker or lease that is lost from now
    /// on is not replaced. Present workers stay. A lease that is granted to a search at this moment is released at
    /// once.
    pub fn stop_searching(&self) {
        self.inner.parts.stop_replacing();
    }

    /// Name of the transport to the first worker: `shm`, or a libfabric provider.
    pub fn transport(&self) -> &'static str {
        let channel = self.inner.last_channel(0);
        channel.map_or("", |channel| channel.connection().transport())
    }

    /// Whether the channel of a slot is open.
    #[cfg(test)]
    pub(crate) fn is_open(&self, slot: usize) -> bool {
        self.inner.open_channel(slot).is_some()
    }

    /// The connection to the worker of a slot.
    #[cfg(test)]
    pub(crate) fn connection(&self, slot: usize) -> Arc<crate::session::connection::WorkerConnection> {
        self.inner.open_channel(slot).expect("open").connection().clone()
    }

    /// The lease that the invoker holds, or held last; if it has several parts, the first part's lease. 0 while it is
    /// suspended.
    pub fn lease(&self) -> LeaseId {
        self.leases().first().copied().unwrap_or(LeaseId([0; 8]))
    }

    /// The lease of each part, in the order of their slots: one for each agent that has workers of this invoker.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.inner.parts.leases()
    }

    /// Phases of the latest cold start; if there are several parts, of the part that took longest.
    pub fn phases(&self) -> ColdPhases {
        self.inner.parts.phases()
    }

    /// Whether workers of its leases, present or past, were in sandboxes that are to confine their code (kinds
    /// `namespace`, `container` and `microvm`): if so, the program must not trust their results.
    pub fn is_confined(&self) -> bool {
        self.inner.plan.is_confined()
    }

    /// Usage of the invoker's leases so far, as the manager has recorded it; up to a heartbeat (0.5 s) old. The final
    /// bill comes from [`Invoker::deallocate`].
    ///
    /// # Errors
    /// [`Error::NotRunning`], or [`Error::Refused`] if a lease is no longer known.
    pub fn usage(&self) -> Result<UsageTotals, Error> {
        let options = self.inner.plan.options.clone();
        let leases = self.leases();
        Control::get()?.run(async move { ManagerConnection::of(&options)?.usage(&leases).await })
    }

    /// Zeroed registered memory for `elements` elements, registered with all workers of this invoker.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory cannot be allocated here, [`Error::Unregistered`] if it cannot be registered.
    pub fn buffer<T: Pod>(&self, elements: usize) -> Result<Buffer<T>, Error> {
        let buffer = Buffer::new(elements)?;
        for slot in (0..self.slots()).step_by(usize::from(self.inner.plan.options.slots)) {
            // If a worker is dead now, the buffer is registered with its replacement by the first call that uses the
            // buffer.
            if let Some(channel) = self.inner.open_channel(slot) {
                match buffer.region().register(channel.connection()) {
                    // Other buffers are in use now, but their invocations may have ended when this buffer is used.
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
    /// Errors of the connection to the agent; the lease then ends by itself, and is billed at most up to the end of its
    /// TTL. A lease that ended without being renewed gives [`Error::LeaseEnded`].
    pub fn deallocate(self) -> Result<UsageTotals, Error> {
        self.inner.check_own()?;
        cache::forget(self.inner.id);
        let inner = self.inner.clone();
        inner.parts.stop_replacing();
        Control::get()?.run(async move { inner.parts.release(|| inner.close_slots(0)).await })
    }
}

impl Invoker {
    /// Sleeps until one of these invocations is ready, `ready` returns true, [`Invoker::wake`] is called, or the limit
    /// has passed. It may return earlier. Only one thread of an invoker may call this at a time.
    pub fn sleep(&self, all: &[AwaitedCall], limit: Duration, mut ready: impl FnMut() -> bool) {
        // Ringing the doorbell alone does not end the sleep: the sleeper then looks for a reason, and sleeps again if
        // there is none.
        let before = self.inner().wakes.load(Ordering::Acquire);
        let wakes = || self.inner().wakes.load(Ordering::Acquire) != before;
        let ready = || ready() || wakes() || all.iter().any(AwaitedCall::is_ready);
        let ports = wait::ports_of(all.iter().map(|awaited| &awaited.channel));
        wait::sleep(&self.inner().plan.doorbell, &ports, limit, ready);
    }

    /// Ends the [`Invoker::sleep`] of another thread, if it has begun.
    pub fn wake(&self) {
        self.inner().wakes.fetch_add(1, Ordering::AcqRel);
        self.inner().plan.doorbell.ring();
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
