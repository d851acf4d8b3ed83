//! Turns of tenants on shared cores.
//!
//! Where several tenants want the same core, the agent looks at which ones used it, and holds back those that used more
//! (`lease::agent::Fairness`).

use crate::leases::active_lease::ActiveLease;
use crate::leases::cause::KillReason;
use crate::leases::incarnation::{Incarnation, IncarnationState};
use crate::node::Node;
use hotlease_lease::agent::{CorePermission, Fairness, LOOK_PERIOD, WorkerSample};
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
}

/// State of a core that several tenants share.
struct CoreContest {
    turns: Fairness,
    /// A process that holds the claim and is none of the workers.
    stranger: Option<u32>,
}

/// Keeps the turns on cores that several tenants share, for ever. Costs nothing while no lease is shared, and otherwise
/// a microsecond for each worker on such a core every [`TURN`].
pub(crate) async fn keep_turns(node: Arc<Node>) {
    let mut shared = node.shared_leases();
    let mut contests: BTreeMap<u32, CoreContest> = BTreeMap::new();
    let mut looks = interval(LOOK_PERIOD);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        if *shared.borrow() < 2 {
            // At most one tenant is left, so no worker is held back any more.
            check_turns(&node, &mut contests, last.elapsed());
            // Cannot fail: the sender lives in the node, which this task keeps alive.
            let _ = shared.wait_for(|leases| *leases >= 2).await;
            last = Instant::now();
        }
        looks.tick().await;
        let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
        check_turns(&node, &mut contests, elapsed);
    }
}

fn check_turns(node: &Node, contests: &mut BTreeMap<u32, CoreContest>, elapsed: Duration) {
    let cores = members(node);
    contests.retain(|core, _| cores.contains_key(core));
    for (core, members) in cores {
        let tenant = &members[0].lease.terms.request.tenant;
        if members
            .iter()
            .all(|member| member.lease.terms.request.tenant == *tenant)
        {
            // Only one tenant: no fairness is needed.
            contests.remove(&core);
            members.iter().for_each(|member| member.incarnation.hold_back(false));
            continue;
        }
        let contest = contests.entry(core).or_insert_with(|| CoreContest {
            turns: Fairness::new(node.identity.sharing.call_limit),
            stranger: None,
        });
        let holder = node.supply.claims.of(core).ok().and_then(|file| file.holder());
        contest.drive_out(core, holder, &members, node);
        contest.hold_back(elapsed, holder, &members);
    }
}

/// Workers that serve on shared cores.
fn members(node: &Node) -> BTreeMap<u32, Vec<SharedWorker>> {
    let leases: Vec<_> = node.tables().leases.values().cloned().collect();
    let mut cores: BTreeMap<u32, Vec<SharedWorker>> = BTreeMap::new();
    for lease in leases.into_iter().filter(|lease| lease.terms.is_shared()) {
        for incarnation in lease.incarnations() {
            if let (IncarnationState::Up(worker), Some(core)) = (incarnation.state(), incarnation.cores.first()) {
                cores.entry(*core).or_default().push(SharedWorker {
                    pid: worker.pid(),
                    lease: Arc::clone(&lease),
                    incarnation,
                });
            }
        }
    }
    cores
}

impl CoreContest {
    fn hold_back(&mut self, elapsed: Duration, holder: Option<u32>, members: &[SharedWorker]) {
        let seen: Vec<WorkerSample<'_>> = members
            .iter()
            .map(|member| WorkerSample {
                worker: member.pid.into(),
                tenant: &member.lease.terms.request.tenant,
                computed: processor_time(member.pid),
                holds: holder == Some(member.pid),
                refused: member.incarnation.refused(),
            })
            .collect();
        for ((_, turn), member) in self.turns.observe(elapsed, &seen).into_iter().zip(members) {
            member.incarnation.hold_back(turn != CorePermission::Allowed);
            if turn == CorePermission::Overstayed {
                member.incarnation.kill(KillReason::Unusable(
                    "it went on using a shared core when it was another tenant's turn",
                ));
            }
        }
    }

    /// Kills a stranger that was seen twice: a process that a function has started can claim the worker's core, too,
    /// and outlive the worker. No other process has the claim file. A worker that lives is killed with it, because more
    /// of its processes may wait for the claim.
    fn drive_out(&mut self, core: u32, holder: Option<u32>, members: &[SharedWorker], node: &Node) {
        let stranger = holder.filter(|holder| members.iter().all(|member| member.pid != *holder));
        // A worker that is being killed is not among the members any more.
        let seen_twice = stranger.is_some() && stranger == self.stranger;
        self.stranger = stranger;
        if let Some(pid) = stranger
            && seen_twice
            && let found = worker_of(pid, members)
            && node.supply.claims.of(core).ok().and_then(|file| file.holder()) == Some(pid)
        {
            tracing::warn!(core, pid, "a process that is no worker holds a shared core; killing it");
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
            if let Some(member) = found {
                member
                    .incarnation
                    .kill(KillReason::Unusable("a process that it started took a shared core"));
            }
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

/// Namespace of a process's number, which the processes of a sandbox have for themselves; `None`: it is gone.
fn pid_namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Processor time of a process, with all its threads, as the kernel reports it.
fn processor_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid as i32));
    let time = clock.and_then(clock_gettime);
    time.map_or(Duration::ZERO, Duration::from)
}
