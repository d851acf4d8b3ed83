//! Pid 1 of a sandbox: makes what is inside, waits for its program, starts it, reaps, and takes everything along at its end.
//!
//! It is a copy of the nursery that execs nothing, so every step until the program's own start is this code. Nobody in the
//! sandbox can look into it or signal it: it is not dumpable, and the kernel protects a pid 1 from its own namespace.

use crate::confinement::{self, Tcp};
use crate::container::making::Common;
use crate::container::waiting::Waiting;
use crate::kernel::{self, Forked};
use crate::loopback;
use crate::message::{receive, send};
use crate::order::{DESCRIBED_BYTES_MAX, Described, STORAGE_PORT};
use crate::policy::Policy;
use crate::root::{self, StepError, Template, USER, step};
use crate::zygote::nesting::Parent;
use crate::zygote::{ORDERS_AT, keeping};
use rustix::process::{Resource, Rlimit, chdir, setrlimit, setsid};
use rustix::thread::{
    Gid, Uid, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// From the nursery.
#[derive(Serialize, Deserialize)]
pub enum Told {
    /// Its user and groups are set up.
    Prepare,
    /// It is in its control groups, as what it starts from now on will be. Told to those who start something before they know what to
    /// run.
    Grouped,
    /// Descriptors: standard input, output, a [`Described`], a tree for each mount.
    Start {
        /// Where each tree goes, and whether it may be written.
        targets: Vec<(OsString, bool)>,
        /// Whether its loopback has a way to object storage.
        storage: bool,
    },
    /// Its program is being forked from a zygote; descriptor: where the fork reports.
    Forking,
}

/// To the nursery.
#[derive(Serialize, Deserialize)]
pub enum Word {
    /// It waits for its program. Descriptors, if that is to be forked from a zygote: a pidfd of its own, and its
    /// namespaces.
    Prepared,
    /// Descriptor: a pidfd of its program. If that is a zygote: three namespaces of the sandbox's, too. If it has a way to object storage:
    /// the listener of that.
    Started,
    /// It is about to end.
    Failed { what: String },
    /// Its program's exit status, or else the signal that killed it, negative. It is about to end, unless the program was a zygote.
    Ended { status: i32 },
    /// The end of what was forked from this sandbox's zygote: its number here, and its status.
    Reaped { pid: i32, status: i32 },
}

/// What its program sees.
pub enum View {
    /// A root made of pieces of the host's.
    Pieces(Template),
    /// What a container's runtime makes.
    Container(Box<Common>),
}

/// What pid 1 needs to know.
pub struct Inside<'a> {
    pub view: &'a View,
    pub policy: &'a Policy,
    pub filter: &'a BpfProgram,
    /// That of programs with a way to object storage.
    pub filter_with_storage: &'a BpfProgram,
    /// That of zygotes.
    pub filter_of_zygotes: &'a BpfProgram,
    /// Whether the nursery is root, and the sandbox thus another user.
    pub by_root: bool,
    /// Whether it shares the host's network.
    pub network: bool,
}

/// The descriptor that everything else comes through.
const SOCKET: i32 = 3;

impl Inside<'_> {
    /// The life of pid 1, with its end of the socket to the nursery.
    pub fn live(&self, socket: OwnedFd) -> ! {
        let status = match only_socket(socket, "/host/dev/null") {
            Ok(socket) => match self.prepare_and_start(&socket) {
                Ok(status) => {
                    // A nursery that is gone has no use for it.
                    let _ = send(&socket, &Word::Ended { status }, &[]);
                    0
                }
                Err(error) => {
                    let what = error.to_string();
                    let _ = send(&socket, &Word::Failed { what }, &[]);
                    1
                }
            },
            Err(_) => 1,
        };
        // No destructors or buffers of the nursery's.
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) }
    }

    fn prepare_and_start(&self, socket: &OwnedFd) -> Result<i32, StepError> {
        match receive(socket).map_err(step("hearing of the nursery"))? {
            Some((Told::Prepare, _)) => self.prepare()?,
            _ => return Err(gone()),
        }
        let waiting = match self.view {
            View::Pieces(_) => None,
            View::Container(common) => match receive(socket).map_err(step("hearing of the nursery"))? {
                Some((Told::Grouped, _)) => Some(common.wait(self.network)?),
                _ => return Err(gone()),
            },
        };
        send(socket, &Word::Prepared, &[]).map_err(step("telling the nursery"))?;
        let (targets, storage, fds) = match receive(socket).map_err(step("hearing of the nursery"))? {
            Some((Told::Start { targets, storage }, fds)) => (targets, storage, fds),
            _ => return Err(gone()),
        };
        // While it has the capability to switch its loopback on.
        let listener = match storage {
            true => Some(loopback::listen().map_err(step("opening a way to object storage"))?),
            false => None,
        };
        let begun = self.start(waiting, (targets, storage), fds)?;
        if let View::Container(_) = self.view {
            confinement::give_up_capabilities().map_err(step("giving up capabilities"))?;
        }
        let Begun { pid, pidfd, parent } = begun;
        let told = std::iter::once(&pidfd).chain(&parent).chain(&listener);
        let told: Vec<BorrowedFd<'_>> = told.map(AsFd::as_fd).collect();
        send(socket, &Word::Started, &told).map_err(step("telling the nursery"))?;
        let is_zygote = !parent.is_empty();
        drop(told);
        drop((pidfd, parent, listener));
        // What follows is simple; in case it is not.
        confinement::limit_system_calls(self.filter).map_err(step("limiting the system calls of pid 1"))?;
        if is_zygote {
            keeping::keep(socket, pid).map_err(step("waiting for workers"))?;
        }
        let status = reap_until(pid).map_err(step("waiting for the program"))?;
        Ok(match self.view {
            View::Pieces(_) => status,
            View::Container(common) => common.status(status),
        })
    }

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

    /// What every pid 1 of ours is, and has of its own.
    pub fn be_pid_1(&self) -> Result<(), StepError> {
        // After the user, whose change forgets it. A nursery that is gone already closes the socket.
        kernel::die_with_parent().map_err(step("binding its life to the nursery's"))?;
        kernel::set_dumpable(false).map_err(step("hiding pid 1"))?;
        setsid().map_err(step("making a session"))?;
        kernel::new_session_keyring().map_err(step("making a keyring"))?;
        rustix::system::sethostname(b"sandbox").map_err(step("naming the host"))
    }

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
        waiting: Option<Waiting>,
        (targets, storage): (Vec<(OsString, bool)>, bool),
        fds: Vec<OwnedFd>,
    ) -> Result<Begun, StepError> {
        let mut fds = fds.into_iter();
        let (Some(input), Some(output), Some(described)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(gone());
        };
        let program = read(described).map_err(step("reading what to run"))?;
        if let (View::Container(common), Some(waiting)) = (self.view, waiting) {
            let started = common.start((waiting, self.network), program, (targets, fds), (input, output));
            return started.map(|(pid, pidfd)| Begun::plain(pid, pidfd));
        }
        let orders = program.zygote.then(|| fds.next().ok_or_else(gone)).transpose()?;
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
            root::place(&tree, &target).map_err(step(format!("mounting {}", target.display())))?;
            if is_writable {
                writable.push(target);
            }
        }
        root::seal().map_err(step("sealing the root"))?;
        confinement::give_up_capabilities().map_err(step("giving up capabilities"))?;
        let run = Run::new(program).map_err(step("reading what to run"))?;
        let Some(orders) = orders else {
            let (tcp, filter) = match storage {
                true => (Tcp::To(STORAGE_PORT), self.filter_with_storage),
                false if self.network => (Tcp::Any, self.filter),
                false => (Tcp::None, self.filter),
            };
            if confinement::has_landlock() {
                confinement::limit_files(&writable, tcp).map_err(step("setting up Landlock"))?;
            }
            let (pid, pidfd) = run.start(input, output, filter)?;
            return Ok(Begun::plain(pid, pidfd));
        };
        self.start_zygote(run, (input, output), orders)
    }

    fn start_zygote(
        &self,
        mut run: Run,
        (input, output): (OwnedFd, OwnedFd),
        orders: OwnedFd,
    ) -> Result<Begun, StepError> {
        if confinement::has_landlock() {
            confinement::limit_reach().map_err(step("setting up Landlock"))?;
        }
        // Its workers are the second processes of their namespaces, and so not it: libraries know by their number that they were forked.
        // SAFETY: this process has one thread.
        match unsafe { kernel::fork(0) }.map_err(step("starting a process"))? {
            // SAFETY: ends the process.
            Forked::Child => unsafe { libc::_exit(0) },
            Forked::Parent { pid, .. } => {
                kernel::wait_for(pid).map_err(step("waiting for a process"))?;
            }
        }
        run.orders = Some(orders);
        let (pid, pidfd) = run.start(input, output, self.filter_of_zygotes)?;
        let opened = Parent::KINDS.map(|name| fs::File::open(format!("/proc/self/ns/{name}")));
        let opened = opened.into_iter().map(|file| file.map(OwnedFd::from));
        let parent = opened
            .collect::<io::Result<_>>()
            .map_err(step("opening namespaces"))?;
        Ok(Begun { pid, pidfd, parent })
    }
}

/// A program that runs.
struct Begun {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// If it is a zygote: the namespaces that those of its workers are made in.
    parent: Vec<OwnedFd>,
}

impl Begun {
    fn plain(pid: libc::pid_t, pidfd: OwnedFd) -> Self {
        Self {
            pid,
            pidfd,
            parent: Vec::new(),
        }
    }
}

/// Nothing of the nursery's stays open but the socket: not its socket to the agent, nor other sandboxes'.
pub fn only_socket(socket: OwnedFd, null: &str) -> io::Result<OwnedFd> {
    let null = fs::File::options().read(true).write(true).open(null)?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    drop(null);
    let socket = socket.into_raw_fd();
    if socket != SOCKET {
        // SAFETY: whatever had this number belongs to the nursery's state, which nobody here uses or drops.
        let moved = unsafe { libc::dup3(socket, SOCKET, libc::O_CLOEXEC) };
        nix::errno::Errno::result(moved)?;
    }
    kernel::close_from(SOCKET as u32 + 1)?;
    // SAFETY: made or given up above.
    Ok(unsafe { OwnedFd::from_raw_fd(SOCKET) })
}

fn gone() -> StepError {
    step("hearing of the nursery")(io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// What was described, bounded, whoever wrote it.
pub fn read(file: OwnedFd) -> io::Result<Described> {
    let file = fs::File::from(file);
    let length = file.metadata()?.len();
    if length > DESCRIBED_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a program of {length} bytes of arguments and environment, of {DESCRIBED_BYTES_MAX}"),
        ));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0)?;
    hotlease_wire::decode(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A program as the kernel wants it, made before the fork.
pub struct Run {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: PathBuf,
    /// The number of the descriptor that it finds its input at.
    pub input_at: i32,
    /// What a zygote gets its orders by.
    orders: Option<OwnedFd>,
}

impl Run {
    pub fn new(program: Described) -> io::Result<Self> {
        let text = |text: OsString| CString::new(text.into_vec());
        let environment = program.environment.into_iter().map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            text(name)
        });
        Ok(Self {
            path: text(program.path)?,
            arguments: program
                .arguments
                .into_iter()
                .map(text)
                .collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            directory: program.directory.into(),
            input_at: libc::STDIN_FILENO,
            orders: None,
        })
    }

    /// Starts it with these streams.
    pub fn start(
        &self,
        input: OwnedFd,
        output: OwnedFd,
        filter: &BpfProgram,
    ) -> Result<(libc::pid_t, OwnedFd), StepError> {
        let (mut failure, failing) = io::pipe().map_err(step("making a pipe"))?;
        // SAFETY: this process has one thread.
        let (pid, pidfd) = match unsafe { kernel::fork(0) }.map_err(step("starting a process"))? {
            Forked::Child => {
                let limited = || -> io::Result<()> {
                    setsid()?;
                    confinement::limit_system_calls(filter)
                };
                let error = match limited() {
                    Ok(()) => self.exec(input, output),
                    Err(error) => error,
                };
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                // Nobody else could say why.
                let _ = (&failing).write_all(&code.to_ne_bytes());
                // SAFETY: ends the process.
                unsafe { libc::_exit(127) }
            }
            Forked::Parent { pid, pidfd } => (pid, pidfd),
        };
        drop((failing, input, output));
        let mut code = [0; 4];
        match failure.read_exact(&mut code) {
            // It was closed by the program's start, or by the death of the process, which is told as such.
            Err(_) => Ok((pid, pidfd)),
            Ok(()) => {
                let error = io::Error::from_raw_os_error(i32::from_ne_bytes(code));
                Err(step(format!("running {}", self.path.to_string_lossy()))(error))
            }
        }
    }

    /// Becomes it.
    pub fn exec(&self, input: OwnedFd, output: OwnedFd) -> io::Error {
        let run = || -> io::Result<()> {
            kernel::put_at(&input, self.input_at)?;
            nix::unistd::dup2_stdout(&output)?;
            nix::unistd::dup2_stderr(&output)?;
            if let Some(orders) = &self.orders {
                kernel::put_at(orders, ORDERS_AT)?;
            }
            // The rest is closed by exec, which nothing of it survives.
            if chdir(&self.directory).is_err() {
                chdir("/")?;
            }
            nix::unistd::execve(&self.path, &self.arguments, &self.environment)?;
            Ok(())
        };
        match run() {
            Err(error) => error,
            Ok(()) => io::ErrorKind::Other.into(),
        }
    }
}

/// Reaps whatever ends, until this one has: its status, or negative signal.
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
            return Ok(kernel::told(status));
        }
    }
}
