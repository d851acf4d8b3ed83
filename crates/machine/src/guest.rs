//! Process 1 of a machine; for its part see the head of `main.rs`.

mod monitor_sender;
mod output;
mod program;
mod root;
mod slot;
mod worker_control;

use crate::messages;
use hotlease_fabric::socket::Socket;
use hotlease_fabric::usage::UsageBlock;
use hotlease_wire::control::WorkerAnswer;
use hotlease_wire::machine::{FILE_BYTES_MAX, FromGuest, GuestCrash, GuestEnd, ToGuest, WorkerStart};
use monitor_sender::MonitorSender;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use output::OutputPipe;
use program::GuestProgram;
use rustix::system::{RebootCommand, reboot};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use worker_control::WorkerControl;

pub use program::{confinement, run_confined};

/// Largest number of remembered ends of other processes: one of these ends may prove to be the end of the worker.
const ENDS_MAX: usize = 64;

pub fn run() -> ExitCode {
    let port = match root::find_port() {
        Ok(port) => port,
        Err(error) => {
            // Standard error is the kernel's console: there is no other receiver.
            eprintln!("hotlease-machine: {error}");
            power_off()
        }
    };
    let teller = match port.try_clone() {
        Ok(clone) => MonitorSender::new(clone),
        Err(error) => {
            eprintln!("hotlease-machine: {error}");
            power_off()
        }
    };
    let ended = run_machine(port, &teller).unwrap_or_else(GuestEnd::not_started);
    teller.tell(&FromGuest::Ended(ended), &[]);
    // The monitor ends the machine after it has received this.
    loop {
        std::thread::park();
    }
}

/// Runs the machine until the worker's program has ended.
fn run_machine(port: File, teller: &MonitorSender) -> Result<GuestEnd, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let (fuse, answered) = root::open_fuse().map_err(failed("opening /dev/fuse"))?;
    let (sender, told) = mpsc::channel();
    spawn("port", {
        let teller = teller.clone();
        move || receive_loop(port, (answered, &teller), &sender)
    })?;
    // Sent only now, so that the time in the answer is the current time.
    teller.tell(&FromGuest::Booted, &[]);
    let run = match told.recv() {
        Ok((ToGuest::Run { now_ns }, run)) => {
            root::set_clock(now_ns).map_err(failed("setting the clock"))?;
            WorkerStart::decode(&run).map_err(|error| error.to_string())?
        }
        _ => return Err("the monitor is of another version".into()),
    };
    root::mount_files(&fuse)?;
    spawn("files", {
        let teller = teller.clone();
        move || question_loop(fuse, &teller)
    })?;
    root::enter(&run)?;
    root::limit(&run.limits).map_err(failed("setting limits"))?;
    let path = PathBuf::from(OsString::from_vec(run.path.clone()));
    let (output, printing) = io::pipe().map_err(failed("a pipe"))?;
    let printed = OutputPipe::new(output, teller.clone()).map_err(failed("a pipe"))?;
    spawn("output", {
        let printed = Arc::clone(&printed);
        move || printed.listen()
    })?;
    let program = GuestProgram::start(run, printing).map_err(|error| format!("running {}: {error}", path.display()))?;
    let worker = Arc::new(AtomicI32::new(program.pid.as_raw()));
    let usage = Arc::new(OnceLock::new());
    spawn("orders", {
        let (teller, worker, usage) = (teller.clone(), Arc::clone(&worker), Arc::clone(&usage));
        move || {
            if let Err(failure) = serve(&told, program, &worker, &teller, &usage) {
                let ended = GuestEnd::not_started(failure);
                teller.tell(&FromGuest::Ended(ended), &[]);
            }
        }
    })?;
    let status = reap_until(&worker).map_err(failed("waiting for the worker"))?;
    // The last output must arrive before the end.
    printed.pass_on();
    Ok(GuestEnd {
        failure: String::new(),
        status,
        out_of_memory: root::has_killed_for_memory(),
        crash: usage.get().and_then(|usage| crash_record(usage)),
    })
}

/// Loop of the thread that receives from the monitor. It waits for no other thread: any thread may wait for the kernel,
/// which may wait for an answer that this thread receives.
fn receive_loop(mut port: File, (mut fuse, teller): (File, &MonitorSender), told: &Sender<(ToGuest, Vec<u8>)>) {
    loop {
        match messages::receive::<ToGuest>(&mut port) {
            Ok(Some((ToGuest::File, answer))) => {
                // The process that asked may be gone.
                let _ = fuse.write(&answer);
                teller.note_answer(&answer);
            }
            Ok(Some(message)) => {
                if told.send(message).is_err() {
                    power_off()
                }
            }
            Ok(None) | Err(_) => power_off(),
        }
    }
}

/// Loop of the thread that passes on the kernel's questions about files.
fn question_loop(mut fuse: File, teller: &MonitorSender) {
    let mut question = vec![0; FILE_BYTES_MAX as usize];
    loop {
        match fuse.read(&mut question) {
            Ok(bytes) => teller.ask(&question[..bytes]),
            // The process that waited for the answer is gone.
            Err(error) if error.raw_os_error().map(Errno::from_raw) == Some(Errno::ENOENT) => {}
            Err(_) => power_off(),
        }
    }
}

fn crash_record(usage: &UsageBlock) -> Option<GuestCrash> {
    usage.crash().map(|crash| GuestCrash {
        slot: crash.slot,
        signal: crash.signal,
        overrun_capacity: crash.overrun_capacity,
    })
}

/// Reaps every process that ends, until the worker has ended; returns its exit status, or its negative signal. The
/// worker's process id may change while the previous worker still lives.
fn reap_until(worker: &AtomicI32) -> io::Result<i32> {
    let mut ends = BTreeMap::new();
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, status)) => drop(ends.insert(pid.as_raw(), status)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => drop(ends.insert(pid.as_raw(), -(signal as i32))),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Pairs with the release store in `GuestProgram::resume`: a new worker is stored before the old one is killed.
        if let Some(status) = ends.remove(&worker.load(Ordering::Acquire)) {
            return Ok(status);
        }
        while ends.len() > ENDS_MAX {
            ends.pop_first();
        }
    }
}

/// Waits for the worker, and then obeys the monitor for ever; an error is the reason why there will be no worker.
fn serve(
    told: &Receiver<(ToGuest, Vec<u8>)>,
    program: GuestProgram,
    worker: &AtomicI32,
    teller: &MonitorSender,
    usage: &OnceLock<Arc<UsageBlock>>,
) -> Result<(), String> {
    let ready = |socket: &Socket| match socket.receive::<WorkerAnswer>() {
        Ok(Some((
            WorkerAnswer::Ready {
                version, imports_us, ..
            },
            _,
        ))) => Ok(Some(FromGuest::Ready { version, imports_us })),
        Ok(Some((WorkerAnswer::Failed { why }, _))) => Err(why),
        // The worker has ended, or its message is not understood: the thread that reaps it reports its end.
        _ => Ok(None),
    };
    let Some(word) = ready(&program.control)? else {
        return Ok(());
    };
    program.check()?;
    teller.tell(&word, &[]);
    let mut next = told.recv();
    if let Ok((ToGuest::Pause, _)) = next {
        let paused = teller.pause();
        next = told.recv();
        drop(paused);
    }
    let control = match next {
        Ok((ToGuest::Resume { now_ns }, random)) => {
            let control = program.resume(now_ns, &random, worker)?;
            let Some(word) = ready(&control)? else {
                return Ok(());
            };
            teller.tell(&word, &[]);
            next = told.recv();
            control
        }
        _ => program.control,
    };
    let mut serving = WorkerControl::new(control, teller.clone());
    while let Ok((message, brought)) = next {
        serving.obey(message, brought, usage);
        next = told.recv();
    }
    Ok(())
}

pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(body)
        .map(drop)
        .map_err(|error| format!("starting a thread: {error}"))
}

/// Ends the machine.
pub fn power_off() -> ! {
    // If this fails, process 1 ends: then the kernel panics, which ends the machine too.
    let _ = reboot(RebootCommand::Restart);
    std::process::exit(1)
}
