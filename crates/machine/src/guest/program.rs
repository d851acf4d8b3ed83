//! The worker's program: its confined start, and forks of a zygote.

use crate::guest::root;
use hotlease_fabric::socket::Socket;
use hotlease_nursery::program::inner_environment;
use hotlease_nursery::zygote::fork_here;
use hotlease_wire::machine::WorkerStart;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{Pid, dup2_stderr};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The worker's user, as in every sandbox.
const USER: u32 = 1000;
/// Argument that makes this program confine itself and become another program.
const CONFINED: &str = "--confined";
/// Argument for a zygote, whose orders arrive at standard error at first.
const CONFINED_ZYGOTE: &str = "--confined-zygote";
/// Time in which a forked worker must become a child of process 1.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);
/// Descriptor at which a zygote expects its orders.
const ORDERS_AT: i32 = hotlease_nursery::zygote::ORDERS_AT;

/// The worker's program, started.
pub struct GuestProgram {
    pub pid: Pid,
    /// Control socket; the guest has the agent's end.
    pub control: Socket,
    /// Order socket of a zygote.
    orders: Option<OwnedFd>,
    output: PipeWriter,
}

impl GuestProgram {
    /// Starts the worker's program without any capability. The process first runs this program, which limits itself:
    /// see [`run_confined`].
    pub fn start(run: WorkerStart, output: PipeWriter) -> io::Result<Self> {
        let text = OsString::from_vec;
        let directory = PathBuf::from(text(run.directory));
        let (control, theirs) = Socket::pair().map_err(io::Error::other)?;
        let (orders, errors, how) = match run.zygote {
            false => (None, Stdio::from(output.try_clone()?), CONFINED),
            true => {
                let kind = SockType::SeqPacket;
                let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
                (Some(ours), Stdio::from(theirs), CONFINED_ZYGOTE)
            }
        };
        hotlease_nursery::forbid_capabilities()?;
        nix::sys::prctl::set_no_new_privs()?;
        let environment = run.environment.into_iter();
        let environment: Vec<(OsString, OsString)> =
            environment.map(|(name, value)| (text(name), text(value))).collect();
        let child = Command::new("/proc/self/exe")
            .arg(how)
            .arg(text(run.path))
            .args(run.arguments.into_iter().map(text))
            .env_clear()
            // Until its system calls are limited, this program must not run the tenant's code.
            .envs(inner_environment::wrap(&environment))
            .current_dir(match directory.is_dir() {
                true => directory.as_path(),
                false => Path::new("/"),
            })
            .uid(USER)
            .gid(USER)
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output.try_clone()?)
            .stderr(errors)
            .spawn()?;
        Ok(Self {
            pid: Pid::from_raw(child.id() as i32),
            control,
            orders,
            output,
        })
    }

    /// Resumes in a machine that was saved: sets the current time, mixes in random numbers of its own, and forks the
    /// `worker` from the program. Returns the worker's control socket.
    pub fn resume(self, now_ns: u64, random: &[u8], worker: &AtomicI32) -> Result<Socket, String> {
        root::set_clock(now_ns).map_err(|error| format!("setting the clock: {error}"))?;
        let random = random.try_into().map_err(|_| "no random bytes came along")?;
        hotlease_nursery::mix_entropy(random).map_err(|error| format!("renewing random numbers: {error}"))?;
        let orders = self.orders.as_ref().ok_or("the worker's program is no zygote")?;
        let failed = |error: io::Error| format!("forking a worker from a zygote: {error}");
        let (control, theirs) = Socket::pair().map_err(|error| failed(io::Error::other(error)))?;
        let theirs = OwnedFd::from(theirs);
        fork_here(orders, theirs.as_fd(), self.output.as_fd()).map_err(failed)?;
        let orphan = self.only_orphan()?;
        // Pairs with the acquire load of the thread that reaps: the new worker is stored before the zygote is killed.
        worker.store(orphan.as_raw(), Ordering::Release);
        // The zygote is not needed any more. It may have died already: then the signal has no effect.
        let _ = kill(self.pid, Signal::SIGKILL);
        Ok(control)
    }
}

/// The children of process 1 except the zygote.
fn orphans_beside(zygote: Pid) -> Vec<Pid> {
    let listed = fs::read_dir("/proc").into_iter().flatten();
    let children = listed.filter_map(|entry| {
        let entry = entry.ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        (parent.trim() == "1" && pid != zygote.as_raw()).then(|| Pid::from_raw(pid))
    });
    children.collect()
}

impl GuestProgram {
    /// Checks that a zygote has left no process behind: such a process could not be distinguished from the worker.
    pub fn check(&self) -> Result<(), String> {
        match self.orders.is_none() || orphans_beside(self.pid).is_empty() {
            true => Ok(()),
            false => Err("no worker can be forked once its imports have left a process behind".into()),
        }
    }

    /// Finds the worker that was just forked. The process that forked it may be about to end; then process 1 becomes
    /// its parent.
    fn only_orphan(&self) -> Result<Pid, String> {
        let begin = Instant::now();
        while begin.elapsed() < ORPHAN_LIMIT {
            match orphans_beside(self.pid)[..] {
                [] => std::thread::sleep(Duration::from_millis(1)),
                [worker] => return Ok(worker),
                // If a tenant's imports have left other processes behind, any of them could be the worker.
                _ => return Err("several processes were left beside the zygote".into()),
            }
        }
        Err("the zygote's fork is gone".into())
    }
}

/// Parses the arguments of a start that is to become another program: whether it is a zygote, and the program.
pub fn confinement(arguments: &[OsString]) -> Option<(bool, &[OsString])> {
    let (how, program) = arguments.split_first()?;
    let zygote = how == OsStr::new(CONFINED_ZYGOTE);
    (zygote || how == OsStr::new(CONFINED)).then_some((zygote, program))
}

/// Becomes a program (its path, its name, its arguments), with the system calls that code in a sandbox may make, and
/// the environment that was wrapped for it.
pub fn run_confined(zygote: bool, arguments: &[OsString]) -> ExitCode {
    let [path, name, arguments @ ..] = arguments else {
        return ExitCode::from(2);
    };
    let became = || {
        if zygote {
            // The first free descriptor: nothing else is open.
            let at = fcntl(io::stderr(), FcntlArg::F_DUPFD(ORDERS_AT))?;
            dup2_stderr(io::stdout())?;
            if at != ORDERS_AT {
                return Err(io::Error::other(format!("descriptor {ORDERS_AT} is not free")));
            }
        }
        hotlease_nursery::limit_system_calls(zygote)?;
        let environment = inner_environment::unwrap(std::env::vars_os());
        Err(Command::new(path)
            .arg0(name)
            .args(arguments)
            .env_clear()
            .envs(environment)
            .exec())
    };
    let became: io::Result<()> = became();
    if let Err(error) = became {
        eprintln!("hotlease-machine: {} cannot be run: {error}", Path::new(path).display());
    }
    ExitCode::from(127)
}
