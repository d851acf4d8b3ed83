//! `hotlease up` in a private runtime directory.

pub mod locks;

use crate::manager::ManagerClient;
use crate::process::{Process, cores};
use hotlease_client::{Code, Invoker, LeaseOptions};
use locks::{Lock, have_machine_alone, share_machine};
use nix::sys::signal::Signal;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Limit for all waits that are not measured: only a broken program takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Time for events that happen at once: longer than a busy machine stops, and shorter than the wait if the event does
/// not happen (5 s until a lease without a client ends, minutes of a time to live).
pub const SOON: Duration = Duration::from_secs(4);

/// Options of a platform.
#[derive(Debug, Clone)]
pub struct PlatformOptions {
    /// Cores that the agent offers. Default: the first two of this machine.
    pub cores: Vec<u32>,
    /// Number of spare workers. Default: 1.
    pub pool: u32,
    /// Whether other tests wait until this platform has ended: for tests that measure. Default: false.
    pub alone: bool,
    /// Further arguments of `up`. Default: none.
    pub further: Vec<String>,
}

impl Default for PlatformOptions {
    fn default() -> Self {
        Self {
            cores: cores().into_iter().take(2).collect(),
            pool: 1,
            alone: false,
            further: Vec::new(),
        }
    }
}

/// A running platform. Stopped when dropped; the test fails if processes or files remain.
pub struct Platform {
    directory: tempfile::TempDir,
    options: PlatformOptions,
    up: Option<Child>,
    /// Processes of the platform when it was last killed or stopped.
    descendants: Vec<Process>,
    _lock: Lock,
}

impl Platform {
    /// Starts a platform with two cores and a pool of one worker.
    pub fn start() -> Self {
        Self::start_with(PlatformOptions::default())
    }

    /// Starts a platform as [`Platform::start`]; no other test runs a platform meanwhile.
    pub fn start_alone() -> Self {
        Self::start_with(PlatformOptions {
            alone: true,
            ..PlatformOptions::default()
        })
    }

    /// Starts a platform and waits until it serves.
    ///
    /// # Panics
    /// If the platform does not serve; the message contains its output.
    pub fn start_with(options: PlatformOptions) -> Self {
        assert!(
            options.cores.len() >= 2,
            "the tests need a machine with two cores; this one offers {:?}",
            options.cores
        );
        let lock = if options.alone {
            have_machine_alone()
        } else {
            share_machine()
        };
        let directory = private_directory();
        let mut platform = Self {
            directory,
            options,
            up: None,
            descendants: Vec::new(),
            _lock: lock,
        };
        platform.up_again();
        platform
    }

    /// Starts `up` after [`Platform::kill`] or [`Platform::stop`].
    pub fn up_again(&mut self) {
        assert!(self.up.is_none(), "it is running");
        self.descendants.clear();
        let log = File::create(self.log_path()).expect("a log");
        let cores: Vec<String> = self.options.cores.iter().map(u32::to_string).collect();
        let mut command = self.hotlease(&["up", "--cores", &cores.join(",")]);
        command.args(["--pool", &self.options.pool.to_string()]);
        command.args(&self.options.further);
        command
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .stdin(Stdio::null());
        self.up = Some(command.spawn().expect("`hotlease up` starts"));
        let start = Instant::now();
        while !self.serves() {
            let ended = self.up.as_mut().expect("just started").try_wait().expect("a child");
            assert!(
                ended.is_none() && start.elapsed() < LIMIT,
                "`hotlease up` does not serve ({ended:?}, {:?}); it printed:\n{}",
                start.elapsed(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether an agent serves and its pool is full.
    fn serves(&self) -> bool {
        let Ok(manager) = ManagerClient::connect(self.directory()) else {
            return false;
        };
        let Ok(agents) = manager.agents() else {
            return false;
        };
        let pooled = |workers: Vec<hotlease_wire::grpc::WorkerInfo>| {
            workers.iter().filter(|worker| worker.state == "pooled").count()
        };
        agents.iter().any(|agent| agent.state == "serving")
            && manager
                .workers()
                .is_ok_and(|workers| pooled(workers) >= self.options.pool as usize)
    }

    /// The runtime directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Output of the platform so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("up.log")
    }

    /// Cores that the platform offers.
    pub fn cores(&self) -> &[u32] {
        &self.options.cores
    }

    /// The manager's interface.
    pub fn manager(&self) -> ManagerClient {
        ManagerClient::connect(self.directory()).expect("the manager serves")
    }

    /// Number of free cores, as the agent counts them.
    pub fn free_cores(&self) -> u32 {
        self.manager().free_cores()
    }

    /// The process that is both manager and agent.
    pub fn process(&self) -> Process {
        let up = self.up.as_ref().expect("it is running");
        Process::of(up.id() as i32).unwrap_or_else(|| panic!("`hotlease up` has died:\n{}", self.log()))
    }

    /// Worker processes, including spare workers.
    pub fn workers(&self) -> Vec<Process> {
        self.process().descendants()
    }

    /// A `hotlease` command that talks to this platform.
    pub fn hotlease(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("hotlease"));
        command.args(arguments).env("HOTLEASE_RUNTIME_DIR", self.directory());
        command.stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe; no command may outlive a test program that is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command
    }

    /// Runs a `hotlease` command to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.hotlease(arguments).output().expect("hotlease runs")
    }

    /// Runs a `hotlease` command that must succeed, with `--json`; returns the objects that it prints, one in each
    /// line.
    pub fn json(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let output = self.run(&[arguments, &["--json"]].concat());
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "hotlease {arguments:?}: {}: {errors}\nit printed: {text}",
            output.status
        );
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("hotlease {arguments:?}: {error}: {line}"))
        };
        text.lines().map(parse).collect()
    }

    /// Lease options of clients of this platform unless a test says otherwise.
    pub fn lease_options(&self) -> LeaseOptions {
        LeaseOptions {
            runtime_dir: Some(self.directory().to_owned()),
            ..LeaseOptions::default()
        }
    }

    /// A lease of one slot with a library, through the client library.
    ///
    /// # Panics
    /// If the lease is refused.
    pub fn invoker(&self, library: &str) -> Invoker {
        self.invoker_with(library, self.lease_options())
    }

    /// Takes a lease with these options and a library, through the client library.
    ///
    /// # Panics
    /// If the lease is refused.
    pub fn invoker_with(&self, library: &str, options: LeaseOptions) -> Invoker {
        let code = Code::open(crate::library::library(library)).expect("a library");
        Invoker::allocate(&code, options).unwrap_or_else(|error| panic!("no lease: {error}"))
    }

    /// Kills manager and agent with -9, as a node's failure would. [`Platform::nothing_runs`] checks what they leave
    /// behind.
    pub fn kill(&mut self) {
        let mut up = self.up.take().expect("it is running");
        let process = Process::of(up.id() as i32);
        if let Some(process) = process {
            // The process is stopped so that it starts no other process between this listing and the kill.
            process.signal(Signal::SIGSTOP);
            self.descendants = process.descendants();
        }
        up.kill().expect("our own child");
        up.wait().expect("our own child");
    }

    /// Stops the platform, as the user's Ctrl-C does, and waits.
    pub fn stop(&mut self) -> ExitStatus {
        let process = self.process();
        self.descendants = process.descendants();
        process.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Waits until `up` has ended by itself.
    ///
    /// # Panics
    /// If `up` does not end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut up = self.up.take().expect("it is running");
        let start = Instant::now();
        loop {
            if let Some(status) = up.try_wait().expect("our own child") {
                return status;
            }
            if start.elapsed() > LIMIT {
                let _ = up.kill();
                let _ = up.wait();
                panic!("`hotlease up` does not stop:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until no process of the killed or stopped platform is left; returns the time of the wait.
    pub fn nothing_runs(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let left: Vec<_> = self.descendants.iter().filter(|process| process.is_alive()).collect();
            let took = start.elapsed();
            if left.is_empty() {
                return took;
            }
            let described: Vec<String> = left.iter().map(|process| process.describe()).collect();
            assert!(
                took < limit,
                "left after {limit:?}: {described:?}; the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Names of the sockets in the runtime directory.
    pub fn sockets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).expect("the runtime directory").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".sock")).collect()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if self.up.is_some() {
                eprintln!("--- hotlease up printed:\n{}---", self.log());
                self.kill();
            }
            return;
        }
        if self.up.is_some() {
            let status = self.stop();
            assert!(status.success(), "`hotlease up` ended with {status}:\n{}", self.log());
            assert_eq!(self.sockets(), [""; 0], "sockets are left");
        }
        self.nothing_runs(LIMIT);
        assert!(!self.log().contains("panicked"), "a daemon panicked:\n{}", self.log());
    }
}

/// Folder in which cargo puts programs: the folder above the test program's folder.
pub fn target_directory() -> PathBuf {
    let test = std::env::current_exe().expect("the test program has a path");
    let mut directory = test.parent().expect("it is in a directory").to_owned();
    if directory.ends_with("deps") {
        directory.pop();
    }
    directory
}

/// A directory for a platform: other users cannot enter it, and its path is short, as a socket's path has at most 107
/// bytes.
pub fn private_directory() -> tempfile::TempDir {
    let owner_only = Permissions::from_mode(0o700);
    let mut builder = tempfile::Builder::new();
    builder
        .prefix("hlt")
        .permissions(owner_only)
        .tempdir_in("/tmp")
        .expect("a directory")
}

/// Path of one of the built programs.
///
/// # Panics
/// If the program is not built.
pub fn program(name: &str) -> PathBuf {
    let path = target_directory().join(name);
    assert!(path.exists(), "{} is not there; run `make build` first", path.display());
    path
}
