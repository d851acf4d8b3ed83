//! A lease that holds cores, with everything that is not in the book of leases: its terms, incarnations and libraries.

use super::book_steps::BookSteps;
use super::cause::KillReason;
use super::incarnation::{Incarnation, IncarnationState, load, worker_died};
use super::libraries::{Libraries, LoadedCode, next_base};
use super::start::ns;
use super::terms::{ServedLease, Terms};
use crate::data::code::CheckedLibrary;
use crate::data::swap::admit_library;
use crate::workers::worker::{ORDER_LIMIT, OrderError, StartedWorker};
use hotlease_lease::agent::BookEvent;
use hotlease_wire::grpc::LeaseStart;
use hotlease_wire::ids::{LeaseId, WorkerIndex};
use hotlease_wire::session::{StartPhases, UsageTotals};
use hotlease_wire::{EndReason, Rejection};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A lease that holds cores: its terms, incarnations, libraries, and its end.
pub(crate) struct ActiveLease {
    /// Identifier of the lease.
    pub id: LeaseId,
    /// Configuration of its workers.
    pub terms: Arc<Terms>,
    /// Its libraries, and the usage of their functions.
    pub libraries: Arc<Libraries>,
    granted: Instant,
    incarnations: Mutex<Vec<Arc<Incarnation>>>,
    /// Reason and total usage, once the lease has ended and its cores are free.
    ended: watch::Sender<Option<(EndReason, UsageTotals)>>,
    /// Set once the sessions of the lease have been informed that it is ending.
    ending: AtomicBool,
    /// Whether the manager has taken the lease back before it gave the lease to a client.
    unused: AtomicBool,
}

impl ActiveLease {
    /// Makes the lease. `built_in`: a library that is part of its workers' program.
    pub fn new(id: LeaseId, terms: Terms, built_in: Option<CheckedLibrary>) -> Self {
        Self {
            id,
            terms: Arc::new(terms),
            libraries: Arc::new(Libraries::new(built_in)),
            granted: Instant::now(),
            incarnations: Mutex::default(),
            ended: watch::Sender::new(None),
            ending: AtomicBool::new(false),
            unused: AtomicBool::new(false),
        }
    }

    /// Time from the request's arrival to the grant, without the wait for the environment.
    pub fn granting(&self) -> Duration {
        let waited = self.terms.image.unwrap_or_default();
        self.granted.duration_since(self.terms.asked).saturating_sub(waited)
    }

    /// Facts of the lease that each of its workers needs.
    pub fn served_lease(&self) -> ServedLease {
        ServedLease {
            id: self.id,
            terms: Arc::clone(&self.terms),
            libraries: Arc::clone(&self.libraries),
            granting: self.granting(),
        }
    }

    /// Marks the lease as being ended; returns whether this call was the first.
    pub fn mark_ending(&self) -> bool {
        // Relaxed: the caller holds the node's lock, which orders the calls.
        !self.ending.swap(true, Ordering::Relaxed)
    }

    /// Marks a lease that the manager has given to no client: no tenant pays for it.
    pub fn mark_unused(&self) {
        // Relaxed, here and below: the caller holds the node's lock.
        self.unused.store(true, Ordering::Relaxed);
    }

    /// Whether the manager has taken the lease back before it gave the lease to a client.
    pub fn is_unused(&self) -> bool {
        self.unused.load(Ordering::Relaxed)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Arc<Incarnation>>> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an incarnation at its worker's index, in place of the former incarnation. First incarnations are stored
    /// in the order of their indices, so an incarnation behind the last index is appended.
    pub fn place(&self, incarnation: Arc<Incarnation>) {
        let mut places = self.places();
        match places.get_mut(usize::from(incarnation.index.0)) {
            Some(place) => *place = incarnation,
            None => places.push(incarnation),
        }
    }

    /// The present incarnations, by index.
    pub fn incarnations(&self) -> Vec<Arc<Incarnation>> {
        self.places().clone()
    }

    /// The present incarnation of a worker.
    pub fn incarnation(&self, index: WorkerIndex) -> Result<Arc<Incarnation>, Rejection> {
        let places = self.places();
        let place = places.get(usize::from(index.0));
        place.cloned().ok_or(Rejection::UnknownWorker {
            index: index.0,
            workers: places.len() as u16,
        })
    }

    /// Revokes the access of its functions to object storage.
    pub fn close_storage(&self) {
        if let Some(storage) = &self.terms.storage {
            storage.end();
        }
    }

    /// Records the end of the lease, and wakes the callers of [`wait_for_end`](Self::wait_for_end).
    pub fn end(&self, reason: EndReason, usage: UsageTotals) {
        self.ended.send_replace(Some((reason, usage)));
    }

    /// Waits until the lease has ended and its cores are free.
    pub async fn wait_for_end(&self) -> (EndReason, UsageTotals) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(Option::is_some).await;
        let ended = *self.ended.borrow();
        ended.unwrap_or((EndReason::AgentStopping, UsageTotals::default()))
    }

    /// Waits until its workers have started; returns the durations of the steps. Fails if a worker did not start.
    pub async fn wait_for_start(&self) -> Result<StartPhases, Rejection> {
        let mut total = StartPhases::default();
        for incarnation in self.incarnations() {
            match incarnation.wait_until_settled().await {
                IncarnationState::Gone { cause, output } if !incarnation.start.was_up() => {
                    return Err(worker_died((cause, output)));
                }
                _ => {}
            }
            let phases = incarnation.start.phases();
            total.pooled += phases.pooled;
            total.started += phases.started;
            total.grant_us = phases.grant_us;
            if phases.start_us >= total.start_us {
                (total.start_us, total.steps) = (phases.start_us, phases.steps);
            }
            total.configure_us = total.configure_us.max(phases.configure_us);
            if total.cold.is_empty() {
                total.cold = phases.cold;
            }
        }
        Ok(total)
    }

    /// Durations and origins of its start, as far as known.
    pub fn start(&self) -> LeaseStart {
        let mut start = LeaseStart {
            sandbox: self.terms.sandbox.to_string(),
            reach: Some(self.terms.reach_told.clone()),
            grant_ns: Some(ns(self.granting())),
            memory_bytes: self.terms.memory_bytes,
            ..LeaseStart::default()
        };
        let mut configure = 0;
        let mut is_any_watched = false;
        for incarnation in self.incarnations() {
            if let Some(keeping) = &incarnation.keeping {
                start.state = keeping.history_text();
                start.restore_ns = keeping.restoring().map(ns);
            }
            if !incarnation.start.was_up() {
                continue;
            }
            is_any_watched |= !incarnation.start.has_kernel_limit();
            let phases = incarnation.start.phases();
            start.warm += phases.pooled;
            start.cold += phases.started;
            if start.why.is_empty() {
                start.why = phases.cold;
            }
            configure = configure.max(1000 * phases.configure_us);
            for (slowest, step) in [
                (&mut start.image_ns, phases.steps.image_us),
                (&mut start.sandbox_ns, phases.steps.sandbox_us),
                (&mut start.boot_ns, phases.steps.boot_us),
                (&mut start.interpreter_ns, phases.steps.interpreter_us),
                (&mut start.imports_ns, phases.steps.imports_us),
            ] {
                *slowest = (*slowest).max(step.map(|us| us.saturating_mul(1000)));
            }
            start.connect_ns = start.connect_ns.max(incarnation.start.connected_after().map(ns));
            start.first_call_ns = start.first_call_ns.max(incarnation.first_call_ns());
        }
        start.memory_by_kernel = start.warm + start.cold > 0 && !is_any_watched;
        start.grant_ns = start.grant_ns.map(|grant| grant + configure);
        // For a native worker, loading the library takes the place of an interpreter's imports.
        start.imports_ns = start.imports_ns.or(self.libraries.loading.get().copied().map(ns));
        start
    }

    /// Returns a living worker and its incarnation; starts the worker again if it has died.
    pub async fn worker(
        &self,
        book: &Arc<impl BookSteps>,
        index: WorkerIndex,
    ) -> Result<(Arc<Incarnation>, Arc<StartedWorker>), Rejection> {
        let mut is_second = false;
        loop {
            book.step(BookEvent::Replace {
                lease: self.id,
                worker: index,
            })?;
            let incarnation = self.incarnation(index)?;
            match incarnation.wait_until_settled().await {
                IncarnationState::Up(worker) => return Ok((incarnation, worker)),
                // The worker had served, and the book had not recorded its end yet.
                IncarnationState::Gone { .. } if !is_second && incarnation.start.was_up() => {
                    incarnation.wait_for_end().await;
                    is_second = true;
                }
                IncarnationState::Gone { cause, output } => return Err(worker_died((cause, output))),
                IncarnationState::Starting => {
                    return Err(Rejection::Unavailable {
                        what: "the worker is still starting".into(),
                    });
                }
            }
        }
    }

    /// Refuses connections to a worker whose state is not restored yet: the first library of the lease restores it.
    pub async fn check_restored(&self) -> Result<(), Rejection> {
        match self.terms.state.is_some() && self.libraries.codes.lock().await.is_empty() {
            true => Err(Rejection::BadRequest {
                what: "the lease has a state that its library restores: load the library before connecting".into(),
            }),
            false => Ok(()),
        }
    }

    /// Loads a library into all living workers; workers that start later load it when they start. Returns the index of
    /// its first function, and the loading time in microseconds (0: the library was loaded already).
    ///
    /// A library is loaded everywhere or nowhere: if one worker refuses it, or dies of it, the workers that have loaded
    /// it are replaced too. The library of a lease with a state also restores the state. If that fails, the library is
    /// treated as not loaded.
    pub async fn load(
        self: Arc<Self>,
        book: Arc<impl BookSteps>,
        code: Arc<CheckedLibrary>,
    ) -> Result<(u16, u64), Rejection> {
        // At least one worker must live to load it. This is checked before the lock, which a starting worker needs.
        let any_up = |state: &Arc<Incarnation>| matches!(state.state(), IncarnationState::Up(_));
        if !self.incarnations().iter().any(any_up) {
            self.worker(&book, WorkerIndex(0)).await?;
        }
        let mut codes = self.libraries.codes.lock().await;
        if let Some(loaded) = codes.iter().find(|loaded| loaded.code.hash == code.hash) {
            return Ok((loaded.base, 0));
        }
        if let Some(wanted) = self.terms.state.as_ref().filter(|_| self.terms.program.is_none()) {
            if !codes.is_empty() {
                return Err(Rejection::CodeRejected {
                    why: "a lease with a state has one library".into(),
                });
            }
            admit_library(wanted, &code)?;
        }
        let new = LoadedCode {
            base: next_base(&codes, &code)?,
            code,
        };
        let begun = Instant::now();
        let mut asked = Vec::new();
        for incarnation in self.incarnations() {
            if let IncarnationState::Up(worker) = incarnation.state() {
                asked.push((incarnation, load(&worker, &new)));
            }
        }
        let mut took = Vec::new();
        let mut refused = None;
        for (incarnation, loaded) in asked {
            let limit = ORDER_LIMIT.saturating_sub(begun.elapsed());
            let why = match loaded.wait_for_answer(limit).await {
                Ok(()) => {
                    took.push(incarnation);
                    continue;
                }
                // The worker reports the failure itself, and is unchanged.
                Err(OrderError::Failed(why)) => {
                    refused.get_or_insert(why);
                    continue;
                }
                Err(OrderError::TimedOut) => {
                    incarnation.kill(KillReason::Unusable("a constructor of a library did not return"));
                    format!("it did not finish loading within {} s", ORDER_LIMIT.as_secs())
                }
                Err(OrderError::Died) => {
                    let death = incarnation.wait_for_end().await;
                    if book.check_active(self.id).is_err() {
                        return Err(worker_died(death));
                    }
                    format!("a worker died while loading it: {}", worker_died(death))
                }
            };
            replace_when_gone(&book, &self, incarnation);
            refused.get_or_insert(why);
        }
        let Some(why) = refused else {
            if took.is_empty() {
                return Err(Rejection::Unavailable {
                    what: "every worker died before the library could be loaded; try again".into(),
                });
            }
            let (base, loading) = (new.base, begun.elapsed());
            let _ = self.libraries.loading.set(loading);
            if codes.is_empty() {
                for incarnation in took {
                    incarnation.restore_loaded().await?;
                }
            }
            self.libraries.attribution().add_library(base, Arc::clone(&new.code));
            codes.push(new);
            return Ok((base, loading.as_micros() as u64));
        };
        for incarnation in took {
            incarnation.kill(KillReason::Unusable(
                "it has loaded a library that another worker refused",
            ));
            replace_when_gone(&book, &self, incarnation);
        }
        Err(Rejection::CodeRejected { why })
    }
}

/// Waits until a dying worker is dead, and then starts it again if its lease continues.
fn replace_when_gone(book: &Arc<impl BookSteps>, lease: &Arc<ActiveLease>, incarnation: Arc<Incarnation>) {
    let (book, lease) = (Arc::clone(book), lease.id);
    tokio::spawn(async move {
        incarnation.wait_for_end().await;
        // Refused if the lease has ended meanwhile.
        let _ = book.step(BookEvent::Replace {
            lease,
            worker: incarnation.index,
        });
    });
}
