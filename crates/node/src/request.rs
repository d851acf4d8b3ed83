//! A request to the agent of the node, and what is done without its answer.

use crate::force::{self, Forced};
use crate::system_log;
use hotlease_fabric::socket::Socket;
use hotlease_wire::batch::{BatchJob, NodeAnswer, NodeRequest};
use hotlease_wire::ids::JobId;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// Where the agent and the running jobs are found.
pub struct Places {
    /// Node socket of the agent.
    pub socket: PathBuf,
    /// Its socket for sessions of clients.
    pub session_socket: PathBuf,
    /// Folder with a file of each running job, named by its number.
    pub jobs: PathBuf,
}

/// Has the agent free what a job may use. Without an answer until `until`, kills the agent with all its workers.
pub fn yield_to(places: &Places, job: BatchJob, until: Instant) {
    let id = job.id;
    // First: an agent that starts now reads it.
    if let Err(error) = keep(&places.jobs, &job) {
        system_log::error(&format!(
            "job {id}: an agent that starts now does not learn of it: {error}"
        ));
    }
    let begin = Instant::now();
    match ask(&places.socket, NodeRequest::Yield(job), until) {
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

/// Reason why there is no answer.
enum AskError {
    /// There is no agent.
    NoAgent(String),
    /// There is one, and it has not answered.
    NoAnswer(String),
}

/// Sends a request on a thread of its own: a connection to an agent that is stopped may wait for ever.
fn ask(socket: &Path, request: NodeRequest, until: Instant) -> Result<NodeAnswer, AskError> {
    let path = socket.to_owned();
    let (answers, answered) = mpsc::channel();
    let asking = thread::Builder::new().spawn(move || {
        // The receiver is gone once the time is over.
        let _ = answers.send(ask_at(&path, &request));
    });
    if let Err(error) = asking {
        return Err(AskError::NoAnswer(format!("it was not asked: {error}")));
    }
    let left = until.saturating_duration_since(Instant::now());
    answered.recv_timeout(left).unwrap_or_else(|_| {
        let why = "the agent has not answered in time, or its socket takes no connection";
        Err(AskError::NoAnswer(why.into()))
    })
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

/// Writes the file of a job. Whole or not at all.
fn keep(folder: &Path, job: &BatchJob) -> io::Result<()> {
    make_folder(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    // The agent reads it as its own user; only root writes here.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(&hotlease_wire::encode(job))?;
    file.persist(folder.join(job.id.to_string()))?;
    Ok(())
}

/// Makes the folder, if it is missing.
fn make_folder(folder: &Path) -> io::Result<()> {
    if !fs::exists(folder)? {
        fs::create_dir_all(folder)?;
        // The agent reads it as its own user, also if the batch system's programs let others read nothing (umask).
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
