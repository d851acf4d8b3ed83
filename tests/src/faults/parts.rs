//! Manager and agent of one machine as separate processes.

use super::ledger::Operator;
use super::system::System;
use crate::library::library;
use crate::manager::ManagerClient;
use crate::platform::{LIMIT, private_directory, program};
use crate::process::{Process, cores};
use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use nix::sys::signal::Signal;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One of the two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The manager.
    Manager,
    /// The agent.
    Agent,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Agent => "agent",
        }
    }
}

/// Both daemons in a private directory. Stopped when dropped; the test fails if a daemon panicked.
pub struct Parts {
    directory: TempDir,
    running: [Option<Child>; 2],
    arguments: [Vec<String>; 2],
    environment: Vec<(String, String)>,
}

impl Parts {
    /// Two daemons that do not run yet. The agent will offer all cores, and keep one spare worker.
    pub fn new() -> Self {
        let cores: Vec<String> = cores().iter().map(u32::to_string).collect();
        let offer = ["--cores", &cores.join(","), "--pool", "1"];
        Self {
            directory: private_directory(),
            running: [None, None],
            arguments: [Vec::new(), offer.map(String::from).to_vec()],
            environment: Vec::new(),
        }
    }

    /// Two running daemons.
    pub fn start() -> Self {
        let mut parts = Self::new();
        parts.start_part(Part::Manager, None);
        parts.start_part(Part::Agent, None);
        parts.until_serving(LIMIT);
        parts
    }

    /// Arguments with which a daemon is started.
    pub fn arguments(&mut self, part: Part) -> &mut Vec<String> {
        &mut self.arguments[part as usize]
    }

    /// Puts a variable into the environment of daemons that are started from now on.
    pub fn set_variable(&mut self, name: &str, value: &Path) {
        let value = value.to_str().expect("a path in UTF-8").to_owned();
        self.environment.push((name.to_owned(), value));
    }

    /// The runtime directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Directory of a daemon's state.
    pub fn state(&self, part: Part) -> PathBuf {
        self.directory().join("state").join(part.name())
    }

    /// Log of a daemon so far, of all its runs.
    pub fn log(&self, part: Part) -> String {
        fs::read_to_string(self.log_path(part)).unwrap_or_default()
    }

    fn log_path(&self, part: Part) -> PathBuf {
        self.directory().join(part.name()).with_extension("log")
    }

    /// A `hotlease` command in this directory; it ends with the test program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("hotlease"));
        command
            .args(arguments)
            .env("HOTLEASE_RUNTIME_DIR", self.directory())
            .stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command
    }

    /// Starts a daemon; returns before it serves.
    ///
    /// # Panics
    /// If the daemon runs already, or cannot be started.
    pub fn spawn(&mut self, part: Part, system: Option<&System>) {
        assert!(self.running[part as usize].is_none(), "it is running");
        let mut options = OpenOptions::new();
        let log: File = options
            .create(true)
            .append(true)
            .open(self.log_path(part))
            .expect("a log");
        let mut command = self.command(&[part.name()]);
        command
            .args(&self.arguments[part as usize])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(system) = system {
            system.over(&mut command);
        }
        self.running[part as usize] = Some(command.spawn().expect("hotlease starts"));
    }

    /// Starts a daemon, and waits until it answers.
    ///
    /// # Panics
    /// If the daemon ends instead.
    pub fn start_part(&mut self, part: Part, system: Option<&System>) {
        self.spawn(part, system);
        let start = Instant::now();
        while !self.answers(part) {
            assert!(
                self.ended(part).is_none() && start.elapsed() < LIMIT,
                "the {} does not serve:\n{}",
                part.name(),
                self.log(part)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn answers(&self, part: Part) -> bool {
        let socket = match part {
            Part::Manager => return ManagerClient::connect(self.directory()).is_ok(),
            Part::Agent => self.directory().join("agent.sock"),
        };
        std::os::unix::net::UnixStream::connect(socket).is_ok()
    }

    /// Exit status of a daemon, if it has ended.
    ///
    /// # Panics
    /// If the daemon was not started.
    pub fn ended(&mut self, part: Part) -> Option<ExitStatus> {
        let child = self.running[part as usize].as_mut().expect("it was started");
        child.try_wait().expect("our own child")
    }

    /// Waits until a daemon has ended, by itself or by a strike; `limit` is the longest wait.
    ///
    /// # Panics
    /// If the daemon does not end.
    pub fn take_end(&mut self, part: Part, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended(part) {
                self.running[part as usize] = None;
                return status;
            }
            assert!(
                start.elapsed() < limit,
                "the {} goes on:\n{}",
                part.name(),
                self.log(part)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a daemon runs.
    pub fn runs(&self, part: Part) -> bool {
        self.running[part as usize].is_some()
    }

    /// Process of a daemon.
    ///
    /// # Panics
    /// If the daemon has ended.
    pub fn process(&self, part: Part) -> Process {
        let child = self.running[part as usize].as_ref().expect("it was started");
        Process::of(child.id() as i32).unwrap_or_else(|| panic!("the {} has died:\n{}", part.name(), self.log(part)))
    }

    /// Kills a daemon with -9, unless it has died by itself, and waits for its end.
    pub fn kill(&mut self, part: Part) {
        let mut child = self.running[part as usize].take().expect("it was started");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Asks a daemon to stop, and waits for its end.
    ///
    /// # Panics
    /// If the daemon does not end.
    pub fn stop(&mut self, part: Part) -> ExitStatus {
        self.process(part).signal(Signal::SIGTERM);
        self.take_end(part, LIMIT)
    }

    /// The manager's interface.
    ///
    /// # Panics
    /// If the manager does not serve.
    pub fn manager(&self) -> ManagerClient {
        ManagerClient::connect(self.directory()).expect("the manager serves")
    }

    /// Waits until leases are granted; returns the time of the wait.
    ///
    /// # Panics
    /// If the wait is longer than `limit`.
    pub fn until_serving(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let manager = ManagerClient::connect(self.directory());
            let agents = manager
                .ok()
                .and_then(|manager| manager.agents().ok())
                .unwrap_or_default();
            if agents.iter().any(|agent| agent.state == "serving") {
                return start.elapsed();
            }
            assert!(
                start.elapsed() < limit,
                "no agent serves within {limit:?}; the manager:\n{}\nthe agent:\n{}",
                self.log(Part::Manager),
                self.log(Part::Agent)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Default lease options of clients in tests: one slot, for two seconds at a time.
    pub fn lease_options(&self) -> LeaseOptions {
        LeaseOptions {
            runtime_dir: Some(self.directory().to_owned()),
            ttl: Duration::from_secs(2),
            ..LeaseOptions::default()
        }
    }

    /// Takes a lease with `fixtures/tally.c` on it.
    pub fn invoker(&self) -> Result<Invoker, Error> {
        let code = Code::open(library("tally"))?;
        Invoker::allocate(&code, self.lease_options())
    }
}

impl Operator for Parts {
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("hotlease runs")
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for part in [Part::Agent, Part::Manager] {
            let Some(mut child) = self.running[part as usize].take() else {
                continue;
            };
            if let Some(process) = Process::of(child.id() as i32) {
                process.signal(Signal::SIGCONT);
                process.signal(Signal::SIGTERM);
            }
            let start = Instant::now();
            while let Ok(None) = child.try_wait() {
                if start.elapsed() > LIMIT {
                    let _ = child.kill();
                    let _ = child.wait();
                    assert!(
                        std::thread::panicking(),
                        "the {} does not stop:\n{}",
                        part.name(),
                        self.log(part)
                    );
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for part in [Part::Manager, Part::Agent] {
            let log = self.log(part);
            if std::thread::panicking() {
                let tail: Vec<&str> = log.lines().rev().take(60).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                eprintln!("--- the {}'s last words ---\n{}", part.name(), tail.join("\n"));
            } else {
                assert!(!log.contains("panicked"), "the {} panicked:\n{log}", part.name());
            }
        }
    }
}
