//! Nodes from a batch system, whose jobs are agents: real Slurm, and programs that stand in for others.

mod pbs;

use hotlease_client::{Code, Error, Invoker, LeaseOptions};
use hotlease_tests::hosts::Host;
use hotlease_tests::hosts::slurm::Slurm;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, program};
use hotlease_tests::site::{Authority, Daemon, ManagerDaemon};
use hotlease_tests::wait::{until, until_true};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A manager without agents, an allocator, and a batch system.
struct Scene {
    /// Name of its description.
    system: &'static str,
    allocator: Daemon,
    manager: ManagerDaemon,
    authority: Authority,
    slurm: Option<Slurm>,
    host: Host,
}

impl Scene {
    fn start() -> Option<Self> {
        let slurm = Slurm::start(1, 2, |_| String::new())?;
        let host = Host::here();
        host.set_variable("SLURM_CONF", slurm.configuration());
        Some(Self {
            slurm: Some(slurm),
            ..Self::on(host, "slurm")
        })
    }

    fn on(host: Host, system: &'static str) -> Self {
        let authority = Authority::new();
        host.set_variable("HOTLEASE_ALLOC_DIR", host.directory().join("alloc"));
        let manager = ManagerDaemon::start(&host, &authority);
        let allocator = Daemon::start(&host, &["alloc", "serve", "--every", "200ms"]);
        Self {
            system,
            allocator,
            manager,
            authority,
            slurm: None,
            host,
        }
    }

    fn slurm(&self) -> &Slurm {
        self.slurm.as_ref().expect("Slurm")
    }

    /// Runs `hotlease alloc`; returns the objects that it prints.
    fn alloc(&self, arguments: &[&str]) -> Vec<Value> {
        let mut command = self.host.command(&program("hotlease"));
        let output = command
            .args(["--json", "alloc"])
            .args(arguments)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    fn add(&self, further: &[&str]) {
        self.alloc_queue("add", further);
    }

    /// Runs `hotlease alloc add` or `dry-run`.
    fn alloc_queue(&self, command: &str, further: &[&str]) -> Vec<Value> {
        let (authority, manager) = (
            self.authority.directory().display().to_string(),
            self.manager.address.to_string(),
        );
        let mut arguments = vec![
            command,
            self.system,
            "--max-nodes",
            "1",
            "--time",
            "5min",
            "--cores",
            "1",
        ];
        arguments.extend(["--manager", &manager, "--authority", &authority, "--tenant", "alice"]);
        arguments.extend(further);
        self.alloc(&arguments)
    }

    fn queue(&self) -> Value {
        self.alloc(&["ls", "--all"]).remove(0)
    }

    fn client(&self, patience: Duration) -> LeaseOptions {
        LeaseOptions {
            manager: Some(self.manager.address.to_string()),
            identity: Some(self.identity()),
            patience,
            ..LeaseOptions::default()
        }
    }

    fn identity(&self) -> PathBuf {
        self.authority.client("alice")
    }

    fn log(&self) -> String {
        let lines = self.alloc(&["log"]);
        lines.iter().map(|line| format!("{}\n", line["line"])).collect()
    }
}

fn echo() -> Code {
    Code::open(library("behaved")).expect("a library")
}

#[test]
fn a_lease_that_waits_brings_a_job_of_agents_that_ends_when_it_is_idle() {
    let Some(scene) = Scene::start() else {
        return;
    };
    scene.add(&["--idle", "2s"]);
    // A client that does not wait brings no job.
    let refused = Invoker::allocate(&echo(), scene.client(Duration::ZERO)).map(drop);
    assert!(matches!(&refused, Err(Error::Refused(_))), "{refused:?}");
    let begun = Instant::now();
    let invoker = Invoker::allocate(&echo(), scene.client(LIMIT)).expect("a lease on a node of Slurm");
    assert_eq!(invoker.function("echo").unwrap().call(b"x").unwrap(), b"x");
    eprintln!("from the request to the first result: {:?}", begun.elapsed());
    let jobs = || scene.queue()["jobs"].as_array().cloned().unwrap_or_default();
    let (job, _) = until("the job is seen to run", LIMIT, || {
        jobs().into_iter().find(|job| job["state"] == "running")
    });
    let number: u64 = job["job"].as_str().expect("a number").parse().expect("a number");
    assert_eq!(
        jobs().len(),
        1,
        "no job is submitted while no lease waits: {}",
        scene.log()
    );
    drop(invoker);
    scene.slurm().until(number, "COMPLETED");
    until_true("its end is seen", LIMIT, || jobs()[0]["state"] == "completed");
    assert_eq!(
        scene.queue()["why"],
        "",
        "an agent that ends is no failure: {}",
        scene.log()
    );
    assert_eq!(jobs().len(), 1, "{}", scene.log());
}

#[test]
fn a_site_that_rejects_is_asked_less_and_less_often_and_its_words_are_shown() {
    let Some(mut scene) = Scene::start() else {
        return;
    };
    scene.add(&["--", "--partition", "nosuch"]);
    let (options, code) = (scene.client(LIMIT), echo());
    let waiting = std::thread::spawn(move || Invoker::allocate(&code, options).map(drop));
    let (queue, _) = until("the rejection is shown", LIMIT, || {
        Some(scene.queue()).filter(|queue| queue["why"] != "")
    });
    let why = queue["why"].as_str().expect("a text");
    assert!(
        why.contains("rejected once") && why.to_lowercase().contains("partition"),
        "{why}"
    );
    assert!(queue["again_in_ms"].as_u64() > Some(0), "{queue}");
    assert_eq!(queue["jobs"], Value::Array(Vec::new()), "there is no job");
    // The allocator reports this reason after a restart, too.
    scene.allocator.kill();
    scene.allocator = Daemon::start(&scene.host, &["alloc", "serve", "--every", "200ms"]);
    assert_eq!(scene.queue()["why"], why);
    // Another queue serves the client.
    scene.add(&["--name", "other", "--priority", "-1", "--idle", "2s"]);
    waiting.join().expect("no panic").expect("a lease");
    let removed = scene.alloc(&["rm", "slurm"]);
    assert_eq!(removed[0]["removed"], "slurm");
    assert_eq!(scene.alloc(&["ls"]).len(), 1);
}

/// The agents are in a step, so Slurm signals them at once, and they end at once.
#[test]
fn a_job_that_is_cancelled_is_gone_soon_and_its_client_moves() {
    let Some(scene) = Scene::start() else {
        return;
    };
    scene.add(&["--idle", "30s"]);
    let invoker = Invoker::allocate(&echo(), scene.client(LIMIT)).expect("a lease on a node of Slurm");
    assert_eq!(invoker.function("echo").unwrap().call(b"x").unwrap(), b"x");
    let (job, _) = until("the job is seen to run", LIMIT, || {
        let job = scene.queue()["jobs"][0].clone();
        (job["state"] == "running").then_some(job)
    });
    let cancelled = Instant::now();
    scene.alloc(&["rm", "slurm"]);
    let number: u64 = job["job"].as_str().expect("a number").parse().expect("a number");
    scene.slurm().until(number, "CANCELLED");
    until_true("the agent is gone", LIMIT, || {
        let idle = scene.slurm().run("sinfo", &["-h", "-t", "idle", "-o", "%N"]);
        idle.is_ok_and(|idle| !idle.trim().is_empty())
    });
    eprintln!("the node is idle after {:?}", cancelled.elapsed());
    assert_eq!(scene.alloc(&["ls"]), [] as [Value; 0]);
    drop(invoker);
}
