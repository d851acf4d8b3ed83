//! Directories and ledgers for tests.

use hotlease_store::{DatabaseStore, SqliteOptions, open_sqlite};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Makes a directory that only its owner can enter, as a state directory must be.
pub(crate) fn directory() -> TempDir {
    let mut made = tempfile::Builder::new();
    made.permissions(Permissions::from_mode(0o700))
        .tempdir()
        .expect("a directory")
}

pub(crate) fn open(path: &Path) -> DatabaseStore {
    open_sqlite(path, SqliteOptions::default()).expect("opened")
}
