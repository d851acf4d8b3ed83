//! Sandboxes of kinds `namespace`, `container` and `microvm`, which the nursery makes on the agent's orders.

use crate::container::Container;
use crate::error::SandboxError;
use crate::kind::Kind;
use crate::machine::{Machine, MachineSetup};
use crate::workload::{Program, WorkerReach};
use hotlease_nursery::order::{NurseryOrder, Reply, WORKER_INSIDE};
use hotlease_nursery::policy::{Mount, Policy};
use hotlease_nursery::program::ProgramDescription;
use hotlease_nursery::program::inner_environment;
use hotlease_nursery::{receive, send};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// File name of the nursery's program.
pub const NURSERY_BINARY: &str = "hotlease-nursery";

/// Time limit for an answer of the nursery. It is longer than the nursery's own limit for making a sandbox.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Time after which a nursery that has not answered is examined; usually it answers within milliseconds.
const LOOK_AFTER: TimeVal = TimeVal::new(0, 500_000);

/// A nursery for one kind of sandbox. It is started when it is first needed, and again if it has died.
pub(crate) struct NurseryHandle {
    binary: PathBuf,
    policy: Arc<Policy>,
    of: SandboxContent,
    running: Mutex<Option<Arc<Nursery>>>,
}

/// Content of a nursery's sandboxes.
pub(crate) enum SandboxContent {
    /// Folders of the host.
    Pieces,
    /// A container.
    Container(Container),
    /// A virtual machine, and the path of its monitor's program.
    Machine(Machine, PathBuf),
}

/// A running nursery. Dropping the value ends the nursery and all its sandboxes.
struct Nursery {
    socket: Option<OwnedFd>,
    child: Option<Child>,
    lacking: Vec<String>,
    next: AtomicU64,
}

/// A sandbox whose program runs.
pub(crate) struct StartedSandbox {
    /// A pidfd of the process to kill. It is pid 1 of the sandbox, with which everything in the sandbox dies, or the
    /// program if that is a zygote.
    pub pidfd: OwnedFd,
    /// Pid of the program on the host; 0 if the program is gone already.
    pub pid: u32,
    /// Output of the program.
    pub output: OwnedFd,
    /// Pipe in which the nursery reports the end.
    pub end: OwnedFd,
    /// Listener of the program's access to object storage, if it has access.
    pub listener: Option<OwnedFd>,
    /// Access to its limits.
    pub limits: SandboxLimits,
}

/// Access to the limits of a running sandbox.
pub(crate) struct SandboxLimits {
    nursery: Arc<Nursery>,
    id: u64,
    /// Whether the sandbox contains a machine, which limits its memory itself.
    is_machine: bool,
}

impl NurseryHandle {
    pub fn new(binary: PathBuf, policy: Arc<Policy>, of: SandboxContent) -> Self {
        Self {
            binary,
            policy,
            of,
            running: Mutex::new(None),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Nursery>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nursery(&self) -> Result<Arc<Nursery>, String> {
        let mut running = self.current();
        if let Some(nursery) = &*running {
            return Ok(Arc::clone(nursery));
        }
        let policy = Policy::clone(&self.policy);
        let (first, lacking) = match &self.of {
            SandboxContent::Pieces => (NurseryOrder::Serve(policy), None),
            SandboxContent::Container(container) => (NurseryOrder::Contain(policy, container.resolve()?), None),
            SandboxContent::Machine(machine, monitor) => {
                machine.resolve(monitor)?;
                (NurseryOrder::Serve(machine.policy(&policy)), machine.lacking())
            }
        };
        let mut nursery = Nursery::start(&self.binary, &first)?;
        nursery.lacking.extend(lacking);
        let nursery = Arc::new(nursery);
        *running = Some(Arc::clone(&nursery));
        Ok(nursery)
    }

    fn kind(&self) -> Kind {
        match self.of {
            SandboxContent::Pieces => Kind::Namespace,
            SandboxContent::Container(_) => Kind::Container,
            SandboxContent::Machine(..) => Kind::MicroVm,
        }
    }

    /// Forgets a nursery that does not answer: the next request starts another.
    fn forget(&self, nursery: &Arc<Nursery>) {
        let mut running = self.current();
        if running.as_ref().is_some_and(|now| Arc::ptr_eq(now, nursery)) {
            *running = None;
        }
    }

    /// Uses a new nursery from now on, which sees the host's current mounts. The old nursery ends with its last
    /// sandbox.
    pub fn renew(&self) {
        // Dropped after the lock is released.
        let old = self.current().take();
        drop(old);
    }

    /// Parts of the policy that this node cannot enforce. The error says why sandboxes cannot be made at all.
    pub fn lacking(&self) -> Result<Vec<String>, String> {
        self.nursery().map(|nursery| nursery.lacking.clone())
    }

    /// Starts `program` in a sandbox, or the worker's `binary` if `program` is `None`. The program's own variables are
    /// added after `environment`. If `zygote` is set, workers can be forked from the program.
    pub fn start(
        &self,
        (program, zygote): (Option<&Program>, bool),
        reach: &WorkerReach,
        binary: &Path,
        environment: &[(OsString, OsString)],
        control: OwnedFd,
    ) -> Result<StartedSandbox, SandboxError> {
        let unavailable = |why| SandboxError::Unavailable { kind: self.kind(), why };
        let monitor = match &self.of {
            SandboxContent::Machine(machine, monitor) => {
                let found: MachineSetup = machine.resolve(monitor).map_err(unavailable)?;
                Some(found.monitor(&self.policy, (program, zygote), reach, binary))
            }
            _ => None,
        };
        let described = described((program, zygote), monitor.as_ref(), (reach, binary), environment)
            .map_err(failed("describing the program"))?;
        // If the nursery has died meanwhile, the request to it fails; so a second attempt follows.
        for _ in 0..2 {
            let nursery = self.nursery().map_err(unavailable)?;
            let order = |id| NurseryOrder::Start {
                id,
                network: reach.network,
                storage: reach.storage.as_ref().is_some_and(|storage| storage.inside),
            };
            match nursery.begin(order, &control, Some(&described)) {
                Ok(started) => {
                    return started.map(|mut started| {
                        started.limits.is_machine = monitor.is_some();
                        started
                    });
                }
                Err(error) => {
                    self.forget(&nursery);
                    // The nursery was asked and did not answer in time, so it may have started the program.
                    if error.kind() == io::ErrorKind::TimedOut {
                        return Err(failed("the nursery")(error));
                    }
                }
            }
        }
        Err(failed("the nursery")(io::ErrorKind::BrokenPipe.into()))
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> SandboxError {
    move |source| SandboxError::Start { what, source }
}

impl SandboxLimits {
    /// Sets the limits. Returns whether the kernel enforces the limit on the memory of all processes together.
    pub fn set(&self, memory_bytes: u64, cores: &[u32]) -> io::Result<bool> {
        let order = NurseryOrder::Limit {
            id: self.id,
            memory_bytes: if self.is_machine { 0 } else { memory_bytes },
            cores: cores.to_vec(),
        };
        match self.nursery.ask(&order, &[])? {
            // A machine has the memory that it was made with.
            (Reply::Limited { memory }, _) => Ok(memory || self.is_machine),
            (Reply::Failed { what }, _) => Err(io::Error::other(what)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Forks a worker from the zygote in this sandbox, into a sandbox of its own.
    pub fn fork(&self, control: OwnedFd) -> Result<StartedSandbox, SandboxError> {
        let zygote = self.id;
        let begun = self
            .nursery
            .begin(|id| NurseryOrder::Fork { id, zygote }, &control, None);
        let mut started = begun.map_err(failed("the nursery"))??;
        started.limits.is_machine = self.is_machine;
        Ok(started)
    }
}

impl Nursery {
    /// Starts the program and has it make a first sandbox.
    fn start(binary: &Path, first: &NurseryOrder) -> Result<Self, String> {
        let named = |error: io::Error| {
            format!(
                "the program {} cannot be run: {error}; build it with `make build`, or name it in HOTLEASE_NURSERY",
                binary.display()
            )
        };
        let (socket, theirs) = pair().map_err(named)?;
        // The nursery is started by posix_spawn: see `Launcher::spawn`. It has its own process group, so that a Ctrl-C
        // meant for the agent does not reach it.
        use std::os::unix::process::CommandExt;
        let child = Command::new(binary)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(named)?;
        let mut nursery = Self {
            socket: Some(socket),
            child: Some(child),
            lacking: Vec::new(),
            next: AtomicU64::new(1),
        };
        let answer = nursery.ask(first, &[]);
        match answer.map_err(|error| format!("{} does not answer: {error}", binary.display()))? {
            (Reply::Ready { lacking }, _) => {
                nursery.lacking = lacking;
                Ok(nursery)
            }
            (Reply::Failed { what }, _) => Err(what),
            _ => Err(format!("{} is of another version", binary.display())),
        }
    }

    /// Orders a start or a fork, with this control socket as standard input. The outer error is an error of the nursery
    /// itself.
    fn begin(
        self: &Arc<Self>,
        order: impl FnOnce(u64) -> NurseryOrder,
        control: &OwnedFd,
        described: Option<&File>,
    ) -> io::Result<Result<StartedSandbox, SandboxError>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (output, stdout) = io::pipe()?;
        let (end, telling) = io::pipe()?;
        let fds = [control.as_fd(), stdout.as_fd(), telling.as_fd()].into_iter();
        let fds: Vec<BorrowedFd<'_>> = fds.chain(described.map(AsFd::as_fd)).collect();
        let (reply, fds) = self.ask(&order(id), &fds)?;
        let mut fds = fds.into_iter();
        Ok(match (reply, fds.next(), fds.next()) {
            (Reply::Started, Some(pidfd), Some(program)) => pid_of(&program)
                .map_err(failed("finding the program's process"))
                .map(|pid| StartedSandbox {
                    pid,
                    pidfd,
                    output: output.into(),
                    end: end.into(),
                    listener: fds.next(),
                    limits: SandboxLimits {
                        nursery: Arc::clone(self),
                        id,
                        is_machine: false,
                    },
                }),
            (Reply::Failed { what }, ..) => Err(SandboxError::Sandbox { what }),
            _ => Err(failed("the nursery")(io::ErrorKind::InvalidData.into())),
        })
    }

    fn ask(&self, order: &NurseryOrder, fds: &[BorrowedFd<'_>]) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let (ours, theirs) = pair()?;
        setsockopt(&ours, ReceiveTimeout, &LOOK_AFTER)?;
        let all: Vec<BorrowedFd<'_>> = std::iter::once(theirs.as_fd()).chain(fds.iter().copied()).collect();
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket, order, &all)?;
        drop(all);
        // Otherwise the nursery's death would not close the socket.
        drop(theirs);
        let begin = Instant::now();
        loop {
            return match receive(&ours) {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                Err(_) if begin.elapsed() > ANSWER_LIMIT => Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {
                    self.wake_if_stopped();
                    continue;
                }
            };
        }
    }

    /// Continues a nursery that a signal has stopped. Every start of its kind waits for the nursery, and ending it
    /// would end all its sandboxes. A nursery that a debugger has stopped is left alone.
    fn wake_if_stopped(&self) {
        // The pid belongs to the nursery until the nursery is reaped.
        let Some(pid) = self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok()) else {
            return;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_stopped = stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        if is_stopped {
            // Fails only if the nursery has died, which its socket reports.
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // The nursery ends by itself, and ends its sandboxes.
        drop(self.socket.take());
        if let Some(mut child) = self.child.take() {
            // The nursery's end takes milliseconds, too long for a thread of the runtime. If no thread can be started,
            // init reaps it.
            let _ = std::thread::Builder::new()
                .name("nursery's end".into())
                .spawn(move || child.wait());
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

/// Describes the program that a sandbox runs: `monitor` if it is given, which makes a machine for the program, else the
/// program itself.
fn described(
    (program, zygote): (Option<&Program>, bool),
    monitor: Option<&Program>,
    (reach, binary): (&WorkerReach, &Path),
    inherited: &[(OsString, OsString)],
) -> io::Result<File> {
    let inherited = inherited_inside(inherited);
    let inside = environment_of(program, reach, inherited.clone());
    let (run, environment) = match monitor {
        // The monitor, which is outside of the machine, must not get the lease's variables.
        Some(_) => (monitor, [inherited, inner_environment::wrap(&inside)].concat()),
        None => (program, inside),
    };
    let (path, directory) = match run {
        None => (WORKER_INSIDE.into(), "/".into()),
        Some(run) => (
            run.path.clone().into_os_string(),
            run.directory.clone().into_os_string(),
        ),
    };
    let name = match run {
        None => crate::WORKER_BINARY.into(),
        Some(_) => path.clone(),
    };
    let arguments = run.map_or(&[][..], |run| &run.arguments);
    let described = ProgramDescription {
        arguments: std::iter::once(name).chain(arguments.iter().cloned()).collect(),
        path,
        environment,
        directory,
        mounts: match run {
            None => vec![Mount {
                source: binary.to_owned(),
                target: WORKER_INSIDE.into(),
                writable: false,
            }],
            Some(run) => run.mounts.clone(),
        },
        declared: reach.directories.clone(),
        zygote: zygote && run.is_some(),
    };
    let mut file = File::from(memfd_create(c"hotlease-program", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&hotlease_wire::encode(&described))?;
    Ok(file)
}

/// The variables that workers inherit from the agent, except for folders of the host that do not exist in a sandbox.
fn inherited_inside(inherited: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let replaced = ["HOME", "TMPDIR"];
    let kept = inherited
        .iter()
        .filter(|(name, _)| !replaced.iter().any(|replaced| name == replaced));
    let own = replaced.map(|name| (OsString::from(name), OsString::from("/tmp")));
    kept.cloned().chain(own).collect()
}

/// Environment of a worker in a sandbox. Later sources replace variables of the same name from earlier sources: first
/// inherited variables, then variables of the program, of the lease, and of the lease's access.
fn environment_of(
    program: Option<&Program>,
    reach: &WorkerReach,
    inherited: Vec<(OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let mut environment = inherited;
    let of_program = program.map_or(&[][..], |program| &program.environment);
    for further in std::iter::once(of_program).chain(reach.environment()) {
        environment.retain(|(name, _)| !further.iter().any(|(own, _)| own == name));
        environment.extend_from_slice(further);
    }
    crate::environment::add_team_sizes(&mut environment);
    environment
}

/// Pid of a pidfd's process, in this namespace.
fn pid_of(pidfd: &OwnedFd) -> io::Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    // The pid is -1 if the process is gone already.
    let pid = pid.and_then(|pid| pid.trim().parse::<i64>().ok()).unwrap_or(-1);
    u32::try_from(pid).or(Ok(0))
}

#[cfg(test)]
pub(crate) mod tests;
