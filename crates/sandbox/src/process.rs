//! Started process: its output, its limits, and how it ends.

mod child;

use crate::error::SandboxError;
use crate::exit::{Exit, ProcessEnd};
use crate::footprint;
use crate::memory::OomWatch;
use crate::nursery::{SandboxLimits, StartedSandbox};
use crate::output::{ReadPace, Tail};
use crate::phases::Phases;
use crate::worker_group::{WorkerGroup, WorkerGroups};
use child::{forbid_core_dumps, open_pidfd, send_kill, until_group_is_gone};
use hotlease_nursery::order::EndReport;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// Size of one read from a process's output, bytes.
const CHUNK_BYTES: usize = 4096;
/// Largest number of bytes of output read after a process's death: as many as fit into a pipe. If more bytes arrive, a
/// process that was not killed with the group still writes, and the read does not wait for its end.
const REST_BYTES_MAX: usize = 64 * 1024;
const NOT_LIMITED: u64 = u64::MAX;

struct ProcessState {
    pid: u32,
    /// A pidfd of the process to kill.
    pidfd: AsyncFd<OwnedFd>,
    limits: ProcessLimits,
    /// Limit of the process's memory that the kernel does not enforce, bytes. 0: there is none. [`NOT_LIMITED`]: no
    /// limit was set yet.
    watched_bytes: AtomicU64,
    killed: AtomicBool,
    /// The last part of its output.
    tail: Mutex<Tail>,
}

/// Access to the limits of a process.
enum ProcessLimits {
    /// The sandbox enforces the limits.
    Sandbox(SandboxLimits),
    /// The control group of the process, if it has one, enforces the limits.
    Group(WorkerGroup),
}

impl ProcessState {
    fn new((pid, pidfd): (u32, AsyncFd<OwnedFd>), limits: ProcessLimits) -> Self {
        Self {
            pid,
            pidfd,
            limits,
            watched_bytes: AtomicU64::new(NOT_LIMITED),
            killed: AtomicBool::new(false),
            tail: Mutex::default(),
        }
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running process. A task drains its output and reaps it, so callers need not poll. Dropping the value kills the
/// process.
pub struct Process {
    shared: Arc<ProcessState>,
    exit: watch::Receiver<Option<Arc<Exit>>>,
    listener: Option<OwnedFd>,
    /// Durations of the steps of its start, as far as its kind measures them.
    pub(crate) phases: Phases,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.shared.pid)
    }
}

/// Counts one living process for as long as it exists.
pub struct LivingCount(watch::Sender<usize>);

impl LivingCount {
    pub(crate) fn new(living: watch::Sender<usize>) -> Self {
        living.send_modify(|count| *count += 1);
        Self(living)
    }
}

impl Drop for LivingCount {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Process {
    /// Watches a child that was just started as the leader of its process group.
    pub(crate) fn watch_child(
        mut child: Child,
        output: OwnedFd,
        groups: Arc<WorkerGroups>,
        living: watch::Sender<usize>,
        out_of_memory: &Arc<OomWatch>,
    ) -> io::Result<Self> {
        let pid = child.id();
        let registered = || {
            forbid_core_dumps(pid)?;
            // SAFETY: an OwnedFd is open as long as it lives, and the AsyncFd owns it.
            let pidfd = unsafe { AsyncFd::register_with_interest(open_pidfd(pid)?, Interest::READABLE) }?;
            Ok::<_, io::Error>((pidfd, pipe::Receiver::from_owned_fd(output)?))
        };
        let (pidfd, output) = match registered() {
            Ok(both) => both,
            Err(error) => {
                // Leaves no unwatched process behind. The process is killed, so the wait is short.
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        let group = ProcessLimits::Group(WorkerGroup::new(groups, pid));
        let watched = Self::watch(
            ProcessState::new((pid, pidfd), group),
            EndSource::Child(child),
            output,
            living,
            out_of_memory,
        );
        let joining = Arc::downgrade(&watched.shared);
        tokio::task::spawn_blocking(move || {
            if let Some(ProcessLimits::Group(group)) = joining.upgrade().as_deref().map(|shared| &shared.limits) {
                group.join();
            }
        });
        Ok(watched)
    }

    /// Watches a program in a sandbox.
    pub(crate) fn watch_sandbox(
        started: StartedSandbox,
        living: watch::Sender<usize>,
        out_of_memory: &Arc<OomWatch>,
    ) -> io::Result<Self> {
        let StartedSandbox {
            pidfd,
            pid,
            output,
            end,
            listener,
            limits,
        } = started;
        // A process that is not watched must not run.
        let killer = pidfd.try_clone()?;
        let registered = || {
            let output = pipe::Receiver::from_owned_fd(output)?;
            let end = pipe::Receiver::from_owned_fd(end)?;
            // SAFETY: an OwnedFd is open as long as it lives, and the AsyncFd owns it.
            let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
            Ok::<_, io::Error>((pidfd, output, end))
        };
        let (pidfd, output, end) = registered().inspect_err(|_| send_kill(&killer))?;
        let shared = ProcessState::new((pid, pidfd), ProcessLimits::Sandbox(limits));
        let life = EndSource::Sandbox(end);
        let mut process = Self::watch(shared, life, output, living, out_of_memory);
        process.listener = listener;
        Ok(process)
    }

    /// Returns the listener of the worker's access to object storage, a non-blocking TCP listener. Later calls return
    /// `None`.
    pub fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    fn watch(
        shared: ProcessState,
        life: EndSource,
        output: pipe::Receiver,
        living: watch::Sender<usize>,
        out_of_memory: &Arc<OomWatch>,
    ) -> Self {
        let shared = Arc::new(shared);
        let (sender, exit) = watch::channel(None);
        let attendant = Attendant {
            life,
            output: Some(output),
            shared: Arc::clone(&shared),
            out_of_memory: Arc::clone(out_of_memory),
        };
        let counted = LivingCount::new(living);
        tokio::spawn(async move {
            let exit = attendant.until_exit().await;
            drop(counted);
            sender.send_replace(Some(Arc::new(exit)));
        });
        Self {
            shared,
            exit,
            listener: None,
            phases: Phases::default(),
        }
    }

    /// Limits the memory of the process and of all processes that it starts, and the processors of its sandbox, as far
    /// as the node can. 0 bytes stand for the limit of the sandbox's policy, an empty list of cores for all processors.
    /// Returns whether the kernel enforces the limit on memory. Blocks for a moment.
    ///
    /// # Errors The control group rejects the limits. The kernel then does not enforce the limit on memory, and
    /// [`check_memory_limit`](Self::check_memory_limit) checks it.
    pub fn limit(&self, memory_bytes: u64, cores: &[u32]) -> io::Result<bool> {
        if self.is_gone() {
            return Ok(true);
        }
        let by_kernel = match &self.shared.limits {
            ProcessLimits::Sandbox(limits) => limits.set(memory_bytes, cores),
            ProcessLimits::Group(group) => group.limit(memory_bytes),
        };
        let watched = if matches!(by_kernel, Ok(true)) { 0 } else { memory_bytes };
        self.shared.watched_bytes.store(watched, Ordering::Relaxed);
        by_kernel
    }

    /// Sets a limit for [`check_memory_limit`](Self::check_memory_limit), which the kernel does not enforce.
    pub fn watch_memory(&self, memory_bytes: u64) {
        self.shared.watched_bytes.store(memory_bytes, Ordering::Relaxed);
    }

    /// Compares the memory of the process with its limit. Returns `Ok` with the bytes that are left: `u64::MAX` if the
    /// kernel enforces the limit, or if there is none. Returns `Err` with the bytes in use if they exceed the limit, or
    /// if the kernel has killed a process of the group for lack of memory. Reads files, which takes milliseconds if the
    /// process uses much memory.
    pub fn check_memory_limit(&self) -> Result<u64, u64> {
        if self.is_gone() {
            return Ok(u64::MAX);
        }
        if let ProcessLimits::Group(group) = &self.shared.limits
            && group.read_oom_kill() == Some(true)
        {
            return Err(self.resident_bytes());
        }
        match self.shared.watched_bytes.load(Ordering::Relaxed) {
            0 => Ok(u64::MAX),
            // A limit may be set at any time.
            NOT_LIMITED => Ok(0),
            limit => footprint::check_memory_limit(self.pid(), limit),
        }
    }

    /// Forks a worker from the process, with `control` as the worker's standard input. Fails if the process is gone, or
    /// is no zygote.
    pub(crate) fn fork(&self, control: OwnedFd) -> Result<StartedSandbox, SandboxError> {
        let gone = || SandboxError::Sandbox {
            what: "the zygote is gone".into(),
        };
        match &self.shared.limits {
            ProcessLimits::Sandbox(limits) if !self.is_gone() => limits.fork(control),
            _ => Err(gone()),
        }
    }

    /// Durations of the steps of its start.
    pub fn phases(&self) -> Phases {
        self.phases
    }

    /// Its pid. The system may reuse it once the process is gone.
    pub fn pid(&self) -> u32 {
        self.shared.pid
    }

    /// Kills the process; the rest of its group is killed when the process is reaped. Without effect once the process
    /// is gone.
    pub fn kill(&self) {
        self.shared.killed.store(true, Ordering::Relaxed);
        send_kill(self.shared.pidfd.get_ref());
    }

    /// Whether the process is gone and reaped.
    pub fn is_gone(&self) -> bool {
        self.exit.borrow().is_some()
    }

    /// Waits until the process is gone and reaped. Any number of callers can wait, and each can stop waiting.
    pub async fn exited(&self) -> Arc<Exit> {
        let mut exit = self.exit.clone();
        let waited = exit.wait_for(Option::is_some).await;
        match waited.as_deref() {
            Ok(Some(exit)) => Arc::clone(exit),
            // The task ended without a report: the runtime is shutting down.
            Ok(None) | Err(_) => Arc::new(Exit {
                end: ProcessEnd::Signalled(Signal::SIGKILL as i32),
                output: String::new(),
            }),
        }
    }

    /// Resolves when the process is gone and reaped. The future does not keep the process alive: dropping the
    /// [`Process`] kills it.
    pub fn wait_until_gone(&self) -> impl Future<Output = ()> + use<> {
        let mut exit = self.exit.clone();
        async move {
            // An error means that the runtime is shutting down.
            let _ = exit.wait_for(Option::is_some).await;
        }
    }

    /// The last part of the process's output so far.
    pub fn output(&self) -> String {
        self.shared.tail().text()
    }

    /// Resident memory of the process and of the processes that it started, bytes; 0 once the process is gone.
    pub fn resident_bytes(&self) -> u64 {
        if self.is_gone() {
            return 0;
        }
        footprint::resident_bytes(self.shared.pid).unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_gone() {
            self.kill();
        }
    }
}

/// Source of the report that a process has ended.
enum EndSource {
    /// A child of the agent, which reaps it.
    Child(Child),
    /// The nursery reaps it, and writes its [`EndReport`] here when nothing of it is left.
    Sandbox(pipe::Receiver),
}

impl EndSource {
    async fn wait_for_end(&self, shared: &ProcessState) {
        match self {
            Self::Child(_) => drop(shared.pidfd.readable().await),
            Self::Sandbox(end) => drop(end.readable().await),
        }
    }
}

struct Attendant {
    life: EndSource,
    output: Option<pipe::Receiver>,
    shared: Arc<ProcessState>,
    out_of_memory: Arc<OomWatch>,
}

impl Attendant {
    async fn until_exit(mut self) -> Exit {
        let mut chunk = [0; CHUNK_BYTES];
        let mut pace = ReadPace::default();
        let ended = loop {
            tokio::select! {
                biased;
                () = self.life.wait_for_end(&self.shared) => {
                    if let Some(ended) = self.take_end().await {
                        break ended;
                    }
                }
                () = readable(self.output.as_ref(), pace.paused_until(Instant::now())) => {
                    match self.read_some(&mut chunk) {
                        Some(length) => pace.count(length, Instant::now()),
                        None => self.output = None,
                    }
                }
            }
        };
        let mut rest = REST_BYTES_MAX;
        while let Some(length @ 1..) = self.read_some(&mut chunk) {
            rest = rest.saturating_sub(length);
            if rest == 0 {
                break;
            }
        }
        Exit {
            end: self.end(ended),
            output: self.shared.tail().text(),
        }
    }

    /// Returns the end of the process, once everything that it started has ended, too. Returns `None` if it has not
    /// ended.
    async fn take_end(&mut self) -> Option<EndReport> {
        // The process was killed with its nursery, or the cause of its end is unknown.
        const UNKNOWN: EndReport = EndReport {
            status: -(Signal::SIGKILL as i32),
            out_of_memory: Some(false),
        };
        match &mut self.life {
            EndSource::Child(child) => {
                // The leader is not reaped yet, so its group id cannot belong to another group. Processes that a
                // function started and that are still in the group must not outlive the lease.
                let group = Pid::from_raw(self.shared.pid as i32);
                // ESRCH: no process is left in the group.
                let _ = killpg(group, Signal::SIGKILL);
                let waited = child.wait();
                until_group_is_gone(group).await;
                Some(match waited {
                    Ok(status) => EndReport {
                        status: of_status(status),
                        out_of_memory: match &self.shared.limits {
                            ProcessLimits::Group(group) => group.read_oom_kill(),
                            ProcessLimits::Sandbox(_) => None,
                        },
                    },
                    // Another part of the agent has reaped the child, so its status is not known.
                    Err(_) => UNKNOWN,
                })
            }
            EndSource::Sandbox(end) => {
                let mut word = [0; 16];
                match end.try_read(&mut word) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                    Ok(length @ 1..) => Some(hotlease_wire::decode(&word[..length]).unwrap_or(UNKNOWN)),
                    Ok(0) | Err(_) => {
                        // The nursery is gone, and the kernel kills its sandboxes.
                        drop(self.shared.pidfd.readable().await);
                        Some(UNKNOWN)
                    }
                }
            }
        }
    }

    /// Moves a chunk of output into the tail. Returns the length of the chunk, 0 if there is no output now, or `None`
    /// after the end of the output.
    fn read_some(&self, chunk: &mut [u8]) -> Option<usize> {
        match self.output.as_ref()?.try_read(chunk) {
            Ok(0) => None,
            Ok(length) => {
                self.shared.tail().push(&chunk[..length]);
                Some(length)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
            Err(_) => None,
        }
    }

    fn end(&self, ended: EndReport) -> ProcessEnd {
        let end = match ended.status {
            status @ 0.. => ProcessEnd::Exited(status),
            signal => ProcessEnd::Signalled(-signal),
        };
        let killed = self.shared.killed.load(Ordering::Relaxed);
        let unexplained = end == ProcessEnd::Signalled(Signal::SIGKILL as i32) && !killed;
        // A count of the sandbox's group is exact; the agent's own count also includes kills elsewhere.
        let struck = || ended.out_of_memory.unwrap_or_else(|| self.out_of_memory.take_kill());
        match unexplained && struck() {
            true => ProcessEnd::OutOfMemory,
            false => end,
        }
    }
}

/// The exit status, or the negative signal.
fn of_status(status: ExitStatus) -> i32 {
    let signal = || -status.signal().unwrap_or(Signal::SIGKILL as i32);
    status.code().unwrap_or_else(signal)
}

/// Waits for the end of a pause and then for output; waits for ever if no more output can arrive.
async fn readable(output: Option<&pipe::Receiver>, paused_until: Option<Instant>) {
    if let Some(until) = paused_until {
        tokio::time::sleep_until(until.into()).await;
    }
    match output {
        // If this fails, the read fails, too.
        Some(output) => drop(output.readable().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
