//! The worker's program.

use crate::guest::root;
use hotlease_fabric::socket::Socket;
use hotlease_nursery::zygote::fork_here;
use hotlease_wire::machine::Run;
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
/// What this program is started with to become another one, confined.
const CONFINED: &str = "--confined";
/// The same, of a zygote, which has its orders as standard error at first.
const CONFINED_ZYGOTE: &str = "--confined-zygote";
/// How long a worker may take to be process 1's.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);
/// Where a zygote expects them.
const ORDERS_AT: i32 = hotlease_nursery::zygote::ORDERS_AT;

/// It, as it was started.
pub struct Program {
    pub pid: Pid,
    /// Where it is an agent's.
    pub control: Socket,
    /// Of a zygote.
    orders: Option<OwnedFd>,
    output: PipeWriter,
}

impl Program {
    /// Without any right, by way of this program, which limits itself first: see [`confined`].
    pub fn start(run: Run, output: PipeWriter) -> io::Result<Self> {
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
        let child = Command::new("/proc/self/exe")
            .arg(how)
            .arg(text(run.path))
            .args(run.arguments.into_iter().map(text))
            .env_clear()
            .envs(
                run.environment
                    .into_iter()
                    .map(|(name, value)| (text(name), text(value))),
            )
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

    /// In a machine that was saved: its time is now, its random numbers are its own, and the `worker` is a fork of the program. Where that is
    /// an agent's.
    pub fn resume(self, now_ns: u64, random: &[u8], worker: &AtomicI32) -> Result<Socket, String> {
        root::set_clock(now_ns).map_err(|error| format!("setting the clock: {error}"))?;
        let random = random.try_into().map_err(|_| "no random bytes came along")?;
        hotlease_nursery::stir(random).map_err(|error| format!("renewing random numbers: {error}"))?;
        let orders = self.orders.as_ref().ok_or("the worker's program is no zygote")?;
        let failed = |error: io::Error| format!("forking a worker from a zygote: {error}");
        let (control, theirs) = Socket::pair().map_err(|error| failed(io::Error::other(error)))?;
        let theirs = OwnedFd::from(theirs);
        fork_here(orders, theirs.as_fd(), self.output.as_fd()).map_err(failed)?;
        let orphan = self.only_orphan()?;
        // Pairs with the load of who reaps: known before the zygote is gone.
        worker.store(orphan.as_raw(), Ordering::Release);
        // It has nothing to do any more; who has died meanwhile is as well.
        let _ = kill(self.pid, Signal::SIGKILL);
        Ok(control)
    }
}

/// The children of process 1 but this one.
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

impl Program {
    /// A zygote from which a worker can be told: nobody else is left whom it could be.
    pub fn check(&self) -> Result<(), String> {
        match self.orders.is_none() || orphans_beside(self.pid).is_empty() {
            true => Ok(()),
            false => Err("no worker can be forked once its imports have left a process behind".into()),
        }
    }

    /// The worker that was just forked. Whoever forked it may be about to end, and then it is process 1's.
    fn only_orphan(&self) -> Result<Pid, String> {
        let begin = Instant::now();
        while begin.elapsed() < ORPHAN_LIMIT {
            match orphans_beside(self.pid)[..] {
                [] => std::thread::sleep(Duration::from_millis(1)),
                [worker] => return Ok(worker),
                // What else a tenant's imports have left behind could be anybody.
                _ => return Err("several processes were left beside the zygote".into()),
            }
        }
        Err("the zygote's fork is gone".into())
    }
}

/// What this program was started as, if it is to become another one: how, and what.
pub fn confinement(arguments: &[OsString]) -> Option<(bool, &[OsString])> {
    let (how, program) = arguments.split_first()?;
    let zygote = how == OsStr::new(CONFINED_ZYGOTE);
    (zygote || how == OsStr::new(CONFINED)).then_some((zygote, program))
}

/// Becomes a program: its path, its name, its arguments. It asks of the kernel what code in a sandbox may.
pub fn confined(zygote: bool, arguments: &[OsString]) -> ExitCode {
    let [path, name, arguments @ ..] = arguments else {
        return ExitCode::from(2);
    };
    let became = || {
        if zygote {
            // The first that is free: nothing else is open.
            let at = fcntl(io::stderr(), FcntlArg::F_DUPFD(ORDERS_AT))?;
            dup2_stderr(io::stdout())?;
            if at != ORDERS_AT {
                return Err(io::Error::other(format!("descriptor {ORDERS_AT} is not free")));
            }
        }
        hotlease_nursery::limit_system_calls(zygote)?;
        Err(Command::new(path).arg0(name).args(arguments).exec())
    };
    let became: io::Result<()> = became();
    if let Err(error) = became {
        eprintln!(
            "hotlease-machine: {} cannot be run: {error}",
            Path::new(path).display()
        );
    }
    ExitCode::from(127)
}
