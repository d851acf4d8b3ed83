//! Which states there are in a swap directory, for its operator; and those that nobody has asked for in time.

use super::folder::{self, FOLDER, LOCK, STATE};
use hotlease_wire::state::{StateHead, is_state_name};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Tenants that are looked at.
const TENANTS_MAX: usize = 64 * 1024;
/// What was left half-way this long ago was left by somebody who is gone.
const LEFT_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A state that nobody has restored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedState {
    /// Its file.
    pub path: PathBuf,
    /// Whose it is.
    pub tenant: String,
    /// What leases call it.
    pub name: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Since it was saved, or begun.
    pub age: Duration,
    /// What its head says; or why it is none.
    pub head: Result<StateHead, String>,
}

/// All states in a swap directory, those of one tenant together.
///
/// # Errors
/// What the system says of the directory. Folders that are not this user's are left out.
pub fn saved(directory: &Path) -> io::Result<Vec<SavedState>> {
    let mut states = Vec::new();
    each_file(directory, |tenant, path, there| {
        let Some(name) = folder::name_of(&path).strip_suffix(&format!(".{STATE}")) else {
            return;
        };
        let head = folder::open(&path).map_err(|error| error.to_string());
        states.push(SavedState {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            bytes: there.len(),
            age: age(there),
            head: head.and_then(|mut file: File| folder::read_head(&mut file)),
            path,
        });
    })?;
    states.sort_by(|one, other| (&one.tenant, &one.name).cmp(&(&other.tenant, &other.name)));
    Ok(states)
}

/// Removes a state; whether it was there.
///
/// # Errors
/// What the system says, and `InvalidInput` for what is no name of a state or a tenant.
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

/// Removes states older than `keep`, and what was left half-way by agents that are gone. Blocks.
pub(super) fn expire(directory: &Path, keep: Duration) {
    let removed = each_file(directory, |tenant, path, there| {
        let name = folder::name_of(&path);
        if name.ends_with(&format!(".{LOCK}")) {
            return folder::remove_lock(&path);
        }
        let limit = match name.ends_with(&format!(".{STATE}")) {
            true => keep,
            false => keep.max(LEFT_AFTER),
        };
        if age(there) > limit && fs::remove_file(&path).is_ok() {
            tracing::info!(tenant, path = %path.display(), "a state that nobody has asked for is removed");
        }
    });
    if let Err(error) = removed {
        tracing::warn!(directory = %directory.display(), %error, "the swap directory cannot be looked through");
    }
}

/// Each file in folders of tenants that are this user's alone.
fn each_file(directory: &Path, mut what: impl FnMut(&str, PathBuf, &fs::Metadata)) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.take(TENANTS_MAX).flatten() {
        let folder = entry.path();
        let Some(tenant) = folder::name_of(&folder).strip_prefix(FOLDER) else {
            continue;
        };
        if !folder::is_ours(&folder) {
            continue;
        }
        for path in folder::files(&folder).unwrap_or_default() {
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
