//! A lease that holds cores, with what the book does not keep: its terms, incarnations and libraries.

use crate::attribution::Attribution;
use crate::cause::KillReason;
use crate::code::Code;
use crate::incarnation::{Incarnation, ORDER_LIMIT, State, died, load};
use crate::node::Node;
use crate::storage::LeaseStorage;
use crate::swap::{Wanted, admit_library};
use crate::worker::{OrderError, Worker};
use hotlease_lease::agent::Event;
use hotlease_sandbox::{Kind, Program, Reach};
use hotlease_wire::control::Polling;
use hotlease_wire::grpc;
use hotlease_wire::ids::{LeaseId, WorkerIndex};
use hotlease_wire::limits::CODES_PER_LEASE_MAX;
use hotlease_wire::session::{StartPhases, UsageTotals};
use hotlease_wire::{EndReason, Refusal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Bytes of all libraries of one lease.
const CODE_BYTES_PER_LEASE_MAX: u64 = 1 << 30;

/// What every worker of the lease is configured with.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// Who holds it.
    pub tenant: String,
    /// How slots wait.
    pub polling: Polling,
    /// For how long they poll.
    pub hot_budget_ns: u64,
    /// Memory limit of each worker, 0 for none.
    pub memory_bytes: u64,
    /// Whether its workers share their cores.
    pub shared: bool,
    /// When it was asked for.
    pub asked: Instant,
    /// How long of its granting it waited for its environment, if it names one.
    pub image: Option<Duration>,
    /// Whether its client asked for it itself.
    pub direct: bool,
    /// What its workers are isolated by.
    pub sandbox: Kind,
    /// What they reach beyond that.
    pub reach: Arc<Reach>,
    /// The same, as its client is told.
    pub reach_told: grpc::Reach,
    /// Its keys and places in object storage.
    pub storage: Option<Arc<LeaseStorage>>,
    /// What its one worker keeps for the next lease.
    pub state: Option<Wanted>,
    /// What its workers are, in place of native ones.
    pub program: Option<Arc<Program>>,
}

impl Terms {
    /// Whether workers may have waited for such a lease, and may wait for the next one: nobody without a lease reaches directories
    /// of a tenant's, the network, or storage.
    pub fn can_wait(&self) -> bool {
        self.storage.is_none() && (self.sandbox == Kind::Process || self.reach.is_nothing())
    }
}

/// A library that the lease has loaded.
pub(crate) struct LoadedCode {
    /// Kept as long as the lease lives, whatever the cache does.
    pub code: Arc<Code>,
    /// Index of its first function.
    pub base: u16,
}

/// See the module.
pub(crate) struct ActiveLease {
    /// Its name.
    pub id: LeaseId,
    /// What its workers are told.
    pub terms: Terms,
    /// In the order of their loading. Locked while workers load: each library is loaded by a worker once.
    pub codes: tokio::sync::Mutex<Vec<LoadedCode>>,
    /// How long its first library took to load.
    pub loading: OnceLock<Duration>,
    granted: Instant,
    incarnations: Mutex<Vec<Arc<Incarnation>>>,
    attribution: Mutex<Attribution>,
    ended: watch::Sender<Option<(EndReason, UsageTotals)>>,
    /// Its sessions were told that it is being ended.
    ending: AtomicBool,
}

impl ActiveLease {
    /// `built_in`: the library that its workers have without loading it.
    pub fn new(id: LeaseId, terms: Terms, built_in: Option<Code>) -> Self {
        let mut attribution = Attribution::default();
        let mut codes = Vec::new();
        if let Some(code) = built_in.map(Arc::new) {
            attribution.loaded(0, Arc::clone(&code));
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

    /// From the request's arrival until it was granted.
    pub fn granting(&self) -> Duration {
        let waited = self.terms.image.unwrap_or_default();
        self.granted
            .duration_since(self.terms.asked)
            .saturating_sub(waited)
    }

    /// Whether this is the first to know that it is being ended.
    pub fn begins_to_end(&self) -> bool {
        // Under the node's lock, which orders it.
        !self.ending.swap(true, Ordering::Relaxed)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Arc<Incarnation>>> {
        self.incarnations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its functions have used. Nothing is awaited, and no other lock taken, while this one is held.
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
    pub fn incarnation(&self, index: WorkerIndex) -> Result<Arc<Incarnation>, Refusal> {
        let places = self.places();
        let place = places.get(usize::from(index.0));
        place.cloned().ok_or(Refusal::UnknownWorker {
            index: index.0,
            workers: places.len() as u16,
        })
    }

    /// What its functions have of object storage is worth nothing from now on.
    pub fn close_storage(&self) {
        if let Some(storage) = &self.terms.storage {
            storage.end();
        }
    }

    /// Notes that it is over.
    pub fn end(&self, reason: EndReason, usage: UsageTotals) {
        self.ended.send_replace(Some((reason, usage)));
    }

    /// Waits until it is over and its cores are free.
    pub async fn ended(&self) -> (EndReason, UsageTotals) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(Option::is_some).await;
        let ended = *self.ended.borrow();
        ended.unwrap_or((EndReason::AgentStopping, UsageTotals::default()))
    }

    /// Waits until its workers have started, and says where the time went. Refused if one did not start.
    pub async fn started(&self) -> Result<StartPhases, Refusal> {
        let mut total = StartPhases::default();
        for incarnation in self.incarnations() {
            match incarnation.settled().await {
                State::Gone { cause, output } if !incarnation.start.was_up() => {
                    return Err(died((cause, output)));
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

    /// A living worker, started again if it died, and its incarnation.
    pub async fn worker(
        &self,
        node: &Arc<Node>,
        index: WorkerIndex,
    ) -> Result<(Arc<Incarnation>, Arc<Worker>), Refusal> {
        node.step(Event::Replace {
            lease: self.id,
            worker: index,
        })?;
        let incarnation = self.incarnation(index)?;
        match incarnation.settled().await {
            State::Up(worker) => Ok((incarnation, worker)),
            State::Gone { cause, output } => Err(died((cause, output))),
            State::Starting => Err(Refusal::Unavailable {
                what: "the worker is still starting".into(),
            }),
        }
    }

    /// Refuses who would reach workers before their state is restored, which the library does that they load first.
    pub async fn is_restored(&self) -> Result<(), Refusal> {
        match self.terms.state.is_some() && self.codes.lock().await.is_empty() {
            true => Err(Refusal::BadRequest {
                what: "its lease has a state, which its library restores: load that before connecting".into(),
            }),
            false => Ok(()),
        }
    }

    /// Loads a library into all living workers; those that start later load it then. Index of its first
    /// function, and the time it took, microseconds.
    ///
    /// A library is loaded everywhere or nowhere: if one worker refuses it, or dies of it, those that
    /// took it are replaced too. That of a lease with a state restores it, too; or else it counts as not loaded.
    pub async fn load(self: Arc<Self>, node: Arc<Node>, code: Arc<Code>) -> Result<(u16, u64), Refusal> {
        // At least one worker must live to try it. Before the lock, which a starting worker takes.
        let any_up = |state: &Arc<Incarnation>| matches!(state.state(), State::Up(_));
        if !self.incarnations().iter().any(any_up) {
            self.worker(&node, WorkerIndex(0)).await?;
        }
        let mut codes = self.codes.lock().await;
        if let Some(loaded) = codes.iter().find(|loaded| loaded.code.hash == code.hash) {
            return Ok((loaded.base, 0));
        }
        if let Some(wanted) = self.terms.state.as_ref().filter(|_| self.terms.program.is_none()) {
            if !codes.is_empty() {
                return Err(Refusal::CodeRejected {
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
            if let State::Up(worker) = incarnation.state() {
                asked.push((incarnation, load(&worker, &new)));
            }
        }
        let mut took = Vec::new();
        let mut refused = None;
        for (incarnation, loaded) in asked {
            let limit = ORDER_LIMIT.saturating_sub(begun.elapsed());
            let why = match loaded.done(limit).await {
                Ok(()) => {
                    took.push(incarnation);
                    continue;
                }
                // It says so itself, and nothing changed in it.
                Err(OrderError::Failed(why)) => {
                    refused.get_or_insert(why);
                    continue;
                }
                Err(OrderError::Silent) => {
                    incarnation.kill(KillReason::Unusable("a constructor of a library did not return"));
                    format!("it did not finish loading within {} s", ORDER_LIMIT.as_secs())
                }
                Err(OrderError::Died) => {
                    let death = incarnation.gone().await;
                    if node.is_active(self.id).is_err() {
                        return Err(died(death));
                    }
                    format!("a worker died while loading it: {}", died(death))
                }
            };
            replace_when_gone(&node, &self, incarnation);
            refused.get_or_insert(why);
        }
        let Some(why) = refused else {
            if took.is_empty() {
                return Err(Refusal::Unavailable {
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
            self.attribution().loaded(base, Arc::clone(&new.code));
            codes.push(new);
            return Ok((base, loading.as_micros() as u64));
        };
        for incarnation in took {
            incarnation.kill(KillReason::Unusable(
                "it has loaded a library that another worker refused",
            ));
            replace_when_gone(&node, &self, incarnation);
        }
        Err(Refusal::CodeRejected { why })
    }
}

/// Starts a worker that is dying again once it is dead, if its lease goes on.
fn replace_when_gone(node: &Arc<Node>, lease: &Arc<ActiveLease>, incarnation: Arc<Incarnation>) {
    let (node, lease) = (Arc::clone(node), lease.id);
    tokio::spawn(async move {
        incarnation.gone().await;
        // Refused if the lease has ended meanwhile.
        let _ = node.step(Event::Replace {
            lease,
            worker: incarnation.index,
        });
    });
}

/// Index of the first function of a further library.
fn next_base(codes: &[LoadedCode], code: &Code) -> Result<u16, Refusal> {
    let too_many = |what: &str, limit| {
        Err(Refusal::TooMany {
            what: what.into(),
            limit,
        })
    };
    if codes.len() >= CODES_PER_LEASE_MAX {
        return too_many("function libraries in one lease", CODES_PER_LEASE_MAX as u64);
    }
    let bytes: u64 = codes.iter().map(|loaded| loaded.code.size_bytes).sum();
    if bytes.saturating_add(code.size_bytes) > CODE_BYTES_PER_LEASE_MAX {
        return too_many(
            "bytes of function libraries in one lease",
            CODE_BYTES_PER_LEASE_MAX,
        );
    }
    let base: usize = codes.iter().map(|loaded| loaded.code.functions.len()).sum();
    match u16::try_from(base + code.functions.len()) {
        Ok(end) => Ok(end - code.functions.len() as u16),
        Err(_) => too_many("functions in one lease", u16::MAX.into()),
    }
}
