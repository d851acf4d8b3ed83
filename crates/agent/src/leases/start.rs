//! Start of one lease, step by step: the durations for each of its workers, and whether they had waited for the lease.

use crate::leases::active_lease::ActiveLease;
use crate::node::Node;
use crate::workers::worker::{StartError, Worker};
use hotlease_wire::grpc::LeaseStart;
use hotlease_wire::session::{StartPhases, StartSteps};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Origin of a worker.
pub(crate) enum WorkerOrigin {
    /// It was ready and waited; the text says why no zygote was used, if that matters.
    Warm(String),
    /// It was being started for the next lease.
    Unready,
    /// It was started for this lease, for this reason.
    Cold(String),
    /// It was forked from a zygote for this lease, for this reason.
    Forked(String),
}

/// Text for a worker that was forked after the imports.
const FROM_ZYGOTE: &str = "forked from a zygote that has done its imports";

/// Start of an incarnation, with its durations.
#[derive(Default)]
pub(crate) struct IncarnationStart {
    phases: Mutex<StartPhases>,
    up: OnceLock<Instant>,
    connect: OnceLock<Duration>,
}

impl IncarnationStart {
    /// Records that its worker serves; the worker was requested at `begun`, and ready at `ready`.
    pub fn record_up(
        &self,
        lease: &ActiveLease,
        worker: &Worker,
        came: &WorkerOrigin,
        (begun, ready): (Instant, Instant),
    ) {
        let start_us = us(ready.duration_since(begun));
        let warm = matches!(came, WorkerOrigin::Warm(_));
        let (mut steps, cold) = match came {
            WorkerOrigin::Warm(said) => (StartSteps::default(), said.clone()),
            WorkerOrigin::Unready => {
                let waited = StartSteps {
                    interpreter_us: Some(start_us),
                    ..StartSteps::default()
                };
                let why = "the worker that was to wait for it was still being started";
                let said = match worker.is_forked() {
                    true => format!("{FROM_ZYGOTE}: {why}"),
                    false => why.into(),
                };
                (waited, said)
            }
            WorkerOrigin::Cold(why) => (worker.steps(), why.clone()),
            WorkerOrigin::Forked(why) => (worker.steps(), format!("{FROM_ZYGOTE}: {why}")),
        };
        steps.image_us = lease.terms.image.map(us);
        let phases = StartPhases {
            pooled: warm.into(),
            started: (!warm).into(),
            grant_us: us(lease.granting()),
            start_us,
            steps,
            configure_us: us(ready.elapsed()),
            cold,
        };
        tracing::debug!(lease = %lease.id, pid = worker.pid(), ?phases, "worker up");
        *self.phases.lock().unwrap_or_else(PoisonError::into_inner) = phases;
        let _ = self.up.set(Instant::now());
    }

    /// Whether its worker has ever served.
    pub fn was_up(&self) -> bool {
        self.up.get().is_some()
    }

    /// Records that a client has connected to it.
    pub fn record_connection(&self) {
        if let Some(up) = self.up.get() {
            // The first connection's time counts.
            let _ = self.connect.set(up.elapsed());
        }
    }

    /// Durations of the steps of its start.
    pub fn phases(&self) -> StartPhases {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ActiveLease {
    /// Takes a worker that waits for such a lease, if there is one; also returns the origin of the lease's worker.
    pub fn waiting_worker(&self, node: &Node) -> (Option<Worker>, WorkerOrigin) {
        let (tenant, sandbox) = (&self.terms.tenant, self.terms.sandbox);
        let (taken, why) = match &self.terms.program {
            _ if !self.terms.can_wait() => (
                None,
                "it reaches directories, storage or the network, which nobody does who waits: its workers are started for it".into(),
            ),
            Some(program) => {
                let taken = node.spares.take(tenant, sandbox, program);
                let why = match taken {
                    Some(_) => {
                        node.starts.record_taken(tenant, sandbox, program);
                        String::new()
                    }
                    None => node.starts.record_missed(tenant, sandbox, program, node.spares.limit()),
                };
                (taken, why)
            }
            None => {
                let pool = node.pools.of(sandbox);
                let taken = pool.take();
                let why = taken.is_none().then(|| pool.why_none());
                (taken, why.unwrap_or_default())
            }
        };
        let came = match &taken {
            Some(worker) if worker.is_ready() && worker.is_forked() => WorkerOrigin::Warm(FROM_ZYGOTE.into()),
            Some(worker) if worker.is_ready() => {
                let program = self.terms.program.as_deref();
                let why = program.and_then(|program| node.spares.zygotes.why_none(tenant, sandbox, program));
                WorkerOrigin::Warm(why.unwrap_or_default())
            }
            Some(_) => WorkerOrigin::Unready,
            None => WorkerOrigin::Cold(why),
        };
        (taken, came)
    }

    /// Gives up the zygote of its program, because a fork did not come up, for this reason: the next fork would fail in
    /// the same way. Its worker is then started without a zygote.
    pub fn give_up_zygote(&self, node: &Node, why: &str) -> WorkerOrigin {
        if let Some(program) = &self.terms.program {
            let why = format!("what is forked from its zygote does not come up: {why}");
            let zygotes = &node.spares.zygotes;
            zygotes.refuse(&self.terms.tenant, self.terms.sandbox, program, why);
        }
        WorkerOrigin::Cold("the worker that was forked for it did not come up".into())
    }

    /// Starts a worker for it, by a fork from a zygote where there is one.
    pub async fn start_worker(&self, node: &Node, came: &mut WorkerOrigin) -> Result<Worker, StartError> {
        let (tenant, sandbox) = (&self.terms.tenant, self.terms.sandbox);
        let program = self.terms.program.as_ref();
        // A zygote and its workers have the same access as every lease of their program, so it must be none.
        if self.terms.reach.is_nothing()
            && let (Some(program), WorkerOrigin::Cold(why)) = (program, &mut *came)
        {
            match node.spares.zygotes.fork(tenant, sandbox, program).await {
                Ok(worker) => {
                    *came = WorkerOrigin::Forked(std::mem::take(why));
                    return Ok(worker);
                }
                Err(none) if none.is_empty() => {}
                Err(none) => *why = format!("{why}; {none}"),
            }
        }
        let mut worker = Worker::start(node.launcher(), sandbox, program, &self.terms.reach).await?;
        if let (Some(listener), Some(storage)) = (worker.take_listener(), &self.terms.storage) {
            node.identity
                .storage
                .serve(listener, Arc::clone(storage), worker.gone());
        }
        Ok(worker)
    }

    /// Durations and origins of its start, as far as known.
    pub fn start(&self) -> LeaseStart {
        let mut start = LeaseStart {
            sandbox: self.terms.sandbox.to_string(),
            reach: Some(self.terms.reach_told.clone()),
            grant_ns: Some(ns(self.granting())),
            ..LeaseStart::default()
        };
        let mut configure = 0;
        for incarnation in self.incarnations() {
            if let Some(keeping) = &incarnation.keeping {
                start.state = keeping.history();
                start.restore_ns = keeping.restoring().map(ns);
            }
            if !incarnation.start.was_up() {
                continue;
            }
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
            start.connect_ns = start.connect_ns.max(incarnation.start.connect.get().copied().map(ns));
            start.first_call_ns = start.first_call_ns.max(incarnation.first_call_ns());
        }
        start.grant_ns = start.grant_ns.map(|grant| grant + configure);
        // For a native worker, loading the library takes the place of an interpreter's imports.
        start.imports_ns = start.imports_ns.or(self.loading.get().copied().map(ns));
        start
    }
}

fn us(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}
