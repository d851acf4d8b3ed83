//! Last resort: killing of an agent that does not answer, with all its workers.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Limit of descriptors of this program: one for each process below the agent.
const DESCRIPTORS: u64 = 1 << 16;
/// Time limit for stopping all processes below the agent.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Time limit for killed processes to free their memory.
const DEATH_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two checks of killed processes.
const DEATH_LOOK: Duration = Duration::from_millis(1);

/// Processes that were killed.
pub struct Forced {
    /// Process id of the agent.
    pub agent: i32,
    /// Number of killed processes below the agent.
    pub processes: usize,
    /// Number of killed processes that have not freed their memory yet.
    pub dying: usize,
}

/// Finds the first of these sockets that accepts a connection. Kills the agent that listens there, and all processes
/// below the agent.
pub fn kill_agent(sockets: &[&Path]) -> io::Result<Forced> {
    // Best effort: a process without a descriptor is not killed.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS);
    let agent = first_listener(sockets)?;
    // The agent is stopped first, so that it starts no process while its processes are counted.
    agent.signal(Signal::STOP)?;
    let below = stop_below(&agent);
    // A descriptor of a process never leads to another process that gets the number.
    let killed = below
        .values()
        .filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok());
    let processes = killed.count();
    // Fails only if the agent is dead.
    let _ = agent.signal(Signal::KILL);
    let dying = wait_for_deaths(below.values().chain([&agent.process]));
    Ok(Forced {
        agent: agent.pid,
        processes,
        dying,
    })
}

/// Process that listens at a socket of the agent.
#[derive(Debug)]
struct Listener {
    pid: i32,
    /// Owner of the folder of its sockets, who is also its real user.
    owner: u32,
    /// Descriptor of the process. A signal through it never reaches another process that gets the number.
    process: OwnedFd,
}

impl Listener {
    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.process, signal)?)
    }
}

/// Whether the process of a descriptor has not ended: the descriptor of one that has ended is readable.
fn is_running(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO) == Ok(0)
}

fn first_listener(sockets: &[&Path]) -> io::Result<Listener> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for socket in sockets {
        match listener(socket) {
            Ok(agent) => return Ok(agent),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Returns the process that listens at a socket, even if it accepts no more connections. Does not wait: a full queue is
/// an error.
fn listener(path: &Path) -> io::Result<Listener> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let owner = std::fs::metadata(folder)?.uid();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(connection.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = getsockopt(&connection, PeerCredentials)?;
    let pid = checked_peer((peer.pid(), peer.uid()), owner).map_err(io::Error::other)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let pid = pid.as_raw_nonzero().get();
    // The process of the descriptor had the number while its user was read, because it has not ended yet.
    let user = user_of(pid).filter(|_| is_running(&process));
    match user == Some(owner) {
        true => Ok(Listener { pid, owner, process }),
        false => Err(io::Error::other(format!(
            "process {pid}, which listened at its socket, has ended, or is now a process of another user than {owner}"
        ))),
    }
}

/// Returns the real user of a process, or `None` if there is no such process.
fn user_of(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// Returns the process of a listener, if it can be an agent whose sockets are in a folder of `owner`. That user could
/// put a link to another program's socket there, for example to a socket of process 1; all other processes are below
/// process 1. The user could also keep the socket open after the process that listened first has ended, until another
/// process gets its number: so the caller looks at the present user of the process, too.
fn checked_peer((pid, uid): (i32, u32), owner: u32) -> Result<Pid, String> {
    match Pid::from_raw(pid) {
        // The kernel gives 0 for a process that this program cannot name. Negative numbers would mean groups.
        None => Err("the agent is in another namespace of processes".into()),
        Some(_) if pid < 0 => Err(format!("{pid} is the number of no process")),
        Some(Pid::INIT) => Err("process 1 listens at its socket".into()),
        Some(_) if uid != owner => Err(format!(
            "process {pid} of user {uid} listens at its socket, whose folder is user {owner}'s"
        )),
        Some(pid) => Ok(pid),
    }
}

/// Whether a process below an agent of the user `owner` may be killed. Sandboxes of an agent that is not root run as
/// other users, but in user namespaces of their own. Any other process of another user has more rights than the agent,
/// such as a program that is set-user-id.
fn may_kill(pid: i32, owner: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    owner == 0
        || user_of(pid) == Some(owner)
        || namespace(&pid.to_string()).is_some_and(|its| Some(its) != namespace("self"))
}

/// Stops all processes below the stopped agent that may be killed; returns them by number. The search is repeated until
/// all are stopped, so it also finds the children of processes that fork meanwhile.
fn stop_below(agent: &Listener) -> HashMap<i32, OwnedFd> {
    let until = Instant::now() + STOP_LIMIT;
    let mut held = HashMap::new();
    while let Ok(table) = process_table() {
        let found = below(agent.pid, &table);
        let mut are_still = true;
        for pid in found {
            let Some(seen) = table.get(&pid).filter(|seen| !seen.is_dead) else {
                continue;
            };
            if !held.contains_key(&pid) && may_kill(pid, agent.owner) {
                are_still = false;
                held.extend(open_below(pid, agent, &held).map(|process| (pid, process)));
            }
            if let Some(process) = held.get(&pid).filter(|_| !seen.is_still) {
                are_still = false;
                // Fails only if the process is dead.
                let _ = pidfd_send_signal(process, Signal::STOP);
            }
        }
        if are_still || Instant::now() >= until {
            break;
        }
    }
    held
}

/// Opens the process with this number, if it is a child of the agent or of a process in `held`, and may be killed.
fn open_below(pid: i32, agent: &Listener, held: &HashMap<i32, OwnedFd>) -> Option<OwnedFd> {
    let opened = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let parent = process(pid)?.parent;
    let parent = match parent == agent.pid {
        true => &agent.process,
        false => held.get(&parent)?,
    };
    let is_right = may_kill(pid, agent.owner);
    // Both have their numbers still, so what was read of these numbers was theirs.
    (is_right && is_running(&opened) && is_running(parent)).then_some(opened)
}

/// Waits until these processes have ended, and so have freed their memory; returns the number of processes that have
/// not done so in time.
fn wait_for_deaths<'p>(processes: impl Iterator<Item = &'p OwnedFd> + Clone) -> usize {
    let until = Instant::now() + DEATH_LIMIT;
    loop {
        let left = processes.clone().filter(|process| is_running(process)).count();
        if left == 0 || Instant::now() >= until {
            return left;
        }
        thread::sleep(DEATH_LOOK);
    }
}

/// A process, as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: i32,
    /// Whether the process is stopped by a signal, or dead.
    is_still: bool,
    is_dead: bool,
}

/// Processes by number.
fn process_table() -> io::Result<HashMap<i32, Process>> {
    let mut table = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        // A process that has ended meanwhile is left out.
        table.extend(pid.and_then(|pid| Some((pid, process(pid)?))));
    }
    Ok(table)
}

fn process(pid: i32) -> Option<Process> {
    process_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a text of `/proc/PID/stat`. State and parent follow the program's name, which may contain any characters.
fn process_in(stat: &str) -> Option<Process> {
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?;
    let is_dead = matches!(state, "Z" | "X" | "x");
    Some(Process {
        parent: words.next()?.parse().ok()?,
        is_still: is_dead || matches!(state, "T" | "t"),
        is_dead,
    })
}

/// Returns all processes below the process `top`, parents before children.
fn below(top: i32, table: &HashMap<i32, Process>) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, process) in table {
        children.entry(process.parent).or_default().push(*pid);
    }
    let mut found = Vec::new();
    let mut parent = Some(top);
    let mut next = 0;
    while let Some(of) = parent {
        found.extend(children.remove(&of).into_iter().flatten());
        parent = found.get(next).copied();
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::socket::SocketListener;
    use std::path::PathBuf;
    use std::process::{Child, Command};

    /// Environment variable that names the socket of a test's agent.
    const SOCKET: &str = "HOTLEASE_TEST_FORCE_SOCKET";

    #[test]
    fn children_of_children_are_below_and_others_are_not() {
        let process = |parent| Process {
            parent,
            is_still: false,
            is_dead: false,
        };
        let parents = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 7)];
        let table = parents.map(|(pid, parent)| (pid, process(parent))).into();
        assert_eq!(below(2, &table), [3, 4], "parents come first");
        assert_eq!(below(7, &table), [7], "a circle ends");
        assert_eq!(below(9, &table), [0; 0]);
    }

    #[test]
    fn state_and_parent_stand_behind_any_name() {
        let stopped = Process {
            parent: 12,
            is_still: true,
            is_dead: false,
        };
        assert_eq!(process_in("7 (python3) T 12 7 7 0"), Some(stopped));
        let running = process_in("7 (a) S 1 b) S 3 7 7 0").expect("a process");
        assert_eq!((running.parent, running.is_still), (3, false));
        assert!(process_in("7 (a) Z 3 7").is_some_and(|process| process.is_dead && process.is_still));
        assert_eq!(process_in(""), None);
    }

    #[test]
    fn only_a_process_of_the_folder_s_owner_is_taken_for_the_agent() {
        assert_eq!(
            checked_peer((7, 1000), 1000).map(|pid| pid.as_raw_nonzero().get()),
            Ok(7)
        );
        for (peer, owner) in [((0, 0), 0), ((-1, 0), 0), ((1, 0), 0), ((7, 0), 1000), ((7, 1000), 0)] {
            assert!(checked_peer(peer, owner).is_err(), "{peer:?} in a folder of {owner}");
        }
        let own = std::process::id() as i32;
        assert_eq!(user_of(own), Some(nix::unistd::getuid().as_raw()));
        assert_eq!(user_of(-1), None);
    }

    #[test]
    fn processes_with_more_rights_than_the_agent_are_not_killed() {
        let (own, other) = (std::process::id() as i32, nix::unistd::getuid().as_raw() + 1);
        assert!(may_kill(own, nix::unistd::getuid().as_raw()));
        assert!(may_kill(own, 0), "an agent of root has the right to kill all");
        assert!(!may_kill(own, other));
        // There is no such process.
        assert!(!may_kill(-1, other));
        // A sandbox of an agent that is not root: another user for the kernel, in a user namespace.
        let sleeping = Command::new("unshare").args(["--user", "sleep", "60"]).spawn();
        let sleeping = TestAgent(sleeping.expect("unshare"));
        let until = Instant::now() + Duration::from_secs(10);
        while !may_kill(sleeping.0.id() as i32, other) {
            assert!(Instant::now() < until, "it is in the namespace of this test");
            thread::sleep(DEATH_LOOK);
        }
    }

    #[test]
    fn a_full_queue_is_an_error_and_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("full.sock");
        let _listening = SocketListener::bind(&path).expect("bound");
        let mut waiting = 0;
        let error = loop {
            // Connections that were closed stay in the queue.
            match listener(&path) {
                Ok(found) => assert_eq!(found.pid, std::process::id() as i32),
                Err(error) => break error,
            }
            waiting += 1;
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "after {waiting}: {error}");
        let other = folder.path().join("other.sock");
        let _other = SocketListener::bind(&other).expect("bound");
        let found = first_listener(&[&path, &other]).expect("another socket of it");
        assert_eq!(found.pid, std::process::id() as i32);
    }

    /// Process that is killed at the end of its test, even if the test fails.
    struct TestAgent(Child);

    impl Drop for TestAgent {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Not a test by itself: the agent of the next test, with children that start children all the time.
    #[test]
    fn agent_of_a_test() {
        let Some(path) = std::env::var_os(SOCKET).map(PathBuf::from) else {
            return;
        };
        // Each shell ends with its parent, in case the test fails.
        let forks = "while kill -0 $PPID 2>/dev/null; do sleep 0.001; done";
        let forking = || Command::new("sh").args(["-c", forks]).spawn();
        let _children: Vec<Child> = (0..4).map(|_| forking().expect("a shell")).collect();
        let _listening = SocketListener::bind(&path).expect("bound");
        loop {
            thread::park();
        }
    }

    #[test]
    fn the_agent_and_all_below_it_are_gone_when_the_call_returns() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.sock");
        let program = std::env::current_exe().expect("this test");
        let agent = Command::new(program)
            .args(["--exact", "force::tests::agent_of_a_test"])
            .env(SOCKET, &path)
            .spawn();
        let mut agent = TestAgent(agent.expect("an agent"));
        let pid = agent.0.id() as i32;
        while listener(&path).is_err() {
            assert_eq!(agent.0.try_wait().expect("its state"), None, "it has ended");
            thread::sleep(DEATH_LOOK);
        }
        let before = below(pid, &process_table().expect("processes"));
        let forced = kill_agent(&[&path]).expect("it listens");
        assert_eq!((forced.agent, forced.dying), (pid, 0));
        assert!(before.len() >= 4 && forced.processes >= 4, "{before:?}");
        let alive = before
            .iter()
            .filter(|pid| process(**pid).is_some_and(|process| !process.is_dead));
        assert_eq!(alive.collect::<Vec<_>>(), [&0; 0]);
        assert!(process(pid).is_none_or(|process| process.is_dead));
        agent.0.wait().expect("it is reaped");
        let none = kill_agent(&[&path]).err().expect("no agent listens");
        assert_eq!(none.kind(), io::ErrorKind::ConnectionRefused);
    }
}
