//! The nursery's loop: orders from the agent, messages from the sandboxes, and their ends.

mod forks;
mod nesting;
mod reports;
mod starts;

use crate::cgroup::{self, ControlGroup, Groups};
use crate::confinement;
use crate::container::template::ContainerTemplate;
use crate::container::{self, ContainerConfig};
use crate::filter;
use crate::inside::View;
use crate::kernel;
use crate::message::{receive, send};
use crate::order::{NurseryOrder, Reply};
use crate::policy::Policy;
use crate::root::{self, Host, StepError, Template, step};
use crate::sandbox_process::SandboxProcess;
use crate::system_calls;
use forks::{ForkedSandbox, Zygote};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use seccompiler::BpfProgram;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Largest number of sandboxes at a time, including prepared sandboxes.
const SANDBOXES_MAX: usize = 4096;
/// Time in which a sandbox must be prepared or started, so that a hanging file system does not block callers for ever.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Delay between a start and the preparation of the next sandbox. Preparing at once would take the processor from the
/// program that was just started, or from the runtime that starts it.
const REFILL_AFTER: Duration = Duration::from_millis(5);
/// Delay before the nursery tries again to remove a group, because the kernel keeps a group busy for a moment after its
/// last process.
const REMOVE_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Reason why a nursery could not start.
#[derive(Debug, thiserror::Error)]
pub enum NurseryError {
    /// Standard input is not an agent's socket.
    #[error("standard input is not an agent's socket: {0}")]
    Socket(io::Error),
    /// The agent's first order was not a policy.
    #[error("the agent's message cannot be understood; install the same hotlease everywhere")]
    Order,
}

/// Stage in the life of a sandbox.
enum SandboxStage {
    /// Pid 1 has been preparing the inside of the sandbox since this time.
    Preparing(Instant),
    /// Pid 1 waits for its program.
    Prepared,
    /// Pid 1 has got its program: the socket for the reply, and the time of the order.
    Starting(OwnedFd, Instant),
    /// The program runs, or is about to end.
    Running,
}

struct Sandbox {
    made: SandboxProcess,
    stage: SandboxStage,
    /// Number that the agent gave it.
    id: Option<u64>,
    /// Pipe in which its end is reported.
    end: Option<OwnedFd>,
    /// Status with which its program ended.
    status: Option<i32>,
    /// Error that was reported before its end.
    failure: Option<String>,
    /// Whether it takes part in forking from zygotes, and as what.
    role: ZygoteRole,
}

impl Sandbox {
    /// A sandbox that was made just now, and is not prepared yet.
    fn preparing(made: SandboxProcess, role: ZygoteRole) -> Self {
        Self {
            made,
            stage: SandboxStage::Preparing(Instant::now()),
            id: None,
            end: None,
            status: None,
            failure: None,
            role,
        }
    }
}

/// Part that a sandbox takes in forking from zygotes.
enum ZygoteRole {
    /// It takes no part.
    Plain,
    /// Its program is a zygote.
    Zygote(Zygote),
    /// Its program is, or will be, forked from a zygote.
    Nested(ForkedSandbox),
}

/// A start that waits for a prepared sandbox.
struct PendingStart {
    id: u64,
    network: bool,
    storage: bool,
    reply: OwnedFd,
    input: OwnedFd,
    output: OwnedFd,
    end: OwnedFd,
    described: OwnedFd,
}

/// A fork that waits for a sandbox nested in the sandbox of its zygote.
struct PendingFork {
    id: u64,
    zygote: u64,
    reply: OwnedFd,
    input: OwnedFd,
    output: OwnedFd,
    end: OwnedFd,
}

struct Nursery {
    agent: OwnedFd,
    host: Host,
    policy: Policy,
    view: View,
    /// Filters of sandboxes: without a network, and with it.
    filters: [BpfProgram; 2],
    /// Filter of sandboxes without a network, except for the system calls that access to storage needs.
    filter_with_storage: BpfProgram,
    filter_of_zygotes: BpfProgram,
    groups: Groups,
    by_root: bool,
    own: (u32, u32),
    next_user: u32,
    sandboxes: Vec<Sandbox>,
    waiting: VecDeque<PendingStart>,
    forks: VecDeque<PendingFork>,
    refill_at: Option<Instant>,
    /// Groups that could not be removed yet.
    dying: Vec<ControlGroup>,
}

/// Serves the agent at standard input until it closes.
pub fn serve() -> Result<(), NurseryError> {
    // Users of sandboxes must be able to enter the folders that are made for them, also if the agent's umask is 077.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    // Closes everything that the agent left open by mistake.
    kernel::close_from(3).map_err(NurseryError::Socket)?;
    // SAFETY: no other code in this program uses descriptor 0. The standard library's standard input buffers.
    let agent = unsafe { OwnedFd::from_raw_fd(0) };
    let (order, mut fds) = receive::<NurseryOrder>(&agent)
        .map_err(NurseryError::Socket)?
        .ok_or(NurseryError::Order)?;
    let (policy, containers, reply) = match (order, fds.pop()) {
        (NurseryOrder::Serve(policy), Some(reply)) => (policy, None, reply),
        (NurseryOrder::Contain(policy, containers), Some(reply)) => (policy, Some(containers), reply),
        _ => return Err(NurseryError::Order),
    };
    match Nursery::new(agent, policy, containers) {
        Ok((mut nursery, lacking)) => {
            nursery.make_first(reply, lacking);
            nursery.run();
        }
        Err(what) => answer(&reply, &Reply::Failed { what }, &[]),
    }
    Ok(())
}

/// Sends a reply. Failure is ignored: the agent is gone, or has given up waiting.
fn answer(reply: &OwnedFd, word: &Reply, fds: &[BorrowedFd<'_>]) {
    let _ = send(reply, word, fds);
}

impl Nursery {
    fn new(agent: OwnedFd, policy: Policy, containers: Option<ContainerConfig>) -> Result<(Self, Vec<String>), String> {
        if let Some(fault) = policy.fault() {
            return Err(fault);
        }
        let own = (geteuid().as_raw(), getegid().as_raw());
        let by_root = own.0 == 0;
        let failed = |error: StepError| error.to_string();
        unshare_mounts(by_root, own).map_err(failed)?;
        if by_root {
            // The nursery opens directories with the rights of their owners, to which its own groups would add.
            rustix::thread::set_thread_groups(&[])
                .map_err(step("leaving groups"))
                .map_err(failed)?;
        }
        let host = Host::leave(&policy.hidden).map_err(failed)?;
        let lacks = containers.as_ref().map(|containers| containers.runtime.lacking());
        root::make_pieces().map_err(failed)?;
        let view = match containers {
            None => View::Pieces(Template::gather(&host, &policy).map_err(failed)?),
            Some(containers) => View::Container(Box::new(ContainerTemplate::gather(&host, &policy, containers)?)),
        };
        let (groups, mut lacking) = Groups::of_sandboxes(&Host::path("/"));
        let lacks = match lacks {
            Some(lacks) => [lacks, container::lacking_with(policy.network)].concat(),
            None => confinement::find_lacking(confinement::landlock_version())
                .into_iter()
                .collect(),
        };
        lacking.extend(lacks.into_iter().map(str::to_owned));
        let filter = |network| match policy.kvm {
            true => filter::allowing(system_calls::table_of_machine(network)),
            false => filter::allowing(system_calls::table(network)),
        };
        let nursery = Self {
            agent,
            host,
            view,
            filters: [filter(false)?, filter(true)?],
            filter_with_storage: filter::allowing(system_calls::table_with_storage())?,
            // Zygotes have no network, even if the site grants it.
            filter_of_zygotes: match policy.kvm {
                true => filter::allowing(system_calls::table_of_zygote_of_machines())?,
                false => filter::allowing(system_calls::table_of_zygote())?,
            },
            groups,
            by_root,
            own,
            // Two nurseries of one host should seldom use the same user. If they do, their sandboxes still cannot see
            // each other.
            next_user: std::process::id().wrapping_mul(1009) % policy.users.count,
            policy,
            sandboxes: Vec::new(),
            waiting: VecDeque::new(),
            forks: VecDeque::new(),
            refill_at: None,
            dying: Vec::new(),
        };
        Ok((nursery, lacking))
    }

    /// Makes the first sandbox, to find out whether sandboxes can be made here.
    fn make_first(&mut self, reply: OwnedFd, lacking: Vec<String>) {
        let word = match self.make(false).and_then(|()| self.settle_first()) {
            Ok(()) => Reply::Ready { lacking },
            Err(what) => Reply::Failed { what },
        };
        answer(&reply, &word, &[]);
        self.refill_at = Some(Instant::now() + REFILL_AFTER);
    }

    fn settle_first(&mut self) -> Result<(), String> {
        let until = Instant::now() + STEP_LIMIT;
        while let Some(first) = self.sandboxes.first() {
            if matches!(first.stage, SandboxStage::Prepared) {
                return Ok(());
            }
            if first.failure.is_some() || Instant::now() > until {
                break;
            }
            self.handle_events(false);
        }
        let said = self.sandboxes.first().and_then(|first| first.failure.clone());
        Err(said.unwrap_or_else(|| "the first sandbox ended before it was prepared".into()))
    }

    fn run(&mut self) {
        while self.handle_events(true) {}
        for sandbox in &self.sandboxes {
            sandbox.made.kill();
        }
        // Reaps them in any order: the kernel keeps a zygote's sandbox until the sandboxes in it are reaped.
        while kernel::wait_for(-1).is_ok() {}
        // Groups are busy for a moment after their last process.
        let until = Instant::now() + Duration::from_secs(1);
        let groups = self.sandboxes.drain(..).map(|sandbox| sandbox.made.group);
        self.dying.extend(groups);
        while !self.remove_dying() && Instant::now() < until {
            std::thread::sleep(REMOVE_AGAIN_AFTER);
        }
        self.groups.close();
    }

    /// Waits for an event and handles it; returns `false` once the agent is gone.
    fn handle_events(&mut self, orders: bool) -> bool {
        let wanted = if orders { PollFlags::POLLIN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(self.agent.as_fd(), wanted)];
        for sandbox in &self.sandboxes {
            fds.push(PollFd::new(sandbox.made.pidfd.as_fd(), PollFlags::POLLIN));
            fds.push(PollFd::new(sandbox.made.socket.as_fd(), PollFlags::POLLIN));
        }
        if poll(&mut fds, self.poll_timeout()).is_err() {
            // The wait was interrupted.
            return true;
        }
        let happened: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        drop(fds);
        let mut ended = Vec::new();
        for (index, event) in happened[1..].chunks(2).enumerate() {
            let process = self.sandboxes[index].made.pidfd.as_raw_fd();
            if event[1] {
                self.handle_report(index);
            }
            if event[0] {
                // Handles the last messages. Their number is limited, because the process that sent them is dead.
                while self.handle_report(index) {}
                // If only the helper has ended, a message above has just replaced its pidfd by the pidfd of pid 1.
                if self.sandboxes[index].made.pidfd.as_raw_fd() == process {
                    ended.push(index);
                }
            }
        }
        for index in ended.into_iter().rev() {
            self.reap_sandbox(index);
        }
        if happened[0] && orders && !self.handle_order() {
            return false;
        }
        self.handle_timeouts();
        self.serve_waiting();
        self.serve_forks();
        true
    }

    fn poll_timeout(&self) -> PollTimeout {
        let steps = self.sandboxes.iter().filter_map(|sandbox| match &sandbox.stage {
            SandboxStage::Preparing(since) | SandboxStage::Starting(_, since) => Some(*since + STEP_LIMIT),
            SandboxStage::Prepared | SandboxStage::Running => None,
        });
        let reaps = !self.dying.is_empty() || self.ending_zygotes().next().is_some();
        let again = reaps.then(|| Instant::now() + REMOVE_AGAIN_AFTER);
        match steps.chain(self.refill_at).chain(again).chain(self.next_look()).min() {
            None => PollTimeout::NONE,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                // Rounded up, so that the time has passed at the wake-up.
                PollTimeout::from((left.as_millis() as u16).saturating_add(1))
            }
        }
    }

    /// Does what is due by time: removes groups, reaps helpers, kills sandboxes that ran out of memory, enforces the
    /// time limit of steps, refills.
    fn handle_timeouts(&mut self) {
        self.remove_dying();
        self.reap_helpers();
        self.kill_struck();
        let now = Instant::now();
        for sandbox in &mut self.sandboxes {
            if let SandboxStage::Preparing(since) | SandboxStage::Starting(_, since) = &sandbox.stage
                && now > *since + STEP_LIMIT
                && sandbox.failure.is_none()
            {
                sandbox.failure = Some(format!("it did not start within {} s", STEP_LIMIT.as_secs()));
                sandbox.made.kill();
            }
        }
        let starting = |sandbox: &Sandbox| matches!(sandbox.stage, SandboxStage::Starting(..));
        if self.refill_at.is_some_and(|at| at <= now) {
            if self.sandboxes.iter().any(starting) {
                self.refill_at = Some(now + REFILL_AFTER);
                return;
            }
            self.refill_at = None;
            // Sandboxes with a network are not made ahead.
            if self.count_spares(false) < self.policy.prepared as usize && self.sandboxes.len() < SANDBOXES_MAX {
                // After a failure, only the next start makes a sandbox again; the reply then has the error.
                if self.make(false).is_ok() {
                    self.refill_at = Some(now + REFILL_AFTER);
                }
            } else if self.refill_nested() {
                self.refill_at = Some(now + REFILL_AFTER);
            }
        }
    }

    /// Removes groups that were busy; returns whether none remains.
    fn remove_dying(&mut self) -> bool {
        self.dying.retain_mut(|group| !group.remove());
        self.dying.is_empty()
    }

    /// Counts the sandboxes that have no program yet, with or without a network.
    fn count_spares(&self, network: bool) -> usize {
        let spare = self.sandboxes.iter().filter(|sandbox| {
            sandbox.made.network == network
                && matches!(sandbox.role, ZygoteRole::Plain)
                && sandbox.failure.is_none()
                && matches!(sandbox.stage, SandboxStage::Preparing(_) | SandboxStage::Prepared)
        });
        spare.count()
    }

    /// Carries out one order; returns `false` once the agent is gone.
    fn handle_order(&mut self) -> bool {
        let (order, fds) = match receive::<NurseryOrder>(&self.agent) {
            Ok(Some(order)) => order,
            Ok(None) | Err(_) => return false,
        };
        let mut fds = fds.into_iter();
        match order {
            // A nursery has one policy as long as it lives.
            NurseryOrder::Serve(_) | NurseryOrder::Contain(..) => return false,
            NurseryOrder::Start { id, network, storage } => {
                let mut next = || fds.next();
                let (Some(reply), Some(input), Some(output), Some(end), Some(described)) =
                    (next(), next(), next(), next(), next())
                else {
                    return false;
                };
                let start = PendingStart {
                    id,
                    network,
                    storage,
                    reply,
                    input,
                    output,
                    end,
                    described,
                };
                let has_no_own = network || matches!(self.view, View::Container(_));
                let what = match () {
                    () if network && !self.policy.network => "the site grants sandboxes no network".into(),
                    () if storage && has_no_own => {
                        "a sandbox reaches storage only if it has a network of its own".into()
                    }
                    () if self.sandboxes.len() + self.waiting.len() >= SANDBOXES_MAX => {
                        format!("there are {SANDBOXES_MAX} sandboxes already")
                    }
                    () => {
                        self.waiting.push_back(start);
                        return true;
                    }
                };
                answer(&start.reply, &Reply::Failed { what }, &[]);
            }
            NurseryOrder::Fork { id, zygote } => {
                let mut next = || fds.next();
                let (Some(reply), Some(input), Some(output), Some(end)) = (next(), next(), next(), next()) else {
                    return false;
                };
                self.fork(PendingFork {
                    id,
                    zygote,
                    reply,
                    input,
                    output,
                    end,
                });
            }
            NurseryOrder::Limit {
                id,
                memory_bytes,
                cores,
            } => {
                let Some(reply) = fds.next() else { return false };
                let word = match self.limit(id, memory_bytes, &cores) {
                    Ok(memory) => Reply::Limited { memory },
                    Err(error) => Reply::Failed {
                        what: error.to_string(),
                    },
                };
                answer(&reply, &word, &[]);
            }
        }
        true
    }

    /// Limits a sandbox; returns whether the kernel keeps its memory within the limit.
    fn limit(&self, id: u64, memory_bytes: u64, cores: &[u32]) -> io::Result<bool> {
        let sandbox = self.sandboxes.iter().find(|sandbox| sandbox.id == Some(id));
        // A sandbox that is gone needs no limits.
        let Some(sandbox) = sandbox else { return Ok(true) };
        let most = self.policy.memory_bytes;
        let memory_bytes = match (memory_bytes, most) {
            (0, most) | (most, 0) => most,
            (asked, most) => asked.min(most),
        };
        sandbox.made.group.limit_memory(memory_bytes)?;
        sandbox.made.group.limit_cores(cores)?;
        Ok(sandbox.made.group.has(cgroup::MEMORY))
    }
}

/// Gives this process mounts of its own. An ordinary user needs a user namespace for that.
fn unshare_mounts(by_root: bool, (user, group): (u32, u32)) -> Result<(), StepError> {
    if by_root {
        return unshare(CloneFlags::CLONE_NEWNS).map_err(step(
            "making a mount namespace (root needs CAP_SYS_ADMIN; in a container, run the agent as an ordinary user there, or \
             give the container that capability)",
        ));
    }
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(step(
        "making a user namespace (allow it: user.max_user_namespaces, kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0 by sysctl)",
    ))?;
    fs::write("/proc/self/setgroups", "deny").map_err(step("keeping groups"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1")).map_err(step("mapping the group"))?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1")).map_err(step("mapping the user"))
}
