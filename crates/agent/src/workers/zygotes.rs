//! Zygotes: interpreters that have imported the modules of a program. The program's workers are forked from its zygote,
//! each into a sandbox of its own.
//!
//! A tenant's program has one zygote. It is started when a lease of the program has ended, as spares are. A program
//! with other imports, another environment or another path is another program. There is no zygote in kinds of sandbox
//! other than `namespace` and `microvm`, nor for programs that name no imports. In a `microvm` the zygote is a machine
//! that was saved after the imports, and forks continue from there. A fork serves one lease, and does not end with its
//! zygote. If a zygote cannot be made, the reason is remembered, and workers start without it.

use crate::workers::python::{self, ZYGOTE};
use crate::workers::worker::{BOOT_LIMIT, StartError, StartedWorker};
use hotlease_sandbox::{Kind, Launcher, Program};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Largest number of entries on a node, including programs that cannot have a zygote.
const ZYGOTES_MAX: usize = 8;
/// Time for which an entry is kept while it is not needed.
const LIFE: Duration = Duration::from_secs(600);
/// Time in which imports must be done.
const IMPORT_LIMIT: Duration = Duration::from_secs(30);

/// The zygotes of a node.
pub(crate) struct Zygotes {
    launcher: Launcher,
    /// The zygotes. The zygote that was used last is at the end. At most `limit`.
    kept: Mutex<ZygoteTable>,
    /// Whether there may be zygotes now. If not, zygotes that are still importing end, too.
    are_allowed: watch::Sender<bool>,
}

struct ZygoteTable {
    zygotes: VecDeque<Zygote>,
    limit: usize,
    /// Whether other processes need the memory. Then there are no zygotes.
    short: bool,
}

struct Zygote {
    tenant: String,
    sandbox: Kind,
    program: Arc<Program>,
    state: ZygoteState,
    used: Instant,
}

#[derive(Clone)]
enum ZygoteState {
    Ready(Arc<StartedWorker>),
    /// Reason why there is no zygote.
    Refused(String),
}

impl Zygotes {
    /// Makes an empty set.
    pub fn new(launcher: Launcher) -> Self {
        Self {
            launcher,
            kept: Mutex::new(ZygoteTable {
                zygotes: VecDeque::new(),
                limit: ZYGOTES_MAX,
                short: false,
            }),
            are_allowed: watch::Sender::new(true),
        }
    }

    fn table(&self) -> MutexGuard<'_, ZygoteTable> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks a worker from the zygote of this program. The error says why this is not possible; it is empty if no
    /// zygote would be expected.
    pub async fn fork(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>) -> Result<StartedWorker, String> {
        if !may_have(sandbox, program) {
            return Err(String::new());
        }
        match self.find(tenant, sandbox, program) {
            Some(ZygoteState::Ready(zygote)) => {
                let forked = zygote.fork(&self.launcher, program).await;
                let forked = forked.map_err(|error| error.why);
                if let Err(why) = &forked {
                    self.refuse(tenant, sandbox, program, format!("its zygote failed to fork: {why}"));
                }
                forked
            }
            Some(ZygoteState::Refused(why)) => Err(format!("no zygote: {why}")),
            None => Err("no zygote yet: it is started when a lease of this tenant for this program ends".into()),
        }
    }

    /// Forks a worker from the zygote of this program, and starts a zygote first if there is none.
    pub async fn fork_of_any(
        &self,
        tenant: &str,
        sandbox: Kind,
        program: &Arc<Program>,
    ) -> Result<StartedWorker, String> {
        if may_have(sandbox, program) && self.find(tenant, sandbox, program).is_none() && *self.are_allowed.borrow() {
            self.start(tenant, sandbox, program).await;
        }
        self.fork(tenant, sandbox, program).await
    }

    /// Reason why there is no zygote for this program, if that is known.
    pub fn absence_reason(&self, tenant: &str, sandbox: Kind, program: &Program) -> Option<String> {
        match self.find(tenant, sandbox, program)? {
            ZygoteState::Ready(_) => None,
            ZygoteState::Refused(why) => Some(format!("no zygote: {why}")),
        }
    }

    /// Sandboxes, pids and resident memory of all zygotes.
    pub fn listing(&self) -> Vec<(Kind, u32, u64)> {
        let kept = self.table();
        let workers = kept.zygotes.iter().filter_map(|zygote| match &zygote.state {
            ZygoteState::Ready(worker) => Some((zygote.sandbox, worker.pid(), worker.resident_bytes())),
            ZygoteState::Refused(_) => None,
        });
        workers.collect()
    }

    /// Keeps no more than `limit` zygotes from now on, and never more than the node's limit.
    pub fn keep(&self, limit: usize) {
        let mut kept = self.table();
        kept.limit = limit.min(ZYGOTES_MAX);
        self.allow(&kept);
        let surplus = kept.trim();
        drop(kept);
        drop(surplus);
    }

    /// Kills all zygotes, and starts none until [`Zygotes::borrow_again`]. Returns how many there were.
    pub fn give_back(&self) -> usize {
        let mut kept = self.table();
        kept.short = true;
        self.allow(&kept);
        let gone = kept.trim();
        drop(kept);
        let are_ready = |zygote: &&Zygote| matches!(zygote.state, ZygoteState::Ready(_));
        gone.iter().filter(are_ready).count()
    }

    /// Allows zygotes again, because there is enough memory.
    pub fn borrow_again(&self) {
        let mut kept = self.table();
        kept.short = false;
        self.allow(&kept);
    }

    fn allow(&self, table: &ZygoteTable) {
        self.are_allowed.send_replace(table.limit > 0 && !table.short);
    }

    async fn until_forbidden(&self) {
        let mut allowed = self.are_allowed.subscribe();
        // Cannot fail: self holds the sender.
        let _ = allowed.wait_for(|allowed| !*allowed).await;
    }

    /// Removes entries that were not needed for long; returns when to look again.
    pub fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut kept = self.table();
        let (gone, left) = std::mem::take(&mut kept.zygotes)
            .into_iter()
            .partition(|zygote| match &zygote.state {
                ZygoteState::Ready(worker) => worker.is_closed() || now > zygote.used + LIFE,
                ZygoteState::Refused(_) => now > zygote.used + LIFE,
            });
        kept.zygotes = left;
        let again = (!kept.zygotes.is_empty()).then(|| now + LOOK_EVERY);
        drop(kept);
        drop(gone);
        again
    }

    fn find(&self, tenant: &str, sandbox: Kind, program: &Program) -> Option<ZygoteState> {
        let mut kept = self.table();
        let is = |zygote: &Zygote| zygote.is(tenant, sandbox, program);
        let at = kept.zygotes.iter().position(is)?;
        let mut zygote = kept.zygotes.remove(at)?;
        if let ZygoteState::Ready(worker) = &zygote.state
            && worker.is_closed()
        {
            zygote.state = ZygoteState::Refused("it has died".into());
        }
        // The entry of a program without a zygote expires even if leases ask for it: a zygote is tried again then.
        if matches!(zygote.state, ZygoteState::Ready(_)) {
            zygote.used = Instant::now();
        }
        let state = zygote.state.clone();
        kept.zygotes.push_back(zygote);
        Some(state)
    }

    /// Records that this program has no zygote, and the reason, until the entry expires.
    pub fn refuse(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, why: String) {
        self.put(tenant, sandbox, program, ZygoteState::Refused(why));
    }

    fn put(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>, state: ZygoteState) {
        let mut kept = self.table();
        let is = |zygote: &Zygote| zygote.is(tenant, sandbox, program);
        let old = kept.zygotes.iter().position(is).and_then(|at| kept.zygotes.remove(at));
        kept.zygotes.push_back(Zygote {
            tenant: tenant.to_owned(),
            sandbox,
            program: Arc::clone(program),
            state,
            used: Instant::now(),
        });
        let surplus = kept.trim();
        drop(kept);
        drop((old, surplus));
    }

    async fn start(&self, tenant: &str, sandbox: Kind, program: &Arc<Program>) {
        let told = Arc::new(python::with_variable(program, ZYGOTE));
        let started = StartedWorker::start_zygote(&self.launcher, sandbox, &told).await;
        let limit = match sandbox {
            Kind::MicroVm => IMPORT_LIMIT + BOOT_LIMIT,
            _ => IMPORT_LIMIT,
        };
        let ready = match started {
            Ok(zygote) => tokio::select! {
                ready = zygote.wait_until_ready(limit) => ready.map(|()| zygote),
                // Imports may take long, and other processes need the core or memory now. Dropping the zygote kills it.
                () = self.until_forbidden() => return,
            },
            Err(why) => Err(why),
        };
        match ready {
            Ok(zygote) => self.put(tenant, sandbox, program, ZygoteState::Ready(Arc::new(zygote))),
            Err(StartError { why, .. }) => {
                tracing::debug!(why, "no zygote");
                self.refuse(tenant, sandbox, program, why);
            }
        }
    }
}

/// Interval at which entries are looked at while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Zygote {
    fn is(&self, tenant: &str, sandbox: Kind, program: &Program) -> bool {
        self.tenant == tenant && self.sandbox == sandbox && *self.program == *program
    }
}

/// Whether workers of this program may be forked from a zygote.
fn may_have(sandbox: Kind, program: &Program) -> bool {
    matches!(sandbox, Kind::Namespace | Kind::MicroVm) && python::imports(program).is_some()
}

impl ZygoteTable {
    /// Removes entries beyond the limit, starting with the entry that was needed longest ago.
    #[must_use]
    fn trim(&mut self) -> Vec<Zygote> {
        let limit = if self.short { 0 } else { self.limit };
        let surplus = self.zygotes.len().saturating_sub(limit);
        self.zygotes.drain(..surplus).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_sandbox::KeepAlive;
    use hotlease_wire::python::IMPORTS;
    use std::path::Path;

    fn program(path: &str, imports: &str) -> Arc<Program> {
        Arc::new(Program {
            path: path.into(),
            arguments: Vec::new(),
            environment: vec![(IMPORTS.into(), imports.into())],
            directory: "/".into(),
            mounts: Vec::new(),
            held: KeepAlive::default(),
        })
    }

    fn some() -> Zygotes {
        Zygotes::new(Launcher::new(Path::new("/bin/true")).expect("a program"))
    }

    #[tokio::test]
    async fn programs_without_imports_or_of_another_kind_have_no_zygote_and_no_reason() {
        let zygotes = some();
        for (kind, imports) in [
            (Kind::Process, "numpy"),
            (Kind::Container, "numpy"),
            (Kind::Namespace, ""),
        ] {
            let why = zygotes.fork_of_any("ann", kind, &program("/bin/true", imports)).await;
            assert_eq!(why.err().as_deref(), Some(""), "{kind} {imports:?}");
        }
        assert!(zygotes.listing().is_empty());
    }

    #[tokio::test]
    async fn a_zygote_that_cannot_be_is_remembered_with_its_reason_for_its_tenant_and_program_only() {
        let zygotes = some();
        let (this, other) = (program("/bin/true", "numpy"), program("/bin/true", "scipy"));
        let why = async |tenant, program| {
            let forked = zygotes.fork(tenant, Kind::Namespace, program).await;
            forked.err().unwrap_or_default()
        };
        zygotes.refuse("ann", Kind::Namespace, &this, "its imports left a thread".into());
        assert_eq!(why("ann", &this).await, "no zygote: its imports left a thread");
        for (tenant, program) in [("bob", &this), ("ann", &other)] {
            let why = why(tenant, program).await;
            assert!(why.starts_with("no zygote yet"), "{tenant}: {why}");
        }
    }

    #[test]
    fn zygotes_are_bounded_and_the_most_recently_used_stay() {
        let zygotes = some();
        for number in 0..2 * ZYGOTES_MAX {
            let of = program("/bin/true", &number.to_string());
            zygotes.refuse("ann", Kind::Namespace, &of, "none".into());
            assert!(
                zygotes
                    .find("ann", Kind::Namespace, &program("/bin/true", "0"))
                    .is_some()
            );
        }
        assert_eq!(zygotes.table().zygotes.len(), ZYGOTES_MAX);
        zygotes.keep(0);
        assert!(
            zygotes
                .find("ann", Kind::Namespace, &program("/bin/true", "0"))
                .is_none()
        );
        assert_eq!(zygotes.expire(), None);
    }

    #[tokio::test]
    async fn no_zygote_is_kept_while_memory_is_short() {
        let zygotes = some();
        let this = program("/bin/true", "numpy");
        zygotes.refuse("ann", Kind::Namespace, &this, "none".into());
        assert_eq!(zygotes.give_back(), 0, "a program without a zygote borrows no memory");
        // Imports of a zygote were under way when memory became short.
        zygotes.refuse("ann", Kind::Namespace, &this, "none".into());
        assert!(zygotes.table().zygotes.is_empty());
        let why = zygotes.fork_of_any("ann", Kind::Namespace, &this).await;
        assert!(why.is_err_and(|why| why.starts_with("no zygote yet")));
        zygotes.borrow_again();
        zygotes.refuse("ann", Kind::Namespace, &this, "none".into());
        assert_eq!(zygotes.table().zygotes.len(), 1);
    }
}
