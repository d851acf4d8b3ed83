//! Batch jobs on a node on which leases run, as `hotlease-node` reports them to the agent.

mod company;
mod policy;
mod processes;

use hotlease_client::{Code, Error, Invocation, Invoker, LeaseOptions};
use hotlease_fabric::socket::Socket;
use hotlease_tests::hosts::Host;
use hotlease_tests::hosts::slurm::Slurm;
use hotlease_tests::library::library;
use hotlease_tests::marks::Marks;
use hotlease_tests::platform::{LIMIT, SOON, program};
use hotlease_tests::process::{Process, cores};
use hotlease_tests::site::Daemon;
use hotlease_tests::wait::until_true;
use hotlease_wire::EndReason;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A manager, and an agent of two cores at most.
struct Node {
    host: Host,
    _manager: Daemon,
    agent: Daemon,
}

impl Node {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a manager, and an agent with further arguments.
    fn start_with(arguments: &[&str]) -> Self {
        Self::start_on(Host::here(), arguments)
    }

    /// Starts on a host whose programs have variables of their own.
    fn start_on(host: Host, arguments: &[&str]) -> Self {
        let manager = Daemon::start(&host, &["manager"]);
        let agent = Self::agent(&host, arguments);
        let node = Self {
            host,
            _manager: manager,
            agent,
        };
        node.serves();
        node
    }

    fn agent(host: &Host, arguments: &[&str]) -> Daemon {
        let mut agent = Self::launch_agent(host, arguments);
        until_true("the agent serves", LIMIT, || agent.serves());
        agent
    }

    /// Starts an agent, and does not wait.
    fn launch_agent(host: &Host, arguments: &[&str]) -> Daemon {
        let cores: Vec<String> = cores().iter().take(2).map(u32::to_string).collect();
        let (cores, jobs) = (format!("{},", cores.join(",")), Self::jobs(host));
        let usual = ["agent", "--cores", &cores, "--pool", "1", "--batch-jobs", &jobs];
        Daemon::launch(host, host.runtime_dir(), &[&usual, arguments].concat())
    }

    fn jobs(host: &Host) -> String {
        host.directory().join("jobs").display().to_string()
    }

    /// Runs the program that a prolog or epilog of this job runs.
    fn tell(&self, action: &str, job: u64) -> (Output, Duration) {
        let begin = Instant::now();
        let mut command = self.host.command(&program("hotlease-node"));
        command
            .arg("--runtime-dir")
            .arg(self.host.runtime_dir())
            .args(["--jobs", &Self::jobs(&self.host), action])
            .env("SLURM_JOB_ID", job.to_string())
            .env("SLURM_JOB_USER", "ada");
        let output = command.output().expect("hotlease-node runs");
        assert!(
            output.status.success(),
            "a prolog that fails drains the node: {output:?}"
        );
        (output, begin.elapsed())
    }

    /// A cluster of one node, whose prolog and epilog tell this agent of jobs; `None` where there is no Slurm.
    fn slurm(&self) -> Option<Slurm> {
        let program = program("hotlease-node").display().to_string();
        let (runtime_dir, jobs) = (self.host.runtime_dir().display(), Self::jobs(&self.host));
        let script = |at: &Path, action: &str| {
            let text = format!(
                "#!/bin/sh\nexec {program} --runtime-dir {runtime_dir} --jobs {jobs} {action} 2>>{action}.log\n"
            );
            Slurm::script(at, action, &text)
        };
        Slurm::start(1, 2, |at| {
            let (prolog, epilog) = (script(at, "yield"), script(at, "retake"));
            format!("PrologFlags=Alloc\nProlog={prolog}\nEpilog={epilog}")
        })
    }

    /// Jobs of the node, and the policy, as its agent knows them.
    fn status(&self) -> serde_json::Value {
        let mut command = self.host.command(&program("hotlease"));
        command.args(["--json", "node", "status"]);
        let output = command.env("HOTLEASE_RUNTIME_DIR", self.host.runtime_dir()).output();
        let output = output.expect("hotlease runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn lease(&self, name: &str) -> Result<Invoker, Error> {
        let options = LeaseOptions {
            runtime_dir: Some(self.host.runtime_dir().to_owned()),
            replace_lease: false,
            ..LeaseOptions::default()
        };
        Invoker::allocate(&Code::open(library(name)).expect("a library"), options)
    }

    fn looping(&self) -> (Invoker, Invocation) {
        let invoker = self.lease("misbehaved").expect("a lease");
        let marks = Marks::new();
        let call = invoker.function("loops").unwrap().submit(&marks.input()).unwrap();
        until_true("it has begun", LIMIT, || marks.count() == 1);
        (invoker, call)
    }

    /// Processes that compute: workers and those that wait for leases.
    fn workers(&self) -> Vec<Process> {
        self.agent.process().descendants()
    }

    /// Sends a request to the agent, and waits for its answer for as long as that takes: `hotlease-node` would kill an agent
    /// that is late.
    fn ask(&self, request: NodeRequest) -> mpsc::Receiver<NodeAnswer> {
        let path = self.host.runtime_dir().join("node.sock");
        let (answers, answered) = mpsc::channel();
        thread::spawn(move || {
            let socket = Socket::connect(&path).expect("the node socket");
            socket.send(&request, &[]).expect("a request");
            let (answer, _) = socket.receive().expect("an answer").expect("an answer");
            // The receiver was dropped if the test has failed.
            let _ = answers.send(answer);
        });
        answered
    }

    /// Calls a function by a new lease.
    fn serves(&self) {
        until_true("it grants leases again", LIMIT, || match self.lease("behaved") {
            Ok(invoker) => invoker.function("echo").unwrap().call(b"x").unwrap() == b"x",
            Err(_) => false,
        });
    }
}

#[test]
fn a_job_finds_the_node_free_and_leases_come_back_when_it_has_ended() {
    let node = Node::start();
    let (_invoker, call) = node.looping();
    let before = node.workers();
    assert!(!before.is_empty());
    let (output, took) = node.tell("yield", 17);
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("job 17: the node is free"), "{said}");
    let left: Vec<_> = before
        .iter()
        .filter(|process| process.is_alive())
        .map(Process::describe)
        .collect();
    assert_eq!(left, [""; 0], "the job does not have the node alone");
    let told = call.wait().expect_err("it never returns");
    assert!(
        matches!(
            &told,
            Error::LeaseEnded {
                reason: EndReason::BatchJob(JobId(17)),
                ..
            }
        ),
        "{told:?}"
    );
    assert!(told.to_string().contains("batch job 17"), "{told}");
    let refused = node
        .lease("behaved")
        .map(drop)
        .expect_err("the job has the node")
        .to_string();
    assert!(
        refused.contains("batch jobs have the node") || refused.contains("cores"),
        "{refused}"
    );
    // A second job before the first has ended, as on a node that jobs share.
    node.tell("yield", 18);
    node.tell("retake", 17);
    assert!(node.lease("behaved").is_err(), "job 18 has the node");
    assert_eq!(node.workers(), [], "nothing waits for leases");
    node.tell("retake", 18);
    node.serves();
}

#[test]
fn an_agent_that_starts_while_a_job_runs_offers_nothing() {
    let mut node = Node::start();
    node.tell("yield", 5);
    node.agent.process().signal(Signal::SIGKILL);
    node.agent.ended(LIMIT);
    node.agent = Node::agent(&node.host, &[]);
    assert!(node.lease("behaved").is_err(), "job 5 has the node");
    node.tell("retake", 5);
    node.serves();
    // The epilog of a job that no agent has recorded, and an epilog that arrives twice.
    node.tell("retake", 5);
    node.tell("retake", 6);
    node.serves();
}

/// A job of user ada that has the whole node.
fn job(number: u64) -> BatchJob {
    BatchJob {
        user: "ada".into(),
        ..BatchJob::unknown(JobId(number))
    }
}

/// The worker is gone before its state is durable: the disk may take seconds for that.
#[test]
fn a_job_does_not_wait_for_the_disk_and_the_state_of_a_worker_is_there_afterwards() {
    let swap = tempfile::tempdir().expect("a folder");
    let (states, gate) = (swap.path().join("states"), swap.path().join("gate"));
    fs::create_dir(&states).expect("a folder");
    let host = Host::here();
    host.set_variable("LD_PRELOAD", library("slow_disk"));
    host.set_variable("HOTLEASE_TEST_GATE", &gate);
    let node = Node::start_on(host, &["--swap-directory", states.to_str().expect("text")]);
    let stateful = || {
        let options = LeaseOptions {
            runtime_dir: Some(node.host.runtime_dir().to_owned()),
            state: "text".into(),
            patience: LIMIT,
            ..LeaseOptions::default()
        };
        Invoker::allocate(&Code::open(library("stateful")).expect("a library"), options).expect("a lease")
    };
    // A state that took longer to be written than a job may wait is lost, which a busy machine may cause now and then.
    for number in 21..26 {
        let before = stateful();
        before.function("put").unwrap().call(b"kept").unwrap();
        fs::write(&gate, "").expect("a file");
        let answered = node.ask(NodeRequest::Yield(Box::new(job(number))));
        let answer = answered.recv_timeout(SOON);
        fs::remove_file(&gate).expect("the gate");
        assert_eq!(answer, Ok(NodeAnswer::Free { leases: 1 }), "the disk was waited for");
        node.tell("retake", number);
        drop(before);
        match &*stateful().function("get").unwrap().call(b"").unwrap() {
            b"kept" => return,
            text => assert_eq!(text, b"nothing"),
        }
    }
    panic!("five states were lost\n{}", node.agent.log());
}

#[test]
fn an_agent_that_does_not_answer_is_killed_with_its_workers() {
    let mut node = Node::start();
    let (_invoker, _call) = node.looping();
    let workers = node.workers();
    node.agent.process().signal(Signal::SIGSTOP);
    let (output, _) = node.tell("yield", 7);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("killed agent"), "{said}");
    node.agent.ended(LIMIT);
    until_true("nothing of it is left", LIMIT, || {
        !workers.iter().any(Process::is_alive)
    });
    // Without an agent there is nothing to do, before and after.
    for action in ["yield", "retake"] {
        let (output, _) = node.tell(action, 7);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("no agent"), "{said}");
    }
}

/// Prolog and epilog of Slurm: the job begins on a node that is its own, and the node computes again when it has ended.
#[test]
fn a_job_of_slurm_finds_its_node_free() {
    let node = Node::start();
    let (_invoker, call) = node.looping();
    let workers: Vec<String> = node.workers().iter().map(|worker| worker.pid.to_string()).collect();
    let Some(slurm) = node.slurm() else {
        return;
    };
    // As soon as the job runs, it looks for the workers that ran before.
    let seen = node.host.directory().join("seen");
    let line = format!(
        "for pid in {}; do test -e /proc/$pid && echo $pid; done > {}.new; mv {1}.new {1}; sleep 2",
        workers.join(" "),
        seen.display()
    );
    let job = slurm.submit(&["--exclusive"], &line);
    until_true("the job runs", LIMIT, || seen.exists());
    assert_eq!(
        std::fs::read_to_string(&seen).expect("its word"),
        "",
        "workers run beside the job"
    );
    let told = call.wait().expect_err("it never returns").to_string();
    assert!(told.contains(&format!("batch job {job}")), "{told}");
    assert!(node.lease("behaved").is_err(), "the job has the node");
    slurm.until(job, "COMPLETED");
    node.serves();
}
