//! The warm pool: workers that are started and belong to nobody, so that a lease need not wait for a
//! process to start. One that was used never comes back.

use crate::forecast::Forecast;
use crate::worker::Worker;
use hotlease_sandbox::{Kind, Launcher};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How long after a worker was taken the next one is started: starting at once would take the processor
/// from the very lease that took it. Also the least time between two starts of a lasting failure.
const REFILL_AFTER: Duration = Duration::from_millis(5);
/// A pooled worker that dies unused counts like this many failed starts: a pause of 80 ms.
const FAILURES_PER_DEATH: u32 = 4;
/// Longest pause between starts that fail.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// How long as many wait as leases were likely to come; one waits always.
const WAIT_LEAST: Duration = Duration::from_secs(600);
/// Before so many leases have come nobody knows how many are likely to: one waits for each core.
const ARRIVALS_LEAST: usize = 8;

/// Of the other kinds the nursery keeps sandboxes prepared, in which nothing runs yet.
const POOLED: Kind = Kind::Process;

/// See the module.
pub(crate) struct Pool {
    launcher: Launcher,
    begun: Instant,
    idle: Mutex<Idle>,
    taken: Notify,
}

struct Idle {
    /// Ready or starting. At most the target.
    workers: VecDeque<Worker>,
    target: usize,
    closed: bool,
    last_taken: Instant,
    forecast: Forecast,
}

impl Pool {
    /// An empty pool; [`keep_filled`](Self::keep_filled) fills it up to `target`.
    pub fn new(launcher: Launcher, target: usize) -> Self {
        Self {
            launcher,
            begun: Instant::now(),
            idle: Mutex::new(Idle {
                workers: VecDeque::new(),
                target,
                closed: false,
                last_taken: Instant::now(),
                forecast: Forecast::new(WAIT_LEAST),
            }),
            taken: Notify::new(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker that is ready or, failing that, one that soon will be.
    pub fn take(&self) -> Option<Worker> {
        let mut idle = self.idle();
        idle.last_taken = Instant::now();
        idle.workers.retain(|worker| !worker.is_closed());
        let ready = idle.workers.iter().position(Worker::is_ready).unwrap_or(0);
        let worker = idle.workers.remove(ready);
        drop(idle);
        self.taken.notify_one();
        worker
    }

    /// A lease of so many native workers began.
    pub fn lease_began(&self, workers: usize) {
        let now = self.begun.elapsed();
        self.idle().forecast.arrived(now, workers);
    }

    /// It is over.
    pub fn lease_over(&self, workers: usize) {
        let now = self.begun.elapsed();
        self.idle().forecast.ended(now, workers);
    }

    /// How many are likely to be asked for, of `most`. Those in use count, too: the pool is filled while leases run.
    pub fn likely(&self, most: usize) -> usize {
        let now = self.begun.elapsed();
        let idle = self.idle();
        match idle.forecast.arrivals() {
            ..ARRIVALS_LEAST => most,
            _ => idle.forecast.stock(now).keep.max(1).min(most),
        }
    }

    /// Why there was none to take.
    pub fn why_none(&self) -> String {
        match self.idle().target {
            0 => "the node keeps no warm pool of native workers".into(),
            target => format!(
                "all {target} workers of the node's warm pool were taken, and the next ones are being started"
            ),
        }
    }

    /// Sandboxes, process ids and resident memory of the workers that are ready.
    pub fn listing(&self) -> Vec<(Kind, u32, u64)> {
        let idle = self.idle();
        let ready = idle.workers.iter().filter(|worker| worker.is_ready());
        ready
            .map(|worker| (POOLED, worker.pid(), worker.resident_bytes()))
            .collect()
    }

    /// Workers that are ready.
    pub fn ready(&self) -> usize {
        self.idle()
            .workers
            .iter()
            .filter(|worker| worker.is_ready())
            .count()
    }

    /// Keeps as many from now on; kills those that are too many.
    pub fn keep(&self, target: usize) {
        let mut idle = self.idle();
        if idle.target == target {
            return;
        }
        idle.target = target;
        let kept = target.min(idle.workers.len());
        let surplus = idle.workers.split_off(kept);
        drop(idle);
        drop(surplus);
        self.taken.notify_one();
    }

    /// Kills the idle workers, and starts no more.
    pub fn close(&self) {
        let workers = {
            let mut idle = self.idle();
            idle.closed = true;
            std::mem::take(&mut idle.workers)
        };
        drop(workers);
        self.taken.notify_one();
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
                    // Nobody used it, and it died: the next may do the same.
                    failures = failures.max(FAILURES_PER_DEATH);
                }
                (idle.workers.len() < idle.target, idle.last_taken + REFILL_AFTER)
            };
            if !missing {
                tokio::select! {
                    () = self.taken.notified() => {}
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
            self.taken.notified().await;
        }
    }

    /// Adds one, and waits until it is ready so that starts do not pile up.
    async fn start_one(&self, lives: &mut JoinSet<()>) -> Result<(), String> {
        let worker = Worker::start(&self.launcher, POOLED, None, &Arc::default()).await?;
        let (settled, closed) = worker.milestones();
        {
            let mut idle = self.idle();
            if idle.closed || idle.workers.len() >= idle.target {
                return Ok(());
            }
            idle.workers.push_back(worker);
        }
        settled.await;
        let failed = {
            let mut idle = self.idle();
            let closed = idle.workers.iter().position(Worker::is_closed);
            closed.and_then(|position| idle.workers.remove(position))
        };
        match failed {
            Some(worker) => {
                let exit = worker.exited().await;
                Err(format!("{exit}; its last output: {}", exit.output))
            }
            None => {
                lives.spawn(closed);
                Ok(())
            }
        }
    }
}

fn backoff(failures: u32) -> Duration {
    (REFILL_AFTER * 2_u32.saturating_pow(failures.min(16))).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[tokio::test]
    async fn as_many_wait_as_leases_are_likely_to_come_and_one_for_each_core_until_that_is_known() {
        let pool = Pool::new(Launcher::new(Path::new("/bin/false")).expect("a program"), 64);
        for _ in 0..ARRIVALS_LEAST {
            assert_eq!(pool.likely(64), 64);
            pool.lease_began(2);
            pool.lease_over(2);
        }
        assert_eq!((pool.likely(64), pool.likely(1), pool.likely(0)), (2, 1, 0));
        for _ in 0..8 {
            pool.lease_began(2);
        }
        assert_eq!(pool.likely(64), 16, "eight leases of two were there at once");
    }

    #[tokio::test]
    async fn workers_that_die_at_once_are_not_started_in_a_busy_loop() {
        let launcher = Launcher::new(Path::new("/bin/false")).expect("a program");
        let pool = Arc::new(Pool::new(launcher.clone(), 2));
        let keeper = tokio::spawn(Arc::clone(&pool).keep_filled());
        sleep(Duration::from_millis(300)).await;
        assert_eq!(pool.ready(), 0);
        assert!(pool.take().is_none_or(|worker| !worker.is_ready()));
        pool.close();
        keeper.await.expect("the keeper ends");
        tokio::time::timeout(Duration::from_secs(10), launcher.all_gone())
            .await
            .expect("nothing is left");
        assert_eq!(backoff(1), REFILL_AFTER * 2);
        assert_eq!(backoff(u32::MAX), (REFILL_AFTER * 65536).min(BACKOFF_MAX));
    }
}
