//! Book of a node's leases: grants, attaches, renews and ends leases, one step for each event.

mod cores;
mod delegations;
mod gpus;
mod jobs;
mod lease_end;
mod memory;
mod moves;
mod offering;
mod preference;
mod workers;

use self::cores::Cores;
use self::gpus::Gpus;
use self::jobs::BatchJobs;
use self::offering::Offer;
use super::{
    ATTACH_WITHIN, Availability, BookAction, BookEvent, BookStep, CoreLease, EndedLease, LeasePhase, SessionId,
    WorkerRecord, WorkerState,
};
use crate::ledger::FunctionTotals;
use crate::request::{CoreUse, LeaseRequest, LeaseSpec};
use hotlease_wire::ids::{Epoch, LeaseId, WorkerIndex};
use hotlease_wire::limits::TENANT_BYTES_MAX;
use hotlease_wire::session::UsageTotals;
use hotlease_wire::{EndReason, Rejection};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Book of a node's leases: the only writer of its cores.
///
/// Its size is bounded: every lease holds at least one core or a place on a shared core, and at most [`ENDED_MAX`]
/// ended leases are remembered.
#[derive(Debug)]
pub struct LeaseBook {
    /// Cores that may be offered.
    usable: BTreeSet<u32>,
    /// Memory that may be offered, bytes.
    usable_memory_bytes: u64,
    cores: Cores,
    gpus: Gpus,
    /// Memory that all leases together may ask for, bytes.
    memory_bytes: u64,
    /// Offer of the operator. The offer in effect is smaller by the resources of batch jobs.
    offer: Offer,
    jobs: BatchJobs,
    /// Leases that hold cores.
    leases: BTreeMap<LeaseId, CoreLease>,
    /// The last leases that have ended, oldest first.
    ended: VecDeque<EndedLease>,
    /// The last epoch that was assigned.
    epoch: Epoch,
    availability: Availability,
    /// Time at which a drain ends the remaining leases.
    drained_by: Option<Duration>,
    /// Longest duration of a lease.
    longest: Option<Duration>,
    /// End of the node's own time, which no lease outlasts.
    node_ends: Option<Duration>,
}

impl LeaseBook {
    /// Makes the book of a node that offers these cores and this much memory, all free. The node shares no core unless
    /// [`with_places`](Self::with_places) is called.
    pub fn new(cores: impl IntoIterator<Item = u32>, memory_bytes: u64) -> Self {
        let offered: BTreeSet<u32> = cores.into_iter().collect();
        Self {
            usable: offered.clone(),
            usable_memory_bytes: memory_bytes,
            cores: Cores::new(offered.iter().copied(), 0),
            gpus: Gpus::default(),
            memory_bytes,
            offer: Offer {
                cores: offered,
                memory_bytes,
                gpus: BTreeSet::new(),
                until: Duration::ZERO,
            },
            jobs: BatchJobs::default(),
            leases: BTreeMap::new(),
            ended: VecDeque::new(),
            epoch: Epoch(0),
            availability: Availability::Serving,
            drained_by: None,
            longest: None,
            node_ends: None,
        }
    }

    /// Ends each lease after this time, however often it is renewed. Must be called before the first lease.
    #[must_use]
    pub fn with_longest(mut self, longest: Option<Duration>) -> Self {
        self.longest = longest;
        self
    }

    /// Sets that a shared core has places for `places_per_core` warm slots. Must be called before the first lease.
    #[must_use]
    pub fn with_places(mut self, places_per_core: u32) -> Self {
        self.cores.set_places_per_core(places_per_core);
        self
    }

    /// Adds `gpus` GPUs to the node, all of them offered. Must be called before the first lease.
    #[must_use]
    pub fn with_gpus(mut self, gpus: u32) -> Self {
        self.gpus = Gpus::new(gpus);
        self.offer.gpus = (0..gpus).collect();
        self
    }

    /// Applies an event that happened at `now`, and returns the actions to carry out. `now` must never decrease. Before
    /// the event, ends the leases that have expired. If the step has a refusal, the event itself changed nothing.
    pub fn step(&mut self, event: BookEvent, now: Duration) -> BookStep {
        let mut step = BookStep::default();
        // Expiries come first, so that no event finds a lease active after its expiry.
        self.expire(now, &mut step.actions);
        step.refusal = self.apply(event, now, &mut step.actions).err();
        self.note_drained(&mut step.actions);
        step
    }

    /// Cores that no lease holds.
    pub fn free_cores(&self) -> u32 {
        self.cores.free()
    }

    /// Free places for warm slots, on shared cores and on free cores.
    pub fn free_places(&self) -> u32 {
        self.cores.free_places()
    }

    /// Places for warm slots on a shared core; 0 if this node shares no core.
    pub fn places_per_core(&self) -> u32 {
        self.cores.places_per_core()
    }

    /// Cores that will be free as soon as the workers of ending leases are gone.
    pub fn ending_cores(&self) -> u32 {
        let ending = self.leases.values().filter(|lease| !lease.is_active());
        ending.map(|lease| lease.cores().len() as u32).sum()
    }

    /// Whether a lease needs more cores or places than the node offers, free or not.
    pub fn offers_less_than(&self, spec: &LeaseSpec) -> bool {
        let each = match spec.sharing {
            CoreUse::Exclusive(_) => 1,
            CoreUse::Shared => self.cores.places_per_core(),
        };
        spec.all_slots() > self.offered_cores() * each
    }

    /// Number of cores that the node offers.
    pub fn offered_cores(&self) -> u32 {
        self.cores.offered()
    }

    /// The last epoch that was assigned.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The leases that hold cores, by id.
    pub fn leases(&self) -> impl Iterator<Item = &CoreLease> {
        self.leases.values()
    }

    /// The lease of this id, if it holds cores.
    pub fn lease(&self, id: LeaseId) -> Option<&CoreLease> {
        self.leases.get(&id)
    }

    /// Remembered leases that have ended, oldest first.
    pub fn ended_leases(&self) -> impl DoubleEndedIterator<Item = &EndedLease> {
        self.ended.iter()
    }

    /// Time of the next expiry of a lease or a delegation, if it is not renewed. Call [`step`](Self::step) at this time
    /// at the latest.
    pub fn next_expiry(&self) -> Option<Duration> {
        self.leases
            .values()
            .filter(|lease| lease.is_active())
            .map(CoreLease::next_end)
            .min()
    }

    /// Returns the lease if it has not begun to end, else the rejection: why the lease ended, or that it is unknown.
    pub fn active(&self, id: LeaseId) -> Result<&CoreLease, Rejection> {
        match self.leases.get(&id) {
            Some(lease) => match lease.phase {
                LeasePhase::Starting | LeasePhase::Serving => Ok(lease),
                LeasePhase::Ending(reason) => Err(Rejection::LeaseEnded(reason)),
            },
            None => Err(self.ended_refusal(id)),
        }
    }

    fn ended_refusal(&self, id: LeaseId) -> Rejection {
        match self.ended.iter().rev().find(|ended| ended.id == id) {
            Some(ended) => Rejection::LeaseEnded(ended.reason),
            None => Rejection::UnknownLease,
        }
    }

    fn active_mut(&mut self, id: LeaseId) -> Result<&mut CoreLease, Rejection> {
        self.active(id)?;
        self.leases.get_mut(&id).ok_or(Rejection::UnknownLease)
    }

    fn apply(&mut self, event: BookEvent, now: Duration, actions: &mut Vec<BookAction>) -> Result<(), Rejection> {
        match event {
            BookEvent::Grant { lease, request } => self.grant(lease, request, now, actions),
            BookEvent::Attach {
                session,
                lease,
                epoch,
                tenant,
                until,
            } => self.attach(session, lease, epoch, &tenant, until, now),
            BookEvent::SessionClosed { session, lease } => {
                self.on_session_closed(session, lease, now, actions);
                Ok(())
            }
            BookEvent::Delegate { lease, places, until } => self.delegate(lease, places, until, now),
            BookEvent::Revoke { lease, delegation } => self.revoke(lease, delegation, EndReason::TakenBack, actions),
            BookEvent::AttachPeer {
                session,
                lease,
                epoch,
                tenant,
                delegation,
            } => self.attach_peer(session, lease, epoch, &tenant, delegation),
            BookEvent::Renew { lease } => {
                let lease = self.active_mut(lease)?;
                lease.renew(now);
                Ok(())
            }
            BookEvent::End { lease, reason } => {
                self.active(lease)?;
                self.end(lease, reason, now, actions);
                Ok(())
            }
            BookEvent::Replace { lease, worker } => self.replace(lease, worker, actions),
            BookEvent::WorkerUp { lease, worker, epoch } => {
                self.on_worker_up(lease, worker, epoch);
                Ok(())
            }
            BookEvent::WorkerGone {
                lease,
                worker,
                epoch,
                used,
                functions,
            } => {
                self.on_worker_gone(lease, worker, epoch, (used, &functions), now, actions);
                Ok(())
            }
            BookEvent::Move {
                lease,
                worker,
                epoch,
                core,
            } => self.move_worker(lease, worker, epoch, core, actions),
            BookEvent::WorkerMoved {
                lease,
                worker,
                epoch,
                moved,
            } => {
                self.on_worker_moved(lease, worker, epoch, moved);
                Ok(())
            }
            BookEvent::Drain { until } => {
                self.drain(until, now, actions);
                Ok(())
            }
            BookEvent::Resume => self.resume(),
            BookEvent::Offer(offer) => self.offer(&offer, now, actions),
            BookEvent::BeginJob { job, share } => self.begin_job(job, share, now, actions),
            BookEvent::EndJob { job } => {
                self.end_job(job, now, actions);
                Ok(())
            }
            BookEvent::Stop => {
                self.stop(now, actions);
                Ok(())
            }
            BookEvent::Tick => Ok(()),
        }
    }

    fn next_epoch(&mut self) -> Result<Epoch, Rejection> {
        let next = self.epoch.0.checked_add(1).ok_or_else(|| Rejection::Unavailable {
            what: "the agent has used up its epochs; restart it".into(),
        })?;
        self.epoch = Epoch(next);
        Ok(self.epoch)
    }

    fn grant(
        &mut self,
        id: LeaseId,
        request: Arc<LeaseRequest>,
        now: Duration,
        actions: &mut Vec<BookAction>,
    ) -> Result<(), Rejection> {
        self.admit_grants()?;
        request.check()?;
        let bad = |what: String| Err(Rejection::BadRequest { what });
        if !(1..=TENANT_BYTES_MAX).contains(&request.tenant.len()) {
            return bad(format!("a tenant's name has 1 to {TENANT_BYTES_MAX} bytes"));
        }
        if self.leases.contains_key(&id) || self.ended.iter().any(|ended| ended.id == id) {
            return bad(format!("lease {id} exists already"));
        }
        let spec = request.spec;
        let memory_left = self.memory_left();
        // If the node lacks free cores too, the rejection names the cores, because managers need the number of free
        // cores.
        let lacks_cores = spec.sharing != CoreUse::Shared && spec.all_slots() > self.free_cores();
        if spec.all_memory_bytes() > memory_left && !lacks_cores {
            return Err(Rejection::TooMany {
                what: "bytes of memory asked for".into(),
                limit: memory_left,
            });
        }
        self.check_share(&spec)?;
        // Refused before any core or GPU is taken.
        if self.epoch.0 == u32::MAX {
            self.next_epoch()?;
        }
        let no_gpus = Rejection::NoGpus {
            asked: spec.all_gpus(),
            free: self.free_gpus(),
            offered: self.offered_gpus(),
        };
        let gpus = self.gpus.take(spec.workers, spec.gpus).ok_or(no_gpus)?;
        let cores = match self.take_cores(&spec) {
            Ok(cores) => cores,
            Err(refusal) => {
                self.gpus.give_back(gpus.into_iter().flatten());
                return Err(refusal);
            }
        };
        let epoch = self.next_epoch()?;
        let memory_share = self.memory_share(&spec);
        let paid_cores = spec.billable_cores(&cores.concat());
        let mut workers = Vec::with_capacity(spec.workers as usize);
        for (index, (cores, gpus)) in cores.into_iter().zip(gpus).enumerate() {
            actions.push(BookAction::StartWorker {
                lease: id,
                worker: WorkerIndex(index as u16),
                epoch,
                cores: cores.clone(),
                gpus: gpus.clone(),
            });
            workers.push(WorkerRecord {
                cores,
                gpus,
                epoch,
                state: WorkerState::Starting,
                moving_to: None,
                has_moved: false,
            });
        }
        let lease = CoreLease {
            id,
            epoch,
            granted: now,
            expires: now + request.ttl.min(ATTACH_WITHIN),
            memory_bytes: match spec.memory_bytes {
                0 => memory_share.saturating_mul(spec.workers.into()),
                _ => spec.all_memory_bytes(),
            },
            request,
            paid_cores,
            cut: self
                .longest
                .map(|longest| now + longest)
                .into_iter()
                .chain(self.node_ends)
                .min(),
            longest: self.longest.map(|longest| now + longest),
            leaving: None,
            batch_job: None,
            phase: LeasePhase::Starting,
            workers,
            sessions: BTreeSet::new(),
            delegations: BTreeMap::new(),
            last_delegation: 0,
            retired: UsageTotals::default(),
            retired_functions: FunctionTotals::default(),
        };
        self.leases.insert(id, lease);
        Ok(())
    }

    /// Takes cores, and returns for each worker the cores of its slots. Takes nothing if too few are free.
    fn take_cores(&mut self, spec: &LeaseSpec) -> Result<Vec<Vec<u32>>, Rejection> {
        let (workers, slots) = (spec.workers, spec.slots_per_worker);
        let asked = spec.all_slots();
        match spec.sharing {
            CoreUse::Exclusive(_) => self.cores.take_exclusive(workers, slots).ok_or(Rejection::NoCapacity {
                asked,
                free: self.free_cores(),
                offered: self.offered_cores(),
            }),
            CoreUse::Shared => {
                let places = self.cores.places_per_core();
                if places > 0 && slots > places {
                    return Err(Rejection::TooMany {
                        what: "slots of one worker on a shared core".into(),
                        limit: places.into(),
                    });
                }
                self.cores.take_places(workers, slots).ok_or(Rejection::NoPlaces {
                    asked,
                    free: self.free_places(),
                    offered: self.offered_cores() * places,
                })
            }
        }
    }

    /// The active lease that a token names, if epoch and tenant match.
    fn lease_of_token(&mut self, id: LeaseId, epoch: Epoch, tenant: &str) -> Result<&mut CoreLease, Rejection> {
        let lease = self.active_mut(id)?;
        if lease.epoch != epoch {
            return Err(Rejection::StaleEpoch {
                token: epoch,
                current: lease.epoch,
            });
        }
        if lease.request.tenant != tenant {
            return Err(Rejection::WrongTenant);
        }
        Ok(lease)
    }

    /// Adds a session to the lease of a token. `until` is the time until which a client may attach with the token.
    fn attach(
        &mut self,
        session: SessionId,
        lease: LeaseId,
        epoch: Epoch,
        tenant: &str,
        until: Duration,
        now: Duration,
    ) -> Result<(), Rejection> {
        let lease = self.lease_of_token(lease, epoch, tenant)?;
        if until <= now {
            return Err(Rejection::NotPermitted {
                what: "the token's time to attach is over; ask for a new lease".into(),
            });
        }
        lease.sessions.insert(session);
        lease.renew(now);
        Ok(())
    }

    /// Removes a session, and ends the lease if this was the holder's last session. Sessions of peers do not keep a
    /// lease alive.
    fn on_session_closed(&mut self, session: SessionId, id: LeaseId, now: Duration, actions: &mut Vec<BookAction>) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        for delegation in lease.delegations.values_mut() {
            delegation.sessions.remove(&session);
        }
        let was_last = lease.sessions.remove(&session) && lease.sessions.is_empty();
        if was_last && lease.is_active() {
            self.end(id, EndReason::ClientGone, now, actions);
        }
    }
}

#[cfg(test)]
mod end_tests;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod job_tests;
#[cfg(test)]
mod move_tests;
#[cfg(test)]
mod offering_tests;
#[cfg(test)]
mod tests;
