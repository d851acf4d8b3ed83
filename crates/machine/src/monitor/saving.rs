//! Saved machines: a machine is saved once its worker is ready, and resumed by many forks.
//!
//! ```text
//! zygote: machine booted, imports done ── saved: memory and devices, in files in memory ── forks when ordered
//!                                                                                              │
//!               a sandbox of its own: QEMU, with a private mapping of that memory ◄── monitor ─┘
//! ```
//!
//! A machine's memory is mapped, not read: a page is copied when the machine writes to it, so that data that was loaded
//! once is in memory only once. Properties that these machines must not share are renewed before any of the lease's
//! code runs: time, random numbers, and the worker's process, which is a fork. No data of a lease is ever saved: a
//! saved machine has had no lease.

use super::boot::{MachineMemory, first_files, in_memory, inherited_path};
use super::files::FileServer;
use super::guest_connection::GuestConnection;
use super::qemu::QemuControl;
use super::{Arguments, RunningMachine, await_ready, no_machine, now_ns, processors, start_worker};
use hotlease_nursery::zygote::{ForkHooks, Orders};
use hotlease_wire::machine::ToGuest;
use hotlease_worker::Worker;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Random bytes for each machine.
const RANDOM_BYTES: usize = 64;

/// A saved machine, which can be resumed any number of times.
struct SavedMachine {
    /// First file system of the boot: QEMU needs it again.
    first: File,
    memory: File,
    devices: File,
    processors: usize,
    files: FileServer,
    /// First question about files of the machine's kernel: each new file server gets it again.
    greeting: Vec<u8>,
}

/// Fork hooks that do nothing: there is one thread, and no memory that two processes must not share.
struct NoHooks;

impl ForkHooks for NoHooks {
    fn before(&mut self) {}
    fn in_zygote(&mut self) {}
}

/// Runs the process that machines are forked from.
pub fn run_zygote(mut worker: Worker, arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let orders = Orders::take().map_err(|error| format!("this process was not started as a zygote: {error}"));
    let saved = orders.and_then(|orders| Ok((orders, SavedMachine::make(arguments)?)));
    let (mut orders, saved) = match saved {
        Ok((orders, (saved, imports))) => {
            worker.set_boot(started.elapsed().saturating_sub(imports));
            worker.set_imports(imports);
            (orders, saved)
        }
        Err(why) => worker.reject(no_machine(&why)),
    };
    let waited = worker
        .become_zygote()
        .and_then(|control| orders.next(&mut NoHooks, &mut vec![control]));
    match waited {
        Ok(true) => saved.resume(arguments),
        Ok(false) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hotlease-machine: waiting for orders: {error}");
            ExitCode::FAILURE
        }
    }
}

impl SavedMachine {
    /// Makes a machine, and saves it when it is ready; returns how long its worker's imports took.
    fn make(arguments: &Arguments) -> Result<(Self, Duration), String> {
        let failed = |error: io::Error| format!("saving it: {error}");
        let [memory, devices] = [c"hotlease-memory", c"hotlease-devices"].map(in_memory);
        let (memory, devices) = (memory.map_err(failed)?, devices.map_err(failed)?);
        memory.set_len(u64::from(arguments.memory_mib) << 20).map_err(failed)?;
        let (first, processors, files) = (first_files(&arguments.modules)?, processors(), arguments.file_server());
        let mut running = RunningMachine::start(arguments, processors, &first, MachineMemory::Kept(&memory))?;
        let control = running.control.take().ok_or("QEMU has no control socket")?;
        let (far, imports) = start_worker(running, arguments, &files)?;
        let saved = far
            .pause()
            .and_then(|()| files.check_shareable())
            .and_then(|()| QemuControl::begin(control))
            .and_then(|mut control| control.save(&devices));
        let greeting = far.stop();
        saved?;
        // Sealed, so that code that breaks out of one machine cannot change the next machine.
        for file in [&first, &memory, &devices] {
            let seals =
                SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
            fcntl(file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| failed(errno.into()))?;
        }
        let saved = Self {
            first,
            memory,
            devices,
            processors,
            files,
            greeting,
        };
        Ok((saved, imports))
    }

    /// Resumes the saved machine in a forked process.
    fn resume(self, arguments: &Arguments) -> ExitCode {
        let mut worker = match Worker::take_over() {
            Ok(worker) => worker,
            Err(error) => {
                eprintln!("hotlease-machine: standard input is not an agent's control socket: {error}");
                return ExitCode::from(2);
            }
        };
        let started = Instant::now();
        match self.restore(arguments) {
            Ok(far) => {
                worker.set_boot(started.elapsed());
                worker.serve_for(far, arguments.functions)
            }
            Err(why) => worker.reject(no_machine(&why)),
        }
    }

    fn restore(&self, arguments: &Arguments) -> Result<&'static GuestConnection, String> {
        let failed = |error: io::Error| format!("restoring it: {error}");
        // A new open file, which reads from the beginning, independent of other readers.
        let devices = File::open(inherited_path(&self.devices)?).map_err(failed)?;
        let mut running = RunningMachine::start(
            arguments,
            self.processors,
            &self.first,
            MachineMemory::Copied(&self.memory),
        )?;
        let control = running.control.take().ok_or("QEMU has no control socket")?;
        let (heard, words) = mpsc::channel();
        let greeting = Some(self.greeting.as_slice());
        let far = GuestConnection::over(running, arguments.memory_mib, heard, &self.files, greeting).map_err(failed)?;
        QemuControl::begin(control)?.restore(&devices)?;
        let mut random = [0; RANDOM_BYTES];
        File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .map_err(failed)?;
        far.tell(&ToGuest::Resume { now_ns: now_ns() }, &random)
            .map_err(failed)?;
        await_ready(&words)?;
        Ok(far)
    }
}
