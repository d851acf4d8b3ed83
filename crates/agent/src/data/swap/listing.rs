//! States in a swap directory, for its operator, and the removal of expired ones.

use super::files::{self, FOLDER, LOCK, STATE};
use hotlease_wire::state::{StateHead, is_state_name};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Largest number of tenants that are looked at.
const TENANTS_MAX: usize = 64 * 1024;
/// Age from which an incomplete file is considered left by a process that is gone.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A saved state that no lease has restored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedState {
    /// Path of its file.
    pub path: PathBuf,
    /// Tenant that owns it.
    pub tenant: String,
    /// Name that leases use for it.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time since it was saved.
    pub age: Duration,
    /// Head of the file, or the reason why the head is invalid.
    pub head: Result<StateHead, String>,
}

/// Lists all states in a swap directory, sorted by tenant.
///
/// # Errors
/// An error of the system for the directory. Folders that do not belong to this user are left out.
pub fn list_states(directory: &Path) -> io::Result<Vec<SavedState>> {
    let mut states = Vec::new();
    each_file(directory, |tenant, path, there| {
        let Some(name) = files::name_of(&path).strip_suffix(&format!(".{STATE}")) else {
            return;
        };
        let head = files::open(&path).map_err(|error| error.to_string());
        states.push(SavedState {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            bytes: there.len(),
            age: age(there),
            head: head.and_then(|mut file: File| files::read_head(&mut file)),
            path,
        });
    })?;
    states.sort_by(|one, other| (&one.tenant, &one.name).cmp(&(&other.tenant, &other.name)));
    Ok(states)
}

/// Removes a state; returns whether the state existed.
///
/// # Errors
/// An error of the system, or `InvalidInput` for an invalid name of a state or a tenant.
pub fn remove(directory: &Path, tenant: &str, name: &str) -> io::Result<bool> {
    if !is_state_name(name) || tenant.contains(['/', '\0']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = directory
        .join(format!("{FOLDER}{tenant}"))
        .join(format!("{name}.{STATE}"));
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes states older than `keep`, and incomplete files of agents that are gone. Blocks.
pub(crate) fn expire(directory: &Path, keep: Duration) {
    let removed = each_file(directory, |tenant, path, there| {
        let name = files::name_of(&path);
        if name.ends_with(&format!(".{LOCK}")) {
            return files::remove_lock(&path);
        }
        let limit = match name.ends_with(&format!(".{STATE}")) {
            true => keep,
            false => keep.max(LEFT_AFTER),
        };
        if age(there) > limit && fs::remove_file(&path).is_ok() {
            tracing::info!(tenant, path = %path.display(), "a state that no lease has asked for is removed");
        }
    });
    if let Err(error) = removed {
        tracing::warn!(directory = %directory.display(), %error, "cannot read the swap directory: expired states stay");
    }
}

/// Calls `what` with each file in folders of tenants that only this user may enter.
fn each_file(directory: &Path, mut what: impl FnMut(&str, PathBuf, &fs::Metadata)) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.take(TENANTS_MAX).flatten() {
        let folder = entry.path();
        let Some(tenant) = files::name_of(&folder).strip_prefix(FOLDER) else {
            continue;
        };
        if !files::is_ours(&folder) {
            continue;
        }
        for path in files::files(&folder).unwrap_or_default() {
            if let Ok(there) = fs::symlink_metadata(&path)
                && there.is_file()
            {
                what(tenant, path, &there);
            }
        }
    }
    Ok(())
}

fn age(there: &fs::Metadata) -> Duration {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(there.mtime().max(0) as u64);
    SystemTime::now().duration_since(changed).unwrap_or_default()
}
