//! Spare interpreters. When a lease of Python workers has ended, some interpreters are started again. They wait for the
//! next leases of the same tenant for exactly the same program, because imports take most of the time of a start. The
//! program's [`Forecast`] decides how many interpreters wait, and when.
//!
//! A spare is started like any worker, has run nothing but imports, and becomes the worker of one lease. So no data of
//! one lease's tasks reaches another lease. A spare is identified by its program, which includes the versions of
//! everything that the next client asks for. Spares borrow the node's idle memory: no spare is started if there is not
//! enough, and all are killed when other processes wait for memory.

use crate::workers::fabric_demand::{FabricDemand, PREPARE_AFTER};
use crate::workers::forecast::{Forecast, WaitInterval};
use crate::workers::idle_memory::{IdleMemory, LOOK_EVERY};
use crate::workers::python::{self, SPARE};
use crate::workers::worker::StartedWorker;
use crate::workers::zygotes::Zygotes;
use hotlease_sandbox::{KeepAlive, Kind, Launcher, Program};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Least time for which spares wait: enough for a user who changes a program and runs it again.
pub(crate) const WAIT_LEAST: Duration = Duration::from_secs(60);
/// Time for which the keeper waits until a spare is ready before it starts another spare beside it: imports may hang.
const READY_LIMIT: Duration = Duration::from_secs(9);
/// Largest number of starts that the keeper no longer waits for. While there are so many, it starts no further spare.
const BESIDE_MAX: usize = 4;
/// Largest number of programs with a forecast; the program whose lease began or ended longest ago is forgotten.
const PROGRAMS_MAX: usize = 256;

/// The spare interpreters of a node.
pub(crate) struct Spares {
    launcher: Launcher,
    fabric: Arc<FabricDemand>,
    memory: Arc<IdleMemory>,
    /// Largest number of spares, even if more cores are offered.
    most: usize,
    wait_least: Duration,
    begun: Instant,
    table: Mutex<SpareTable>,
    changed: Notify,
    /// Zygotes from which spares are forked, if a zygote exists.
    pub zygotes: Zygotes,
}

/// Key of a spare: its tenant, kind of sandbox and program.
#[derive(Clone)]
struct SpareKey {
    tenant: String,
    sandbox: Kind,
    program: Arc<Program>,
}

impl SpareKey {
    fn of(tenant: &str, sandbox: Kind, program: &Arc<Program>) -> Self {
        Self {
            tenant: tenant.to_owned(),
            sandbox,
            program: Arc::clone(program),
        }
    }

    fn is(&self, tenant: &str, sandbox: Kind, program: &Program) -> bool {
        self.tenant == tenant && self.sandbox == sandbox && *self.program == *program
    }

    fn is_like(&self, other: &Self) -> bool {
        self.is(&other.tenant, other.sandbox, &other.program)
    }
}

/// Forecast and state of a program.
struct ProgramDemand {
    of: SpareKey,
    forecast: Forecast,
    /// Whether a spare of the program did not start, or died. Then no spare is started before a lease has ended well.
    given_up: bool,
    /// Whether a spare of the program, or its zygote, is being started and is not in the table yet.
    is_starting: bool,
    /// Memory of the program's last spare, bytes.
    bytes: u64,
}

impl ProgramDemand {
    /// Releases the program's image while no spare should wait, because an entry must keep no image mounted. Without
    /// its image the program cannot be started.
    fn release_image(&mut self) {
        if !self.of.program.held.is_nothing() {
            self.given_up = true;
            self.of.program = Arc::new(Program {
                held: KeepAlive::default(),
                ..(*self.of.program).clone()
            });
        }
    }
}

struct SpareTable {
    /// Spares, ready or starting, oldest first. At most `limit`.
    kept: VecDeque<(SpareKey, StartedWorker)>,
    /// Programs. The program whose lease began or ended last is at the end.
    demands: VecDeque<ProgramDemand>,
    limit: usize,
    /// Whether other processes need the memory. Then no spare is started.
    short: bool,
    closed: bool,
}

/// Next actions of the keeper.
struct KeeperActions {
    /// The spare to start, with the memory that it will need.
    start: Option<(SpareKey, u64)>,
    gone: Vec<StartedWorker>,
    /// Time of the next look, without an event.
    again: Option<Duration>,
}

impl Spares {
    /// Makes an empty set, which never has more than `most` spares.
    pub fn new(launcher: Launcher, fabric: Arc<FabricDemand>, memory: Arc<IdleMemory>, most: usize) -> Self {
        let zygotes = Zygotes::new(launcher.clone());
        Self {
            launcher,
            fabric,
            memory,
            most,
            wait_least: WAIT_LEAST,
            begun: Instant::now(),
            table: Mutex::new(SpareTable {
                kept: VecDeque::new(),
                demands: VecDeque::new(),
                limit: most,
                short: false,
                closed: false,
            }),
            changed: Notify::new(),
            zygotes,
        }
    }

    fn table(&self) -> MutexGuard<'_, SpareTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a spare that is ready or, if there is none, a spare that soon will be ready.
    pub fn take(&self, tenant: &str, sandbox: Kind, program: &Program) -> Option<StartedWorker> {
        let mut table = self.table();
        let fits =
            |(kind, worker): &(SpareKey, StartedWorker)| kind.is(tenant, sandbox, program) && !worker.is_closed();
        let ready = |spare: &(SpareKey, StartedWorker)| fits(spare) && spare.1.is_ready();
        let quiet = table
            .kept
            .iter()
            .position(|spare| ready(spare) && !spare.1.fabric.is_under_way());
        let at = quiet
            .or_else(|| table.kept.iter().position(ready))
            .or_else(|| table.kept.iter().position(fits))?;
        table.kept.remove(at).map(|(_, worker)| worker)
    }

    /// Lets a spare load the library for fabrics, if it still waits and clients over fabrics are expected.
    pub fn prepare_fabric(&self, pid: u32) {
        let table = self.table();
        let waiting = table.kept.iter().find(|(_, worker)| worker.pid() == pid);
        waiting.into_iter().for_each(|(_, worker)| self.fabric.prepare(worker));
    }

    /// Records that a lease of this many workers began.
    pub fn lease_began(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, workers: usize) {
        let of = SpareKey::of(tenant, sandbox, program);
        let now = self.begun.elapsed();
        let mut table = self.table();
        let mut demand = table.remove(&of).unwrap_or_else(|| ProgramDemand {
            of: of.clone(),
            forecast: Forecast::new(self.wait_least),
            given_up: false,
            is_starting: false,
            bytes: 0,
        });
        // The image that the last lease kept mounted may be gone.
        demand.of = of;
        demand.forecast.record_arrival(now, workers);
        if table.demands.len() == PROGRAMS_MAX {
            table.demands.pop_front();
        }
        table.demands.push_back(demand);
        drop(table);
        self.changed.notify_one();
    }

    /// Records that a lease ended; `well`: all its workers came up. Returns how many spares should wait for the next
    /// lease, and when.
    pub fn lease_over(
        &self,
        tenant: &str,
        sandbox: Kind,
        program: &Arc<Program>,
        (workers, well): (usize, bool),
    ) -> Option<(usize, WaitInterval)> {
        let of = SpareKey::of(tenant, sandbox, program);
        let now = self.begun.elapsed();
        let mut table = self.table();
        let mut demand = table.remove(&of)?;
        demand.of = of;
        demand.forecast.record_end(now, workers);
        demand.given_up = !well;
        let left = demand.forecast.idle_number().min(table.limit);
        let stay = demand.forecast.stay();
        table.demands.push_back(demand);
        drop(table);
        self.changed.notify_one();
        Some((left, stay))
    }

    /// Largest number of spares in this set.
    pub fn limit(&self) -> usize {
        self.table().limit
    }

    /// Sandboxes, pids and resident memory of all spares.
    pub fn listing(&self) -> Vec<(Kind, u32, u64)> {
        let table = self.table();
        let workers = table.kept.iter();
        workers
            .map(|(kind, worker)| (kind.sandbox, worker.pid(), worker.resident_bytes()))
            .collect()
    }

    /// Keeps no more than `limit` spares from now on.
    pub fn keep(&self, limit: usize) {
        let limit = limit.min(self.most);
        let mut table = self.table();
        if table.limit == limit {
            return;
        }
        table.limit = limit;
        let turn = table.next_actions(self.begun.elapsed());
        drop(table);
        drop(turn);
        self.zygotes.keep(limit);
        self.changed.notify_one();
    }

    /// Kills all spares to give their memory back, and starts none until [`Spares::borrow_again`]. Returns how many
    /// were killed.
    pub fn give_back(&self) -> usize {
        let mut table = self.table();
        table.short = true;
        let gone = table.next_actions(self.begun.elapsed()).gone;
        drop(table);
        let spares = gone.len();
        drop(gone);
        spares + self.zygotes.give_back()
    }

    /// Allows starts again, because there is enough memory.
    pub fn borrow_again(&self) {
        let was_short = std::mem::take(&mut self.table().short);
        if was_short {
            self.zygotes.borrow_again();
            self.changed.notify_one();
        }
    }

    /// Kills all spares, and starts no more.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.limit = 0;
        let all = std::mem::take(&mut table.kept);
        let demands = std::mem::take(&mut table.demands);
        drop(table);
        drop((all, demands));
        self.zygotes.keep(0);
        self.changed.notify_one();
    }

    /// Starts missing spares, one after the other, and kills superfluous spares, until the set is closed. While a start
    /// takes long, the next spares are started.
    pub async fn keep_them(self: Arc<Self>) {
        // When this function ends, starts that are under way are dropped.
        let mut beside = JoinSet::new();
        loop {
            while beside.try_join_next().is_some() {}
            let zygotes = self.zygotes.expire();
            let turn = {
                let mut table = self.table();
                if table.closed {
                    return;
                }
                table.next_actions(self.begun.elapsed())
            };
            drop(turn.gone);
            let again = turn.again.map(|again| self.begun + again);
            let mut again = again.into_iter().chain(zygotes).min();
            match turn.start {
                Some((kind, bytes)) if beside.len() < BESIDE_MAX && self.memory.has_room(bytes) => {
                    let mut start = Box::pin(Arc::clone(&self).start(kind));
                    // Waits, so that starts do not pile up.
                    if timeout(READY_LIMIT, &mut start).await.is_err() {
                        beside.spawn(start);
                    }
                    continue;
                }
                Some(_) => again = Some(Instant::now() + LOOK_EVERY),
                None => {}
            }
            match again {
                Some(until) => tokio::select! {
                    () = sleep_until(until) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    async fn start(self: Arc<Self>, kind: SpareKey) {
        let counted = {
            let mut table = self.table();
            if !table.may_start() {
                return;
            }
            table.update_demand(&kind, |demand| demand.is_starting = true);
            // Counted under the lock: once a limit of 0 is set, no uncounted start begins.
            self.launcher.count_start()
        };
        let SpareKey {
            tenant,
            sandbox,
            program,
        } = &kind;
        let begun = Instant::now();
        let started = match self.zygotes.fork_of_any(tenant, *sandbox, program).await {
            Ok(worker) => Ok(worker),
            Err(_) if !self.table().may_start() => {
                return self.table().update_demand(&kind, |demand| demand.is_starting = false);
            }
            Err(_) => {
                let program = Arc::new(python::with_variable(program, SPARE));
                StartedWorker::start(&self.launcher, *sandbox, Some(&program), &Arc::default()).await
            }
        };
        let worker = match started {
            Ok(worker) => worker,
            Err(error) => {
                // The next lease of this program reports the reason.
                self.table().update_demand(&kind, |demand| {
                    demand.given_up = true;
                    demand.is_starting = false;
                });
                self.changed.notify_one();
                return tracing::debug!(%error, "no spare interpreter");
            }
        };
        let (settled, _) = worker.milestones();
        let pid = worker.pid();
        let surplus = {
            let mut table = self.table();
            table.kept.push_back((kind.clone(), worker));
            table.update_demand(&kind, |demand| demand.is_starting = false);
            table.next_actions(self.begun.elapsed()).gone
        };
        drop((surplus, counted));
        self.changed.notify_one();
        if timeout(READY_LIMIT, settled).await.is_ok() {
            let mut table = self.table();
            let ready = table
                .kept
                .iter()
                .find(|(_, worker)| worker.pid() == pid && worker.is_ready());
            let bytes = ready.map(|(_, worker)| worker.resident_bytes());
            table.update_demand(&kind, |demand| {
                demand.forecast.record_made(begun.elapsed());
                demand.bytes = bytes.unwrap_or(demand.bytes);
            });
            drop(table);
            if self.fabric.is_expected() {
                tokio::spawn(async move {
                    sleep(PREPARE_AFTER).await;
                    self.prepare_fabric(pid);
                });
            }
        }
    }
}

impl SpareTable {
    fn may_start(&self) -> bool {
        self.limit > 0 && !self.short && !self.closed
    }

    fn remove(&mut self, of: &SpareKey) -> Option<ProgramDemand> {
        let at = self.demands.iter().position(|demand| demand.of.is_like(of))?;
        self.demands.remove(at)
    }

    fn update_demand(&mut self, of: &SpareKey, what: impl FnOnce(&mut ProgramDemand)) {
        if let Some(demand) = self.demands.iter_mut().find(|demand| demand.of.is_like(of)) {
            what(demand);
        }
    }

    /// Returns what to start, and removes superfluous spares, oldest first. Programs whose leases ran last have
    /// precedence, because their next leases are expected soonest.
    #[must_use]
    fn next_actions(&mut self, now: Duration) -> KeeperActions {
        let mut turn = KeeperActions {
            start: None,
            gone: Vec::new(),
            again: None,
        };
        let may_keep = if self.short { 0 } else { self.limit };
        let mut room = may_keep;
        let mut stays = VecDeque::new();
        for demand in self.demands.iter_mut().rev() {
            let stock = demand.forecast.stock(now);
            turn.again = turn.again.into_iter().chain(stock.until).min();
            let is_of = |(kind, _): &(SpareKey, StartedWorker)| kind.is_like(&demand.of);
            let (mut own, others) = std::mem::take(&mut self.kept)
                .into_iter()
                .partition::<VecDeque<_>, _>(is_of);
            self.kept = others;
            let before = own.len();
            own.retain(|(_, worker)| !worker.is_closed());
            demand.given_up |= own.len() < before;
            while own.len() > stock.keep.min(room) {
                turn.gone.extend(own.pop_front().map(|(_, worker)| worker));
            }
            if stock.keep == 0 || may_keep == 0 {
                demand.release_image();
            }
            let wanted = match demand.given_up {
                true => 0,
                false => stock.fill.min(room),
            };
            if own.len() < wanted && !demand.is_starting && turn.start.is_none() {
                turn.start = Some((demand.of.clone(), demand.bytes));
            }
            let takes = own.len() + usize::from(demand.is_starting);
            room = room.saturating_sub(takes.max(wanted));
            own.append(&mut stays);
            stays = own;
        }
        // The spares that are left belong to programs that are forgotten.
        turn.gone.extend(self.kept.drain(..).map(|(_, worker)| worker));
        self.kept = stays;
        turn
    }
}

#[cfg(test)]
mod tests;
