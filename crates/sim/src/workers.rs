//! Workers of a node: processes that take time to start and to die, and run functions in between.

use crate::message::{Frame, Message, Reply, SlotResult};
use crate::node::Node;
use crate::shared_state::{MessageOrder, SharedState, SimEvent};
use crate::truth::Occupant;
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_wire::ids::{BootId, CodeHash, Epoch, LeaseId, WorkerIndex};
use hotlease_wire::session::UsageTotals;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const START_MAX: Duration = Duration::from_millis(30);
/// Longest time from the signal until the process is reaped. It is shorter than the time limit for removing a node.
const REAP_MAX: Duration = Duration::from_millis(50);
/// Tolerance for the order of events at the same time.
const SLACK: Duration = Duration::from_millis(1);
/// Longest time from the end of the agent until the worker's lifeline ends the worker.
const LIFELINE_MAX: Duration = Duration::from_millis(20);
/// Largest number of frames that wait in one slot.
const QUEUE_MAX: usize = 64;

/// Usage of a process that is gone.
#[derive(Debug)]
pub struct WorkerUsage {
    pub lease: LeaseId,
    pub worker: WorkerIndex,
    pub epoch: Epoch,
    pub used: UsageTotals,
    pub functions: FunctionTotals,
}

struct WorkerProcess {
    boot: BootId,
    lease: LeaseId,
    worker: WorkerIndex,
    epoch: Epoch,
    core: u32,
    shared: bool,
    is_up: bool,
    is_dying: bool,
    /// Whether the worker's agent is dead, so that no process reaps the worker.
    is_orphan: bool,
    running: Option<(Frame, Duration)>,
    waiting: VecDeque<Frame>,
    computed: Duration,
    invocations: u64,
    functions: FunctionTotals,
}

/// Function that a task calls.
fn function_of(task: usize) -> FunctionId {
    FunctionId::new(CodeHash([7; 32]), ["f", "g", "h"][task % 3])
}

/// Workers of a node.
pub struct Workers {
    agent: usize,
    processes: BTreeMap<u64, WorkerProcess>,
    /// Processes that have claimed shared cores, by core; stands for the kernel's locks.
    claims: BTreeMap<u32, u64>,
}

impl Workers {
    pub fn new(agent: usize) -> Self {
        Self {
            agent,
            processes: BTreeMap::new(),
            claims: BTreeMap::new(),
        }
    }

    fn node(&self) -> Node {
        Node::Agent(self.agent)
    }

    /// Whether no process is left.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub fn start(
        &mut self,
        boot: BootId,
        (lease, worker, epoch): (LeaseId, WorkerIndex, Epoch),
        (cores, gpus, shared): (Vec<u32>, Vec<u32>, bool),
        site: &mut SharedState,
    ) {
        let id = site.truth.next_process();
        let node = self.node();
        for core in cores.iter().filter(|_| shared) {
            self.share(*core, id, site);
        }
        for core in cores.iter().filter(|_| !shared) {
            let on = site.truth.shared.get(&(self.agent, *core));
            let is_shared = on.is_some_and(|on| !on.is_empty());
            site.check_promise(node, !is_shared, || {
                format!("core {core} of lease {lease} is its own, and is shared")
            });
            let occupant = Occupant {
                process: id,
                lease,
                epoch,
            };
            let before = site.truth.cores.insert((self.agent, *core), occupant);
            site.check_promise(node, before.is_none(), || {
                format!("core {core} serves lease {lease} in epoch {epoch} while {before:?} still lives")
            });
        }
        for gpu in gpus {
            let before = site.truth.gpus.insert((self.agent, gpu), id);
            let there = gpu < site.scenario.gpus[self.agent];
            site.check_promise(node, before.is_none() && there, || {
                format!("GPU {gpu} is given to lease {lease} in epoch {epoch} while process {before:?} has it")
            });
        }
        let process = WorkerProcess {
            boot,
            lease,
            worker,
            epoch,
            core: cores.first().copied().unwrap_or_default(),
            shared,
            is_up: false,
            is_dying: false,
            is_orphan: false,
            running: None,
            waiting: VecDeque::new(),
            computed: Duration::ZERO,
            invocations: 0,
            functions: FunctionTotals::default(),
        };
        self.processes.insert(id, process);
        let takes = site.up_to(START_MAX);
        let crashes = site.scenario.worker_crashes;
        if site.draw_fault(crashes / 4.0) {
            // The worker cannot be started.
            return site.after(takes, node, SimEvent::WorkerReaped { process: id });
        }
        site.after(takes, node, SimEvent::WorkerUp { process: id });
    }

    /// Puts a process on a shared core.
    fn share(&self, core: u32, id: u64, site: &mut SharedState) {
        let node = self.node();
        let own = site.truth.cores.get(&(self.agent, core)).cloned();
        site.check_promise(node, own.is_none(), || {
            format!("core {core} is shared, and is {own:?}'s own")
        });
        let places = site.scenario.places_per_core as usize;
        let on = site.truth.shared.entry((self.agent, core)).or_default();
        on.insert(id);
        let fits = on.len() <= places;
        site.check_promise(node, fits, || {
            format!("core {core} is shared by more than {places} slots")
        });
    }

    /// The process of this incarnation of a worker.
    pub fn process_of(&self, of: (LeaseId, WorkerIndex, Epoch)) -> Option<u64> {
        let mut processes = self.processes.iter();
        let found =
            processes.find(|(_, process)| !process.is_orphan && (process.lease, process.worker, process.epoch) == of);
        found.map(|(id, _)| *id)
    }

    /// Moves a process to another shared core, unless it runs a function. Returns the worker and whether it has moved,
    /// or `None` if the process does not answer.
    pub fn move_to(
        &mut self,
        id: u64,
        core: u32,
        site: &mut SharedState,
    ) -> Option<((LeaseId, WorkerIndex, Epoch), bool)> {
        let process = self.processes.get_mut(&id).filter(|process| !process.is_dying)?;
        let of = (process.lease, process.worker, process.epoch);
        if process.running.is_some() {
            return Some((of, false));
        }
        let left = std::mem::replace(&mut process.core, core);
        if let Some(on) = site.truth.shared.get_mut(&(self.agent, left)) {
            on.remove(&id);
        }
        self.share(core, id, site);
        Some((of, true))
    }

    pub fn up(&mut self, id: u64) -> Option<(LeaseId, WorkerIndex, Epoch)> {
        let process = self.processes.get_mut(&id)?;
        if process.is_orphan || process.is_dying {
            return None;
        }
        process.is_up = true;
        Some((process.lease, process.worker, process.epoch))
    }

    pub fn kill(&mut self, lease: LeaseId, worker: WorkerIndex, epoch: Epoch, site: &mut SharedState) {
        let node = self.node();
        let which = self.processes.iter_mut().find(|(_, process)| {
            !process.is_orphan && (process.lease, process.worker, process.epoch) == (lease, worker, epoch)
        });
        if let Some((id, process)) = which
            && !process.is_dying
        {
            process.is_dying = true;
            let takes = site.up_to(REAP_MAX);
            site.after(takes, node, SimEvent::WorkerReaped { process: *id });
        }
    }

    /// Handles the death of the agent: all workers end soon.
    pub fn orphan_all(&mut self, site: &mut SharedState) {
        let node = self.node();
        for (id, process) in &mut self.processes {
            process.is_orphan = true;
            let takes = site.up_to(LIFELINE_MAX);
            site.after(takes, node, SimEvent::WorkerReaped { process: *id });
        }
    }

    /// Removes a dead process. Returns its usage, or `None` if there is no agent to report it to.
    pub fn reap(&mut self, id: u64, site: &mut SharedState) -> Option<WorkerUsage> {
        let mut process = self.processes.remove(&id)?;
        site.truth.cores.retain(|_, occupant| occupant.process != id);
        site.truth.gpus.retain(|_, process| *process != id);
        for on in site.truth.shared.values_mut() {
            on.remove(&id);
        }
        self.claims.retain(|_, holder| *holder != id);
        // The function in which the process died is counted up to now.
        if let Some((frame, since)) = process.running.take() {
            process.compute(frame.task, site.now - since, site);
        }
        site.note(self.node(), || format!("worker process {id} is reaped"));
        (!process.is_orphan).then_some(WorkerUsage {
            lease: process.lease,
            worker: process.worker,
            epoch: process.epoch,
            used: process.used(),
            functions: process.functions,
        })
    }

    /// Checks that no process outlives its lease by more than the time for killing it, unless its agent is paused.
    pub fn check_outlived(&self, site: &mut SharedState) {
        let node = self.node();
        let given_back = site.truth.given_back.get(&self.agent).copied();
        for (id, process) in &self.processes {
            if let Some((boot, until)) = given_back
                && process.boot == boot
            {
                let until = site.scenario.awake_since(node, until, site.now);
                let outlived = site.now.saturating_sub(until);
                site.check_promise(node, process.is_orphan || outlived <= REAP_MAX + SLACK, || {
                    format!("process {id} runs {outlived:?} after the node was to be given back")
                });
            }
            let Some(truth) = site.truth.leases.get(&process.lease) else {
                continue;
            };
            let expired = site.scenario.awake_since(node, truth.expires_truly, site.now);
            let outlived = site.now.saturating_sub(expired);
            site.check_promise(node, process.is_orphan || outlived <= REAP_MAX + SLACK, || {
                format!(
                    "process {id} outlives the expiry of lease {} by {outlived:?}",
                    process.lease
                )
            });
        }
    }

    /// Usage of the living workers of a lease.
    pub fn used_by(&self, boot: BootId, lease: LeaseId) -> UsageTotals {
        let of_lease = self
            .processes
            .values()
            .filter(|process| process.boot == boot && process.lease == lease);
        of_lease.fold(UsageTotals::default(), |sum, process| {
            crate::truth::sum(sum, process.used())
        })
    }

    /// Usage of the living workers of a lease, by function.
    pub fn functions_of(&self, boot: BootId, lease: LeaseId) -> FunctionTotals {
        let processes = self.processes.values();
        let of_lease = processes.filter(|process| process.boot == boot && process.lease == lease);
        of_lease.fold(FunctionTotals::default(), |mut sum, process| {
            sum.add_all(&process.functions);
            sum
        })
    }

    /// Handles a frame that arrives at the slot of a core. Slots of another run of the agent do not see the frame,
    /// because they have other memory.
    pub fn receive(&mut self, frame: Frame, site: &mut SharedState) {
        let node = self.node();
        let at_core = |process: &&mut WorkerProcess| {
            // A worker on a shared core may have been moved since its client was told the core.
            let its = match process.shared {
                true => (process.lease, process.worker) == (frame.lease, frame.worker),
                false => process.core == frame.core,
            };
            process.boot == frame.boot && process.is_up && its
        };
        let Some(process) = self.processes.values_mut().find(at_core) else {
            return;
        };
        if !process.epoch.admits(frame.epoch) {
            return reply(site, node, frame, SlotResult::Stale);
        }
        site.check_promise(
            node,
            process.lease == frame.lease && process.epoch == frame.epoch,
            || {
                format!(
                    "the slot of core {} in epoch {} of lease {} took a frame of epoch {} of lease {}",
                    frame.core, process.epoch, process.lease, frame.epoch, frame.lease
                )
            },
        );
        if process.waiting.len() < QUEUE_MAX {
            process.waiting.push_back(frame);
        }
        self.run_next(site);
    }

    fn run_next(&mut self, site: &mut SharedState) {
        let node = self.node();
        let on_shared = self.processes.iter().filter(|(_, process)| process.shared);
        let busy = on_shared.filter(|(_, process)| process.running.is_some());
        let mut running: BTreeMap<u32, u64> = busy.map(|(id, process)| (process.core, *id)).collect();
        for (id, process) in &mut self.processes {
            if process.running.is_some() {
                continue;
            }
            let mut next = process.waiting.pop_front();
            if process.shared && next.is_some() {
                let holder = *self.claims.entry(process.core).or_insert(*id);
                while holder != *id
                    && let Some(frame) = next.take()
                {
                    let core = process.core;
                    site.note(node, || format!("core {core} is claimed, task {} refused", frame.task));
                    reply(site, node, frame, SlotResult::Busy);
                    next = process.waiting.pop_front();
                }
            }
            let Some(frame) = next else { continue };
            if process.shared {
                let other = running.insert(process.core, *id);
                site.check_promise(node, other.is_none(), || {
                    format!(
                        "shared core {} runs functions of processes {id} and {other:?}",
                        process.core
                    )
                });
            }
            let Frame {
                task, attempt, takes, ..
            } = frame;
            process.running = Some((frame, site.now));
            site.truth.tasks[task].runs += 1;
            let (runs, idempotent) = (site.truth.tasks[task].runs, site.truth.tasks[task].idempotent);
            site.note(node, || format!("runs task {task}, attempt {attempt}"));
            site.check_promise(node, idempotent || runs == 1, || {
                format!("task {task}, which is not idempotent, runs for the second time")
            });
            let crashes = site.scenario.worker_crashes;
            if site.draw_fault(crashes) {
                let dies = site.up_to(takes);
                site.after(dies, node, SimEvent::WorkerReaped { process: *id });
            } else {
                let process = *id;
                site.after(takes, node, SimEvent::FunctionReturns { process, task, attempt });
            }
        }
    }

    pub fn function_returns(&mut self, id: u64, task: usize, attempt: u32, site: &mut SharedState) {
        let node = self.node();
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some((frame, since)) = process.running.take() else {
            return;
        };
        debug_assert_eq!((frame.task, frame.attempt), (task, attempt));
        process.compute(task, site.now - since, site);
        self.claims.retain(|_, holder| *holder != id);
        reply(site, node, frame, SlotResult::Ran);
        self.run_next(site);
    }
}

impl WorkerProcess {
    fn compute(&mut self, task: usize, time: Duration, site: &mut SharedState) {
        self.computed += time;
        self.invocations += 1;
        let used = FunctionUse {
            compute_ns: time.as_nanos() as u64,
            invocations: 1,
        };
        self.functions.add(&function_of(task), used);
        if let Some(truth) = site.truth.leases.get_mut(&self.lease) {
            truth.computed += time;
            truth.invocations += 1;
            truth.functions.add(&function_of(task), used);
        }
    }

    fn used(&self) -> UsageTotals {
        UsageTotals {
            compute_ns: self.computed.as_nanos() as u64,
            invocations: self.invocations,
            ..UsageTotals::default()
        }
    }
}

fn reply(site: &mut SharedState, node: Node, frame: Frame, answer: SlotResult) {
    let Frame {
        session,
        task,
        attempt,
        core,
        ..
    } = frame;
    let client = Node::Client(session.client);
    let message = Message::Reply(Reply {
        session,
        task,
        attempt,
        answer,
    });
    site.send(node, client, MessageOrder::Slot(session, core), message);
}
