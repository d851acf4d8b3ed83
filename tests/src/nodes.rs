//! A manager and several agents on one machine, each a process with a separate runtime directory: a site for leases,
//! without certificates. (Across hosts: [`crate::site`].)

use crate::library::library;
use crate::manager::ManagerClient;
use crate::platform::locks::{Lock, have_machine_alone};
use crate::platform::{LIMIT, private_directory, program};
use crate::process::{Process, cores};
use hotlease_client::{Code, Invoker, LeaseOptions};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One agent.
pub struct Node {
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    /// Folders in which the agent's workers find libraries, in addition to the system's folders.
    libraries: PathBuf,
    agent: Option<Child>,
    descendants: Vec<Process>,
}

/// A manager and several agents. Stopped when dropped; the test fails if a worker remains.
pub struct Nodes {
    directory: tempfile::TempDir,
    manager: Option<Child>,
    /// The agents.
    pub nodes: Vec<Node>,
    _lock: Lock,
}

impl Nodes {
    /// Starts `count` agents, each with the same two cores and a pool of one worker.
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// Starts agents as [`Nodes::start`], with further arguments. No other test runs a platform meanwhile.
    pub fn start_with(count: usize, arguments: &[&str]) -> Self {
        Self::start_unlike(&vec![Path::new(""); count], arguments)
    }

    /// Starts agents as [`Nodes::start_with`], one for each folder in `libraries`. Only the workers of that agent find
    /// libraries in the folder.
    pub fn start_unlike(libraries: &[&Path], arguments: &[&str]) -> Self {
        let count = libraries.len();
        let lock = have_machine_alone();
        let directory = private_directory();
        let mut nodes = Self {
            directory,
            manager: None,
            nodes: Vec::new(),
            _lock: lock,
        };
        nodes.start_manager();
        let cores: Vec<String> = cores().into_iter().take(2).map(|core| core.to_string()).collect();
        for libraries in libraries {
            let directory = private_directory();
            // An agent uses the manager in its own directory: here all agents share one manager.
            let socket = nodes.directory.path().join("manager.sock");
            std::os::unix::fs::symlink(socket, directory.path().join("manager.sock")).expect("a link");
            let mut all = vec!["--cores".to_owned(), cores.join(","), "--pool".into(), "1".into()];
            all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
            let mut node = Node {
                directory,
                arguments: all,
                libraries: (*libraries).to_owned(),
                agent: None,
                descendants: Vec::new(),
            };
            node.start();
            nodes.nodes.push(node);
        }
        nodes.wait_for_agents(count);
        nodes
    }

    /// Starts the manager, for the first time or again.
    pub fn start_manager(&mut self) {
        let child = spawn(self.directory.path(), Path::new(""), &["manager"]);
        self.manager = Some(child);
        let start = Instant::now();
        while ManagerClient::connect(self.directory.path()).is_err() {
            assert!(start.elapsed() < LIMIT, "no manager:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the manager with -9.
    pub fn kill_manager(&mut self) {
        let mut manager = self.manager.take().expect("it runs");
        manager.kill().expect("our own child");
        manager.wait().expect("our own child");
    }

    /// Waits until `count` agents serve, each with a full pool.
    pub fn wait_for_agents(&self, count: usize) {
        let start = Instant::now();
        let ready = || {
            let manager = ManagerClient::connect(self.directory.path()).ok()?;
            let agents = manager.agents().ok()?;
            let serving = agents.iter().filter(|agent| agent.state == "serving").count();
            let workers = manager.workers().ok()?;
            let pooled = workers.iter().filter(|worker| worker.state == "pooled").count();
            Some(serving == count && pooled >= count)
        };
        while ready() != Some(true) {
            assert!(start.elapsed() < LIMIT, "not {count} agents:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The manager's interface.
    pub fn manager(&self) -> ManagerClient {
        ManagerClient::connect(self.directory.path()).expect("the manager serves")
    }

    /// A `hotlease` command for the manager.
    pub fn hotlease(&self, arguments: &[&str]) -> Command {
        command(self.directory.path(), arguments)
    }

    /// Lease options of clients unless a test says otherwise.
    pub fn lease_options(&self) -> LeaseOptions {
        LeaseOptions {
            runtime_dir: Some(self.directory.path().to_owned()),
            ..LeaseOptions::default()
        }
    }

    /// Takes a lease with a library of the fixtures.
    ///
    /// # Panics
    /// If the lease is refused.
    pub fn invoker(&self, name: &str, options: LeaseOptions) -> Invoker {
        let code = Code::open(library(name)).expect("a library");
        Invoker::allocate(&code, options).unwrap_or_else(|error| panic!("no lease: {error}\n{}", self.log()))
    }

    /// Number of the node that holds a lease.
    ///
    /// # Panics
    /// If no node holds it.
    pub fn holder(&self, lease: &str) -> usize {
        let info = self.manager().lease_info(lease).expect("the lease is known");
        let held = self.nodes.iter().position(|node| node.id() == info.agent);
        held.expect("one of the agents")
    }

    /// Takes a core of this node. Then the manager asks this node first, because it has the fewest free cores. The
    /// returned lease holds the core.
    ///
    /// # Panics
    /// If no core of this node can be taken.
    pub fn ask_first(&self, node: usize) -> Invoker {
        let mut others = Vec::new();
        for _ in 0..=self.nodes.len() {
            let held = self.invoker("echo", self.lease_options());
            if self.holder(&held.lease().to_string()) == node {
                return held;
            }
            others.push(held);
        }
        panic!("no lease of node {node}:\n{}", self.log());
    }

    /// Numbers of the nodes that have granted a lease under this label, even if only for a moment.
    pub fn granted(&self, label: &str) -> BTreeSet<usize> {
        let leases = self.manager().leases().expect("leases are listed");
        let leases = leases.iter().filter(|lease| lease.label == label);
        leases.map(|lease| self.holder(&lease.id)).collect()
    }

    /// Output of all daemons so far.
    pub fn log(&self) -> String {
        let mut log = read(self.directory.path());
        for (number, node) in self.nodes.iter().enumerate() {
            log += &format!("--- agent {number}:\n{}", read(node.directory.path()));
        }
        log
    }
}

impl Node {
    /// Starts the agent, for the first time or again.
    pub fn start(&mut self) {
        let mut arguments = vec!["agent"];
        arguments.extend(self.arguments.iter().map(String::as_str));
        self.agent = Some(spawn(self.directory.path(), &self.libraries, &arguments));
    }

    /// Identifier of the agent.
    pub fn id(&self) -> String {
        let id = fs::read_to_string(self.directory.path().join("state/agent/agent.id"));
        id.expect("an agent's name").trim().to_owned()
    }

    /// Runtime directory of the agent.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Process of the agent.
    pub fn process(&self) -> Process {
        let agent = self.agent.as_ref().expect("it runs");
        Process::of(agent.id() as i32).expect("it lives")
    }

    /// Kills the agent with -9.
    pub fn kill(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        if let Some(process) = Process::of(agent.id() as i32) {
            process.signal(Signal::SIGSTOP);
            self.descendants = process.descendants();
        }
        agent.kill().expect("our own child");
        agent.wait().expect("our own child");
    }

    /// Waits until no worker of the killed agent is left.
    fn nothing_runs(&self) {
        let start = Instant::now();
        while self.descendants.iter().any(Process::is_alive) {
            assert!(
                start.elapsed() < LIMIT,
                "workers are left: {:?}",
                self.descendants.len()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if panicking {
            eprintln!("{}", self.log());
        }
        for node in &mut self.nodes {
            if node.agent.is_some() {
                node.kill();
            }
            if !panicking {
                node.nothing_runs();
            }
        }
        if self.manager.is_some() {
            self.kill_manager();
        }
        assert!(
            panicking || !self.log().contains("panicked"),
            "a daemon panicked:\n{}",
            self.log()
        );
    }
}

fn read(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("hotlease"));
    command.args(arguments).stdin(Stdio::null());
    command.env("HOTLEASE_RUNTIME_DIR", directory);
    command.env("HOTLEASE_STATE_DIR", directory.join("state"));
    // SAFETY: prctl is async-signal-safe; no command may outlive a test program that is killed.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

fn spawn(directory: &Path, libraries: &Path, arguments: &[&str]) -> Child {
    let log = File::options().create(true).append(true).open(directory.join("log"));
    let log = log.expect("a log");
    let mut command = command(directory, arguments);
    if libraries != Path::new("") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.stdout(log.try_clone().expect("a log")).stderr(log);
    command.spawn().expect("it starts")
}
