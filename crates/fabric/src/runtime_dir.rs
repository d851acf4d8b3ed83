//! Directory of the sockets and logs of a user's platform.

use nix::unistd::getuid;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory that only its owner can enter.
#[derive(Debug, Clone)]
pub struct RuntimeDir(PathBuf);

/// Reason why there is no safe runtime directory.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// The directory cannot be made or inspected.
    #[error("cannot use the runtime directory {path}: {source}; set HOTLEASE_RUNTIME_DIR to a directory of yours")]
    Io {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another user could put sockets into the directory.
    #[error("the runtime directory {path} is not safe: {why}; {remedy} or set HOTLEASE_RUNTIME_DIR to another place")]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Defect of the directory.
        why: &'static str,
        /// Remedy: the part of the message up to the `or`.
        remedy: String,
    },
    /// The path is too long: sockets in the directory could not be bound or connected to.
    #[error(
        "{path} is too long for a socket: at most {SOCKET_PATH_BYTES_MAX} bytes; set HOTLEASE_RUNTIME_DIR to a shorter one"
    )]
    TooLong {
        /// Path of a socket in the directory.
        path: PathBuf,
    },
}

/// Longest socket path of the kernel: `sun_path` without its zero byte.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Socket that clients look for first.
const FIRST_SOCKET: &str = "manager.sock";

impl RuntimeDir {
    /// Resolves `$HOTLEASE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/hotlease`, else `/tmp/hotlease-UID`. Makes the
    /// directory with mode 0700 if it is missing; refuses it if other users could enter it.
    pub fn resolve() -> Result<Self, RuntimeDirError> {
        let from = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let path = from("HOTLEASE_RUNTIME_DIR")
            .or_else(|| from("XDG_RUNTIME_DIR").map(|dir| dir.join("hotlease")))
            .unwrap_or_else(|| PathBuf::from(format!("/tmp/hotlease-{}", getuid())));
        Self::at(&path)
    }

    /// Runtime directory at this path, made if missing.
    pub fn at(path: &Path) -> Result<Self, RuntimeDirError> {
        let io = |source| RuntimeDirError::Io {
            path: path.to_owned(),
            source,
        };
        // Checked before the directory is made. Otherwise a client that looks for a socket at such a path would only
        // report that no daemon serves it.
        let socket = path.join(FIRST_SOCKET);
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(RuntimeDirError::TooLong { path: socket });
        }
        if let Err(error) = DirBuilder::new().mode(0o700).create(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(io(error));
        }
        // This does not follow a link, because a link of another user could point anywhere.
        let metadata = path.symlink_metadata().map_err(io)?;
        let shown = path.display();
        let (why, remedy) = if metadata.is_symlink() {
            let remedy = "name the directory that it leads to,".to_owned();
            ("it is a symbolic link, which others may point elsewhere", remedy)
        } else if !metadata.is_dir() {
            ("it is not a directory", format!("`rm {shown}`"))
        } else if metadata.uid() != getuid().as_raw() {
            let remedy = "let its owner or root remove it,".to_owned();
            ("it belongs to another user", remedy)
        } else if metadata.mode() & 0o077 != 0 {
            let why = "others can access it (its mode must be 0700)";
            (why, format!("`chmod 700 {shown}`"))
        } else {
            return Ok(Self(path.to_owned()));
        };
        Err(RuntimeDirError::Unsafe {
            path: path.to_owned(),
            why,
            remedy,
        })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of a file in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn made_private_and_refused_when_open() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("hotlease");
        let dir = RuntimeDir::at(&path).unwrap();
        assert_eq!(dir.path().metadata().unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let open = RuntimeDir::at(&path).unwrap_err().to_string();
        assert!(open.contains(&format!("`chmod 700 {}`", path.display())), "{open}");
        let link = parent.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        let linked = RuntimeDir::at(&link).unwrap_err();
        assert!(matches!(&linked, RuntimeDirError::Unsafe { why, .. } if why.contains("symbolic link")));
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused_before_it_is_made() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("x".repeat(100));
        assert!(matches!(RuntimeDir::at(&path), Err(RuntimeDirError::TooLong { .. })));
        assert!(!path.exists());
    }
}
