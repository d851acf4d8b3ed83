//! Supply of workers for leases: waiting workers, newly started workers, and what the node gives to each of them.

use super::sharing::{CoreClaims, SharingTerms};
use super::start::{FROM_ZYGOTE, WorkerOrigin};
use super::start_records::StartRecords;
use super::terms::Terms;
use crate::data::storage::Storage;
use crate::workers::fabric_demand::{FabricDemand, PREPARE_EACH};
use crate::workers::pool::Pools;
use crate::workers::spares::Spares;
use crate::workers::worker::{StartError, StartedWorker};
use hotlease_sandbox::Launcher;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::sleep;

/// Sources of workers for leases, and what the node gives each worker.
pub(crate) struct WorkerSupply {
    /// Launcher for workers.
    pub launcher: Launcher,
    /// Warm workers: native workers in pools, and spare interpreters.
    pub pools: Pools,
    pub spares: Arc<Spares>,
    fabric: Arc<FabricDemand>,
    /// Record of how leases began.
    pub starts: StartRecords,
    /// Object storage that leases may ask for.
    pub storage: Storage,
    /// Claim files of shared cores.
    pub claims: CoreClaims,
    /// Terms of sharing cores.
    pub sharing: SharingTerms,
    /// GPUs that the node has.
    pub gpus: u32,
    tick_hz: watch::Sender<Option<u64>>,
}

impl WorkerSupply {
    pub fn new(
        launcher: Launcher,
        (pools, spares, fabric): (Pools, Arc<Spares>, Arc<FabricDemand>),
        storage: Storage,
        (sharing, gpus): (SharingTerms, u32),
    ) -> Self {
        Self {
            launcher,
            pools,
            spares,
            fabric,
            starts: StartRecords::default(),
            storage,
            claims: CoreClaims::default(),
            sharing,
            gpus,
            tick_hz: watch::Sender::new(None),
        }
    }

    /// Sets the rate of the node's time-stamp counter, once it is measured.
    pub fn set_tick_hz(&self, tick_hz: u64) {
        self.tick_hz.send_replace(Some(tick_hz));
    }

    /// Rate of the node's time-stamp counter; waits until it is measured after the start of the agent.
    pub async fn tick_hz(&self) -> u64 {
        let mut tick_hz = self.tick_hz.subscribe();
        let _ = tick_hz.wait_for(Option::is_some).await;
        let tick_hz = *tick_hz.borrow();
        tick_hz.unwrap_or(1)
    }

    /// Notes that a client reaches a worker over a fabric: then the workers that wait for the next leases load the
    /// fabric's library, one after the other.
    pub fn note_fabric(self: &Arc<Self>) {
        if !self.fabric.note() {
            return;
        }
        let supply = Arc::clone(self);
        let pools = supply.pools.iter().flat_map(|pool| pool.listing());
        let waiting: Vec<_> = pools.chain(supply.spares.listing()).collect();
        tokio::spawn(async move {
            for (_, pid, _) in waiting {
                sleep(PREPARE_EACH).await;
                supply.pools.iter().for_each(|pool| pool.prepare_fabric(pid));
                supply.spares.prepare_fabric(pid);
            }
        });
    }

    /// Takes a worker that waits for a lease with these terms, if there is one; also returns the worker's origin.
    pub fn waiting_worker(&self, terms: &Terms) -> (Option<StartedWorker>, WorkerOrigin) {
        let (tenant, sandbox) = (&terms.request.tenant, terms.sandbox);
        let (taken, why) = match &terms.program {
            _ if !terms.reach.variables.is_empty() => (
                None,
                "it has variables of its own, which no waiting worker has: its workers are started for it".into(),
            ),
            _ if !terms.can_wait() => (
                None,
                "it reaches directories, storage or the network, which no waiting worker does: its workers are started for it".into(),
            ),
            Some(program) => {
                let taken = self.spares.take(tenant, sandbox, program);
                let why = match taken {
                    Some(_) => {
                        self.starts.record_taken(tenant, sandbox, program);
                        String::new()
                    }
                    None => self.starts.record_missed(tenant, sandbox, program, self.spares.limit()),
                };
                (taken, why)
            }
            None => {
                let pool = self.pools.of(sandbox);
                let taken = pool.take();
                let why = taken.is_none().then(|| pool.absence_reason());
                (taken, why.unwrap_or_default())
            }
        };
        let came = match &taken {
            Some(worker) if worker.is_ready() && worker.is_forked() => WorkerOrigin::Warm(FROM_ZYGOTE.into()),
            Some(worker) if worker.is_ready() => {
                let program = terms.program.as_deref();
                let why = program.and_then(|program| self.spares.zygotes.absence_reason(tenant, sandbox, program));
                WorkerOrigin::Warm(why.unwrap_or_default())
            }
            Some(_) => WorkerOrigin::Unready,
            None => WorkerOrigin::Cold(why),
        };
        (taken, came)
    }

    /// Gives up the zygote of a lease's program: a fork has failed for the reason `why`, and the next fork would fail
    /// in the same way. The lease's worker is then started without a zygote.
    pub fn give_up_zygote(&self, terms: &Terms, why: &str) -> WorkerOrigin {
        if let Some(program) = &terms.program {
            let why = format!("a worker forked from its zygote does not start: {why}");
            let zygotes = &self.spares.zygotes;
            zygotes.refuse(&terms.request.tenant, terms.sandbox, program, why);
        }
        WorkerOrigin::Cold("the worker that was forked for it did not start".into())
    }

    /// Starts a worker for a lease, by a fork from a zygote if there is one.
    pub async fn start_worker(&self, terms: &Terms, came: &mut WorkerOrigin) -> Result<StartedWorker, StartError> {
        let (tenant, sandbox) = (&terms.request.tenant, terms.sandbox);
        let program = terms.program.as_ref();
        // A zygote and its forks have the access that every lease of their program has, so a lease with additional
        // access uses no zygote.
        if terms.reach.is_nothing()
            && let (Some(program), WorkerOrigin::Cold(why)) = (program, &mut *came)
        {
            match self.spares.zygotes.fork(tenant, sandbox, program).await {
                Ok(worker) => {
                    *came = WorkerOrigin::Forked(std::mem::take(why));
                    return Ok(worker);
                }
                Err(none) if none.is_empty() => {}
                Err(none) => *why = format!("{why}; {none}"),
            }
        }
        let mut worker = StartedWorker::start(&self.launcher, sandbox, program, &terms.reach).await?;
        if let (Some(listener), Some(storage)) = (worker.take_listener(), &terms.storage) {
            self.storage
                .serve(listener, Arc::clone(storage), worker.wait_until_gone());
        }
        Ok(worker)
    }
}
