//! MUNGE: proves a user's identity on any host of a cluster. The hosts share MUNGE's key.
//!
//! The cluster's daemon decodes a credential, through its program `unmunge`. This happens once for a session and not
//! for each request, so the start of a process (about 2 ms) does not matter, and no foreign library runs in the
//! manager. The payload must be `hotlease-1`, the nonce of this connection, and the manager's certificate as the
//! credential's owner saw it. So a party that receives the credential cannot use it on another connection or at another
//! manager. The credential must be restricted to the manager's user.

use super::not_authenticated;
use hotlease_wire::Rejection;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Limit of credentials that are decoded at a time; others wait.
const AT_ONCE_MAX: usize = 4;
/// Time limit for decoding a credential, waiting included.
const DECODE_LIMIT: Duration = Duration::from_secs(5);
/// Longest time to live of a credential, seconds.
const TTL_S_MAX: u64 = 300;

/// Access to the cluster's MUNGE daemon.
#[derive(Debug, Clone)]
pub struct MungeConfig {
    /// Program that decodes credentials (default: `unmunge` in the search path).
    pub program: PathBuf,
    /// Socket of MUNGE's daemon, if it is not the default socket.
    pub socket: Option<PathBuf>,
}

impl Default for MungeConfig {
    fn default() -> Self {
        Self {
            program: "unmunge".into(),
            socket: None,
        }
    }
}

/// Checks MUNGE credentials with `unmunge`.
pub(super) struct Munge {
    config: MungeConfig,
    places: Semaphore,
    /// User of the manager; credentials must be restricted to it.
    own_uid: u32,
}

impl Munge {
    pub fn new(config: MungeConfig, own_uid: u32) -> Self {
        Self {
            config,
            places: Semaphore::new(AT_ONCE_MAX),
            own_uid,
        }
    }

    /// Checks a credential and its payload; returns the user that made it.
    pub async fn check(&self, credential: &str, payload: &str) -> Result<u32, Rejection> {
        let is_one = credential.starts_with("MUNGE:") && credential.ends_with(':') && credential.is_ascii();
        if !is_one {
            return Err(not_authenticated("that is no MUNGE credential"));
        }
        let decoded = timeout(DECODE_LIMIT, self.decode(credential)).await;
        let output = decoded.map_err(|_| not_authenticated("MUNGE did not answer in time"))??;
        check_decoded(&output, payload, self.own_uid)
    }

    /// Runs `unmunge`; returns its output: lines about the credential, an empty line, and the payload.
    async fn decode(&self, credential: &str) -> Result<String, Rejection> {
        let failed = |error: std::io::Error| {
            tracing::warn!(%error, "unmunge cannot be run");
            not_authenticated("this manager cannot ask MUNGE; its log says why")
        };
        let closed = |_| not_authenticated("the manager is stopping");
        let _place = self.places.acquire().await.map_err(closed)?;
        let mut command = Command::new(&self.config.program);
        command.arg("--numeric");
        if let Some(socket) = &self.config.socket {
            command.arg("--socket").arg(socket);
        }
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the program is gone already, its exit status tells why.
            let _ = stdin.write_all(credential.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(failed)?;
        if !output.status.success() {
            // Expired, replayed, of another key, for another user: the status says which.
            tracing::debug!(status = ?output.status.code(), "unmunge refused a credential");
            return Err(not_authenticated(
                "MUNGE does not accept the credential: expired, used, or another's",
            ));
        }
        String::from_utf8(output.stdout).map_err(|_| not_authenticated("the credential's payload is not ours"))
    }
}

fn check_decoded(output: &str, payload: &str, own_uid: u32) -> Result<u32, Rejection> {
    let refused = |why: &str| Err(not_authenticated(why));
    let Some((known, carried)) = output.split_once("\n\n") else {
        return refused("MUNGE's answer makes no sense");
    };
    let value = |name: &str| {
        let line = known.lines().find(|line| line.split(':').next() == Some(name));
        line.and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim())
    };
    let number = |name: &str| value(name).and_then(|value| value.parse::<u64>().ok());
    if number("UID_RESTRICTION") != Some(own_uid.into()) {
        return refused("the credential is not restricted to the manager's user");
    }
    if number("TTL").is_none_or(|ttl| ttl > TTL_S_MAX) {
        return refused("the credential lives for too long; make it with a time to live of 300 s at most");
    }
    if carried != payload {
        return refused("the credential was made for another connection or another manager");
    }
    match number("UID").and_then(|uid| u32::try_from(uid).ok()) {
        Some(uid) => Ok(uid),
        None => refused("MUNGE's answer makes no sense"),
    }
}
