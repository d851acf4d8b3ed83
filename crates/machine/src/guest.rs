//! Process 1 of a machine: see the program.

mod root;
mod serving;
mod slot;

use crate::link;
use hotlease_fabric::socket::Socket;
use hotlease_fabric::usage::UsageBlock;
use hotlease_wire::control::Answer;
use hotlease_wire::machine::{Crash, Ended, FromGuest, Run, ToGuest};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::system::{RebootCommand, reboot};
use serving::Serving;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The worker's user, as in every sandbox.
const USER: u32 = 1000;

/// What this program is started with to become another one, confined.
pub const CONFINED: &str = "--confined";

/// What all threads tell the monitor through.
#[derive(Clone)]
pub struct Teller(Arc<Mutex<File>>);

impl Teller {
    /// Tells it. A monitor that is gone takes the machine with it.
    pub fn tell(&self, message: &FromGuest, brought: &[u8]) {
        let mut port: MutexGuard<'_, File> = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if link::send(&mut *port, message, brought).is_err() {
            power_off()
        }
    }
}

pub fn run() -> ExitCode {
    let port = match root::find_port() {
        Ok(port) => port,
        Err(error) => {
            // To the kernel's console: there is nobody else to tell.
            eprintln!("hotlease-machine: {error}");
            power_off()
        }
    };
    let teller = match port.try_clone() {
        Ok(clone) => Teller(Arc::new(Mutex::new(clone))),
        Err(error) => {
            eprintln!("hotlease-machine: {error}");
            power_off()
        }
    };
    let ended = live(port, &teller).unwrap_or_else(|failure| Ended {
        failure,
        status: 1,
        out_of_memory: false,
        crash: None,
    });
    teller.tell(&FromGuest::Ended(ended), &[]);
    // The monitor ends the machine, once it has heard it.
    loop {
        std::thread::park();
    }
}

/// Until the worker's program has ended.
fn live(mut port: File, teller: &Teller) -> Result<Ended, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let run = match link::receive::<ToGuest>(&mut port).map_err(failed("hearing the monitor"))? {
        Some((ToGuest::Run { now_ns }, run)) => {
            root::set_clock(now_ns).map_err(failed("setting the clock"))?;
            Run::decode(&run).map_err(|error| error.to_string())?
        }
        _ => return Err("the monitor is of another version".into()),
    };
    root::enter(&run)?;
    root::limit(&run.limits).map_err(failed("setting limits"))?;
    let (ours, theirs) = Socket::pair().map_err(failed("a control socket"))?;
    let (output, printing) = io::pipe().map_err(failed("a pipe"))?;
    let path = PathBuf::from(OsString::from_vec(run.path.clone()));
    let worker = start(run, theirs.into(), printing)
        .map_err(|error| format!("running {}: {error}", path.display()))?;
    spawn("output", {
        let teller = teller.clone();
        move || pass_on(output, &teller)
    })?;
    let usage = Arc::new(OnceLock::new());
    spawn("orders", {
        let (teller, usage) = (teller.clone(), Arc::clone(&usage));
        move || serve(port, ours, teller, &usage)
    })?;
    let status = reap_until(worker).map_err(failed("waiting for the worker"))?;
    Ok(Ended {
        failure: String::new(),
        status,
        out_of_memory: root::has_killed_for_memory(),
        crash: usage.get().and_then(|usage| written_down(usage)),
    })
}

fn written_down(usage: &UsageBlock) -> Option<Crash> {
    usage.crash().map(|crash| Crash {
        slot: crash.slot,
        signal: crash.signal,
        overrun_capacity: crash.overrun_capacity,
    })
}

/// The worker's program, without any right, by way of this one, which limits itself first: see [`confined`].
fn start(run: Run, control: OwnedFd, output: io::PipeWriter) -> io::Result<Pid> {
    let text = OsString::from_vec;
    let directory = PathBuf::from(text(run.directory));
    root::forbid_capabilities()?;
    nix::sys::prctl::set_no_new_privs()?;
    let child = Command::new("/proc/self/exe")
        .arg(CONFINED)
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
        .stdin(Stdio::from(control))
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// Becomes a program: its path, its name, its arguments. It asks of the kernel what code in a sandbox may.
pub fn confined(arguments: &[OsString]) -> ExitCode {
    let [path, name, arguments @ ..] = arguments else {
        return ExitCode::from(2);
    };
    let error = match hotlease_nursery::limit_system_calls() {
        Ok(()) => Command::new(path).arg0(name).args(arguments).exec(),
        Err(error) => error,
    };
    eprintln!(
        "hotlease-machine: {} cannot be run: {error}",
        Path::new(path).display()
    );
    ExitCode::from(127)
}

/// Reaps whatever ends, until this one has: its status, or negative signal.
fn reap_until(worker: Pid) -> io::Result<i32> {
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, status)) if pid == worker => return Ok(status),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == worker => return Ok(-(signal as i32)),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the worker prints.
fn pass_on(mut output: io::PipeReader, teller: &Teller) {
    let mut text = [0; 4096];
    while let Ok(bytes @ 1..) = output.read(&mut text) {
        teller.tell(&FromGuest::Printed, &text[..bytes]);
    }
}

/// Hears the worker, then the monitor, for ever.
fn serve(mut port: File, worker: Socket, teller: Teller, usage: &OnceLock<Arc<UsageBlock>>) {
    match worker.receive::<Answer>() {
        Ok(Some((
            Answer::Ready {
                version, imports_us, ..
            },
            _,
        ))) => {
            teller.tell(&FromGuest::Ready { version, imports_us }, &[]);
        }
        Ok(Some((Answer::Failed { why }, _))) => {
            let ended = Ended {
                failure: why,
                status: 1,
                out_of_memory: false,
                crash: None,
            };
            return teller.tell(&FromGuest::Ended(ended), &[]);
        }
        // It has ended, or speaks no word of ours: its end is told by who waits for it.
        _ => return,
    }
    let mut serving = Serving::new(worker, teller);
    loop {
        match link::receive::<ToGuest>(&mut port) {
            Ok(Some((message, brought))) => serving.obey(message, brought, usage),
            Ok(None) | Err(_) => power_off(),
        }
    }
}

pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(body)
        .map(drop)
        .map_err(|error| format!("starting a thread: {error}"))
}

/// The end of the machine.
pub fn power_off() -> ! {
    // The kernel's last resort is its panic at the end of process 1, which ends the machine, too.
    let _ = reboot(RebootCommand::Restart);
    std::process::exit(1)
}
