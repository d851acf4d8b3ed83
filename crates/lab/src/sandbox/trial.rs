//! Trial of one attempt to escape: makes the attempt in a sandbox, beside a new neighbour, and collects its effects.

use super::judgement::{AttemptFacts, Judgement, judge};
use super::leftover_processes::kill_outlived;
use super::machines;
use super::pace::FloodPulses;
use super::stand_in::{StandIn, resident_bytes};
use anyhow::Context;
use hotlease_escape::{Attempt, AttemptOutcome, Evidence, Neighbour, PREFIX, Residue, names_for};
use hotlease_sandbox::{
    Exit, HomeFolders, ImportFolders, KeepAlive, Kind, Launcher, Mount, Policy, Process, ProcessEnd, Program,
    SandboxError, WorkerReach,
};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

/// Limits of the tested sandbox. They are small, so that floods soon reach them.
const MEMORY_BYTES: u64 = 128 << 20;
const TMP_BYTES: u64 = 16 << 20;
const PROCESSES: u32 = 128;
const DESCRIPTORS: u32 = 256;
pub(super) const PROCESSORS: usize = 1;
/// Bytes that the log flood prints.
const LOG_BYTES: u64 = 64 << 20;
/// Largest growth of this process, which keeps a part of the log, bytes.
const GROWTH_BYTES_MAX: u64 = 32 << 20;
/// Duration of a flood, and of a measurement of the neighbour's pace.
pub(super) const FLOOD: Duration = Duration::from_millis(100);
/// Time for which an attempt waits for a connection from outside.
const LISTEN: Duration = Duration::from_millis(150);
/// Generations of processes that try to outlive their sandbox.
const GENERATIONS: usize = 30;
/// Time after which delayed effects of an attempt are collected.
const AFTERMATH: Duration = Duration::from_millis(250);

/// Longest time for reading and closing a control socket if closing the received descriptors does not block.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Longest time of an attempt. An endless attempt is given less time.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);
const ENDLESS: Duration = Duration::from_millis(200);
/// Longest time until a killed process is gone.
pub(super) const DEATH: Duration = Duration::from_secs(10);

/// Site's policy for a tested sandbox.
pub(super) fn policy(network: bool) -> Policy {
    Policy {
        network,
        memory_bytes: MEMORY_BYTES,
        tmp_bytes: TMP_BYTES,
        shm_bytes: TMP_BYTES,
        processes: PROCESSES,
        files: DESCRIPTORS,
        ..Policy::default()
    }
}

/// Programs and settings that all attempts have in common.
pub(super) struct TestSetup {
    pub(super) launcher: Launcher,
    /// The program with the attempts and the neighbour.
    pub(super) program: PathBuf,
    /// Whether attempts are made in forks of a zygote.
    pub(super) zygote: bool,
    /// Access of the sandboxes to resources outside of them.
    pub(super) reach: WorkerReach,
    /// Stand-in for the agent, which attempts try to harm.
    pub(super) agent: StandIn,
    /// Text that no attempt may read.
    pub(super) secret: Arc<String>,
    /// Memory of virtual machines, bytes.
    pub(super) machine_bytes: u64,
}

/// Surroundings of the attempts in one sandbox, besides the neighbour.
pub(super) struct Surroundings {
    /// Token of the attempts: see [`token`].
    pub(super) token: String,
    neighbours_token: String,
    /// Environment variables of the attempts, without their prefix.
    given: Vec<(String, String)>,
    /// Tries to reach a listener of an attempt from outside.
    knocking: RepeatedConnector,
    /// Memory of this process before the attempts, bytes.
    resident_bytes: u64,
}

impl Surroundings {
    /// Removes the residue of a neighbour, even if the neighbour was killed.
    pub(super) fn clear(&self, neighbour: Neighbour) {
        drop(neighbour);
        Residue::of_neighbour(&self.neighbours_token)
            .iter()
            .for_each(Residue::remove);
    }
}

/// End of an attempt's process, and the last part of its output.
pub(super) struct AttemptExit {
    pub(super) end: ProcessEnd,
    pub(super) output: String,
}

/// Result of an attempt and, for a flood, the neighbour's pace during it.
pub(super) struct Trial {
    pub(super) judgement: Judgement,
    pub(super) beside: Option<FloodPulses>,
}

impl Trial {
    /// Result of an attempt that is no flood.
    pub(super) fn without_flood(judgement: Judgement) -> Self {
        Self {
            judgement,
            beside: None,
        }
    }
}

/// Makes a text that is part of the name of everything that an attempt or a neighbour makes. It begins with this
/// process's id, so that left-overs can be found.
pub(super) fn token() -> String {
    format!("{:08x}{:016x}", std::process::id(), rand::random::<u64>())
}

impl TestSetup {
    /// Starts a neighbour, if possible on other processors than the attempts use. Returns the neighbour and its token.
    pub(super) fn neighbour(&self) -> anyhow::Result<(Neighbour, String)> {
        let token = token();
        let mut processors = processors()?;
        if processors.len() > PROCESSORS {
            processors.drain(..PROCESSORS);
        }
        let neighbour = run_on(&processors, || {
            Neighbour::start(&self.program, &token, &self.secret, &std::env::temp_dir())
        })?;
        Ok((neighbour.context("cannot start the neighbour")?, token))
    }

    /// Makes a neighbour, and the other surroundings of attempts in a sandbox of this kind.
    pub(super) fn surround(&mut self, kind: Kind) -> anyhow::Result<(Neighbour, Surroundings)> {
        self.agent.restore()?;
        let (neighbour, neighbours_token) = self.neighbour()?;
        let token = token();
        let knocking = RepeatedConnector::begin()?;
        let mut given = names_for(&token);
        given.extend(neighbour.secret_places().iter().cloned());
        given.extend(self.agent.secret_places());
        given.extend(grants(knocking.port, self.memory_bytes(kind)));
        let around = Surroundings {
            token,
            neighbours_token,
            given,
            knocking,
            resident_bytes: resident_bytes(),
        };
        Ok((neighbour, around))
    }

    /// Makes an attempt in a sandbox of this kind.
    pub(super) async fn attempt(&mut self, attempt: &Attempt, kind: Kind) -> anyhow::Result<Trial> {
        let (mut neighbour, around) = self.surround(kind)?;
        let (ours, theirs) = control_socket()?;
        let alone = |neighbour: &mut Neighbour| neighbour.pulse(FLOOD).ok();
        let pulse_before = attempt.flood.then(|| alone(&mut neighbour)).flatten();
        let process = self.start(&[attempt.name], kind, &around, theirs)?;
        match kind {
            // The attempt begins by itself, as soon as its machine has booted.
            Kind::MicroVm => machines::until_begun(&process).await,
            // The attempt waits for this message, so that everything is prepared when it begins.
            _ => drop(send(ours.as_raw_fd(), b"go", MsgFlags::MSG_NOSIGNAL)?),
        }
        let is_flood = attempt.flood;
        let beside = spawn_blocking(move || {
            // If the flood ends the neighbour, the checks below notice it.
            let pulse = is_flood.then(|| neighbour.pulse(FLOOD).ok()).flatten();
            (neighbour, pulse)
        });
        let (exit, overdue) = until_end(attempt, &process).await;
        let mut noticed = Vec::new();
        if !can_close(ours).await {
            noticed.push(format!(
                "the agent waits for a close for more than {} s",
                CLOSE_MAX.as_secs()
            ));
        }
        let exit = exit.unwrap_or_else(|| {
            noticed.push("it lives on after SIGKILL".into());
            Arc::new(Exit {
                end: ProcessEnd::Exited(0),
                output: process.output(),
            })
        });
        drop(process);
        let (mut neighbour, pulse) = beside.await?;
        let told = match kind {
            Kind::MicroVm => machines::exit_of_only_attempt(&exit, overdue),
            _ => AttemptExit {
                end: exit.end,
                output: exit.output.clone(),
            },
        };
        let boasts = matches!(AttemptOutcome::read(&told.output), Some(AttemptOutcome::Escaped(_)));
        let waits = boasts && attempt.evidence == Evidence::Effect;
        noticed.extend(
            self.collect_evidence(&around, &mut neighbour, &exit.output, waits)
                .await,
        );
        let pulse_after = pulse.and_then(|_| alone(&mut neighbour));
        around.clear(neighbour);
        let facts = AttemptFacts {
            noticed,
            end: told.end,
            overdue,
            output: &told.output,
        };
        Ok(Trial {
            judgement: judge(attempt, &facts),
            beside: pulse_before
                .zip(pulse)
                .zip(pulse_after)
                .map(|((before, flood), after)| FloodPulses { before, flood, after }),
        })
    }

    /// Collects the effects outside of a sandbox that has ended, each described in words. `output`: what its program
    /// has printed. `waits`: whether to wait for delayed effects and collect again if there are no effects at first.
    pub(super) async fn collect_evidence(
        &self,
        around: &Surroundings,
        neighbour: &mut Neighbour,
        output: &str,
        waits: bool,
    ) -> Vec<String> {
        let mut noticed = Vec::new();
        around.knocking.task.abort();
        if output.contains(self.secret.as_str()) {
            noticed.push("it read the secret".into());
        }
        noticed.extend(self.collect_effects(&around.token, neighbour).await);
        if noticed.is_empty() && waits {
            tokio::time::sleep(AFTERMATH).await;
            noticed.extend(self.collect_effects(&around.token, neighbour).await);
        }
        let growth = resident_bytes().saturating_sub(around.resident_bytes);
        if growth > GROWTH_BYTES_MAX {
            noticed.push(format!("the agent needs {} MiB more", growth >> 20));
        }
        for left in Residue::of_attempt(&around.token) {
            noticed.push(format!("it left {left}"));
            left.remove();
        }
        noticed
    }

    /// Collects the effects so far of an attempt on processes outside. Kills processes that have outlived the attempt.
    async fn collect_effects(&self, token: &str, neighbour: &mut Neighbour) -> Vec<String> {
        let mut noticed = Vec::new();
        match kill_outlived(token).await {
            0 => {}
            count => noticed.push(format!("{count} processes outlived it")),
        }
        noticed.extend(neighbour.harm());
        noticed.extend(self.agent.harm());
        noticed
    }

    /// Starts attempts in a sandbox of this kind: one, or several in a virtual machine.
    pub(super) fn start(
        &self,
        names: &[&str],
        kind: Kind,
        around: &Surroundings,
        control: OwnedFd,
    ) -> anyhow::Result<Process> {
        let mut mounts = vec![Mount::read_only(&self.program)];
        mounts.push(Mount::read_only(self.agent.image()));
        // The import path of a Python program in the home folder begins with the home folder.
        let path: Vec<PathBuf> = std::env::home_dir().into_iter().collect();
        let imports = ImportFolders::find(None, &path, &HomeFolders::of_host());
        mounts.extend(imports.shown.into_iter().map(Mount::read_only));
        // Forks of a zygote are tested only in this kind.
        let zygote = self.zygote && kind == Kind::Namespace;
        let variable =
            |(name, value): &(String, String)| (OsString::from(format!("{PREFIX}{name}")), OsString::from(value));
        let token = around.token.as_str();
        let arguments = match kind {
            Kind::MicroVm => [&["several", token], names].concat(),
            _ => [&["try"], names, &[token]].concat(),
        };
        let program = Program {
            path: self.program.clone(),
            arguments: zygote
                .then_some("zygote")
                .into_iter()
                .chain(arguments)
                .map(OsString::from)
                .collect(),
            environment: around.given.iter().map(variable).collect(),
            directory: "/".into(),
            mounts,
            held: KeepAlive::default(),
        };
        let mut granted = processors()?;
        granted.truncate(PROCESSORS);
        let started = run_on(&granted, || match zygote {
            false => self.launcher.start(kind, Some(&program), &self.reach, control),
            true => self.fork(&program, control),
        })?;
        let process = started.with_context(|| format!("cannot start {} in a sandbox", names.join(", ")))?;
        let granted: Vec<u32> = granted.into_iter().map(|cpu| cpu as u32).collect();
        process
            .limit(MEMORY_BYTES, &granted)
            .context("cannot limit the sandbox")?;
        Ok(process)
    }

    /// Memory limit that attempts are told. For virtual machines, the site sets it.
    fn memory_bytes(&self, kind: Kind) -> u64 {
        match kind {
            Kind::MicroVm => self.machine_bytes,
            _ => MEMORY_BYTES,
        }
    }
}

impl TestSetup {
    fn fork(&self, program: &Program, control: OwnedFd) -> Result<Process, SandboxError> {
        let failed = |source| SandboxError::Start { what: "a pipe", source };
        let (input, _) = std::io::pipe().map_err(failed)?;
        let zygote = self.launcher.start_zygote(Kind::Namespace, program, input.into())?;
        // The zygote ends at the end of this function, and the fork survives it.
        self.launcher.fork(&zygote, control)
    }
}

/// Processors that this process is allowed to use.
pub(super) fn processors() -> anyhow::Result<Vec<usize>> {
    let all = sched_getaffinity(Pid::from_raw(0))?;
    let is_ours = |cpu: &usize| all.is_set(*cpu).unwrap_or(false);
    Ok((0..CpuSet::count()).filter(is_ours).collect())
}

/// Runs `what` while this thread is restricted to these processors. Processes that `what` starts inherit the
/// restriction.
fn run_on<T>(processors: &[usize], what: impl FnOnce() -> T) -> anyhow::Result<T> {
    let all = sched_getaffinity(Pid::from_raw(0))?;
    let mut few = CpuSet::new();
    processors.iter().try_for_each(|cpu| few.set(*cpu))?;
    sched_setaffinity(Pid::from_raw(0), &few)?;
    let done = what();
    sched_setaffinity(Pid::from_raw(0), &all)?;
    Ok(done)
}

/// Variables that tell an attempt its limits.
fn grants(port: u16, memory_bytes: u64) -> Vec<(String, String)> {
    let numbers = [
        ("MEMORY_BYTES", memory_bytes),
        ("TMP_BYTES", TMP_BYTES),
        ("PROCESSES", PROCESSES.into()),
        ("DESCRIPTORS", DESCRIPTORS.into()),
        ("CPUS", PROCESSORS as u64),
        ("LOG_BYTES", LOG_BYTES),
        ("FLOOD_MILLIS", FLOOD.as_millis() as u64),
        ("LISTEN", port.into()),
        ("LISTEN_MILLIS", LISTEN.as_millis() as u64),
        ("GENERATIONS", GENERATIONS as u64),
    ];
    numbers
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect()
}

/// Waits for the end of an attempt, and kills it at its time limit. Returns the end of the attempt (`None` if it
/// survived the kill), and whether it was killed.
async fn until_end(attempt: &Attempt, process: &Process) -> (Option<Arc<Exit>>, bool) {
    let deadline = match attempt.endless {
        true => ENDLESS,
        false => DEADLINE,
    };
    if let Ok(exit) = tokio::time::timeout(deadline, process.exited()).await {
        // The attempt may have sent a signal to this process. This pause lets the runtime handle it, which it does
        // while it waits.
        tokio::time::sleep(Duration::from_millis(1)).await;
        return (Some(exit), false);
    }
    process.kill();
    let exit = tokio::time::timeout(DEATH, process.exited()).await;
    (exit.ok(), true)
}

/// The two ends of a control socket between agent and worker.
pub(super) fn control_socket() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let close = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, close)?)
}

/// Reads messages from the control socket without space for descriptors, and closes the socket. Returns whether this
/// takes at most [`CLOSE_MAX`]. An agent also does this on a thread, but on the agent's socket the kernel refuses
/// descriptors. Here descriptors arrive, so that attempts have an effect.
pub(super) async fn can_close(control: OwnedFd) -> bool {
    let (closed, close) = oneshot::channel();
    std::thread::spawn(move || {
        let mut message = [0; 64];
        while let Ok(1..) = recv(control.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {}
        drop(control);
        // Fails if the receiver no longer waits.
        let _ = closed.send(());
    });
    tokio::time::timeout(CLOSE_MAX, close).await.is_ok()
}

/// Connects to a port repeatedly until the value is dropped.
struct RepeatedConnector {
    port: u16,
    task: JoinHandle<()>,
}

impl RepeatedConnector {
    fn begin() -> anyhow::Result<Self> {
        // This port was free a moment ago, and no other program knows its number.
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let task = tokio::spawn(async move {
            loop {
                // The connection is refused as long as no process listens on the port.
                let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Ok(Self { port, task })
    }
}

impl Drop for RepeatedConnector {
    fn drop(&mut self) {
        self.task.abort();
    }
}
