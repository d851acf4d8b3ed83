//! Spare interpreters: when a lease of Python workers is over, some are started again and wait for the next leases of the same
//! tenant for the very same program, because imports are most of the time that such a lease takes. How many, and when, is what
//! the program's [`Forecast`] says.
//!
//! A spare is started as any worker is, has run nothing but imports, and becomes the worker of one lease: nothing of one
//! lease's tasks reaches another's. It says what it is with its program, in which the versions of everything are that the
//! next client asks for. The memory that it borrows is the node's idle one: none is started where there is not enough, and all
//! of them are killed when others wait for it.

use crate::forecast::{Forecast, Stay};
use crate::idle_memory::{IdleMemory, LOOK_EVERY};
use crate::python::{self, SPARE};
use crate::worker::Worker;
use crate::zygotes::Zygotes;
use hotlease_sandbox::{Held, Kind, Launcher, Program};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// How long spares wait at least. Long enough for somebody who changes a program and runs it again.
pub(crate) const WAIT_LEAST: Duration = Duration::from_secs(60);
/// How long the keeper waits for one to be ready before it starts the next one.
const READY_LIMIT: Duration = Duration::from_secs(9);
/// Programs whose leases are foreseen; who ran longest ago is forgotten.
const PROGRAMS_MAX: usize = 256;

/// See the module.
pub(crate) struct Spares {
    launcher: Launcher,
    memory: Arc<IdleMemory>,
    /// At most, whatever is offered.
    most: usize,
    wait_least: Duration,
    begun: Instant,
    table: Mutex<Table>,
    changed: Notify,
    /// What they are forked from, where they can be.
    pub zygotes: Zygotes,
}

/// Whose interpreter, and which.
#[derive(Clone)]
struct Spare {
    tenant: String,
    sandbox: Kind,
    program: Arc<Program>,
}

impl Spare {
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

/// What is known of a program.
struct Demand {
    of: Spare,
    forecast: Forecast,
    /// One did not start, or died: none is started before a lease of it has gone well.
    given_up: bool,
    /// Memory of the last one.
    bytes: u64,
}

impl Demand {
    /// Nobody of it waits for now: a memory of it keeps no image mounted, and without its image it cannot be started.
    fn let_go(&mut self) {
        if !self.of.program.held.is_nothing() {
            self.given_up = true;
            self.of.program = Arc::new(Program {
                held: Held::default(),
                ..(*self.of.program).clone()
            });
        }
    }
}

struct Table {
    /// Ready or starting, oldest first. At most `limit`.
    kept: VecDeque<(Spare, Worker)>,
    /// Who ran last is the last one.
    demands: VecDeque<Demand>,
    limit: usize,
    /// Others need the memory: none is started.
    short: bool,
    closed: bool,
}

/// What is to be done next.
struct Turn {
    /// With the memory that it will take.
    start: Option<(Spare, u64)>,
    gone: Vec<Worker>,
    /// When to look again, without an event.
    again: Option<Duration>,
}

impl Spares {
    /// None yet, and never more than `most`.
    pub fn new(launcher: Launcher, memory: Arc<IdleMemory>, most: usize) -> Self {
        let zygotes = Zygotes::new(launcher.clone());
        Self {
            launcher,
            memory,
            most,
            wait_least: WAIT_LEAST,
            begun: Instant::now(),
            table: Mutex::new(Table {
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

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready or, failing that, one that soon will be.
    pub fn take(&self, tenant: &str, sandbox: Kind, program: &Program) -> Option<Worker> {
        let mut table = self.table();
        let fits =
            |(kind, worker): &(Spare, Worker)| kind.is(tenant, sandbox, program) && !worker.is_closed();
        let ready = table
            .kept
            .iter()
            .position(|spare| fits(spare) && spare.1.is_ready());
        let at = ready.or_else(|| table.kept.iter().position(fits))?;
        table.kept.remove(at).map(|(_, worker)| worker)
    }

    /// A lease with so many workers begins.
    pub fn lease_began(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, workers: usize) {
        let of = Spare::of(tenant, sandbox, program);
        let now = self.begun.elapsed();
        let mut table = self.table();
        let mut demand = table.remove(&of).unwrap_or_else(|| Demand {
            of: of.clone(),
            forecast: Forecast::new(self.wait_least),
            given_up: false,
            bytes: 0,
        });
        // What the last lease kept mounted may be gone.
        demand.of = of;
        demand.forecast.arrived(now, workers);
        if table.demands.len() == PROGRAMS_MAX {
            table.demands.pop_front();
        }
        table.demands.push_back(demand);
        drop(table);
        self.changed.notify_one();
    }

    /// It is over; `well`: all of them came up. How many spares are to wait for the next one, and when.
    pub fn lease_over(
        &self,
        tenant: &str,
        sandbox: Kind,
        program: &Arc<Program>,
        (workers, well): (usize, bool),
    ) -> Option<(usize, Stay)> {
        let of = Spare::of(tenant, sandbox, program);
        let now = self.begun.elapsed();
        let mut table = self.table();
        let mut demand = table.remove(&of)?;
        demand.of = of;
        demand.forecast.ended(now, workers);
        demand.given_up = !well;
        let left = demand.forecast.left().min(table.limit);
        let stay = demand.forecast.stay();
        table.demands.push_back(demand);
        drop(table);
        self.changed.notify_one();
        Some((left, stay))
    }

    /// How many it keeps at most.
    pub fn limit(&self) -> usize {
        self.table().limit
    }

    /// Sandboxes, process ids and resident memory.
    pub fn listing(&self) -> Vec<(Kind, u32, u64)> {
        let table = self.table();
        let workers = table.kept.iter();
        workers
            .map(|(kind, worker)| (kind.sandbox, worker.pid(), worker.resident_bytes()))
            .collect()
    }

    /// Keeps no more than this from now on.
    pub fn keep(&self, limit: usize) {
        let limit = limit.min(self.most);
        let mut table = self.table();
        if table.limit == limit {
            return;
        }
        table.limit = limit;
        let turn = table.turn(self.begun.elapsed());
        drop(table);
        drop(turn);
        self.zygotes.keep(limit);
        self.changed.notify_one();
    }

    /// Gives all memory back that it borrows, and borrows none until told that there is enough again. How many were killed.
    pub fn give_back(&self) -> usize {
        let mut table = self.table();
        table.short = true;
        let gone = table.turn(self.begun.elapsed()).gone;
        drop(table);
        let spares = gone.len();
        drop(gone);
        spares + self.zygotes.give_back()
    }

    /// There is memory again.
    pub fn borrow_again(&self) {
        let was_short = std::mem::take(&mut self.table().short);
        if was_short {
            self.zygotes.borrow_again();
            self.changed.notify_one();
        }
    }

    /// Kills them, and starts no more.
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

    /// Starts what is to wait, one after the other, and kills what no longer is, until they are closed.
    pub async fn keep_them(self: Arc<Self>) {
        loop {
            let zygotes = self.zygotes.look();
            let turn = {
                let mut table = self.table();
                if table.closed {
                    return;
                }
                table.turn(self.begun.elapsed())
            };
            drop(turn.gone);
            let again = turn.again.map(|again| self.begun + again);
            let mut again = again.into_iter().chain(zygotes).min();
            match turn.start {
                Some((kind, bytes)) if self.memory.has_room(bytes) => {
                    self.start(kind).await;
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

    async fn start(&self, kind: Spare) {
        let Spare {
            tenant,
            sandbox,
            program,
        } = &kind;
        let begun = Instant::now();
        let started = match self.zygotes.fork_of_any(tenant, *sandbox, program).await {
            Ok(worker) => Ok(worker),
            Err(_) => {
                let program = Arc::new(python::told(program, SPARE));
                Worker::start(&self.launcher, *sandbox, Some(&program), &Arc::default()).await
            }
        };
        let worker = match started {
            Ok(worker) => worker,
            Err(error) => {
                // Whoever asks for such a worker will hear why there is none.
                self.table().know(&kind, |demand| demand.given_up = true);
                return tracing::debug!(%error, "no spare interpreter");
            }
        };
        let (settled, _) = worker.milestones();
        let pid = worker.pid();
        let surplus = {
            let mut table = self.table();
            table.kept.push_back((kind.clone(), worker));
            table.turn(self.begun.elapsed()).gone
        };
        drop(surplus);
        // So that starts do not pile up.
        if timeout(READY_LIMIT, settled).await.is_ok() {
            let mut table = self.table();
            let ready = table
                .kept
                .iter()
                .find(|(_, worker)| worker.pid() == pid && worker.is_ready());
            let bytes = ready.map(|(_, worker)| worker.resident_bytes());
            table.know(&kind, |demand| {
                demand.forecast.made(begun.elapsed());
                demand.bytes = bytes.unwrap_or(demand.bytes);
            });
        }
    }
}

impl Table {
    fn remove(&mut self, of: &Spare) -> Option<Demand> {
        let at = self.demands.iter().position(|demand| demand.of.is_like(of))?;
        self.demands.remove(at)
    }

    fn know(&mut self, of: &Spare, what: impl FnOnce(&mut Demand)) {
        if let Some(demand) = self.demands.iter_mut().find(|demand| demand.of.is_like(of)) {
            what(demand);
        }
    }

    /// What is to be started, and takes from what is kept what is too much, the oldest first: who ran last comes back soonest.
    #[must_use]
    fn turn(&mut self, now: Duration) -> Turn {
        let mut turn = Turn {
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
            let is_of = |(kind, _): &(Spare, Worker)| kind.is_like(&demand.of);
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
                demand.let_go();
            }
            let wanted = match demand.given_up {
                true => 0,
                false => stock.fill.min(room),
            };
            if own.len() < wanted && turn.start.is_none() {
                turn.start = Some((demand.of.clone(), demand.bytes));
            }
            room -= own.len().max(wanted);
            own.append(&mut stays);
            stays = own;
        }
        // Of programs that are forgotten.
        turn.gone.extend(self.kept.drain(..).map(|(_, worker)| worker));
        self.kept = stays;
        turn
    }
}

#[cfg(test)]
mod tests;
