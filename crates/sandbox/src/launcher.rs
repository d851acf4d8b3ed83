//! Launcher: starts workers in sandboxes, and counts them.

use crate::container::Container;
use crate::environment;
use crate::error::SandboxError;
use crate::kind::Kind;
use crate::machine::{MACHINE_BINARY, Machine};
use crate::memory::OomWatch;
use crate::nursery::{NURSERY_BINARY, NurseryHandle, SandboxContent, StartedSandbox};
use crate::process::{LivingCount, Process};
use crate::programs::{candidate_paths, find_program};
use crate::worker_group::WorkerGroups;
use crate::workload::{Program, WORKER_BINARY, WorkerReach};
use hotlease_nursery::policy::Policy;
use nix::unistd::{AccessFlags, access};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Starts workers in sandboxes. Clones of a launcher share its nurseries and its count of processes.
#[derive(Clone)]
pub struct Launcher {
    binary: PathBuf,
    environment: Arc<Vec<(OsString, OsString)>>,
    policy: Arc<Policy>,
    nursery: PathBuf,
    container: Container,
    machine: Machine,
    /// Nursery of each kind that needs one.
    namespaces: Arc<NurseryHandle>,
    containers: Arc<NurseryHandle>,
    machines: Arc<NurseryHandle>,
    /// Number of processes that were started and are not reaped yet.
    living: watch::Sender<usize>,
    out_of_memory: Arc<OomWatch>,
    groups: Arc<WorkerGroups>,
}

impl fmt::Debug for Launcher {
    /// Leaves out the environment, which must not be in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Launcher({})", self.binary.display())
    }
}

impl Launcher {
    /// Makes a launcher for this worker program.
    pub fn new(binary: &Path) -> Result<Self, SandboxError> {
        let unusable = |source| SandboxError::Binary {
            path: binary.to_owned(),
            source,
        };
        // Absolute, because workers start in another directory.
        let path = binary.canonicalize().map_err(unusable)?;
        if !path.is_file() {
            return Err(unusable(io::ErrorKind::IsADirectory.into()));
        }
        access(&path, AccessFlags::X_OK).map_err(|errno| unusable(errno.into()))?;
        let policy = Arc::new(Policy::default());
        let nursery = find_program(&path, NURSERY_BINARY, "HOTLEASE_NURSERY");
        let (container, machine) = (Container::default(), Machine::default());
        let [namespaces, containers, machines] = nurseries(&path, &nursery, &policy, &container, &machine);
        Ok(Self {
            binary: path,
            environment: Arc::new(environment::inherited()),
            namespaces,
            containers,
            machines,
            container,
            machine,
            nursery,
            policy,
            living: watch::Sender::new(0),
            out_of_memory: Arc::new(OomWatch::watch()),
            groups: WorkerGroups::shared(),
        })
    }

    /// Replaces the policy; the default is the strict one.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Arc::new(policy);
        self.with_new_nurseries()
    }

    /// Replaces the path of `hotlease-nursery`. By default the launcher uses `$HOTLEASE_NURSERY`. If that is not set,
    /// it searches the folders of the worker's program and of the running program, and `../libexec/hotlease` relative
    /// to these folders.
    pub fn with_nursery(mut self, nursery: impl Into<PathBuf>) -> Self {
        self.nursery = nursery.into();
        self.with_new_nurseries()
    }

    /// Replaces the settings of containers; by default `crun` makes them.
    pub fn with_container(mut self, container: Container) -> Self {
        self.container = container;
        self.with_new_nurseries()
    }

    /// Replaces the settings of virtual machines; by default they run the newest kernel of the host.
    pub fn with_machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self.with_new_nurseries()
    }

    /// Replaces the nurseries by new nurseries with the current settings.
    fn with_new_nurseries(mut self) -> Self {
        [self.namespaces, self.containers, self.machines] = nurseries(
            &self.binary,
            &self.nursery,
            &self.policy,
            &self.container,
            &self.machine,
        );
        self
    }

    /// Makes no control groups of its own.
    #[cfg(test)]
    pub(crate) fn without_groups(mut self) -> Self {
        self.groups = WorkerGroups::none();
        self
    }

    #[cfg(test)]
    pub(crate) fn namespaces(&self) -> &NurseryHandle {
        &self.namespaces
    }

    #[cfg(test)]
    pub(crate) fn containers(&self) -> &NurseryHandle {
        &self.containers
    }

    /// Policy of the sandboxes.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Makes sandboxes that start from now on see the current mounts of the host; running sandboxes keep their view.
    /// Call this after a mount or unmount that does not propagate to other mount namespaces.
    pub fn renew_mounts(&self) {
        self.namespaces.renew();
        self.machines.renew();
    }

    /// Checks whether this node can make sandboxes of this kind. The error says what is missing, and what to install or
    /// allow. The first call makes a sandbox to find out, which takes some milliseconds.
    pub fn check_available(&self, kind: Kind) -> Result<(), String> {
        self.find_lacking(kind).map(drop)
    }

    /// Whether sandboxes of this kind confine hostile code: code of tenants that do not trust each other, or code that
    /// the node does not trust.
    pub fn is_confining(&self, kind: Kind) -> bool {
        match kind {
            Kind::Process => false,
            Kind::Namespace | Kind::MicroVm => true,
            Kind::Container => self.container.confines(),
        }
    }

    /// Returns the parts of the policy that this node cannot enforce in sandboxes of this kind. Fails like
    /// [`check_available`](Self::check_available) if the node cannot make sandboxes of this kind.
    pub fn find_lacking(&self, kind: Kind) -> Result<Vec<String>, String> {
        match kind {
            Kind::Process => Ok(self.groups.lacking().into_iter().collect()),
            Kind::Namespace => self.namespaces.lacking(),
            Kind::Container => self.containers.lacking(),
            Kind::MicroVm => self.machines.lacking(),
        }
    }

    /// Finds the worker's program: `$HOTLEASE_WORKER` if it is set, else the file in the folder of the running program,
    /// else the file in `../libexec/hotlease` relative to that folder.
    pub fn find() -> Result<PathBuf, SandboxError> {
        if let Some(named) = std::env::var_os("HOTLEASE_WORKER").filter(|name| !name.is_empty()) {
            return Ok(named.into());
        }
        let program = std::env::current_exe().map_err(|source| SandboxError::Binary {
            path: WORKER_BINARY.into(),
            source,
        })?;
        let [beside, installed] = candidate_paths(&program, WORKER_BINARY);
        if beside.is_file() {
            return Ok(beside);
        }
        if installed.is_file() {
            return Ok(installed);
        }
        Err(SandboxError::Binary {
            path: beside,
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// Path of the worker's program.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Starts a worker with `control` as its standard input. The worker runs `program`, or the launcher's own program
    /// if `program` is `None`. Blocks for some hundred microseconds to some milliseconds; must be called within a tokio
    /// runtime.
    pub fn start(
        &self,
        kind: Kind,
        program: Option<&Program>,
        reach: &WorkerReach,
        control: OwnedFd,
    ) -> Result<Process, SandboxError> {
        let begin = Instant::now();
        let mut process = self.start_of(kind, (program, reach), control)?;
        process.phases = process.phases.of_start(begin.elapsed());
        Ok(process)
    }

    fn start_of(
        &self,
        kind: Kind,
        (program, reach): (Option<&Program>, &WorkerReach),
        control: OwnedFd,
    ) -> Result<Process, SandboxError> {
        match kind {
            Kind::Process => {}
            Kind::Namespace => {
                let started = self.start_in(&self.namespaces, (program, reach), control);
                return started.map_err(|error| error.unless_missing(program));
            }
            Kind::Container => return self.start_in(&self.containers, (program, reach), control),
            Kind::MicroVm => return self.start_in(&self.machines, (program, reach), control),
        }
        let Some(program) = program else {
            let mut worker = Command::new(&self.binary);
            worker.arg0(WORKER_BINARY).current_dir("/");
            return self.spawn(worker, (&[], reach), control);
        };
        let unusable = |errno: nix::errno::Errno| SandboxError::Program {
            path: program.path.clone(),
            source: errno.into(),
        };
        access(&program.path, AccessFlags::X_OK).map_err(unusable)?;
        let mut worker = Command::new(&program.path);
        worker.args(&program.arguments);
        worker.current_dir(match program.directory.is_dir() {
            true => &program.directory,
            false => Path::new("/"),
        });
        self.spawn(worker, (&program.environment, reach), control)
    }

    fn start_in(
        &self,
        sandboxes: &NurseryHandle,
        what: (Option<&Program>, &WorkerReach),
        control: OwnedFd,
    ) -> Result<Process, SandboxError> {
        let started = sandboxes.start((what.0, false), what.1, &self.binary, &self.environment, control)?;
        self.attend(started)
    }

    /// Starts a zygote: a program from which workers can be [forked](Self::fork). The zygote runs in a virtual machine
    /// for kind `microvm`, and in a sandbox of kind `namespace` for any other kind. Otherwise this works like
    /// [`start`](Self::start). The zygote's workers survive when the zygote is killed, and the zygote counts as gone
    /// only when its last worker is gone.
    pub fn start_zygote(&self, kind: Kind, program: &Program, control: OwnedFd) -> Result<Process, SandboxError> {
        let sandboxes = match kind {
            Kind::MicroVm => &self.machines,
            _ => &self.namespaces,
        };
        let (zygote, reach) = ((Some(program), true), WorkerReach::default());
        self.attend(sandboxes.start(zygote, &reach, &self.binary, &self.environment, control)?)
    }

    /// Forks a worker from a zygote into a sandbox of its own, of the zygote's kind, with `control` as its standard
    /// input. After the fork, neither process sees what the other writes to memory. Blocks as [`start`](Self::start)
    /// does.
    pub fn fork(&self, zygote: &Process, control: OwnedFd) -> Result<Process, SandboxError> {
        let begin = Instant::now();
        let mut process = self.attend(zygote.fork(control)?)?;
        process.phases = process.phases.of_start(begin.elapsed());
        Ok(process)
    }

    /// Watches a started sandbox: drains its output, counts it, reports its end.
    fn attend(&self, started: StartedSandbox) -> Result<Process, SandboxError> {
        Process::watch_sandbox(started, self.living.clone(), &self.out_of_memory)
            .map_err(|source| SandboxError::Start { what: "watch", source })
    }

    fn spawn(
        &self,
        mut worker: Command,
        (own, reach): (&[(OsString, OsString)], &WorkerReach),
        control: OwnedFd,
    ) -> Result<Process, SandboxError> {
        let failed = |what| move |source| SandboxError::Start { what, source };
        let (output, stdout) = io::pipe().map_err(failed("pipe"))?;
        let stderr = stdout.try_clone().map_err(failed("pipe"))?;
        let further = reach.environment().into_iter().flatten();
        let whole = self.environment.iter().chain(own).chain(further);
        let mut whole: Vec<(OsString, OsString)> = whole.cloned().collect();
        environment::add_team_sizes(&mut whole);
        // Uses no pre_exec or the like, so that the standard library uses posix_spawn. A fork would copy the page
        // tables of a large agent, which costs more than all other steps.
        let child = worker
            .env_clear()
            .envs(whole)
            .process_group(0)
            .stdin(Stdio::from(control))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(failed("spawn"))?;
        let (groups, living) = (Arc::clone(&self.groups), self.living.clone());
        Process::watch_child(child, output.into(), groups, living, &self.out_of_memory).map_err(failed("watch"))
    }

    /// Counts a process that is about to be started as living, until the returned value is dropped. Otherwise
    /// [`all_gone`](Self::all_gone) would miss a process between the decision to start it and its start.
    pub fn count_start(&self) -> LivingCount {
        LivingCount::new(self.living.clone())
    }

    /// Number of processes that were started and are not yet reaped, plus processes that are [about to be
    /// started](Self::count_start).
    pub fn living(&self) -> usize {
        *self.living.borrow()
    }

    /// Waits until every started process is gone and reaped.
    pub async fn all_gone(&self) {
        // Cannot fail: self holds the sender.
        let _ = self.living.subscribe().wait_for(|living| *living == 0).await;
    }
}

/// Makes the nurseries for namespaces, containers and machines. Each nursery's program starts only when it is needed.
fn nurseries(
    worker: &Path,
    nursery: &Path,
    policy: &Arc<Policy>,
    container: &Container,
    machine: &Machine,
) -> [Arc<NurseryHandle>; 3] {
    let monitor = find_program(worker, MACHINE_BINARY, "HOTLEASE_MACHINE");
    [
        SandboxContent::Pieces,
        SandboxContent::Container(container.clone()),
        SandboxContent::Machine(machine.clone(), monitor),
    ]
    .map(|of| Arc::new(NurseryHandle::new(nursery.to_owned(), Arc::clone(policy), of)))
}
