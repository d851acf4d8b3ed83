//! A worker process, with the orders to it and its answers.
//!
//! Any task may send an order; one task reads the answers and hands each to the order that it belongs to, in turn. A
//! worker that sends anything else, or closes its control socket, is killed.

use crate::workers::fabric_demand::FabricLoading;
use hotlease_fabric::socket::{Socket, SocketError};
use hotlease_net::WorkerSocket;
use hotlease_sandbox::{Exit, KeepAlive, Kind, Launcher, Process, Program, SandboxError, WorkerReach};
use hotlease_wire::control::{WorkerAnswer, WorkerOrder};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::session::StartSteps;
use hotlease_wire::{decode, encode};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::timeout;

/// Time in which a worker must carry out an order, constructors of libraries included.
pub(crate) const ORDER_LIMIT: Duration = Duration::from_secs(5);
/// Largest number of orders that one worker has not answered yet.
const UNANSWERED_MAX: usize = 64;
/// Time in which a started worker must be ready.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(5);
/// Additional time if it has to boot a virtual machine first: without the processor's help a boot takes a hundred times
/// as long.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Limits how many processes are started at a time: more starts would only mean more threads that wait for the kernel.
static STARTS: Semaphore = Semaphore::const_new(8);
/// Time for which a worker may continue after it closed its control socket.
const DYING_LIMIT: Duration = Duration::from_millis(100);

/// Stage of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Readiness {
    Starting,
    Ready,
    /// The worker reported why it will never be ready.
    Refused(String),
    /// Its control socket is closed; the process is gone or being killed.
    Closed,
}

/// Reason why a worker did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartError {
    pub why: String,
    /// Whether the next start would fail in the same way, because the cause is the program or the node. Otherwise, as
    /// far as known, a resource was short or slow.
    pub lasts: bool,
}

impl StartError {
    pub fn for_now(why: impl ToString) -> Self {
        Self {
            why: why.to_string(),
            lasts: false,
        }
    }

    pub fn for_good(why: impl ToString) -> Self {
        Self {
            why: why.to_string(),
            lasts: true,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<SandboxError> for StartError {
    fn from(error: SandboxError) -> Self {
        Self {
            lasts: error.is_lasting(),
            why: error.to_string(),
        }
    }
}

impl From<&Exit> for StartError {
    fn from(exit: &Exit) -> Self {
        Self {
            lasts: exit.is_its_own(),
            why: exit.to_string(),
        }
    }
}

/// Reason why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrderError {
    /// The worker reports the reason; nothing changed.
    Failed(String),
    /// The worker is gone or ending.
    Died,
    /// No answer in time. The worker still exists.
    TimedOut,
}

/// An order that was sent.
pub(crate) struct SentOrder(Result<oneshot::Receiver<WorkerAnswer>, OrderError>);

impl SentOrder {
    /// Whether the order was sent.
    pub fn is_sent(&self) -> bool {
        self.0.is_ok()
    }

    /// Waits for the answer.
    pub async fn wait_for_answer(self, limit: Duration) -> Result<(), OrderError> {
        let answer = timeout(limit, self.wait_while_alive()).await;
        answer.unwrap_or(Err(OrderError::TimedOut))
    }

    /// Waits for the answer for as long as the worker lives.
    pub async fn wait_while_alive(self) -> Result<(), OrderError> {
        match self.0?.await {
            Ok(WorkerAnswer::Done) => Ok(()),
            Ok(WorkerAnswer::Failed { why }) => Err(OrderError::Failed(why)),
            Ok(WorkerAnswer::Ready { .. }) | Err(_) => Err(OrderError::Died),
        }
    }
}

struct Control {
    socket: WorkerSocket,
    unanswered: Mutex<PendingOrders>,
    readiness: watch::Sender<Readiness>,
    /// Time at which the worker became ready, and the durations that it reports: of its imports, and of the boot of its
    /// machine.
    ready: OnceLock<(Instant, Duration, Duration)>,
}

struct PendingOrders {
    orders: VecDeque<oneshot::Sender<WorkerAnswer>>,
    open: bool,
}

impl Control {
    fn unanswered(&self) -> MutexGuard<'_, PendingOrders> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A started worker. Dropping it kills the process.
pub(crate) struct StartedWorker {
    process: Arc<Process>,
    control: Arc<Control>,
    /// Time at which its process was started.
    begun: Instant,
    is_forked: bool,
    listener: Option<OwnedFd>,
    pub fabric: FabricLoading,
}

impl StartedWorker {
    /// Starts a worker that runs `program`, or a native worker. It becomes ready on its own. The start runs off the
    /// runtime's threads, because it blocks.
    pub async fn start(
        launcher: &Launcher,
        sandbox: Kind,
        program: Option<&Arc<Program>>,
        reach: &Arc<WorkerReach>,
    ) -> Result<Self, StartError> {
        let (launcher, of, reach) = (launcher.clone(), program.cloned(), Arc::clone(reach));
        let start = move |control| launcher.start(sandbox, of.as_deref(), &reach, control);
        Self::begin(held_by(program), start).await
    }

    /// Starts a zygote, from which workers can be forked. It accepts no orders, but is ready once it has imported the
    /// modules that the workers need.
    pub async fn start_zygote(launcher: &Launcher, sandbox: Kind, program: &Arc<Program>) -> Result<Self, StartError> {
        let (launcher, of) = (launcher.clone(), Arc::clone(program));
        let start = move |control| launcher.start_zygote(sandbox, &of, control);
        Self::begin(held_by(Some(program)), start).await
    }

    /// Forks a worker of `program` from this zygote.
    pub async fn fork(&self, launcher: &Launcher, program: &Arc<Program>) -> Result<Self, StartError> {
        let (launcher, zygote) = (launcher.clone(), Arc::clone(&self.process));
        let start = move |control| launcher.fork(&zygote, control);
        let mut worker = Self::begin(held_by(Some(program)), start).await?;
        worker.is_forked = true;
        Ok(worker)
    }

    /// Returns the listener of its sandbox's access to object storage, at the first call only.
    pub fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    /// Resolves when it is gone. Does not keep the worker alive.
    pub fn wait_until_gone(&self) -> impl Future<Output = ()> + use<> {
        self.process.wait_until_gone()
    }

    /// Whether it was forked from a zygote.
    pub fn is_forked(&self) -> bool {
        self.is_forked
    }

    async fn begin(
        held: Option<KeepAlive>,
        start: impl FnOnce(OwnedFd) -> Result<Process, SandboxError> + Send + 'static,
    ) -> Result<Self, StartError> {
        let _turn = STARTS.acquire().await;
        let started = tokio::task::spawn_blocking(move || Self::begin_blocking(held, start)).await;
        match started {
            Ok(worker) => worker.map_err(StartError::from),
            Err(error) => Err(StartError::for_now(error)),
        }
    }

    fn begin_blocking(
        held: Option<KeepAlive>,
        start: impl FnOnce(OwnedFd) -> Result<Process, SandboxError>,
    ) -> Result<Self, SandboxError> {
        let failed = |what| move |source| SandboxError::Start { what, source };
        let (ours, theirs) = Socket::pair().map_err(failed("control socket"))?;
        let socket = WorkerSocket::new(ours).map_err(failed("control socket"))?;
        let mut process = start(theirs.into())?;
        let listener = process.take_listener();
        let process = Arc::new(process);
        if let Some(held) = held {
            let gone = process.wait_until_gone();
            tokio::spawn(async move {
                gone.await;
                drop(held);
            });
        }
        let begun = Instant::now();
        let control = Arc::new(Control {
            socket,
            unanswered: Mutex::new(PendingOrders {
                orders: VecDeque::new(),
                open: true,
            }),
            readiness: watch::Sender::new(Readiness::Starting),
            ready: OnceLock::new(),
        });
        let reading = read_answers(
            Arc::clone(&control),
            Arc::downgrade(&process),
            process.wait_until_gone(),
        );
        tokio::spawn(reading);
        Ok(Self {
            process,
            control,
            begun,
            is_forked: false,
            listener,
            fabric: FabricLoading::default(),
        })
    }

    /// Waits until the worker is ready for orders; the error says why it never will be.
    pub async fn wait_until_ready(&self, limit: Duration) -> Result<(), StartError> {
        let mut readiness = self.control.readiness.subscribe();
        let settled = timeout(limit, readiness.wait_for(|readiness| *readiness != Readiness::Starting));
        match settled.await.map(|readiness| readiness.map(|now| now.clone())) {
            Ok(Ok(Readiness::Ready)) => Ok(()),
            Ok(Ok(Readiness::Refused(why))) => Err(StartError::for_good(why)),
            Ok(_) => Err(StartError::from(&*self.wait_for_exit().await)),
            Err(_) => {
                self.kill();
                let why = format!("it was not ready after {} s", limit.as_secs());
                Err(StartError::for_now(why))
            }
        }
    }

    /// Whether it is ready for orders now.
    pub fn is_ready(&self) -> bool {
        *self.control.readiness.borrow() == Readiness::Ready
    }

    /// Whether it was ever ready for orders.
    pub fn has_been_ready(&self) -> bool {
        self.control.ready.get().is_some()
    }

    /// Durations of the steps of its start, once it is ready.
    pub fn steps(&self) -> StartSteps {
        let Some((ready, imports, boot)) = self.control.ready.get().copied() else {
            return StartSteps::default();
        };
        let phases = self.process.phases();
        let whole = ready.saturating_duration_since(self.begun);
        // A machine boots after it was started. The worker reports the duration, which may be false, so it is limited.
        let boot = boot.min(whole);
        let running = whole - boot;
        let imports = imports.min(running);
        let us = |time: Duration| time.as_micros() as u64;
        StartSteps {
            image_us: phases.image.map(us),
            sandbox_us: phases.sandbox.map(us),
            boot_us: (!boot.is_zero()).then(|| us(boot)),
            interpreter_us: Some(us(running - imports)),
            imports_us: (!imports.is_zero()).then(|| us(imports)),
        }
    }

    /// Whether it is gone or ending.
    pub fn is_closed(&self) -> bool {
        matches!(
            *self.control.readiness.borrow(),
            Readiness::Closed | Readiness::Refused(_)
        )
    }

    /// Two futures: one resolves when it is ready or closed, the other when it is closed. They do not keep the worker
    /// alive.
    pub fn milestones(&self) -> (impl Future<Output = ()> + use<>, impl Future<Output = ()> + use<>) {
        let mut starting = self.control.readiness.subscribe();
        let mut living = starting.clone();
        (
            async move {
                // An error means that it is gone.
                let _ = starting.wait_for(|now| *now != Readiness::Starting).await;
            },
            async move {
                let _ = living
                    .wait_for(|now| matches!(now, Readiness::Closed | Readiness::Refused(_)))
                    .await;
            },
        )
    }

    /// Sends an order.
    pub fn send(&self, order: &WorkerOrder, fds: &[BorrowedFd<'_>]) -> SentOrder {
        // Locked during the send, so that answers are expected in the order in which orders were sent.
        let mut unanswered = self.control.unanswered();
        if !unanswered.open || unanswered.orders.len() >= UNANSWERED_MAX {
            return SentOrder(Err(OrderError::Died));
        }
        if let Err(error) = self.control.socket.try_send(&encode(order), fds) {
            tracing::debug!(pid = self.pid(), %error, "cannot send an order to the worker: it is killed");
            self.kill();
            return SentOrder(Err(OrderError::Died));
        }
        let (sender, receiver) = oneshot::channel();
        unanswered.orders.push_back(sender);
        SentOrder(Ok(receiver))
    }

    /// Kills it. [`wait_for_exit`](Self::wait_for_exit) follows.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Limits its sandbox, if it has one of its own, to this memory (0: no limit) and these cores. Returns whether the
    /// kernel enforces the limit on memory.
    pub async fn limit(&self, memory_bytes: u64, cores: Vec<u32>) -> Result<bool, String> {
        let process = Arc::clone(&self.process);
        let limited = tokio::task::spawn_blocking(move || process.limit(memory_bytes, &cores)).await;
        match limited {
            Ok(limited) => limited.map_err(|error| format!("its sandbox cannot be limited: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets the watchdog enforce this limit on its memory, in place of the kernel.
    pub fn watch_memory(&self, memory_bytes: u64) {
        self.process.watch_memory(memory_bytes);
    }

    /// Waits until it is gone and reaped.
    pub async fn wait_for_exit(&self) -> Arc<Exit> {
        self.process.exited().await
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Compares its memory with a limit that the kernel does not enforce: see [`Process::check_memory_limit`].
    pub fn check_memory_limit(&self) -> Result<u64, u64> {
        self.process.check_memory_limit()
    }

    /// Resident memory of the worker and of the processes that it started, bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }
}

fn decoded(bytes: &[u8]) -> Result<WorkerAnswer, SocketError> {
    Ok(decode(bytes)?)
}

fn held_by(program: Option<&Arc<Program>>) -> Option<KeepAlive> {
    program.map(|program| program.held.clone())
}

async fn read_answers(control: Arc<Control>, process: Weak<Process>, gone: impl Future<Output = ()>) {
    let mut gone = std::pin::pin!(gone);
    let mut is_gone = false;
    let fault = loop {
        let received = if is_gone {
            // The worker's last answers are read. The socket may close later than the process ends: the worker
            // determines which other descriptors are closed with it.
            let rest = timeout(DYING_LIMIT, control.socket.receive());
            rest.await.unwrap_or(Ok(None))
        } else {
            tokio::select! {
                biased;
                received = control.socket.receive() => received,
                () = &mut gone => {
                    is_gone = true;
                    continue;
                }
            }
        };
        let answer = match received.and_then(|bytes| bytes.map(|bytes| decoded(&bytes)).transpose()) {
            Ok(Some(answer)) => answer,
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        };
        if let WorkerAnswer::Ready {
            version,
            imports_us,
            boot_us,
        } = answer
        {
            let us = Duration::from_micros;
            let _ = control.ready.set((Instant::now(), us(imports_us), us(boot_us)));
            let first = control.readiness.send_if_modified(|readiness| {
                let first = *readiness == Readiness::Starting && version == PROTOCOL_VERSION;
                if first {
                    *readiness = Readiness::Ready;
                }
                first
            });
            if first {
                continue;
            }
            break Some(format!("it announced itself as version {version}"));
        }
        if let WorkerAnswer::Failed { why } = &answer
            && *control.readiness.borrow() == Readiness::Starting
        {
            control.readiness.send_replace(Readiness::Refused(why.clone()));
            break None;
        }
        match control.unanswered().orders.pop_front() {
            // The receiver may be gone.
            Some(order) => drop(order.send(answer)),
            None => break Some("it answered an order that was not given".into()),
        }
    };
    {
        let mut unanswered = control.unanswered();
        unanswered.open = false;
        unanswered.orders.clear();
    }
    control.readiness.send_if_modified(|readiness| {
        let news = !matches!(readiness, Readiness::Refused(_));
        if news {
            *readiness = Readiness::Closed;
        }
        news
    });
    let Some(process) = process.upgrade() else {
        return;
    };
    match fault {
        Some(fault) => {
            tracing::warn!(
                pid = process.pid(),
                fault,
                "worker broke the control protocol; killing it"
            );
        }
        // The socket usually closes because the process is dying. Waits a moment, so that the process's own end is
        // recorded.
        None => drop(timeout(DYING_LIMIT, process.exited()).await),
    }
    process.kill();
}
