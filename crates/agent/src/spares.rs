//! Spare interpreters: when a lease of Python workers is over, as many as it had are started again and wait for the next
//! lease of the same tenant for the very same program, because imports are most of the time that such a lease takes.
//!
//! A spare is started as any worker is, has run nothing but imports, and becomes the worker of one lease: nothing of one
//! lease's tasks reaches another's. It says what it is with its program, in which the versions of everything are that the
//! next client asks for. What is not asked for within [`LIFE`] is killed.

use crate::python::{self, SPARE};
use crate::worker::Worker;
use crate::zygotes::Zygotes;
use hotlease_sandbox::{Kind, Launcher, Program};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// How long a spare waits. Long enough for somebody who changes a program and runs it again.
pub(crate) const LIFE: Duration = Duration::from_secs(60);
/// How long the keeper waits for one to be ready before it starts the next one.
const READY_LIMIT: Duration = Duration::from_secs(9);

/// See the module.
pub(crate) struct Spares {
    launcher: Launcher,
    /// At most, whatever is offered.
    most: usize,
    life: Duration,
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
    fn is(&self, tenant: &str, sandbox: Kind, program: &Program) -> bool {
        self.tenant == tenant && self.sandbox == sandbox && *self.program == *program
    }
}

struct Table {
    /// Ready or starting, oldest first. With `wanted` at most `limit`.
    kept: VecDeque<(Spare, Worker, Instant)>,
    /// To be started.
    wanted: VecDeque<Spare>,
    limit: usize,
    closed: bool,
}

impl Spares {
    /// None yet, and never more than `most`.
    pub fn new(launcher: Launcher, most: usize) -> Self {
        let zygotes = Zygotes::new(launcher.clone());
        Self {
            launcher,
            most,
            life: LIFE,
            table: Mutex::new(Table {
                kept: VecDeque::new(),
                wanted: VecDeque::new(),
                limit: most,
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
        let fits = |(kind, worker, _): &(Spare, Worker, Instant)| {
            kind.is(tenant, sandbox, program) && !worker.is_closed()
        };
        let ready = table
            .kept
            .iter()
            .position(|spare| fits(spare) && spare.1.is_ready());
        let at = ready.or_else(|| table.kept.iter().position(fits))?;
        table.kept.remove(at).map(|(_, worker, _)| worker)
    }

    /// A lease with so many workers is over.
    pub fn leave_behind(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, workers: usize) {
        let mut table = self.table();
        let kinds = table.kept.iter().map(|(kind, ..)| kind);
        let there = kinds
            .chain(&table.wanted)
            .filter(|kind| kind.is(tenant, sandbox, program))
            .count();
        for _ in there..workers.min(table.limit) {
            table.wanted.push_back(Spare {
                tenant: tenant.to_owned(),
                sandbox,
                program: Arc::clone(program),
            });
        }
        let surplus = table.trim();
        drop(table);
        drop(surplus);
        self.changed.notify_one();
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
            .map(|(kind, worker, _)| (kind.sandbox, worker.pid(), worker.resident_bytes()))
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
        let surplus = table.trim();
        drop(table);
        drop(surplus);
        self.zygotes.keep(limit);
    }

    /// Kills them, and starts no more.
    pub fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        table.limit = 0;
        let all = table.trim();
        drop(table);
        drop(all);
        self.zygotes.keep(0);
        self.changed.notify_one();
    }

    /// Starts what is wanted, one after the other, and kills what has waited too long, until they are closed.
    pub async fn keep_them(self: Arc<Self>) {
        loop {
            let again = self.zygotes.look();
            let (next, wake) = {
                let mut table = self.table();
                if table.closed {
                    return;
                }
                let now = Instant::now();
                table
                    .kept
                    .retain(|(_, worker, until)| !worker.is_closed() && *until > now);
                (
                    table.wanted.pop_front(),
                    table.kept.front().map(|(.., until)| *until),
                )
            };
            match (next, wake) {
                (Some(kind), _) => self.start(kind).await,
                (None, wake) => match wake.into_iter().chain(again).min() {
                    Some(until) => tokio::select! {
                        () = sleep_until(until) => {}
                        () = self.changed.notified() => {}
                    },
                    None => self.changed.notified().await,
                },
            }
        }
    }

    async fn start(&self, kind: Spare) {
        let Spare {
            tenant,
            sandbox,
            program,
        } = &kind;
        let started = match self.zygotes.fork_of_any(tenant, *sandbox, program).await {
            Ok(worker) => Ok(worker),
            Err(_) => {
                let program = Arc::new(python::told(program, SPARE));
                Worker::start(&self.launcher, *sandbox, Some(&program), &Arc::default()).await
            }
        };
        let worker = match started {
            Ok(worker) => worker,
            // Not tried again: whoever asks for such a worker will hear why there is none.
            Err(why) => return tracing::debug!(why, "no spare interpreter"),
        };
        let (settled, _) = worker.milestones();
        let surplus = {
            let mut table = self.table();
            table.kept.push_back((kind, worker, Instant::now() + self.life));
            table.trim()
        };
        drop(surplus);
        // So that starts do not pile up.
        let _ = timeout(READY_LIMIT, settled).await;
    }
}

impl Table {
    /// What is too much, the oldest first: who ran last comes back soonest.
    #[must_use]
    fn trim(&mut self) -> Vec<(Spare, Worker, Instant)> {
        let surplus = (self.kept.len() + self.wanted.len()).saturating_sub(self.limit);
        let started = surplus.min(self.kept.len());
        self.wanted.drain(..surplus - started);
        self.kept.drain(..started).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PROCESS: Kind = Kind::Process;

    fn program(word: &str) -> Arc<Program> {
        Arc::new(Program {
            path: "/bin/sleep".into(),
            arguments: vec![word.into()],
            environment: Vec::new(),
            directory: "/".into(),
            mounts: Vec::new(),
            held: hotlease_sandbox::Held::default(),
        })
    }

    async fn until(what: impl Fn() -> bool) {
        let waited = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), waited)
            .await
            .expect("it never holds");
    }

    fn some() -> (Arc<Spares>, Launcher, tokio::task::JoinHandle<()>) {
        let launcher = Launcher::new(Path::new("/bin/sleep")).expect("a program");
        let spares = Arc::new(Spares::new(launcher.clone(), 2));
        let keeper = tokio::spawn(Arc::clone(&spares).keep_them());
        (spares, launcher, keeper)
    }

    #[tokio::test]
    async fn a_spare_is_for_its_tenant_and_its_program_only() {
        let (spares, launcher, keeper) = some();
        let (this, other) = (program("1000"), program("1001"));
        spares.leave_behind("ann", PROCESS, &this, 1);
        until(|| spares.listing().len() == 1).await;
        assert!(
            spares.take("bob", PROCESS, &this).is_none(),
            "another tenant got it"
        );
        assert!(
            spares.take("ann", PROCESS, &other).is_none(),
            "another program got it"
        );
        assert!(
            spares.take("ann", Kind::Namespace, &this).is_none(),
            "another kind of sandbox got it"
        );
        let taken = spares.take("ann", PROCESS, &program("1000"));
        assert!(
            taken.is_some() && spares.take("ann", PROCESS, &this).is_none(),
            "it is there once"
        );
        drop(taken);
        spares.close();
        keeper.await.expect("the keeper ends");
        timeout(Duration::from_secs(10), launcher.all_gone())
            .await
            .expect("nothing is left");
    }

    #[tokio::test]
    async fn there_are_never_more_than_the_limit_and_none_once_the_node_is_drained() {
        let (spares, launcher, keeper) = some();
        for word in ["1000", "1001", "1002", "1003"] {
            spares.leave_behind("ann", PROCESS, &program(word), 5);
            let table = spares.table();
            assert!(table.kept.len() + table.wanted.len() <= 2);
        }
        let newest = program("1003");
        until(|| spares.listing().len() == 2 && spares.table().wanted.is_empty()).await;
        assert!(
            spares
                .table()
                .kept
                .iter()
                .all(|(kind, ..)| kind.is("ann", PROCESS, &newest))
        );
        spares.keep(0);
        until(|| launcher.living() == 0 && spares.table().wanted.is_empty()).await;
        spares.leave_behind("ann", PROCESS, &program("1000"), 1);
        assert!(spares.table().wanted.is_empty(), "a drained node keeps one");
        spares.close();
        keeper.await.expect("the keeper ends");
    }

    #[tokio::test]
    async fn what_nobody_asks_for_is_killed() {
        let launcher = Launcher::new(Path::new("/bin/sleep")).expect("a program");
        let mut spares = Spares::new(launcher.clone(), 2);
        spares.life = Duration::from_secs(1);
        let spares = Arc::new(spares);
        spares.leave_behind("ann", PROCESS, &program("0"), 1);
        let keeper = tokio::spawn(Arc::clone(&spares).keep_them());
        spares.leave_behind("ann", PROCESS, &program("1000"), 1);
        until(|| spares.table().wanted.is_empty() && launcher.living() > 0).await;
        until(|| launcher.living() == 0).await;
        spares.close();
        keeper.await.expect("the keeper ends");
    }
}
