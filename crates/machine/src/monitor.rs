//! The monitor: the end outside the machine. The head of `main.rs` describes its part.

mod boot;
mod files;
mod guest_connection;
mod modules;
mod qemu;
mod saving;

use boot::MachineParts;
use clap::Parser;
use files::FileServer;
use guest_connection::{GuestConnection, StartMessage};
use hotlease_nursery::program::inner_environment;
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::machine::{MachineLimits, ToGuest, WorkerStart};
use hotlease_worker::Worker;
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit until a machine's first message.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Socket of the machine's port, in the sandbox's own folder.
const PORT: &str = "/tmp/.hotlease-port";
/// Socket of QEMU's control connection.
const CONTROL: &str = "/tmp/.hotlease-control";
/// File to which the machine's kernel writes its messages.
const CONSOLE: &str = "/tmp/.hotlease-console";
/// Largest number of bytes that are read from the end of that file.
const CONSOLE_BYTES: u64 = 64 << 10;

/// Command line, as an agent passes it.
#[derive(Parser)]
#[command(
    name = "hotlease-machine",
    version,
    about = "Started by an agent: see `hotlease agent --sandbox microvm`"
)]
struct Arguments {
    /// Program that emulates machines.
    #[arg(long)]
    qemu: PathBuf,
    /// Kernel of the machine.
    #[arg(long)]
    kernel: PathBuf,
    /// Folder of that kernel's modules.
    #[arg(long)]
    modules: PathBuf,
    /// Emulate the processor, without its virtualisation support.
    #[arg(long)]
    emulated: bool,
    /// Memory of the machine, MiB.
    #[arg(long)]
    memory_mib: u32,
    /// Largest number of descriptors of each of its processes.
    #[arg(long)]
    files: u64,
    /// Largest file that its worker may write, bytes.
    #[arg(long)]
    file_bytes: u64,
    /// Number of functions that the worker's program has from the beginning.
    #[arg(long)]
    functions: u16,
    /// Working directory of the worker's program.
    #[arg(long)]
    directory: OsString,
    /// Save the machine once its worker is ready, and fork workers with machines like it from this process.
    #[arg(long)]
    zygote: bool,
    /// File or folder to show at its own path, wherever that is; may be given more than once.
    #[arg(long)]
    shown: Vec<PathBuf>,
    /// Folder to which other processes may write meanwhile; may be given more than once.
    #[arg(long)]
    changing: Vec<PathBuf>,
    /// Program of the worker: its path, its name, its arguments.
    #[arg(last = true, num_args = 2.., required = true)]
    program: Vec<OsString>,
}

impl Arguments {
    /// Makes the file server of the machine. The machine may have as many files open as this process, less a worker's
    /// own limit of files, but at least half as many as this process.
    fn file_server(&self) -> FileServer {
        let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, most)| most);
        let open_max = most.saturating_sub(self.files).max(most / 2);
        FileServer::new(&self.changing, &self.shown, open_max as usize)
    }
}

pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    match Worker::take_over() {
        Ok(worker) if arguments.zygote => saving::run_zygote(worker, &arguments),
        Ok(worker) => run_worker(worker, &arguments),
        Err(error) => {
            eprintln!("hotlease-machine: standard input is not an agent's control socket: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a machine that is made for one worker.
fn run_worker(mut worker: Worker, arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let booted = boot::first_files(&arguments.modules).and_then(|files| {
        let running = RunningMachine::start(arguments, processors(), &files, boot::MachineMemory::Own)?;
        start_worker(running, arguments, &arguments.file_server())
    });
    match booted {
        Ok((far, imports)) => {
            // The time without the imports includes the interpreter's start, whose duration is not known here.
            worker.set_boot(started.elapsed().saturating_sub(imports));
            worker.set_imports(imports);
            worker.serve_for(far, arguments.functions)
        }
        Err(why) => worker.reject(no_machine(&why)),
    }
}

fn no_machine(why: &str) -> String {
    format!("a virtual machine for the worker: {why}")
}

/// Number of processors: as many as the sandbox has, up to the limit.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(boot::PROCESSORS_MAX))
}

/// A machine that was started.
struct RunningMachine {
    qemu: Child,
    port: UnixStream,
    /// QEMU's control connection; `None` for a machine with memory of its own.
    control: Option<UnixStream>,
}

impl RunningMachine {
    fn start(
        arguments: &Arguments,
        processors: usize,
        files: &File,
        memory: boot::MachineMemory<'_>,
    ) -> Result<Self, String> {
        let has_control = !matches!(memory, boot::MachineMemory::Own);
        let bound = |path: &str| UnixListener::bind(path).map_err(|error| format!("{path}: {error}"));
        let port = bound(PORT)?;
        let control = has_control.then(|| bound(CONTROL)).transpose()?;
        let machine = MachineParts {
            qemu: &arguments.qemu,
            kernel: &arguments.kernel,
            emulated: arguments.emulated,
            memory_mib: arguments.memory_mib,
            processors,
            files,
            memory,
            port: Path::new(PORT),
            control: has_control.then_some(Path::new(CONTROL)),
            console: Path::new(CONSOLE),
        };
        let mut qemu = machine.start()?;
        let port = accept(&port, &mut qemu)?;
        let control = control.map(|control| accept(&control, &mut qemu)).transpose()?;
        Ok(Self { qemu, port, control })
    }
}

/// Starts the worker in a machine; returns how long its imports took.
fn start_worker(
    running: RunningMachine,
    arguments: &Arguments,
    files: &FileServer,
) -> Result<(&'static GuestConnection, Duration), String> {
    let failed = |error: std::io::Error| format!("its port: {error}");
    let bytes = |path: &PathBuf| path.clone().into_os_string().into_vec();
    let run = WorkerStart {
        path: arguments.program[0].clone().into_vec(),
        arguments: arguments.program[1..].iter().cloned().map(OsString::into_vec).collect(),
        environment: inner_environment::unwrap(std::env::vars_os())
            .into_iter()
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect(),
        directory: arguments.directory.clone().into_vec(),
        zygote: arguments.zygote,
        limits: limits(arguments).map_err(|error| format!("reading the limits of its sandbox: {error}"))?,
        shown: arguments.shown.iter().map(bytes).collect(),
    };
    let (heard, words) = mpsc::channel();
    let far = GuestConnection::over(running, arguments.memory_mib, heard, files, None).map_err(failed)?;
    await_message(&words, |heard| matches!(heard, StartMessage::Booted))?;
    let run = hotlease_wire::encode(&run);
    far.tell(&ToGuest::Run { now_ns: now_ns() }, &run).map_err(failed)?;
    Ok((far, await_ready(&words)?))
}

/// This host's time, nanoseconds since 1970.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits for the worker in a machine; returns how long its imports took.
fn await_ready(words: &Receiver<StartMessage>) -> Result<Duration, String> {
    match await_message(words, |heard| matches!(heard, StartMessage::Ready { .. }))? {
        StartMessage::Ready { version, imports } if version == PROTOCOL_VERSION => Ok(imports),
        StartMessage::Ready { version, .. } => {
            Err(format!("its worker is of version {version}, not {PROTOCOL_VERSION}"))
        }
        _ => Err("it ended before its worker was ready".into()),
    }
}

/// Waits for the machine's next message, which must be the expected one.
fn await_message(
    words: &Receiver<StartMessage>,
    is_it: impl FnOnce(&StartMessage) -> bool,
) -> Result<StartMessage, String> {
    match words.recv_timeout(BOOT_LIMIT) {
        Ok(StartMessage::Ended { why }) => Err(format!("{why}{}", kernel_messages())),
        Ok(word) if is_it(&word) => Ok(word),
        Ok(_) => Err("it says something else than expected".into()),
        Err(_) => Err(format!(
            "no word from it in {} s{}",
            BOOT_LIMIT.as_secs(),
            kernel_messages()
        )),
    }
}

/// Limits of the worker: the limits of this process, which is in the worker's sandbox. The limits on the number and the
/// size of files come from the command line, because a machine itself needs more.
fn limits(arguments: &Arguments) -> std::io::Result<MachineLimits> {
    let most = |resource| -> std::io::Result<u64> { Ok(getrlimit(resource)?.1) };
    let size = |path: &str| -> std::io::Result<u64> {
        let found = statvfs(path)?;
        Ok(found.blocks() * found.fragment_size())
    };
    Ok(MachineLimits {
        processes: most(Resource::RLIMIT_NPROC)?,
        files: arguments.files,
        file_bytes: arguments.file_bytes,
        tmp_bytes: size("/tmp")?,
        shm_bytes: size("/dev/shm")?,
    })
}

/// Accepts QEMU's end of the port.
fn accept(listener: &UnixListener, child: &mut Child) -> Result<UnixStream, String> {
    let failed = |error: std::io::Error| format!("its port: {error}");
    listener.set_nonblocking(true).map_err(failed)?;
    let until = Instant::now() + BOOT_LIMIT;
    loop {
        match listener.accept() {
            Ok((port, _)) => {
                port.set_nonblocking(false).map_err(failed)?;
                return Ok(port);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!(
                "QEMU ended with {status}; its messages are in the worker's output"
            ));
        }
        if Instant::now() > until {
            return Err("QEMU does not start".into());
        }
        // QEMU connects within its first milliseconds. No single event reports both its end and this connection.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the machine's kernel gave up for lack of memory, when no process was left to kill except the worker's guest.
pub(crate) fn has_run_out_of_memory() -> bool {
    let text = console();
    let words = b"deadlocked on memory";
    text.windows(words.len()).any(|window| window == words)
}

/// End of the kernel's messages. A machine may have put anything at that path, so this function does not wait, and
/// allocates no more memory than the limit.
fn console() -> Vec<u8> {
    let read = || -> std::io::Result<Vec<u8>> {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let mut file = File::options().read(true).custom_flags(flags).open(CONSOLE)?;
        let found = file.metadata()?;
        let mut text = Vec::new();
        if found.is_file() {
            file.seek(SeekFrom::Start(found.len().saturating_sub(CONSOLE_BYTES)))?;
            file.take(CONSOLE_BYTES).read_to_end(&mut text)?;
        }
        Ok(text)
    };
    read().unwrap_or_default()
}

/// Last messages of the machine's kernel, for an error text.
pub(crate) fn kernel_messages() -> String {
    let text = console();
    let text = String::from_utf8_lossy(&text);
    let printable = |line: &&str| !line.trim().is_empty();
    let lines: Vec<&str> = text.lines().filter(printable).collect();
    match lines.len() {
        0 => String::new(),
        count => format!("; its kernel says: {}", lines[count.saturating_sub(5)..].join(" | ")),
    }
}
