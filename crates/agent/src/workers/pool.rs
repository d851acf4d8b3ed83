//! Warm pools: native workers that are started and assigned to no lease, so that a lease need not wait for a process to
//! start, nor for its sandbox. A used worker never returns to a pool. Each kind of sandbox has a pool.

use crate::workers::fabric_demand::{FabricDemand, PREPARE_AFTER};
use crate::workers::forecast::Forecast;
use crate::workers::worker::{BOOT_LIMIT, START_LIMIT, StartedWorker};
use hotlease_sandbox::{Kind, Launcher};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Largest number of workers in the warm pool.
pub(crate) const POOL_MAX: usize = 1024;
/// Delay between taking a worker and starting the next worker: starting at once would use the processor that the lease
/// needs. Also half of the pause after a failed start; each further failure doubles that pause.
const REFILL_AFTER: Duration = Duration::from_millis(5);
/// The death of an unused pooled worker counts as this many failed starts in a row, so the pause after it is 80 ms.
const FAILURES_PER_DEATH: u32 = 4;
/// Longest pause between starts that fail.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Time after the last lease for which the forecast wants workers in the pool, unless its past leases came after longer
/// pauses.
const WAIT_LEAST: Duration = Duration::from_secs(600);
/// Number of leases after which the forecast sets the pool's size. Until then, the pool of the default kind has one
/// worker for each core, unless that kind is `microvm`.
const ARRIVALS_LEAST: usize = 8;

/// Pools of a node, one for each kind of sandbox.
pub(crate) struct Pools([Arc<WorkerPool>; Kind::ALL.len()]);

/// Size of the pool for the node's default kind of sandbox. The other pools follow the leases that ask for their kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolTarget {
    pub kind: Kind,
    /// Number of workers that the operator has set; it also limits each other pool. `None` if the forecast decides.
    pub fixed: Option<usize>,
    /// Number of cores that the node offers: limit of the workers that the forecast puts into a pool.
    pub cores: usize,
}

impl Pools {
    /// Makes empty pools; [`WorkerPool::keep_filled`] fills each.
    pub fn new(launcher: &Launcher, fabric: &Arc<FabricDemand>, wanted: PoolTarget) -> Self {
        Self(Kind::ALL.map(|kind| Arc::new(WorkerPool::new(launcher.clone(), Arc::clone(fabric), kind, wanted))))
    }

    /// Pool of a kind.
    pub fn of(&self, kind: Kind) -> &Arc<WorkerPool> {
        // Every kind has a pool.
        let at = Kind::ALL.iter().position(|other| *other == kind);
        &self.0[at.unwrap_or_default()]
    }

    /// All pools.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<WorkerPool>> {
        self.0.iter()
    }

    /// Number of workers that are ready.
    pub fn ready(&self) -> usize {
        self.iter().map(|pool| pool.ready()).sum()
    }
}

/// Pool for one kind of sandbox.
pub(crate) struct WorkerPool {
    launcher: Launcher,
    fabric: Arc<FabricDemand>,
    kind: Kind,
    /// Number of workers that the operator has set: exact for the default kind, a maximum for the other kinds.
    fixed: Option<usize>,
    /// Whether this is the node's default kind, for which leases are expected even before the first lease (except for
    /// `microvm`).
    is_usual: bool,
    begun: Instant,
    idle: Mutex<PoolState>,
    /// Notified when workers were taken, or when the target or `closed` has changed.
    changed: Notify,
}

struct PoolState {
    /// Workers, ready or starting. At most `keep`.
    workers: VecDeque<StartedWorker>,
    /// Workers are started up to this number.
    fill: usize,
    /// Workers beyond this number are killed.
    keep: usize,
    closed: bool,
    last_taken: Instant,
    forecast: Forecast,
}

impl WorkerPool {
    fn new(launcher: Launcher, fabric: Arc<FabricDemand>, kind: Kind, wanted: PoolTarget) -> Self {
        let pool = Self {
            launcher,
            fabric,
            kind,
            fixed: wanted.fixed,
            is_usual: kind == wanted.kind,
            begun: Instant::now(),
            idle: Mutex::new(PoolState {
                workers: VecDeque::new(),
                fill: 0,
                keep: 0,
                closed: false,
                last_taken: Instant::now(),
                forecast: Forecast::new(WAIT_LEAST),
            }),
            changed: Notify::new(),
        };
        pool.set_limit(wanted.cores);
        pool
    }

    fn idle(&self) -> MutexGuard<'_, PoolState> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a worker that is ready or, if there is none, a worker that soon will be ready.
    pub fn take(&self) -> Option<StartedWorker> {
        let mut idle = self.idle();
        idle.last_taken = Instant::now();
        idle.workers.retain(|worker| !worker.is_closed());
        let ready = idle
            .workers
            .iter()
            .position(|worker| worker.is_ready() && !worker.fabric.is_under_way());
        let ready = ready.or_else(|| idle.workers.iter().position(StartedWorker::is_ready));
        let worker = idle.workers.remove(ready.unwrap_or(0));
        drop(idle);
        self.changed.notify_one();
        worker
    }

    /// Lets a worker load the library for fabrics, if it still waits and clients over fabrics are expected.
    pub fn prepare_fabric(&self, pid: u32) {
        let idle = self.idle();
        let waiting = idle.workers.iter().find(|worker| worker.pid() == pid);
        waiting.into_iter().for_each(|worker| self.fabric.prepare(worker));
    }

    /// Records that a lease of this many native workers began.
    pub fn lease_began(&self, workers: usize) {
        let now = self.begun.elapsed();
        self.idle().forecast.record_arrival(now, workers);
    }

    /// Records that a lease of this many native workers ended.
    pub fn lease_over(&self, workers: usize) {
        let now = self.begun.elapsed();
        self.idle().forecast.record_end(now, workers);
    }

    /// Returns two numbers of waiting workers, each at most `most`: workers are started up to the first number, and
    /// killed beyond the second. Workers in use are not deducted, so the pool is also full while leases run. Only for
    /// virtual machines they are deducted from the first number: starting machines would slow the leases down, so
    /// machines are started when leases end.
    fn fill_and_keep(&self, most: usize) -> (usize, usize) {
        let now = self.begun.elapsed();
        let idle = self.idle();
        let stock = idle.forecast.stock(now);
        match (idle.forecast.arrivals(), self.is_usual) {
            (..ARRIVALS_LEAST, true) if self.kind != Kind::MicroVm => (most, most),
            (0, _) => (0, 0),
            (_, is_usual) => {
                let keep = stock.keep.max(is_usual.into()).min(most);
                match self.kind {
                    Kind::MicroVm => (stock.fill.min(keep), keep),
                    _ => (keep, keep),
                }
            }
        }
    }

    /// Reason why there was no worker to take, for the client.
    pub fn absence_reason(&self) -> String {
        let kind = self.kind;
        match self.idle().keep {
            _ if self.fixed == Some(0) => "the node keeps no warm pool of native workers".into(),
            0 => format!("no native worker waited in a sandbox of kind {kind}: they do once leases ask for them"),
            _ => format!(
                "all native workers that waited in sandboxes of kind {kind} were taken, and the next ones are being started"
            ),
        }
    }

    /// Sandboxes, pids and resident memory of the workers that are ready.
    pub fn listing(&self) -> Vec<(Kind, u32, u64)> {
        let idle = self.idle();
        let ready = idle.workers.iter().filter(|worker| worker.is_ready());
        ready
            .map(|worker| (self.kind, worker.pid(), worker.resident_bytes()))
            .collect()
    }

    /// Number of workers that are ready.
    pub fn ready(&self) -> usize {
        self.idle().workers.iter().filter(|worker| worker.is_ready()).count()
    }

    /// From now on, lets as many workers wait as leases are likely to need, but at most `most`. A number that the
    /// operator has set for the default kind is used as it is, unless `most` is 0.
    pub fn set_limit(&self, most: usize) {
        let (fill, keep) = match (self.fixed, self.is_usual) {
            _ if most == 0 => (0, 0),
            (Some(fixed), true) => (fixed, fixed),
            (fixed, _) => self.fill_and_keep(most.min(fixed.unwrap_or(most))),
        };
        let mut idle = self.idle();
        if (idle.fill, idle.keep) == (fill, keep) {
            return;
        }
        (idle.fill, idle.keep) = (fill, keep);
        let kept = keep.min(idle.workers.len());
        let surplus = idle.workers.split_off(kept);
        drop(idle);
        drop(surplus);
        self.changed.notify_one();
    }

    /// Kills the idle workers, and starts no more.
    pub fn close(&self) {
        let workers = {
            let mut idle = self.idle();
            idle.closed = true;
            std::mem::take(&mut idle.workers)
        };
        drop(workers);
        self.changed.notify_one();
    }

    /// Starts workers whenever some are missing, one after the other, until the pool is closed.
    pub async fn keep_filled(self: Arc<Self>) {
        let mut lives = JoinSet::new();
        let mut failures = 0_u32;
        loop {
            let (missing, refill_at) = {
                let mut idle = self.idle();
                if idle.closed {
                    return;
                }
                let before = idle.workers.len();
                idle.workers.retain(|worker| !worker.is_closed());
                if idle.workers.len() < before {
                    // A worker died unused: the next worker may die, too.
                    failures = failures.max(FAILURES_PER_DEATH);
                }
                (idle.workers.len() < idle.fill, idle.last_taken + REFILL_AFTER)
            };
            if !missing {
                tokio::select! {
                    () = self.changed.notified() => {}
                    Some(_) = lives.join_next() => {}
                }
                continue;
            }
            if failures == 0 && Instant::now() < refill_at {
                sleep_until(refill_at).await;
                continue;
            }
            if failures > 0 {
                tokio::select! {
                    () = sleep(backoff(failures)) => {}
                    () = self.until_closed() => return,
                }
            }
            match self.start_one(&mut lives).await {
                Ok(()) => failures = 0,
                Err(why) => {
                    failures = failures.saturating_add(1);
                    if failures == 1 {
                        tracing::error!(why, "a pooled worker did not start");
                    }
                }
            }
        }
    }

    async fn until_closed(&self) {
        while !self.idle().closed {
            self.changed.notified().await;
        }
    }

    /// Starts one worker, and waits until it is ready so that starts do not pile up.
    async fn start_one(self: &Arc<Self>, lives: &mut JoinSet<()>) -> Result<(), String> {
        let counted = {
            let idle = self.idle();
            if idle.closed || idle.workers.len() >= idle.fill {
                return Ok(());
            }
            // The start is counted under the lock: once a limit of 0 is set, no start begins, and all starts that have
            // begun are counted.
            self.launcher.count_start()
        };
        let worker = StartedWorker::start(&self.launcher, self.kind, None, &Arc::default()).await;
        let worker = worker.map_err(|error| error.why)?;
        let (settled, closed) = worker.milestones();
        let pid = worker.pid();
        {
            let mut idle = self.idle();
            if idle.closed || idle.workers.len() >= idle.keep {
                return Ok(());
            }
            idle.workers.push_back(worker);
        }
        drop(counted);
        let limit = match self.kind {
            Kind::MicroVm => START_LIMIT + BOOT_LIMIT,
            _ => START_LIMIT,
        };
        let failed = match timeout(limit, settled).await {
            Ok(()) => self.remove(StartedWorker::is_closed),
            Err(_) => self.remove(|worker| !worker.is_ready()).inspect(StartedWorker::kill),
        };
        match failed {
            Some(worker) => {
                let exit = worker.wait_for_exit().await;
                Err(format!("{exit}; its last output: {}", exit.output))
            }
            None => {
                if self.fabric.is_expected() {
                    let pool = Arc::clone(self);
                    tokio::spawn(async move {
                        sleep(PREPARE_AFTER).await;
                        pool.prepare_fabric(pid);
                    });
                }
                lives.spawn(closed);
                Ok(())
            }
        }
    }

    fn remove(&self, which: impl Fn(&StartedWorker) -> bool) -> Option<StartedWorker> {
        let mut idle = self.idle();
        let at = idle.workers.iter().position(which)?;
        idle.workers.remove(at)
    }
}

fn backoff(failures: u32) -> Duration {
    (REFILL_AFTER * 2_u32.saturating_pow(failures.min(16))).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn some(usual: Kind, fixed: Option<usize>) -> Pools {
        let launcher = Launcher::new(Path::new("/bin/false")).expect("a program");
        Pools::new(
            &launcher,
            &Arc::default(),
            PoolTarget {
                kind: usual,
                fixed,
                cores: 64,
            },
        )
    }

    fn kept(pool: &WorkerPool) -> (usize, usize) {
        let idle = pool.idle();
        (idle.fill, idle.keep)
    }

    #[tokio::test]
    async fn workers_wait_for_each_likely_lease_and_one_for_each_core_at_first() {
        let pools = some(Kind::Namespace, None);
        let pool = pools.of(Kind::Namespace);
        for _ in 0..ARRIVALS_LEAST {
            pool.set_limit(64);
            assert_eq!(kept(pool), (64, 64));
            pool.lease_began(2);
            pool.lease_over(2);
        }
        for (most, expected) in [(64, 2), (1, 1), (0, 0)] {
            pool.set_limit(most);
            assert_eq!(kept(pool), (expected, expected));
        }
        for _ in 0..8 {
            pool.lease_began(2);
        }
        pool.set_limit(64);
        assert_eq!(kept(pool), (16, 16), "eight leases of two were there at once");
    }

    #[tokio::test]
    async fn in_other_kinds_than_the_usual_one_workers_wait_once_leases_have_asked_for_them() {
        let pools = some(Kind::Namespace, None);
        for kind in [Kind::Process, Kind::Container, Kind::MicroVm] {
            let pool = pools.of(kind);
            pool.set_limit(64);
            assert_eq!(kept(pool), (0, 0), "{kind}");
            assert!(pool.absence_reason().contains("they do once leases ask"));
            pool.lease_began(3);
            pool.set_limit(64);
            // Starting a virtual machine would slow the lease down.
            let fill = if kind == Kind::MicroVm { 0 } else { 3 };
            assert_eq!(kept(pool), (fill, 3), "{kind}");
            pool.lease_over(3);
            pool.set_limit(64);
            assert_eq!(kept(pool), (3, 3), "{kind}");
        }
    }

    #[tokio::test]
    async fn the_operators_word_stays_for_the_usual_kind_and_bounds_the_others() {
        for fixed in [0, 2] {
            let pools = some(Kind::Process, Some(fixed));
            for kind in Kind::ALL {
                let pool = pools.of(kind);
                for _ in 0..9 {
                    pool.lease_began(3);
                    pool.lease_over(3);
                }
                pool.set_limit(64);
                assert_eq!(kept(pool), (fixed, fixed), "{kind}");
                pool.set_limit(0);
                assert_eq!(kept(pool), (0, 0), "{kind}");
            }
        }
    }

    #[tokio::test]
    async fn workers_that_die_at_once_are_not_started_in_a_busy_loop() {
        let pools = some(Kind::Process, Some(2));
        let pool = Arc::clone(pools.of(Kind::Process));
        let keeper = tokio::spawn(Arc::clone(&pool).keep_filled());
        sleep(Duration::from_millis(300)).await;
        assert_eq!(pools.ready(), 0);
        assert!(pool.take().is_none_or(|worker| !worker.is_ready()));
        pool.close();
        keeper.await.expect("the keeper ends");
        timeout(Duration::from_secs(10), pool.launcher.all_gone())
            .await
            .expect("nothing is left");
        assert_eq!(backoff(1), REFILL_AFTER * 2);
        assert_eq!(backoff(u32::MAX), (REFILL_AFTER * 65536).min(BACKOFF_MAX));
    }
}
