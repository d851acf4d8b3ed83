//! Turns of tenants on shared cores, and moves of workers to idle cores.
//!
//! If several workers share a core, the agent measures which of them used the core. It holds back the tenants that used
//! the core more than others (`lease::agent::Fairness`), and moves workers to idle cores (`lease::agent::Balance`).

use crate::leases::active_lease::ActiveLease;
use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState};
use crate::node::Node;
use hotlease_lease::agent::{
    Balance, BookEvent, CoreMove, CorePermission, Fairness, LOOK_PERIOD, LoadSample, WorkerSample,
};
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// A worker on a shared core.
struct SharedWorker {
    lease: Arc<ActiveLease>,
    incarnation: Arc<Incarnation>,
    pid: u32,
    is_moving: bool,
}

/// Workers that may claim a core.
#[derive(Default)]
struct CoreWorkers {
    workers: Vec<SharedWorker>,
    /// Processes of workers that are being moved to the core.
    arriving: Vec<u32>,
}

/// Findings of the looks at shared cores.
#[derive(Default)]
struct Turns {
    /// Turns on the cores that several tenants share.
    contests: BTreeMap<u32, Fairness>,
    /// For each core, a process that holds the core's claim and is not a worker of the core.
    strangers: BTreeMap<u32, u32>,
    balance: Balance,
}

/// Enforces the turns on shared cores, for ever. Costs nothing while each worker is alone on its core and no worker was
/// moved; otherwise costs a microsecond for each worker every [`LOOK_PERIOD`].
pub(crate) async fn keep_turns(node: Arc<Node>) {
    let mut shares = node.shares_cores();
    let mut turns = Turns::default();
    let mut looks = interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        if !*shares.borrow() {
            // At most one worker is left on each core. This look releases all workers that were held back.
            turns.look(&node, last.elapsed());
            // Cannot fail: the node owns the sender, and this task keeps the node alive.
            let _ = shares.wait_for(|shares| *shares).await;
            (turns.balance, turns.strangers) = Default::default();
            last = Instant::now();
        }
        looks.tick().await;
        let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
        turns.look(&node, elapsed);
    }
}

/// Workers that serve on shared cores.
fn shared_workers(node: &Node) -> BTreeMap<u32, CoreWorkers> {
    let leases: Vec<_> = node.tables().leases.values().cloned().collect();
    let mut cores: BTreeMap<u32, CoreWorkers> = BTreeMap::new();
    for lease in leases.into_iter().filter(|lease| lease.terms.is_shared()) {
        for incarnation in lease.incarnations() {
            if let (IncarnationState::Up(worker), (Some(core), to)) = (incarnation.state(), incarnation.shared_core()) {
                let pid = worker.pid();
                if let Some(to) = to {
                    cores.entry(to).or_default().arriving.push(pid);
                }
                cores.entry(core).or_default().workers.push(SharedWorker {
                    lease: Arc::clone(&lease),
                    incarnation,
                    pid,
                    is_moving: to.is_some(),
                });
            }
        }
    }
    cores
}

/// Process that holds the claim of a core.
fn holder_of(core: u32, node: &Node) -> Option<u32> {
    node.supply.claims.of(core).ok().and_then(|file| file.holder())
}

impl Turns {
    fn look(&mut self, node: &Arc<Node>, elapsed: Duration) {
        let cores = shared_workers(node);
        self.contests.retain(|core, _| cores.contains_key(core));
        self.strangers.retain(|core, _| cores.contains_key(core));
        let mut loads = Vec::new();
        for (core, on) in &cores {
            let holder = holder_of(*core, node);
            self.drive_out(*core, holder, on, node);
            let seen: Vec<WorkerSample<'_>> = on.workers.iter().map(|worker| worker.sample(holder)).collect();
            self.hold_back(*core, elapsed, (&on.workers, &seen), node);
            loads.extend(on.workers.iter().zip(&seen).map(|(worker, seen)| LoadSample {
                worker: *seen,
                lease: worker.lease.id,
                core: *core,
                slots: worker.incarnation.cores().len() as u32,
                is_moving: worker.is_moving,
            }));
        }
        let moves = self.balance.observe(elapsed, &loads, || node.tables().room_for_moves());
        for CoreMove { worker, core } in moves {
            let mut workers = cores.values().flat_map(|on| &on.workers);
            if let Some(moved) = workers.find(|known| u64::from(known.pid) == worker) {
                // Refused if the lease has begun to end, or the core was taken meanwhile.
                let _ = node.step(BookEvent::Move {
                    lease: moved.lease.id,
                    worker: moved.incarnation.index,
                    epoch: moved.incarnation.epoch,
                    core,
                });
            }
        }
    }

    /// Holds back tenants that have used a core more than others.
    fn hold_back(
        &mut self,
        core: u32,
        elapsed: Duration,
        (workers, seen): (&[SharedWorker], &[WorkerSample<'_>]),
        node: &Node,
    ) {
        if seen.windows(2).all(|pair| pair[0].tenant == pair[1].tenant) {
            // Only one tenant: no fairness is needed.
            self.contests.remove(&core);
            workers.iter().for_each(|worker| worker.incarnation.hold_back(false));
            return;
        }
        let contest = self
            .contests
            .entry(core)
            .or_insert_with(|| Fairness::new(node.identity.sharing.call_limit));
        for ((_, permission), worker) in contest.observe(elapsed, seen).into_iter().zip(workers) {
            worker.incarnation.hold_back(permission != CorePermission::Allowed);
            if permission == CorePermission::Overstayed {
                worker.incarnation.kill(KillReason::Unusable(
                    "it went on using a shared core when it was another tenant's turn",
                ));
            }
        }
    }

    /// Kills a stranger that two successive looks have seen. A stranger is a process that a function has started: it
    /// can claim the worker's core and outlive the worker. A worker that has left the core but still has the core's
    /// claim file is a stranger, too. No other process has the file. If the stranger belongs to a living worker, that
    /// worker is killed too, because more of its processes may wait for the claim.
    fn drive_out(&mut self, core: u32, holder: Option<u32>, on: &CoreWorkers, node: &Node) {
        let is_known = |pid| on.workers.iter().any(|worker| worker.pid == pid) || on.arriving.contains(&pid);
        // A worker that is being killed is not in `on.workers` any more.
        let stranger = holder.filter(|holder| !is_known(*holder));
        let before = match stranger {
            Some(pid) => self.strangers.insert(core, pid),
            None => self.strangers.remove(&core),
        };
        if let Some(pid) = stranger
            && stranger == before
            && let found = worker_of(pid, &on.workers)
            && holder_of(core, node) == Some(pid)
        {
            tracing::warn!(
                core,
                pid,
                "a process that is none of its workers holds a shared core; killing it"
            );
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
            if let Some(member) = found {
                member
                    .incarnation
                    .kill(KillReason::Unusable("a process that it started took a shared core"));
            }
        }
    }
}

impl SharedWorker {
    fn sample(&self, holder: Option<u32>) -> WorkerSample<'_> {
        WorkerSample {
            worker: self.pid.into(),
            tenant: &self.lease.terms.request.tenant,
            computed: processor_time(self.pid),
            holds: holder == Some(self.pid),
            refused: self.incarnation.refused_invocations(),
        }
    }
}

/// The worker in whose sandbox a process runs.
fn worker_of(pid: u32, members: &[SharedWorker]) -> Option<&SharedWorker> {
    let own = pid_namespace(std::process::id());
    let of = pid_namespace(pid).filter(|of| own.is_some_and(|own| own != *of));
    members
        .iter()
        .find(|member| of.is_some() && pid_namespace(member.pid) == of)
}

/// PID namespace of a process; each sandbox has its own. `None` if the process is gone.
fn pid_namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Processor time of a process, with all its threads, as the kernel reports it.
fn processor_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    let time = clock.and_then(clock_gettime);
    time.map_or(Duration::ZERO, Duration::from)
}
