//! A lease that holds cores, with everything that the book of leases does not keep: its terms, incarnations and
//! libraries.

use crate::data::code::Code;
use crate::data::storage::LeaseStorage;
use crate::data::swap::{StateRequest, admit_library};
use crate::leases::attribution::Attribution;
use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState, load, worker_died};
use crate::node::Node;
use crate::workers::worker::{ORDER_LIMIT, OrderError, Worker};
use hotlease_lease::agent::BookEvent;
use hotlease_sandbox::{Kind, Program, Reach};
use hotlease_wire::control::Polling;
use hotlease_wire::grpc;
use hotlease_wire::ids::{LeaseId, WorkerIndex};
use hotlease_wire::limits::CODES_PER_LEASE_MAX;
use hotlease_wire::session::{StartPhases, UsageTotals};
use hotlease_wire::{EndReason, Rejection};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Most bytes of all libraries of one lease together.
const CODE_BYTES_PER_LEASE_MAX: u64 = 1 << 30;

/// Configuration that all workers of a lease share.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// Tenant that holds the lease.
    pub tenant: String,
    /// How slots wait for requests.
    pub polling: Polling,
    /// Time for which slots poll before they sleep.
    pub hot_budget_ns: u64,
    /// Memory limit of each worker, bytes; 0: none.
    pub memory_bytes: u64,
    /// Whether its workers share their cores.
    pub shared: bool,
    /// Time of the request for the lease.
    pub asked: Instant,
    /// Part of the granting that was spent waiting for its environment, if it names one.
    pub image: Option<Duration>,
    /// Whether its client asked the agent itself for it, without the manager.
    pub direct: bool,
    /// Kind of sandbox that isolates its workers.
    pub sandbox: Kind,
    /// Access of its workers beyond their sandboxes.
    pub reach: Arc<Reach>,
    /// The access, in the form that its client is told.
    pub reach_told: grpc::Reach,
    /// Its keys and prefixes in object storage.
    pub storage: Option<Arc<LeaseStorage>>,
    /// State that its single worker saves for the next lease.
    pub state: Option<StateRequest>,
    /// Program of its workers, in place of the native one.
    pub program: Option<Arc<Program>>,
}

impl Terms {
    /// Whether workers may wait for such a lease, and for the next one: without a lease no worker may have access to a
    /// tenant's directories, the network or storage.
    pub fn can_wait(&self) -> bool {
        self.storage.is_none() && (self.sandbox == Kind::Process || self.reach.is_nothing())
    }
}

/// A library that the lease has loaded.
pub(crate) struct LoadedCode {
    /// Kept as long as the lease lives, even if the cache drops it.
    pub code: Arc<Code>,
    /// Index of its first function.
    pub base: u16,
}

/// A lease that holds cores: its terms, incarnations, libraries, and its end.
pub(crate) struct ActiveLease {
    /// Identifier of the lease.
    pub id: LeaseId,
    /// Configuration of its workers.
    pub terms: Terms,
    /// Libraries in the order of their loading. Locked while workers load, because a worker loads each library once.
    pub codes: tokio::sync::Mutex<Vec<LoadedCode>>,
    /// Time that its first library took to load.
    pub loading: OnceLock<Duration>,
    granted: Instant,
    incarnations: Mutex<Vec<Arc<Incarnation>>>,
    attribution: Mutex<Attribution>,
    ended: watch::Sender<Option<(EndReason, UsageTotals)>>,
    /// Whether its sessions were told that it is being ended.
    ending: AtomicBool,
}

impl ActiveLease {
    /// Makes the lease. `built_in`: a library that its workers have without loading it.
    pub fn new(id: LeaseId, terms: Terms, built_in: Option<Code>) -> Self {
        let mut attribution = Attribution::default();
        let mut codes = Vec::new();
        if let Some(code) = built_in.map(Arc::new) {
            attribution.add_library(0, Arc::clone(&code));
            codes.push(LoadedCode { code, base: 0 });
        }
        Self {
            id,
            terms,
            codes: tokio::sync::Mutex::new(codes),
            loading: OnceLock::new(),
            granted: Instant::now(),
            incarnations: Mutex::default(),
            attribution: Mutex::new(attribution),
            ended: watch::Sender::new(None),
            ending: AtomicBool::new(false),
        }
    }

    /// Time from the request's arrival to the grant, without the wait for the environment.
    pub fn granting(&self) -> Duration {
        let waited = self.terms.image.unwrap_or_default();
        self.granted.duration_since(self.terms.asked).saturating_sub(waited)
    }

    /// Marks the lease as being ended; returns whether this call was the first.
    pub fn mark_ending(&self) -> bool {
        // Relaxed: the caller holds the node's lock, which orders the calls.
        !self.ending.swap(true, Ordering::Relaxed)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Arc<Incarnation>>> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Usage of its functions. While this lock is held, the holder takes no other lock and awaits nothing.
    pub fn attribution(&self) -> MutexGuard<'_, Attribution> {
        self.attribution.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an incarnation in its place. The book starts the first ones in the order of their indices.
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

    /// Records the end of the lease.
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

    /// Waits until its workers have started; returns the durations of the steps. Refused if a worker did not start.
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

    /// Returns a living worker and its incarnation; starts the worker again if it has died.
    pub async fn worker(
        &self,
        node: &Arc<Node>,
        index: WorkerIndex,
    ) -> Result<(Arc<Incarnation>, Arc<Worker>), Rejection> {
        node.step(BookEvent::Replace {
            lease: self.id,
            worker: index,
        })?;
        let incarnation = self.incarnation(index)?;
        match incarnation.wait_until_settled().await {
            IncarnationState::Up(worker) => Ok((incarnation, worker)),
            IncarnationState::Gone { cause, output } => Err(worker_died((cause, output))),
            IncarnationState::Starting => Err(Rejection::Unavailable {
                what: "the worker is still starting".into(),
            }),
        }
    }

    /// Refuses connections to workers whose state is not restored yet. The library that they load first restores it.
    pub async fn check_restored(&self) -> Result<(), Rejection> {
        match self.terms.state.is_some() && self.codes.lock().await.is_empty() {
            true => Err(Rejection::BadRequest {
                what: "its lease has a state, which its library restores: load that before connecting".into(),
            }),
            false => Ok(()),
        }
    }

    /// Loads a library into all living workers; workers that start later load it then. Returns the index of its first
    /// function, and the time that it took, microseconds.
    ///
    /// A library is loaded everywhere or nowhere: if one worker refuses it, or dies of it, the workers that have loaded
    /// it are replaced too. The library of a lease with a state also restores the state; if that fails, it counts as
    /// not loaded.
    pub async fn load(self: Arc<Self>, node: Arc<Node>, code: Arc<Code>) -> Result<(u16, u64), Rejection> {
        // At least one worker must live to load it. Checked before the lock, which a starting worker needs.
        let any_up = |state: &Arc<Incarnation>| matches!(state.state(), IncarnationState::Up(_));
        if !self.incarnations().iter().any(any_up) {
            self.worker(&node, WorkerIndex(0)).await?;
        }
        let mut codes = self.codes.lock().await;
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
                    if node.check_active(self.id).is_err() {
                        return Err(worker_died(death));
                    }
                    format!("a worker died while loading it: {}", worker_died(death))
                }
            };
            replace_when_gone(&node, &self, incarnation);
            refused.get_or_insert(why);
        }
        let Some(why) = refused else {
            if took.is_empty() {
                return Err(Rejection::Unavailable {
                    what: "every worker died before the library could be loaded; try again".into(),
                });
            }
            let (base, loading) = (new.base, begun.elapsed());
            let _ = self.loading.set(loading);
            if codes.is_empty() {
                for incarnation in took {
                    incarnation.restore_loaded().await?;
                }
            }
            self.attribution().add_library(base, Arc::clone(&new.code));
            codes.push(new);
            return Ok((base, loading.as_micros() as u64));
        };
        for incarnation in took {
            incarnation.kill(KillReason::Unusable(
                "it has loaded a library that another worker refused",
            ));
            replace_when_gone(&node, &self, incarnation);
        }
        Err(Rejection::CodeRejected { why })
    }
}

/// Starts a dying worker again once it is dead, if its lease goes on.
fn replace_when_gone(node: &Arc<Node>, lease: &Arc<ActiveLease>, incarnation: Arc<Incarnation>) {
    let (node, lease) = (Arc::clone(node), lease.id);
    tokio::spawn(async move {
        incarnation.wait_for_end().await;
        // Refused if the lease has ended meanwhile.
        let _ = node.step(BookEvent::Replace {
            lease,
            worker: incarnation.index,
        });
    });
}

/// Index of the first function of a further library; checks the limits of a lease.
fn next_base(codes: &[LoadedCode], code: &Code) -> Result<u16, Rejection> {
    let too_many = |what: &str, limit| {
        Err(Rejection::TooMany {
            what: what.into(),
            limit,
        })
    };
    if codes.len() >= CODES_PER_LEASE_MAX {
        return too_many("function libraries in one lease", CODES_PER_LEASE_MAX as u64);
    }
    let bytes: u64 = codes.iter().map(|loaded| loaded.code.size_bytes).sum();
    if bytes.saturating_add(code.size_bytes) > CODE_BYTES_PER_LEASE_MAX {
        return too_many("bytes of function libraries in one lease", CODE_BYTES_PER_LEASE_MAX);
    }
    let base: usize = codes.iter().map(|loaded| loaded.code.functions.len()).sum();
    match u16::try_from(base + code.functions.len()) {
        Ok(end) => Ok(end - code.functions.len() as u16),
        Err(_) => too_many("functions in one lease", u16::MAX.into()),
    }
}
