//! Exit statuses, and the only place where errors are printed.

use hotlease_agent::AgentError;
use hotlease_client::Error as ClientError;
use hotlease_collectives::Error as PlanError;
use hotlease_comm::Error as CommError;
use hotlease_journal::DirectoryError;
use hotlease_manager::ManagerError;
use hotlease_net::NetError;
use hotlease_store::StoreError;
use hotlease_wire::{Rejection, RunCertainty};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

/// Text at the end of `hotlease --help`.
pub const TABLE: &str = "\
Exit status:
  0  success
  1  the function or the request failed
  2  the command line makes no sense
  3  the platform is not running here (start it with `hotlease up`), or not reached on its host
  4  no capacity: no agent, or not enough free cores now
  5  the platform runs already (`up`, `manager`, `agent`)
  6  outcome unknown: the function may have run, and its result is lost

Environment:
  HOTLEASE_RUNTIME_DIR  where sockets and logs are ($XDG_RUNTIME_DIR/hotlease or /tmp/hotlease-UID)
  HOTLEASE_STATE_DIR    where the ledger and usage journals are kept
  HOTLEASE_TARIFF       the file with prices
  HOTLEASE_MANAGER      the manager of a site, https://HOST:PORT, for all commands but the daemons' own
                        [default: in a batch job the platform that `hotlease up` started there, else this host's]
  HOTLEASE_JOBS_DIR     where batch jobs have the folders by which their programs find it, on a file system of all nodes
                        (hotlease/jobs in XDG_STATE_HOME or ~/.local/state)
  HOTLEASE_IDENTITY     the client's identity folder; or, without a certificate, one of
  HOTLEASE_KEY_FILE     the file of a key of `hotlease admin key add`
  HOTLEASE_TOKEN_FILE   the file of a token (JWT), read again for each session
  HOTLEASE_MUNGE        1: authenticate as this user of the MUNGE cluster; HOTLEASE_MUNGE_SOCKET: munged's socket
  HOTLEASE_CA_FILE      the site's ca.pem, for clients without a certificate
  HOTLEASE_COMM_SECRET  secret of communicators and their rendezvous; HOTLEASE_COMM_SECRET_FILE: a file with it
  HOTLEASE_COMM_RENDEZVOUS, HOTLEASE_COMM_NAME, HOTLEASE_COMM_SIZE, HOTLEASE_COMM_RANK
                        the communicator of a member; `hotlease comm run` sets them
  HOTLEASE_COMM_LINK    the link between members: direct (memory inside a node, TCP between nodes), tcp,
                        ofi or ofi:PROVIDER (libfabric), redis://HOST:PORT or s3://BUCKET
  HOTLEASE_ENV_STORE    folders with images of environments, with : between them
  HOTLEASE_ENV_CACHE    folder of this node's images; HOTLEASE_ENV_CACHE_BYTES: its size
  HOTLEASE_LOG          what is logged to stderr: error, warn, info, debug, or per crate
  HOTLEASE_LOG_FORMAT   json: each line of the log is an object; else text
  HOTLEASE_WORKER       the worker's binary, if it is not beside this one";

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_RUNNING: u8 = 3;
const NO_CAPACITY: u8 = 4;
/// Status of [`CommandError::RunsAlready`], and of the daemons' errors with the same meaning.
pub const RUNS_ALREADY: u8 = 5;
const OUTCOME_UNKNOWN: u8 = 6;

/// Errors of the commands themselves that have an exit status of their own.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Arguments that clap cannot check.
    #[error("{0}; see `hotlease help`")]
    Usage(String),
    /// No process serves the manager's socket.
    #[error("hotlease is not running (no process serves {socket}); start it with `hotlease up`")]
    NotRunning {
        /// Path of the socket.
        socket: String,
    },
    /// No process serves the manager's socket, and a platform was to be stopped.
    #[error("nothing to stop: hotlease is not running (no process serves {socket})")]
    NothingToStop {
        /// Path of the socket.
        socket: String,
    },
    /// Another process holds the lock.
    #[error("hotlease runs already in {dir}{}; use it, or stop it with `hotlease down`", of_pid(.pid))]
    RunsAlready {
        /// Runtime directory.
        dir: String,
        /// Pid of the holder, if the holder wrote it.
        pid: Option<u32>,
    },
    /// The batch job has a platform of its own.
    #[error(
        "hotlease serves job {job} already: its manager runs on {node}, in step {step}; the job's programs find it without an argument, and `scancel {step}` ends it"
    )]
    ServesJob {
        /// Number of the job.
        job: String,
        /// Node of the manager.
        node: String,
        /// Step of the job in which the platform runs.
        step: String,
    },
    /// A member of `hotlease comm run` failed.
    #[error("rank {rank} {how}{others}")]
    Member {
        /// Rank of the member.
        rank: u32,
        /// End of the member, in words.
        how: String,
        /// Fate of the other members, in words.
        others: &'static str,
        /// Exit status to use.
        status: u8,
    },
    /// The command of `hotlease env run` failed.
    #[error("{program} {how}")]
    Program {
        /// Name of the program.
        program: String,
        /// End of the program, in words.
        how: String,
        /// Exit status to use.
        status: u8,
    },
    /// The background process reported why it cannot serve.
    #[error("the platform did not start: {why}; its log is {log}")]
    NotStarted {
        /// Exit status of the background process.
        status: u8,
        /// Error of the background process.
        why: String,
        /// Path of the background process's log.
        log: String,
    },
}

fn of_pid(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// Prints an error; returns the exit status.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_closed_pipe(error) {
        // The reader of the output is gone (`hotlease ps | head -1`), which is no error.
        return ExitCode::SUCCESS;
    }
    let status = status(error);
    let text = text(error);
    let line = if json {
        let (ran, billed) = match find::<ClientError>(error) {
            Some(error) => (Some(error.ran()), Some(error.billed())),
            None => (None, None),
        };
        let ran = ran.map(|ran| match ran {
            RunCertainty::Yes => "yes",
            RunCertainty::No => "no",
            RunCertainty::Unknown => "unknown",
        });
        json!({ "error": text, "exit_status": status, "ran": ran, "billed": billed }).to_string()
    } else {
        format!("hotlease: {text}")
    };
    // Without stderr, the error cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(status)
}

fn find<E: std::error::Error + Send + Sync + 'static>(error: &anyhow::Error) -> Option<&E> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    find::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        && find::<ClientError>(error).is_none()
}

/// Exit status for an error.
pub fn status(error: &anyhow::Error) -> u8 {
    if let Some(error) = find::<CommandError>(error) {
        return match error {
            CommandError::Usage(_) => USAGE,
            CommandError::NotRunning { .. } | CommandError::NothingToStop { .. } => NOT_RUNNING,
            CommandError::RunsAlready { .. } | CommandError::ServesJob { .. } => RUNS_ALREADY,
            CommandError::NotStarted { status, .. }
            | CommandError::Member { status, .. }
            | CommandError::Program { status, .. } => *status,
        };
    }
    if let Some(error) = find::<ClientError>(error) {
        return match error {
            ClientError::NotRunning { .. } => NOT_RUNNING,
            ClientError::Network(error) => of_network(error),
            ClientError::Options { .. } => USAGE,
            ClientError::Refused(refusal) | ClientError::NoRoom { refusal, .. } => of_refusal(refusal),
            error if error.ran() == RunCertainty::Unknown => OUTCOME_UNKNOWN,
            _ => FAILED,
        };
    }
    if let Some(error) = find::<NetError>(error) {
        return of_network(error);
    }
    if let Some(CommError::Options { .. } | CommError::Arguments { .. }) = find(error) {
        return USAGE;
    }
    if let Some(PlanError::Options { .. } | PlanError::Arguments { .. }) = find(error) {
        return USAGE;
    }
    if let Some(refusal) = find::<Rejection>(error) {
        return of_refusal(refusal);
    }
    let manager_runs = matches!(find(error), Some(ManagerError::AlreadyRunning { .. }));
    let agent_runs = matches!(find(error), Some(AgentError::AlreadyRunning { .. }));
    let state_is_used = matches!(find(error), Some(StoreError::Directory(DirectoryError::InUse { .. })));
    let journal_is_used = matches!(find(error), Some(AgentError::State(DirectoryError::InUse { .. })));
    if manager_runs || agent_runs || state_is_used || journal_is_used {
        return RUNS_ALREADY;
    }
    FAILED
}

fn of_network(error: &NetError) -> u8 {
    match error {
        NetError::Unresolved { .. } | NetError::Unreachable { .. } | NetError::Silent { .. } => NOT_RUNNING,
        NetError::Address { .. } => USAGE,
        NetError::Refused(refusal) => of_refusal(refusal),
        _ => FAILED,
    }
}

fn of_refusal(refusal: &Rejection) -> u8 {
    match refusal {
        Rejection::NoCapacity { .. }
        | Rejection::NoPlaces { .. }
        | Rejection::NoGpus { .. }
        | Rejection::NotTogether { .. }
        | Rejection::NoAgent
        | Rejection::QuotaExceeded { .. } => NO_CAPACITY,
        _ => FAILED,
    }
}

/// Text of an error: the chain of causes, without causes that an earlier message already quotes.
pub fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn every_documented_status_has_its_error() {
        let client = |error: ClientError| anyhow::Error::new(error).context("calling f");
        let cases = [
            (anyhow::anyhow!("anything"), 1),
            (CommandError::Usage("no".into()).into(), 2),
            (CommandError::NotRunning { socket: "/s".into() }.into(), 3),
            (client(ClientError::NotRunning { socket: "/s".into() }), 3),
            (client(ClientError::Refused(Rejection::NoAgent)), 4),
            (
                Rejection::NoCapacity {
                    asked: 1,
                    free: 0,
                    offered: 2,
                }
                .into(),
                4,
            ),
            (
                CommandError::RunsAlready {
                    dir: "/d".into(),
                    pid: Some(1),
                }
                .into(),
                5,
            ),
            (client(ClientError::OutcomeUnknown { why: "lost".into() }), 6),
            (
                client(ClientError::Function {
                    code: 3,
                    output: vec![],
                }),
                1,
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(status(&error), expected, "{error:#}");
            assert!(
                TABLE.contains(&format!("\n  {expected}  ")),
                "status {expected} is not documented"
            );
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let source = io::Error::other("disk full");
        let quoting = anyhow::Error::new(ManagerError::Runtime {
            what: "open",
            path: "/x".into(),
            source,
        });
        assert_eq!(text(&quoting), "manager cannot open /x: disk full");
        let not_quoting = Err::<(), _>(io::Error::other("disk full")).context("cannot write the log");
        assert_eq!(text(&not_quoting.unwrap_err()), "cannot write the log: disk full");
    }
}
