//! Real Slurm on this machine: a controller and some nodes, all at the loopback address, for one test.

use crate::platform::private_directory;
use crate::wait::until_true;
use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit of each step of Slurm, which takes a second or two.
const LIMIT: Duration = Duration::from_secs(120);

/// A cluster. Its jobs and daemons end when it is dropped.
pub struct Slurm {
    directory: TempDir,
    daemons: Vec<Child>,
}

/// Returns the path of a program, including programs for administrators.
fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let mut places = folders.iter().map(|folder| Path::new(folder).join(name));
    places.find(|place| place.exists())
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Slurm {
    /// A cluster of nodes `n0`, `n1` and so on, each with `processors` processors. `further` makes lines of slurm.conf
    /// from the cluster's folder. Prints a message and returns `None` if Slurm is not installed, or the test is not
    /// root.
    ///
    /// # Panics
    /// If Slurm does not serve; the message has the end of its log.
    pub fn start(nodes: u16, processors: u32, further: impl Fn(&Path) -> String) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || program("slurmctld").is_none() || program("slurmd").is_none() {
            eprintln!("skipped: Slurm is not installed (make setup-tests installs it), or this is not root");
            return None;
        }
        let directory = private_directory();
        let at = directory.path();
        for folder in ["state", "spool"] {
            fs::create_dir(at.join(folder)).expect("a folder");
        }
        let further = further(at);
        let host = nix::unistd::gethostname()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let (dir, controller) = (at.display(), free_port());
        let mut conf = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/none\nCredType=cred/none\nCommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool/%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/%n.pid\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/%n.log\n\
             MailProg=/bin/true\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
             MpiDefault=none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n\
             ReturnToService=2\nKillWait=5\nSchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0\n\
             PartitionName=main Nodes=ALL Default=YES\n{further}\n"
        );
        for node in 0..nodes {
            let port = free_port();
            conf += &format!(
                "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={processors} RealMemory=1000\n"
            );
        }
        fs::write(at.join("slurm.conf"), conf).expect("a file");
        let mut slurm = Self {
            directory,
            daemons: Vec::new(),
        };
        slurm.spawn("slurmctld", &["-D"]);
        for node in 0..nodes {
            slurm.spawn("slurmd", &["-D", "-N", &format!("n{node}")]);
        }
        until_true("Slurm's nodes are idle", LIMIT, || {
            let idle = slurm.run("sinfo", &["-h", "-N", "-t", "idle", "-o", "%N"]);
            idle.is_ok_and(|idle| idle.lines().count() == usize::from(nodes))
        });
        Some(slurm)
    }

    /// The cluster's slurm.conf, for `SLURM_CONF`.
    pub fn configuration(&self) -> PathBuf {
        self.directory.path().join("slurm.conf")
    }

    /// Writes a program into the cluster's folder; returns its path.
    pub fn script(at: &Path, name: &str, text: &str) -> String {
        let path = at.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a program");
        path.display().to_string()
    }

    fn spawn(&mut self, name: &str, arguments: &[&str]) {
        let child = self.command(name).args(arguments).stdin(Stdio::null()).spawn();
        self.daemons.push(child.expect("Slurm starts"));
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap_or_else(|| name.into()));
        command.env("SLURM_CONF", self.configuration());
        command.current_dir(self.directory.path());
        command
    }

    /// Output of one of Slurm's programs, or its error output.
    pub fn run(&self, name: &str, arguments: &[&str]) -> io::Result<String> {
        let output = self.command(name).args(arguments).stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Submits a job that runs this line in a shell; returns its number.
    ///
    /// # Panics
    /// If Slurm refuses the job.
    pub fn submit(&self, options: &[&str], line: &str) -> u64 {
        let usual = ["--parsable", "--output=/dev/null"];
        let arguments = [&usual, options, &["--wrap", line]].concat();
        let answer = self.run("sbatch", &arguments).expect("a job");
        answer
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{answer:?} is no job's number"))
    }

    /// State of a job in Slurm's word, such as PENDING, RUNNING or COMPLETED.
    pub fn state(&self, job: u64) -> String {
        let shown = self.run("scontrol", &["-o", "show", "job", &job.to_string()]);
        let shown = shown.unwrap_or_default();
        let field = shown
            .split_whitespace()
            .find_map(|field| field.strip_prefix("JobState="));
        field.unwrap_or("unknown").to_owned()
    }

    /// Waits until a job is in this state.
    pub fn until(&self, job: u64, state: &str) {
        until_true(&format!("job {job} is {state}"), LIMIT, || self.state(job) == state);
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.run("scancel", &["--user=root"]);
        // Waits for jobs to end: without slurmd, a job step would continue.
        let begin = Instant::now();
        while self.run("squeue", &["-h"]).is_ok_and(|jobs| !jobs.is_empty()) && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.run("scontrol", &["shutdown"]);
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
