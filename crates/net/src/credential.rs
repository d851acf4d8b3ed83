//! Credentials of a client without a certificate. Each is read from a file or made by a program: no secret is in an
//! argument, in the environment, or in a log.

use crate::NetError;
use crate::error::IdentityError;
use crate::identity::check_private_metadata;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

/// Longest secret in a file, bytes: more than any manager accepts.
const SECRET_BYTES_MAX: u64 = 8 << 10;
/// Limit for running `munge`.
const MUNGE_WITHIN: Duration = Duration::from_secs(5);
/// Lifetime of a MUNGE credential, seconds: it is used at once, but clocks of a cluster differ.
const MUNGE_TTL_S: u32 = 60;

/// Credential of a client without a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Credential {
    /// A key of `hotlease admin key add`, in a file that only its owner can read.
    KeyFile(PathBuf),
    /// A token (JWT) of an issuer that the manager trusts, in a file. The file is read again for each session, so its
    /// writer may replace it at any time.
    TokenFile(PathBuf),
    /// The user of this process, proved by the cluster's MUNGE.
    Munge {
        /// Socket of `munged`, if it is not the usual socket.
        socket: Option<PathBuf>,
    },
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyFile(path) => write!(f, "the key in {}", path.display()),
            Self::TokenFile(path) => write!(f, "the token in {}", path.display()),
            Self::Munge { socket: None } => f.write_str("MUNGE"),
            Self::Munge { socket: Some(path) } => write!(f, "MUNGE at {}", path.display()),
        }
    }
}

impl Credential {
    /// The `authorization` header; `None` for MUNGE, which needs a challenge.
    pub(crate) fn bearer(&self) -> Result<Option<String>, NetError> {
        let secret = match self {
            Self::KeyFile(path) => secret(path, true)?,
            Self::TokenFile(path) => secret(path, false)?,
            Self::Munge { .. } => return Ok(None),
        };
        Ok(Some(format!("Bearer {secret}")))
    }
}

/// Reads a secret from a file and strips the white space around it.
fn secret(path: &Path, ours_alone: bool) -> Result<String, IdentityError> {
    let unreadable = |source: io::Error| IdentityError::Unreadable {
        path: path.to_owned(),
        source: Arc::new(source),
    };
    let file = File::open(path).map_err(unreadable)?;
    if ours_alone {
        // Check the open file: another process could replace the file of that name.
        check_private_metadata(path, &file.metadata().map_err(unreadable)?)?;
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    let malformed = |why: &str| IdentityError::Malformed {
        path: path.to_owned(),
        why: why.into(),
    };
    let secret = text.trim();
    if text.len() as u64 > SECRET_BYTES_MAX {
        return Err(malformed("it is too long for a key or a token"));
    }
    let is_one_word = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_one_word {
        return Err(malformed(
            "it should hold a key or a token, on one line, and nothing else",
        ));
    }
    Ok(secret.to_owned())
}

/// Makes a MUNGE credential that carries `payload` and that only the user `reader` can decode.
pub(crate) async fn munge(socket: Option<&Path>, payload: &str, reader: u32) -> Result<String, NetError> {
    let failed = |why: String| NetError::Munge { why };
    let mut command = Command::new("munge");
    command
        .arg(format!("--restrict-uid={reader}"))
        .arg(format!("--ttl={MUNGE_TTL_S}"));
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let made = async {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the program is gone already, its exit status shows why.
            let _ = stdin.write_all(payload.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = timeout(MUNGE_WITHIN, made)
        .await
        .map_err(|_| failed(format!("it did not answer within {} s", MUNGE_WITHIN.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(words.trim().chars().take(200).collect()));
    }
    let credential = String::from_utf8(output.stdout).unwrap_or_default();
    match credential.trim() {
        credential if credential.starts_with("MUNGE:") => Ok(credential.to_owned()),
        _ => Err(failed("its output is no credential".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_and_no_error_shows_it() {
        for mode in [0o644, 0o640, 0o604, 0o660] {
            let (_dir, path) = file("hlk_secret\n", mode);
            let error = Credential::KeyFile(path.clone()).bearer().unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(
                matches!(error, NetError::Identity(IdentityError::Unsafe { .. })),
                "{mode:o}: {error}"
            );
            assert!(!shown.contains("hlk_"), "{shown}");
            // The issuer of a token decides who may read its file, and tokens expire soon.
            let token = Credential::TokenFile(path).bearer().unwrap();
            assert_eq!(token.as_deref(), Some("Bearer hlk_secret"));
        }
        let (_dir, path) = file("hlk_secret\n", 0o600);
        assert_eq!(
            Credential::KeyFile(path).bearer().unwrap().as_deref(),
            Some("Bearer hlk_secret")
        );
    }

    #[test]
    fn a_token_that_is_replaced_counts_from_the_next_time_on() {
        let (dir, path) = file("first", 0o600);
        let credential = Credential::TokenFile(path.clone());
        assert_eq!(credential.bearer().unwrap().as_deref(), Some("Bearer first"));
        let next = dir.path().join("next");
        fs::write(&next, "second").unwrap();
        fs::rename(next, path).unwrap();
        assert_eq!(credential.bearer().unwrap().as_deref(), Some("Bearer second"));
    }

    #[test]
    fn a_file_without_a_secret_is_refused() {
        let long = "x".repeat(SECRET_BYTES_MAX as usize + 1);
        for text in ["", "\n", "two words", "two\nlines", "\u{e9}", "a\0b", &long] {
            let (_dir, path) = file(text, 0o600);
            let error = Credential::KeyFile(path).bearer().unwrap_err();
            assert!(
                matches!(error, NetError::Identity(IdentityError::Malformed { .. })),
                "{error}"
            );
        }
    }
}
