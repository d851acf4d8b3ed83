//! Where the sockets and logs of a user's platform live.

use nix::unistd::getuid;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A directory that only its owner can enter.
#[derive(Debug, Clone)]
pub struct RuntimeDir(PathBuf);

/// Why there is no safe runtime directory.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// It cannot be made or inspected.
    #[error(
        "cannot use the runtime directory {path}: {source}; set HOTLEASE_RUNTIME_DIR to a directory of yours"
    )]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else could put sockets there.
    #[error("the runtime directory {path} is not safe: {why}; remove it, or set HOTLEASE_RUNTIME_DIR")]
    Unsafe {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl RuntimeDir {
    /// `$HOTLEASE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/hotlease`, else `/tmp/hotlease-UID`; made with mode
    /// 0700 if missing, refused if others could enter it.
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

    /// This directory, made if missing.
    pub fn at(path: &Path) -> Result<Self, RuntimeDirError> {
        let io = |source| RuntimeDirError::Io {
            path: path.to_owned(),
            source,
        };
        if let Err(error) = DirBuilder::new().mode(0o700).create(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(io(error));
        }
        // Not following a link: a foreign link here could point anywhere.
        let metadata = path.symlink_metadata().map_err(io)?;
        let why = if !metadata.is_dir() {
            "it is not a directory"
        } else if metadata.uid() != getuid().as_raw() {
            "it belongs to another user"
        } else if metadata.mode() & 0o077 != 0 {
            "others can access it (its mode must be 0700)"
        } else {
            return Ok(Self(path.to_owned()));
        };
        Err(RuntimeDirError::Unsafe {
            path: path.to_owned(),
            why,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
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
        assert!(matches!(
            RuntimeDir::at(&path),
            Err(RuntimeDirError::Unsafe { .. })
        ));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(matches!(
            RuntimeDir::at(&link),
            Err(RuntimeDirError::Unsafe { .. })
        ));
    }
}
