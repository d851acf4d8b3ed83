//! Pid 1 of a sandbox: makes the root file system, waits for the order to start the program, starts it, and reaps. When
//! pid 1 ends, the kernel ends everything else in the sandbox.
//!
//! It is a copy of the nursery that never execs, so all code that runs before the program starts is this code. No
//! process in the sandbox can inspect it, because it is not dumpable, nor signal it, because the kernel protects pid 1
//! from its own namespace.

use crate::confinement::{self, TcpRules};
use crate::container::runtime_process::RuntimeProcess;
use crate::container::template::ContainerTemplate;
use crate::kernel::{self, ForkSide};
use crate::loopback;
use crate::message::{receive, send};
use crate::order::STORAGE_PORT;
use crate::pid1_message::{Pid1Order, Pid1Report};
use crate::policy::Policy;
use crate::program::{Executable, read_description};
use crate::root::{self, StepError, Template, USER, step};
use crate::zygote::{ZygoteNamespaces, pid1};
use rustix::process::{Resource, Rlimit, setrlimit, setsid};
use rustix::thread::{Gid, Uid, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::BpfProgram;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;

/// Root file system that a program sees.
pub enum View {
    /// A root made of pieces of the host.
    Pieces(Template),
    /// A root that a container runtime makes.
    Container(Box<ContainerTemplate>),
}

/// Settings of a sandbox that its pid 1 carries out.
pub struct SandboxInit<'a> {
    pub view: &'a View,
    pub policy: &'a Policy,
    /// Filter of system calls for all programs except zygotes and programs with access to object storage.
    pub filter: &'a BpfProgram,
    /// Filter of programs with access to object storage.
    pub filter_with_storage: &'a BpfProgram,
    /// Filter of zygotes.
    pub filter_of_zygotes: &'a BpfProgram,
    /// Whether the nursery runs as root, so that the sandbox runs as another user.
    pub by_root: bool,
    /// Whether the sandbox shares the host's network.
    pub network: bool,
}

/// Descriptor of the socket to the nursery, over which all other descriptors arrive.
const SOCKET: i32 = 3;

impl SandboxInit<'_> {
    /// Runs pid 1 until its end; `socket` leads to the nursery.
    pub fn live(&self, socket: OwnedFd) -> ! {
        let status = match close_all_but(socket, "/host/dev/null") {
            Ok(socket) => match self.prepare_and_start(&socket) {
                Ok(status) => {
                    // Fails if the nursery is gone: then no report is needed.
                    let _ = send(&socket, &Pid1Report::Ended { status }, &[]);
                    0
                }
                Err(error) => {
                    let what = error.to_string();
                    let _ = send(&socket, &Pid1Report::Failed { what }, &[]);
                    1
                }
            },
            Err(_) => 1,
        };
        // Skips destructors and buffers of the nursery.
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) }
    }

    fn prepare_and_start(&self, socket: &OwnedFd) -> Result<i32, StepError> {
        match receive(socket).map_err(step("hearing from the nursery"))? {
            Some((Pid1Order::Prepare, _)) => self.prepare()?,
            _ => return Err(nursery_gone()),
        }
        let waiting = match self.view {
            View::Pieces(_) => None,
            View::Container(common) => match receive(socket).map_err(step("hearing from the nursery"))? {
                Some((Pid1Order::Grouped, _)) => Some(common.wait(self.network)?),
                _ => return Err(nursery_gone()),
            },
        };
        send(socket, &Pid1Report::Prepared, &[]).map_err(step("telling the nursery"))?;
        let (targets, storage, fds) = match receive(socket).map_err(step("hearing from the nursery"))? {
            Some((Pid1Order::Start { targets, storage }, fds)) => (targets, storage, fds),
            _ => return Err(nursery_gone()),
        };
        // Before capabilities are dropped, because switching the loopback on needs a capability.
        let listener = match storage {
            true => Some(loopback::listen().map_err(step("opening a way to object storage"))?),
            false => None,
        };
        let begun = self.start(waiting, (targets, storage), fds)?;
        if let View::Container(_) = self.view {
            confinement::give_up_capabilities().map_err(step("giving up capabilities"))?;
        }
        let StartedProgram { pid, pidfd, parent } = begun;
        let told = std::iter::once(&pidfd).chain(&parent).chain(&listener);
        let told: Vec<BorrowedFd<'_>> = told.map(AsFd::as_fd).collect();
        send(socket, &Pid1Report::Started, &told).map_err(step("telling the nursery"))?;
        let is_zygote = !parent.is_empty();
        drop(told);
        drop((pidfd, parent, listener));
        // The code below is simple; the filter limits the damage of an error in it.
        confinement::limit_system_calls(self.filter).map_err(step("limiting the system calls of pid 1"))?;
        if is_zygote {
            pid1::keep(socket, pid).map_err(step("waiting for workers"))?;
        }
        let status = reap_until(pid).map_err(step("waiting for the program"))?;
        Ok(match self.view {
            View::Pieces(_) => status,
            View::Container(common) => common.status(status),
        })
    }

    /// Changes the user, makes the root, and sets limits: everything that does not depend on the program.
    fn prepare(&self) -> Result<(), StepError> {
        set_keep_capabilities(true).map_err(step("keeping capabilities"))?;
        if self.by_root {
            set_thread_groups(&[]).map_err(step("leaving groups"))?;
        }
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_res_gid(group, group, group).map_err(step("changing the group"))?;
        set_thread_res_uid(user, user, user).map_err(step("changing the user"))?;
        self.be_pid_1()?;
        match self.view {
            View::Pieces(template) => template.enter()?,
            View::Container(common) => common.enter(self.policy)?,
        }
        self.limit().map_err(step("setting limits"))?;
        confinement::forbid_capabilities().map_err(step("forbidding capabilities"))
    }

    /// Gives the process the properties of every pid 1: it dies with the nursery, cannot be inspected, and has a
    /// session, a keyring and a host name of its own.
    pub fn be_pid_1(&self) -> Result<(), StepError> {
        // After the change of user, which would reset this setting. If the nursery has ended before this call, its
        // closed socket shows that.
        kernel::die_with_parent().map_err(step("binding its life to the nursery's"))?;
        kernel::set_dumpable(false).map_err(step("hiding pid 1"))?;
        setsid().map_err(step("making a session"))?;
        kernel::new_session_keyring().map_err(step("making a keyring"))?;
        rustix::system::sethostname(b"sandbox").map_err(step("naming the host"))
    }

    /// Sets the resource limits of the policy, as far as the hard limits allow. Programs inherit them.
    pub fn limit(&self) -> rustix::io::Result<()> {
        let limits = [
            (Resource::Core, 0),
            (Resource::Nofile, u64::from(self.policy.files)),
            (Resource::Nproc, u64::from(self.policy.processes) + 1),
            (Resource::Fsize, self.policy.file_bytes),
            (Resource::Msgqueue, 0),
            (Resource::Nice, 0),
            (Resource::Rtprio, 0),
        ];
        for (resource, most) in limits {
            let now = rustix::process::getrlimit(resource).maximum;
            let most = Some(now.map_or(most, |now| now.min(most)));
            let limit = Rlimit {
                current: most,
                maximum: most,
            };
            setrlimit(resource, limit)?;
        }
        Ok(())
    }

    fn start(
        &self,
        waiting: Option<RuntimeProcess>,
        (targets, storage): (Vec<(OsString, bool)>, bool),
        fds: Vec<OwnedFd>,
    ) -> Result<StartedProgram, StepError> {
        let mut fds = fds.into_iter();
        let (Some(input), Some(output), Some(described)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(nursery_gone());
        };
        let program = read_description(described).map_err(step("reading what to run"))?;
        if let (View::Container(common), Some(waiting)) = (self.view, waiting) {
            let started = common.start((waiting, self.network), program, (targets, fds), (input, output));
            return started.map(|(pid, pidfd)| StartedProgram::plain(pid, pidfd));
        }
        let orders = program
            .zygote
            .then(|| fds.next().ok_or_else(nursery_gone))
            .transpose()?;
        let mut writable = vec![PathBuf::from("/tmp"), PathBuf::from("/dev/shm")];
        writable.extend(
            self.policy
                .mounts
                .iter()
                .filter(|mount| mount.writable)
                .map(|mount| mount.target.clone()),
        );
        for ((target, is_writable), tree) in targets.into_iter().zip(fds) {
            let target = PathBuf::from(target);
            root::attach_new(&tree, &target).map_err(step(format!("mounting {}", target.display())))?;
            if is_writable {
                writable.push(target);
            }
        }
        root::seal().map_err(step("sealing the root"))?;
        confinement::give_up_capabilities().map_err(step("giving up capabilities"))?;
        let run = Executable::new(program).map_err(step("reading what to run"))?;
        let Some(orders) = orders else {
            let (tcp, filter) = match storage {
                true => (TcpRules::To(STORAGE_PORT), self.filter_with_storage),
                false if self.network => (TcpRules::Any, self.filter),
                false => (TcpRules::None, self.filter),
            };
            if confinement::has_landlock() {
                confinement::limit_files(&writable, tcp).map_err(step("setting up Landlock"))?;
            }
            let (pid, pidfd) = run.start(input, output, filter)?;
            return Ok(StartedProgram::plain(pid, pidfd));
        };
        self.start_zygote(run, (input, output), orders)
    }

    fn start_zygote(
        &self,
        mut run: Executable,
        (input, output): (OwnedFd, OwnedFd),
        orders: OwnedFd,
    ) -> Result<StartedProgram, StepError> {
        if confinement::has_landlock() {
            confinement::limit_reach().map_err(step("setting up Landlock"))?;
        }
        // Uses up pid 2, so that the zygote has another pid than its workers, which are pid 2 in their namespaces:
        // libraries compare pids to notice a fork.
        // SAFETY: this process has one thread.
        match unsafe { kernel::fork(0) }.map_err(step("starting a process"))? {
            // SAFETY: ends the process.
            ForkSide::Child => unsafe { libc::_exit(0) },
            ForkSide::Parent { pid, .. } => {
                kernel::wait_for(pid).map_err(step("waiting for a process"))?;
            }
        }
        run.orders = Some(orders);
        let (pid, pidfd) = run.start(input, output, self.filter_of_zygotes)?;
        let opened = ZygoteNamespaces::KINDS.map(|name| fs::File::open(format!("/proc/self/ns/{name}")));
        let opened = opened.into_iter().map(|file| file.map(OwnedFd::from));
        let parent = opened.collect::<io::Result<_>>().map_err(step("opening namespaces"))?;
        Ok(StartedProgram { pid, pidfd, parent })
    }
}

/// The program of a sandbox, started.
struct StartedProgram {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// Namespaces in which the namespaces of its workers are made, if the program is a zygote.
    parent: Vec<OwnedFd>,
}

impl StartedProgram {
    fn plain(pid: libc::pid_t, pidfd: OwnedFd) -> Self {
        Self {
            pid,
            pidfd,
            parent: Vec::new(),
        }
    }
}

/// Closes all descriptors that were copied from the nursery, except `socket`: among them are the nursery's socket to
/// the agent, and its sockets to other sandboxes. `null`: path of the null device, for the standard streams.
pub fn close_all_but(socket: OwnedFd, null: &str) -> io::Result<OwnedFd> {
    let null = fs::File::options().read(true).write(true).open(null)?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    drop(null);
    let socket = socket.into_raw_fd();
    if socket != SOCKET {
        // SAFETY: a descriptor with this number belonged to the nursery's state, which no code here uses or drops.
        let moved = unsafe { libc::dup3(socket, SOCKET, libc::O_CLOEXEC) };
        nix::errno::Errno::result(moved)?;
    }
    kernel::close_from(SOCKET as u32 + 1)?;
    // SAFETY: the descriptor was made above, or given up by its owner.
    Ok(unsafe { OwnedFd::from_raw_fd(SOCKET) })
}

fn nursery_gone() -> StepError {
    step("hearing from the nursery")(io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// Reaps children until the program has ended; returns the program's exit status or negative signal.
fn reap_until(program: libc::pid_t) -> io::Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: the status is valid for the length of the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if pid < 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            }
        }
        if pid == program {
            return Ok(kernel::exit_code(status));
        }
    }
}
