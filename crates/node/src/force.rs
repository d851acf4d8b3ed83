//! Last resort: killing of an agent that does not answer, with all its workers.

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

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
    let (socket, agent) = first_listener(sockets)?;
    let send = |pid: i32, signal: Signal| kill(Pid::from_raw(pid), signal).is_ok();
    // The agent is stopped first, so that it starts no process while its processes are counted.
    kill(Pid::from_raw(agent), Signal::SIGSTOP)?;
    // The agent may have ended before it was stopped, and another process may have its number. Such a process does not
    // listen at the socket.
    match listener(socket) {
        Ok(now) if now == agent => {}
        // A stopped agent accepts nothing, so its queue may be full now.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        _ => {
            send(agent, Signal::SIGCONT);
            return Err(io::Error::other(format!("agent {agent} has ended by itself")));
        }
    }
    let below = stop_below(agent);
    // Children are killed before their parents: a stopped parent does not reap, so no other process has a child's
    // number yet.
    let processes = below.iter().rev().filter(|pid| send(**pid, Signal::SIGKILL)).count();
    send(agent, Signal::SIGKILL);
    let dying = wait_for_deaths(below.iter().chain([&agent]));
    Ok(Forced {
        agent,
        processes,
        dying,
    })
}

fn first_listener<'s>(sockets: &[&'s Path]) -> io::Result<(&'s Path, i32)> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for socket in sockets {
        match listener(socket) {
            Ok(agent) => return Ok((socket, agent)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Returns the process that listens at a socket, even if it accepts no more connections. Does not wait: a full queue is
/// an error.
fn listener(path: &Path) -> io::Result<i32> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let owner = std::fs::metadata(folder)?.uid();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(connection.as_raw_fd(), &UnixAddr::new(path)?)?;
    let peer = getsockopt(&connection, PeerCredentials)?;
    checked_agent((peer.pid(), peer.uid()), user_of(peer.pid()), owner).map_err(io::Error::other)
}

/// Returns the real user of a process, or `None` if there is no such process.
fn user_of(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// Returns the process of a listener, if it can be an agent whose sockets are in a folder of `owner`. That user could
/// put a link to another program's socket there, for example to a socket of process 1; all other processes are below
/// process 1. The user could also keep the socket open after the process that listened first has ended, until a
/// process of another user gets its number. So `now`, the present user of the process, must be the owner as well.
fn checked_agent((pid, uid): (i32, u32), now: Option<u32>, owner: u32) -> Result<i32, String> {
    match pid {
        // For the kernel, 0 and negative numbers mean groups of processes, including this program's group.
        ..=0 => Err("the agent is in another namespace of processes".into()),
        1 => Err("process 1 listens at its socket".into()),
        _ if uid != owner => Err(format!(
            "process {pid} of user {uid} listens at its socket, whose folder is user {owner}'s"
        )),
        _ if now != Some(owner) => Err(format!(
            "process {pid}, which listened at its socket, has ended, or is now a process of another user than {owner}"
        )),
        _ => Ok(pid),
    }
}

/// Stops all processes below the stopped process `top`; returns them, parents before children. The search is repeated
/// until all are stopped, so it also finds the children of processes that fork meanwhile.
fn stop_below(top: i32) -> Vec<i32> {
    let until = Instant::now() + STOP_LIMIT;
    let mut signalled = HashSet::new();
    let mut found = Vec::new();
    while let Ok(table) = process_table() {
        found = below(top, &table);
        let running = found
            .iter()
            .filter(|pid| !table.get(pid).is_none_or(|process| process.is_still));
        let running: Vec<i32> = running.copied().collect();
        if running.is_empty() || Instant::now() >= until {
            break;
        }
        for pid in running {
            if kill(Pid::from_raw(pid), Signal::SIGSTOP).is_ok() {
                signalled.insert(pid);
            }
        }
    }
    // If a signalled process is not below the agent any more, the right process had ended before the signal, and
    // another process has its number. That process is continued.
    for other in signalled.iter().filter(|pid| !found.contains(pid)) {
        let _ = kill(Pid::from_raw(*other), Signal::SIGCONT);
    }
    found
}

/// Waits until these processes have freed their memory; returns the number of processes that have not done so in time.
fn wait_for_deaths<'p>(processes: impl Iterator<Item = &'p i32> + Clone) -> usize {
    let until = Instant::now() + DEATH_LIMIT;
    loop {
        let has_memory = |pid: &&i32| process(**pid).is_some_and(|process| !process.is_dead);
        let left = processes.clone().filter(has_memory).count();
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
        assert_eq!(checked_agent((7, 1000), Some(1000), 1000), Ok(7));
        for (peer, owner) in [((0, 0), 0), ((-1, 0), 0), ((1, 0), 0), ((7, 0), 1000), ((7, 1000), 0)] {
            let checked = checked_agent(peer, Some(owner), owner);
            assert!(checked.is_err(), "{peer:?} in a folder of {owner}");
        }
        // The process that listened has ended, and a process of another user may have its number.
        for now in [None, Some(0), Some(1001)] {
            assert!(checked_agent((7, 1000), now, 1000).is_err(), "{now:?}");
        }
        let own = std::process::id() as i32;
        assert_eq!(user_of(own), Some(nix::unistd::getuid().as_raw()));
        assert_eq!(user_of(-1), None);
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
                Ok(pid) => assert_eq!(pid, std::process::id() as i32),
                Err(error) => break error,
            }
            waiting += 1;
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "after {waiting}: {error}");
        let other = folder.path().join("other.sock");
        let _other = SocketListener::bind(&other).expect("bound");
        let (found, _) = first_listener(&[&path, &other]).expect("another socket of it");
        assert_eq!(found, other);
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
