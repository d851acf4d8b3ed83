//! `hotlease up` in a batch job: the platform of a job's user. Tasks of Slurm, and tasks that these tests start as Slurm
//! does.

use hotlease_tests::hosts::slurm::Slurm;
use hotlease_tests::library::library;
use hotlease_tests::platform::{LIMIT, private_directory, program};
use hotlease_tests::process::Process;
use hotlease_tests::wait::{until, until_true};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Variables that name another platform.
const OTHERS: [&str; 5] = [
    "HOTLEASE_RUNTIME_DIR",
    "HOTLEASE_MANAGER",
    "HOTLEASE_IDENTITY",
    "HOTLEASE_KEY_FILE",
    "HOTLEASE_TOKEN_FILE",
];

/// A job on this machine, and the folder of its user's jobs.
struct Job {
    jobs: TempDir,
    number: u32,
}

/// A task of `hotlease up`. Killed when dropped.
struct Task {
    child: Child,
    log: PathBuf,
    out: PathBuf,
}

impl Task {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it says that it serves.
    fn serves(&mut self) {
        until_true("the platform serves", LIMIT, || {
            let ended = self.child.try_wait().expect("its state");
            assert!(ended.is_none(), "it ended: {}", self.log());
            fs::read_to_string(&self.out).is_ok_and(|out| out.contains("\"nodes\""))
        });
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    fn ended(&mut self) -> ExitStatus {
        until("it ends", LIMIT, || self.child.try_wait().expect("its state")).0
    }

    /// This process and all that it has started.
    fn processes(&self) -> Vec<Process> {
        let own = Process::of(self.child.id() as i32).expect("it runs");
        let mut all = own.descendants();
        all.push(own);
        all
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Job {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            jobs: private_directory(),
            number: std::process::id() * 100 + NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn folder(&self) -> PathBuf {
        self.jobs.path().join(format!("test-{}", self.number))
    }

    /// A program of the job, outside of steps.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("hotlease"));
        for name in OTHERS {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .env("HOTLEASE_JOBS_DIR", self.jobs.path())
            .env("SLURM_JOB_ID", self.number.to_string())
            .env("SLURM_CLUSTER_NAME", "test")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it runs")
    }

    /// `hotlease up` as a task of a step with as many nodes, each of one core.
    fn up(&self, step: u32, rank: u32, nodes: u32, variables: &[(&str, &str)], arguments: &[&str]) -> Task {
        let at = |what: &str| self.jobs.path().join(format!("{step}-{rank}.{what}"));
        let (log, out) = (at("log"), at("out"));
        let mut command = self.command(&["--json", "up", "--pool", "1"]);
        command
            .args(arguments)
            .env("SLURM_STEP_ID", step.to_string())
            .env("SLURM_STEP_NUM_NODES", nodes.to_string())
            .env("SLURM_PROCID", rank.to_string())
            .env("SLURM_NODEID", rank.to_string())
            .env("SLURM_LOCALID", "0")
            .env("SLURMD_NODENAME", format!("n{rank}"))
            .env("SLURM_CPUS_ON_NODE", "1")
            .env("SLURM_MEM_PER_NODE", "100")
            .envs(variables.iter().copied())
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&log).expect("a file"));
        let child = command.spawn().expect("it starts");
        Task { child, log, out }
    }

    fn agents(&self) -> Vec<serde_json::Value> {
        let listed = self.run(&["--json", "agents"]);
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect()
    }

    /// Directories of sockets of this job.
    fn runtime_dirs(&self) -> Vec<String> {
        let part = format!("-job{}-", self.number);
        let entries = fs::read_dir("/tmp").expect("a folder").flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.contains(&part)).collect()
    }

    /// Fails if a process or a file of the platform is left.
    fn is_clean(&self, processes: &[Process]) {
        until_true("its processes have ended", LIMIT, || {
            !processes.iter().any(Process::is_alive)
        });
        assert!(!self.folder().exists(), "the folder of the job is left");
        assert_eq!(self.runtime_dirs(), [""; 0]);
    }
}

/// Text of the errors of a program that must fail with this status.
fn refused(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    text
}

#[test]
fn programs_of_a_job_find_its_platform_and_sigterm_leaves_nothing() {
    let job = Job::new();
    let mut second = job.up(0, 1, 2, &[], &[]);
    let mut first = job.up(0, 0, 2, &[], &[]);
    first.serves();
    assert_eq!(job.folder().metadata().expect("a folder").mode() & 0o777, 0o700);
    let agents = job.agents();
    let cores: Vec<_> = agents.iter().filter_map(|agent| agent["cores"].as_array()).collect();
    assert_eq!(
        cores.iter().map(|cores| cores.len()).collect::<Vec<_>>(),
        [1, 1],
        "{agents:?}"
    );
    assert!(
        agents.iter().all(|agent| agent["memory_bytes"] == 100 << 20),
        "{agents:?}"
    );
    if hotlease_tests::process::cores().len() > 1 {
        assert_ne!(cores[0], cores[1], "two nodes of one host share out its cores");
    }
    let echo = library("behaved").display().to_string();
    let input = job.jobs.path().join("input");
    fs::write(&input, "four").expect("a file");
    let ran = job.run(&["run", &echo, "echo", "--input", &input.display().to_string()]);
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "four",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    // Another step of the job, on both nodes.
    for rank in [0, 1] {
        let mut again = job.up(1, rank, 2, &[], &[]);
        assert_eq!(again.ended().code(), Some(5), "{}", again.log());
        let said = again.log();
        let names_it = said.contains(&format!("serves job {} already", job.number)) && said.contains("on n0, in step");
        assert!(names_it, "{said}");
    }
    let processes = [first.processes(), second.processes()].concat();
    // Slurm signals all tasks at once; here the second task learns of the end from the first.
    first.signal(Signal::SIGTERM);
    assert!(first.ended().success(), "{}", first.log());
    assert!(second.ended().success(), "{}", second.log());
    job.is_clean(&processes);
    // Otherwise the program would find a platform that the user of these tests runs.
    let outside = job
        .command(&["agents"])
        .env("XDG_RUNTIME_DIR", job.jobs.path())
        .output();
    let refused = refused(&outside.expect("it runs"), 3);
    assert!(
        refused.contains("is not running"),
        "the job has no platform any more: {refused}"
    );
}

#[test]
fn leftovers_of_a_killed_platform_do_not_hinder_the_next() {
    let job = Job::new();
    let mut killed = job.up(0, 0, 1, &[], &[]);
    killed.serves();
    let processes = killed.processes();
    killed.signal(Signal::SIGKILL);
    killed.ended();
    until_true("its workers have ended", LIMIT, || {
        !processes.iter().any(Process::is_alive)
    });
    assert!(job.folder().exists(), "SIGKILL leaves the folder");
    let unreached = refused(&job.run(&["agents"]), 3);
    assert!(unreached.contains("cannot reach"), "{unreached}");
    // A job that got the number later: the second node must not take the old manager for its own.
    let mut second = job.up(0, 1, 2, &[("SLURM_STEP_LAUNCHER_PORT", "7")], &[]);
    let mut first = job.up(0, 0, 2, &[("SLURM_STEP_LAUNCHER_PORT", "7")], &[]);
    first.serves();
    assert_eq!(job.agents().len(), 2);
    let processes = [first.processes(), second.processes()].concat();
    for task in [&first, &second] {
        task.signal(Signal::SIGTERM);
    }
    assert!(
        first.ended().success() && second.ended().success(),
        "{}{}",
        first.log(),
        second.log()
    );
    job.is_clean(&processes);
}

#[test]
fn a_folder_that_others_may_enter_is_refused_by_all() {
    let job = Job::new();
    fs::DirBuilder::new()
        .mode(0o700)
        .create(job.folder())
        .expect("a folder");
    fs::set_permissions(job.folder(), Permissions::from_mode(0o755)).expect("a mode");
    let mut task = job.up(0, 0, 1, &[], &[]);
    assert!(!task.ended().success());
    let unsafe_folder = "others can access it";
    assert!(task.log().contains(unsafe_folder), "{}", task.log());
    let said = refused(&job.run(&["agents"]), 1);
    assert!(
        said.contains(unsafe_folder) && said.contains(&job.folder().display().to_string()),
        "{said}"
    );
    assert_eq!(job.runtime_dirs(), [""; 0]);
}

#[test]
fn a_node_that_does_not_see_the_folder_says_where_it_waited() {
    let job = Job::new();
    let elsewhere = private_directory();
    let jobs = elsewhere.path().display().to_string();
    let mut task = job.up(0, 1, 2, &[("HOTLEASE_JOBS_DIR", &jobs)], &["--first-within", "300ms"]);
    assert_eq!(task.ended().code(), Some(1));
    let said = task.log();
    for part in ["node n1 has waited 300ms", &jobs, "HOTLEASE_JOBS_DIR"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(fs::read_dir(&jobs).expect("a folder").count(), 0);
}

#[test]
fn orders_that_make_no_sense_in_a_job_are_refused_and_change_nothing() {
    let job = Job::new();
    for (variables, arguments, status, says) in [
        (&[("SLURM_LOCALID", "1")][..], &[][..], 2, "one task serves a node"),
        (&[], &["--idle-limit", "5s"], 2, "ends with its step"),
        (&[], &["--state-dir", "/tmp"], 2, "in memory"),
        (&[], &["--cores", "2"], 1, "has 1 on n0"),
    ] {
        let mut task = job.up(0, 0, 1, variables, arguments);
        assert_eq!(task.ended().code(), Some(status), "{}", task.log());
        assert!(task.log().contains(says), "{}", task.log());
        job.is_clean(&[]);
    }
    let mut outside = job.command(&["up", "--nodes-of-this-job"]);
    outside.env_remove("SLURM_JOB_ID");
    let said = refused(&outside.output().expect("it runs"), 2);
    assert!(said.contains("this is no batch job"), "{said}");
}

/// Processes with this text in their environment: all that a job has started, but workers.
fn processes_with(text: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_of_it = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(text)
    };
    let found: Vec<Process> = pids.filter(is_of_it).filter_map(Process::of).collect();
    let workers: Vec<Process> = found.iter().flat_map(Process::descendants).collect();
    [found, workers].concat()
}

/// Real Slurm: one command of a batch script, a first call without an argument, and the end of the platform by another one,
/// after which it can be started again. `scancel` leaves nothing.
#[test]
fn a_job_of_slurm_has_a_platform_of_its_own_until_it_is_cancelled() {
    let Some(slurm) = Slurm::start(4, 1, |_| String::new()) else {
        return;
    };
    let at = private_directory();
    let (jobs, hotlease, echo) = (at.path().join("jobs"), program("hotlease"), library("behaved"));
    let (jobs, hotlease, echo) = (jobs.display(), hotlease.display(), echo.display());
    let line = format!(
        "unset {others}; export HOTLEASE_JOBS_DIR={jobs}; cd {at}; \
         {hotlease} --json up --nodes-of-this-job --detach >up 2>log && {hotlease} --json agents >agents 2>>log && \
         echo four | {hotlease} run {echo} echo >answer 2>>log; \
         {hotlease} up --nodes-of-this-job --detach 2>again; echo $? >first; \
         {hotlease} --json down >down 2>>log && {hotlease} up --nodes-of-this-job --detach 2>>log >>up; \
         echo $? >status; sleep 600",
        others = OTHERS.join(" "),
        at = at.path().display()
    );
    let job = slurm.submit(&["--nodes=4", "--ntasks-per-node=1"], &line);
    let text = |name: &str| fs::read_to_string(at.path().join(name)).unwrap_or_default();
    until_true("the script has done its work", LIMIT, || !text("status").is_empty());
    assert_eq!(text("answer"), "four\n", "{}", text("log"));
    let agents: Vec<serde_json::Value> = text("agents")
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let cores: Vec<usize> = agents
        .iter()
        .filter_map(|agent| Some(agent["cores"].as_array()?.len()))
        .collect();
    assert_eq!(cores, [1; 4], "{agents:?}");
    assert_eq!(text("first"), "5\n", "there is one: {}", text("again"));
    assert!(
        text("down").contains(r#""how":"step""#),
        "{}{}",
        text("down"),
        text("log")
    );
    assert_eq!(text("status"), "0\n", "another one after it: {}", text("log"));
    let folder = Path::new(&jobs.to_string()).join(format!("test-{job}"));
    assert!(folder.exists());
    let processes = processes_with(&jobs.to_string());
    assert!(processes.len() > 4, "four tasks and their workers: {processes:?}");
    slurm.run("scancel", &[&job.to_string()]).expect("cancelled");
    slurm.until(job, "CANCELLED");
    until_true("all processes of the job have ended", LIMIT, || {
        !processes.iter().any(Process::is_alive)
    });
    assert!(!folder.exists(), "the folder of the job is left");
}
