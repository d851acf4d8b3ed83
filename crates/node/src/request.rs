//! A request to the agent of the node, and the actions if no answer arrives.

use crate::force::{self, Forced};
use crate::system_log;
use hotlease_fabric::socket::Socket;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use nix::sys::socket::{Shutdown, shutdown};
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a live agent to close a connection on which no request arrives.
const SIGN_LIMIT: Duration = Duration::from_millis(100);
/// Time limit for the end of workers that a live agent has killed. The kernel takes up to 0.2 s for each GiB of a
/// process (measured), and would take the same time if the agent were killed, too.
const DYING_LIMIT: Duration = Duration::from_secs(10);

/// Paths at which the agent and the running jobs are found.
pub struct Places {
    /// Node socket of the agent.
    pub socket: PathBuf,
    /// The agent's socket for sessions of clients.
    pub session_socket: PathBuf,
    /// Folder with a file for each running job, named by the job's number.
    pub jobs: PathBuf,
}

/// Makes the agent free the resources that a job may use. If no answer arrives by `until`, kills the agent with all its
/// workers.
pub fn yield_to(places: &Places, job: BatchJob, until: Instant) {
    let id = job.id;
    // The file is written first, because an agent that starts now reads it.
    if let Err(error) = keep(&places.jobs, &job) {
        system_log::error(&format!(
            "job {id}: an agent that starts now does not learn of it: {error}"
        ));
    }
    let begin = Instant::now();
    match free(&places.socket, NodeRequest::Yield(job.into()), until) {
        Ok(NodeAnswer::Free { leases }) => {
            let took = begin.elapsed().as_millis();
            system_log::note(&format!(
                "job {id}: the node is free after {took} ms; leases that ended: {leases}"
            ));
        }
        Ok(other) => free_by_force(places, id, &format!("the agent's answer is {other:?}")),
        Err(AskError::NoAgent(why)) => system_log::note(&format!("job {id}: no agent runs ({why})")),
        Err(AskError::NoAnswer(why)) => free_by_force(places, id, &why),
    }
}

/// Tells the agent that a job has ended.
pub fn retake(places: &Places, job: JobId, until: Instant) {
    let removed = check_folder(&places.jobs).and_then(|()| fs::remove_file(places.jobs.join(job.to_string())));
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            system_log::error(&format!("job {job}: the next agent takes it for running: {error}"));
        }
        _ => {}
    }
    match ask(&places.socket, NodeRequest::Retake(job), until) {
        Ok(NodeAnswer::Retaken) => system_log::note(&format!("job {job}: the agent uses the node again")),
        Ok(other) => system_log::error(&format!("job {job}: the agent's answer is {other:?}")),
        Err(AskError::NoAgent(why)) => system_log::note(&format!("job {job}: no agent runs ({why})")),
        Err(AskError::NoAnswer(why)) => {
            system_log::error(&format!("job {job}: the agent does not take the node: {why}"))
        }
    }
}

/// Sends a request to free the resources of a job. Waits for the answer until `until`, or longer if the agent is alive
/// and waits for the end of its workers.
fn free(socket: &Path, request: NodeRequest, until: Instant) -> Result<NodeAnswer, AskError> {
    let answered = send(socket, request)?;
    let longer = || match lives(socket) {
        true => wait_for(&answered, Instant::now() + DYING_LIMIT),
        false => None,
    };
    let answer = wait_for(&answered, until).or_else(longer);
    answer.unwrap_or_else(|| Err(AskError::in_time()))
}

/// Whether the agent serves its socket: if so, it closes a connection on which no request arrives.
fn lives(socket: &Path) -> bool {
    let path = socket.to_owned();
    let closes = move || {
        let socket = Socket::connect(&path).ok()?;
        shutdown(socket.as_raw_fd(), Shutdown::Write).ok()?;
        let end = socket.receive::<NodeAnswer>().ok()?;
        Some(end.is_none())
    };
    let closed = on_a_thread(move || closes() == Some(true));
    closed.is_ok_and(|closed| wait_for(&closed, Instant::now() + SIGN_LIMIT) == Some(true))
}

/// Reason why there is no answer.
#[derive(Debug)]
enum AskError {
    /// There is no agent.
    NoAgent(String),
    /// There is an agent, but it has not answered.
    NoAnswer(String),
}

impl AskError {
    fn in_time() -> Self {
        Self::NoAnswer("the agent has not answered in time, or its socket takes no connection".into())
    }
}

/// Sends a request, and waits for its answer.
fn ask(socket: &Path, request: NodeRequest, until: Instant) -> Result<NodeAnswer, AskError> {
    let answered = send(socket, request)?;
    wait_for(&answered, until).unwrap_or_else(|| Err(AskError::in_time()))
}

fn send(socket: &Path, request: NodeRequest) -> Result<Receiver<Result<NodeAnswer, AskError>>, AskError> {
    let path = socket.to_owned();
    let asked = on_a_thread(move || ask_at(&path, &request));
    asked.map_err(|error| AskError::NoAnswer(format!("it was not asked: {error}")))
}

/// Does the work on a separate thread, because a connection to a stopped agent may wait for ever.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Receiver<T>> {
    let (results, result) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        // The receiver is gone once the time is over.
        let _ = results.send(work());
    })?;
    Ok(result)
}

fn wait_for<T>(result: &Receiver<T>, until: Instant) -> Option<T> {
    let left = until.saturating_duration_since(Instant::now());
    result.recv_timeout(left).ok()
}

fn ask_at(path: &Path, request: &NodeRequest) -> Result<NodeAnswer, AskError> {
    let socket = Socket::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            AskError::NoAgent(format!("{}: {error}", path.display()))
        }
        _ => AskError::NoAnswer(format!("{}: {error}", path.display())),
    })?;
    let broken =
        |error: &dyn std::fmt::Display| AskError::NoAnswer(format!("the agent closed the connection: {error}"));
    socket.send(request, &[]).map_err(|error| broken(&error))?;
    match socket.receive() {
        Ok(Some((answer, _))) => Ok(answer),
        Ok(None) => Err(broken(&"without an answer")),
        Err(error) => Err(broken(&error)),
    }
}

/// Writes the file of a job, completely or not at all.
fn keep(folder: &Path, job: &BatchJob) -> io::Result<()> {
    make_folder(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    // The agent reads the file as its own user; only root writes to the folder.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(&hotlease_wire::encode(job))?;
    file.persist(folder.join(job.id.to_string()))?;
    Ok(())
}

/// Makes the folder, if it is missing.
fn make_folder(folder: &Path) -> io::Result<()> {
    if !fs::exists(folder)? {
        fs::create_dir_all(folder)?;
        // The agent reads the folder as its own user, so the mode must not depend on the umask of the batch system's
        // programs.
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    check_folder(folder)
}

/// Refuses a folder in which other users could put links and files, or that is a link itself.
fn check_folder(folder: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(folder)?;
    let own = nix::unistd::geteuid().as_raw();
    let is_own = there.is_dir() && (there.uid() == own || there.uid() == 0) && there.mode() & 0o022 == 0;
    match is_own {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{} is a link, or others than its owner and root can write to it",
            folder.display()
        ))),
    }
}

fn free_by_force(places: &Places, job: JobId, why: &str) {
    match force::kill_agent(&[&places.socket, &places.session_socket]) {
        Ok(Forced {
            agent,
            processes,
            dying,
        }) => {
            let killed = format!("job {job}: killed agent {agent} and {processes} processes of it, because {why}");
            let rest = match dying {
                0 => String::new(),
                _ => format!("; {dying} of them still give back their memory"),
            };
            system_log::error(&format!("{killed}{rest}; start it again"));
        }
        Err(error) => system_log::error(&format!("job {job}: the node may not be free: {why}; {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_fabric::socket::SocketListener;

    const SOON: Duration = Duration::from_millis(50);
    const REQUEST: NodeRequest = NodeRequest::Retake(JobId(7));

    /// Answers a request only after a connection without a request. The program makes that connection when the time for
    /// the answer is over.
    fn answer_late(listener: &SocketListener) {
        let (mut asked, mut is_over) = (None, false);
        while asked.is_none() || !is_over {
            let Ok(socket) = listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            match socket.receive::<NodeRequest>().expect("readable") {
                Some(_) => asked = Some(socket),
                None => is_over = true,
            }
        }
        // The other end may have given up.
        let _ = asked.map(|asked| asked.send(&NodeAnswer::Free { leases: 1 }, &[]));
    }

    #[test]
    fn an_agent_that_lives_has_time_for_the_memory_of_its_workers() {
        let folder = tempfile::tempdir().expect("a folder");
        let stopped = folder.path().join("stopped.sock");
        let _listener = SocketListener::bind(&stopped).expect("bound");
        let answer = free(&stopped, REQUEST, Instant::now() + SOON);
        assert!(matches!(answer, Err(AskError::NoAnswer(_))), "{answer:?}");
        // On a busy host, the connection may be closed too late once. If the agent got no more time, each attempt would
        // fail.
        let lasts = (0..3).any(|attempt| {
            let path = folder.path().join(format!("{attempt}.sock"));
            let listener = SocketListener::bind(&path).expect("bound");
            thread::spawn(move || answer_late(&listener));
            let answer = free(&path, REQUEST, Instant::now() + SOON);
            matches!(answer, Ok(NodeAnswer::Free { leases: 1 }))
        });
        assert!(lasts, "it is killed though it lives");
    }

    #[test]
    fn jobs_are_kept_only_where_no_other_user_can_write() {
        let parent = tempfile::tempdir().expect("a folder");
        let (folder, link) = (parent.path().join("jobs"), parent.path().join("link"));
        assert!(check_folder(&folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        make_folder(&folder).expect("it is made");
        let mode = fs::metadata(&folder).expect("made").mode();
        assert_eq!(mode & 0o777, 0o755, "the agent reads it as another user");
        std::os::unix::fs::symlink(&folder, &link).expect("a link");
        assert!(make_folder(&link).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("open to all");
        assert!(make_folder(&folder).is_err() && check_folder(&folder).is_err());
    }
}
