//! The leases of an invoker, called its parts: one on each agent that has workers of the invoker. Each part is lost,
//! and replaced, independently of the others.

mod repair;

use crate::channel::Channel;
use crate::lease::acquire::ReadyLease;
use crate::lease::slots::LeasedSlots;
use crate::lease::{ColdPhases, Lease, locked};
use crate::{Error, LeaseId};
use hotlease_wire::grpc::Grant;
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, RunCertainty};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The workers of an invoker that are on one agent.
struct LeasePart {
    /// Index of its first worker, counted over all parts.
    first: u16,
    workers: u16,
    /// The lease that the part holds, or held last.
    lease: Mutex<LeaseId>,
    /// Locked by the task that repairs the part, also while the task waits for the agent: no two tasks repair the part.
    holding: tokio::sync::Mutex<PartState>,
}

/// State of a part's lease.
enum PartState {
    Lease(Lease),
    /// The last lease ended for this reason, and no other was taken yet.
    Ended(EndReason),
    /// Replaced by several other parts.
    Replaced,
    Deallocated,
}

/// All parts of an invoker.
pub(crate) struct Parts {
    /// Parts in the order of their workers.
    parts: Mutex<Vec<Arc<LeasePart>>>,
    /// Phases of the latest cold start.
    phases: Mutex<ColdPhases>,
    /// Whether the invoker was deallocated.
    closing: watch::Sender<bool>,
}

pub(crate) fn ended_error(reason: EndReason) -> Error {
    Error::LeaseEnded {
        reason,
        ran: RunCertainty::No,
    }
}

impl LeasePart {
    fn new(first: u16, lease: Lease) -> Self {
        Self {
            first,
            workers: lease.workers(),
            lease: Mutex::new(lease.id()),
            holding: tokio::sync::Mutex::new(PartState::Lease(lease)),
        }
    }

    /// The workers of a lost part that were not replaced when its other workers were.
    fn lost(first: u16, workers: u16, of: &Self, reason: EndReason) -> Self {
        Self {
            first,
            workers,
            lease: Mutex::new(*locked(&of.lease)),
            holding: tokio::sync::Mutex::new(PartState::Ended(reason)),
        }
    }

    fn has(&self, worker: u16) -> bool {
        (self.first..self.first + self.workers).contains(&worker)
    }
}

impl Parts {
    /// Makes parts of these leases; also returns the channels in the order of the slots.
    pub(crate) fn new(taken: Vec<ReadyLease>) -> (Self, Vec<Arc<Channel>>) {
        let (mut parts, mut all) = (Vec::with_capacity(taken.len()), Vec::new());
        let (mut first, mut slowest) = (0, None);
        for (lease, channels, phases) in taken {
            all.extend(channels);
            slowest = Some(match slowest.take() {
                None => phases,
                Some(slowest) => slower(slowest, phases),
            });
            let part = LeasePart::new(first, lease);
            first += part.workers;
            parts.push(Arc::new(part));
        }
        let parts = Self {
            parts: Mutex::new(parts),
            phases: Mutex::new(slowest.unwrap_or_default()),
            closing: watch::Sender::new(false),
        };
        (parts, all)
    }

    fn all(&self) -> Vec<Arc<LeasePart>> {
        locked(&self.parts).clone()
    }

    fn of(&self, worker: u16) -> Option<Arc<LeasePart>> {
        locked(&self.parts).iter().find(|part| part.has(worker)).cloned()
    }

    /// The first worker that begins a part, searched from `worker` on; the number of workers if none does.
    pub(crate) fn first_from(&self, worker: usize) -> u16 {
        let parts = locked(&self.parts);
        let next = parts.iter().find(|part| usize::from(part.first) >= worker);
        let end = || parts.last().map_or(0, |last| last.first + last.workers);
        next.map_or_else(end, |next| next.first)
    }

    /// The lease of each part, in the order of their workers.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        let parts = locked(&self.parts);
        parts.iter().map(|part| *locked(&part.lease)).collect()
    }

    /// Phases of the latest cold start.
    pub(crate) fn phases(&self) -> ColdPhases {
        locked(&self.phases).clone()
    }

    /// Revokes a delegation, unless its lease is over.
    pub(crate) async fn revoke(&self, worker: u16, lease: LeaseId, delegation: u32) -> Result<(), Error> {
        let Some(part) = self.of(worker) else {
            return Ok(());
        };
        let holding = part.holding.lock().await;
        match &*holding {
            PartState::Lease(held) if held.id() == lease && held.end().is_none() => held.revoke(delegation).await,
            _ => Ok(()),
        }
    }

    /// Adds a part; `show` publishes its slots. Returns the lease instead if the invoker is being deallocated: the
    /// caller then releases the lease.
    fn add(&self, lease: Lease, show: impl FnOnce()) -> Option<Lease> {
        // A release of all parts sets `closing` first, and then looks at the parts.
        let mut parts = locked(&self.parts);
        if *self.closing.borrow() {
            return Some(lease);
        }
        let first = parts.last().map_or(0, |last| last.first + last.workers);
        parts.push(Arc::new(LeasePart::new(first, lease)));
        show();
        None
    }

    /// Stops all tasks that look for another lease: each ends with an error.
    pub(crate) fn stop_replacing(&self) {
        self.closing.send_replace(true);
    }

    /// Releases all leases; returns their total usage. `close_channels` runs after each pass over the parts. Fails if a
    /// lease ended before, or its release fails; the other leases are released nevertheless.
    pub(crate) async fn release(&self, close_channels: impl Fn()) -> Result<UsageTotals, Error> {
        self.stop_replacing();
        self.end_from(0, close_channels).await
    }

    /// Releases the leases of the workers from `first` on, and removes these parts; other leases may be taken later.
    pub(crate) async fn suspend(&self, first: u16, close_channels: impl Fn()) -> Result<(), Error> {
        let ended = self.end_from(first, close_channels).await;
        locked(&self.parts).retain(|part| part.first < first);
        match ended {
            Ok(_) | Err(Error::LeaseEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends the parts of the workers from `first` on.
    async fn end_from(&self, first: u16, close_channels: impl Fn()) -> Result<UsageTotals, Error> {
        let (mut releasing, mut last) = (JoinSet::new(), None);
        // Repeated until a pass finds no lease: another task may have replaced a part while this task waited for it.
        loop {
            let mut any = false;
            for part in self.all().iter().filter(|part| part.first >= first) {
                let mut holding = part.holding.lock().await;
                match std::mem::replace(&mut *holding, PartState::Deallocated) {
                    PartState::Lease(lease) => {
                        any = true;
                        releasing.spawn(lease.release());
                    }
                    PartState::Ended(reason) => last = Some(ended_error(reason)),
                    PartState::Replaced | PartState::Deallocated => {}
                }
            }
            if !any {
                break;
            }
            close_channels();
        }
        close_channels();
        let mut used: Option<UsageTotals> = None;
        while let Some(released) = releasing.join_next().await {
            match released {
                Ok(Ok(usage)) => used = Some(used.map_or(usage, |used| sum(used, usage))),
                Ok(Err(error)) => last = Some(error),
                Err(error) => last = Some(Error::failed_task(&error)),
            }
        }
        match (used, last) {
            (_, Some(error)) => Err(error),
            (Some(used), None) => Ok(used),
            (None, None) => Err(ended_error(EndReason::Released)),
        }
    }
}

/// Delegation of slots of one part, as the agent has granted it.
pub(crate) struct SlotLoan {
    pub(crate) lease: LeaseId,
    /// One of the workers whose slots are lent.
    pub(crate) worker: u16,
    pub(crate) delegation: u32,
    pub(crate) grant: Grant,
}

impl LeasedSlots {
    /// Lends slots of one agent to peers. `lasts`: time limit, at least 1 ms; if it is `None`, the loan lasts as long
    /// as the lease.
    pub(crate) async fn lend(&self, slots: &[usize], lasts: Option<Duration>) -> Result<SlotLoan, Error> {
        let each = usize::from(self.plan.options.slots);
        let no_such = |index: usize| Error::NoSuchSlot {
            index,
            slots: self.slots(),
        };
        let options = |what: &str| Error::Options { what: what.into() };
        let first = *slots
            .first()
            .ok_or_else(|| options("an offer needs at least one slot"))?;
        if let Some(beyond) = slots.iter().find(|slot| **slot >= self.slots()) {
            return Err(no_such(*beyond));
        }
        if lasts.is_some_and(|lasts| lasts < Duration::from_millis(1)) {
            return Err(options("an offer lasts 1 ms at least"));
        }
        let worker = (first / each) as u16;
        let part = self.parts.of(worker).ok_or_else(|| no_such(first))?;
        let holding = part.holding.lock().await;
        let lease = match &*holding {
            PartState::Lease(lease) => lease,
            PartState::Ended(reason) => return Err(ended_error(*reason)),
            PartState::Replaced | PartState::Deallocated => return Err(ended_error(EndReason::Released)),
        };
        let mut places = Vec::with_capacity(slots.len());
        for slot in slots {
            let of = (slot / each) as u16;
            if !part.has(of) {
                return Err(options("the slots of one offer are all on one agent"));
            }
            places.push((of - part.first, (slot % each) as u16));
        }
        let (delegation, grant) = lease.lend(&places, lasts).await?;
        Ok(SlotLoan {
            lease: lease.id(),
            worker,
            delegation,
            grant,
        })
    }
}

fn sum(one: UsageTotals, other: UsageTotals) -> UsageTotals {
    UsageTotals {
        allocated_ns: one.allocated_ns.saturating_add(other.allocated_ns),
        hot_ns: one.hot_ns.saturating_add(other.hot_ns),
        compute_ns: one.compute_ns.saturating_add(other.compute_ns),
        invocations: one.invocations.saturating_add(other.invocations),
    }
}

/// Phases of the slower of two cold starts, with the access that both grants allow, and the folders that either hides.
fn slower(one: ColdPhases, other: ColdPhases) -> ColdPhases {
    let reach = one.reach.clone().of_both(&other.reach);
    let hidden = [&one.hidden[..], &other.hidden].concat();
    let slower = if other.total() > one.total() { other } else { one };
    ColdPhases {
        reach,
        hidden,
        ..slower
    }
}
