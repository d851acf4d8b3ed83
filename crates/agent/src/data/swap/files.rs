//! Files of saved states, in a directory that several nodes see: `DIRECTORY/of-TENANT/NAME.state`.
//!
//! ```text
//! NAME.lock          held (flock) by the agent whose lease has the state now
//! NAME.part          being written by the holder of the lock; renamed when it is complete and synced
//! NAME.state         complete
//! NAME.taken-LEASE   being restored by this lease; removed when that is done, or renamed back
//! .quota             held (flock) while an agent counts the tenant's bytes, and reserves some of the rest
//! ```
//!
//! A part is as long as its reservation, so that states which are saved at the same time use quota for their full size.
//!
//! The lock shows that a state is in use, if the file system has locks that all nodes see. Even without such locks only
//! one lease gets a state: if two agents rename the same file, only one rename succeeds.

use super::SwapOptions;
use crate::workers::worker::StartError;
use hotlease_wire::ids::LeaseId;
use hotlease_wire::state::{HEAD_BYTES, StateHead};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Prefix of a tenant's folder. No tenant's name begins with it.
pub(super) const FOLDER: &str = "of-";
pub(super) const STATE: &str = "state";
pub(super) const LOCK: &str = "lock";
const PART: &str = "part";
const TAKEN: &str = "taken-";
/// No state has this name.
const QUOTA: &str = ".quota";
/// Interval of the attempts to get a lock.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for the lock of a tenant's quota, which is held for one look into a folder.
const QUOTA_WITHIN: Duration = Duration::from_secs(4);
/// Fewest bytes that are reserved at a time, unless fewer are left.
const RESERVED_BYTES: u64 = 64 << 10;
/// Largest number of bytes that are read of a lock's file.
const HOLDER_BYTES_MAX: u64 = 256;
/// Bytes that are hashed at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Largest number of files of one tenant: all of them are looked at when a state is saved.
pub(super) const FILES_MAX: usize = 16 * 1024;

/// The state that a lease asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateRequest {
    pub tenant: String,
    pub name: String,
    /// Hash of its program.
    pub program: [u8; 32],
    pub lease: LeaseId,
}

/// The right to a state, as long as this value lives.
pub(crate) struct StateLock {
    folder: PathBuf,
    wanted: StateRequest,
    _lock: Flock<File>,
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> String + 'a {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

/// The folder of a tenant, made if it is missing; refused unless only the agent's user may enter it.
fn folder_of(directory: &Path, tenant: &str) -> Result<PathBuf, String> {
    if tenant.contains(['/', '\0']) {
        return Err(format!("the tenant {tenant:?} has a name that no folder can have"));
    }
    let folder = directory.join(format!("{FOLDER}{tenant}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make", &folder)(error));
        }
        _ => {}
    }
    if !is_ours(&folder) {
        return Err(format!(
            "{} is not a folder of the agent's user alone (mode 0700): states are not safe there",
            folder.display()
        ));
    }
    Ok(folder)
}

/// Whether this is a folder of this user that no other user may enter.
pub(super) fn is_ours(folder: &Path) -> bool {
    let there = fs::symlink_metadata(folder);
    there.is_ok_and(|there| there.is_dir() && there.uid() == geteuid().as_raw() && there.mode() & 0o077 == 0)
}

/// Result of an attempt to get a state.
pub(crate) enum StateClaim {
    /// The state belongs to this lease now.
    Held(StateLock),
    /// Another lease has the state; the message names that lease.
    InUse(String),
}

impl StateLock {
    /// Takes the state unless another lease holds it. Blocks for the file system only.
    pub fn try_take(directory: &Path, wanted: StateRequest, holder: &str) -> Result<StateClaim, String> {
        let folder = folder_of(directory, &wanted.tenant)?;
        let path = folder.join(format!("{}.{LOCK}", wanted.name));
        let Some(lock) = try_lock(&path)? else {
            let mut holder = String::new();
            // The holder of the lock writes this text, which may still be missing.
            let _ = File::open(&path).map(|file| file.take(HOLDER_BYTES_MAX).read_to_string(&mut holder));
            return Ok(StateClaim::InUse(format!(
                "the state `{}` is in use by {}; end that lease, wait, or use another name",
                wanted.name,
                if holder.is_empty() { "another lease" } else { &holder }
            )));
        };
        lock.set_len(0).map_err(failed("write", &path))?;
        lock.write_all_at(holder.as_bytes(), 0)
            .map_err(failed("write", &path))?;
        Ok(StateClaim::Held(Self {
            folder,
            wanted,
            _lock: lock,
        }))
    }

    fn path(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.wanted.name))
    }

    /// Takes the saved state for this lease; returns `None` if there is none. Blocks.
    pub fn take_saved(&self) -> Result<Option<TakenState>, StartError> {
        let saved = self.path(STATE);
        let taken = self.path(&format!("{TAKEN}{}", self.wanted.lease));
        match fs::rename(&saved, &taken) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.no_saved_state(&saved).map_err(StartError::for_now);
            }
            renamed => renamed.map_err(failed("take", &saved)).map_err(StartError::for_now)?,
        }
        // From here on the state is put back unless it was restored.
        let place = StateFile {
            saved,
            taken,
            is_restored: false,
        };
        let shown = place.saved.display();
        let refused = |why: &dyn std::fmt::Display| {
            StartError::for_good(format!(
                "{shown} is not restored: {why}. Remove it (`hotlease state rm`), or use another name"
            ))
        };
        let file = open(&place.taken).map_err(failed("open", &place.saved));
        let mut file = file.map_err(StartError::for_now)?;
        let head = read_head(&mut file).map_err(|why| refused(&why))?;
        let StateRequest {
            tenant, name, program, ..
        } = &self.wanted;
        head.check_owner(tenant, name, program).map_err(|why| refused(&why))?;
        check_bytes(&mut file, &head).map_err(|why| refused(&why))?;
        Ok(Some(TakenState { place, file, head }))
    }

    /// Explains why there is no saved state. Returns `None` if there never was a saved state. Fails if a lease is
    /// restoring the state, or has ended without restoring it or putting it back.
    fn no_saved_state(&self, saved: &Path) -> Result<Option<TakenState>, String> {
        let begins = format!("{}.{TAKEN}", self.wanted.name);
        let left = files(&self.folder)?
            .into_iter()
            .find(|path| name_of(path).starts_with(&begins));
        match left {
            None => Ok(None),
            Some(left) => Err(format!(
                "the state `{}` is being restored by another lease, or an agent ended meanwhile; then rename {} to {}",
                self.wanted.name,
                left.display(),
                saved.display()
            )),
        }
    }

    /// Makes a file to write the state to. Blocks.
    pub fn part(&self, options: &SwapOptions) -> Result<StateWriter, String> {
        let (path, saved) = (self.path(PART), self.path(STATE));
        // A worker or agent that was killed here may have left a file. No other process writes to a file of this name.
        let _ = fs::remove_file(&path);
        let mut file = private().create_new(true).open(&path).map_err(failed("make", &path))?;
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))
            .map_err(failed("write", &path))?;
        let mut part = StateWriter {
            folder: self.folder.clone(),
            path,
            saved,
            wanted: self.wanted.clone(),
            file,
            hasher: Box::default(),
            size_bytes: 0,
            reserved_bytes: 0,
            state_bytes: options.state_bytes,
            tenant_bytes: options.tenant_bytes,
            is_whole: false,
        };
        part.reserve(0)?;
        Ok(part)
    }
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // Removed while the lock is held: a process that opened the file earlier then notices that the file is gone.
        let _ = fs::remove_file(self.path(LOCK));
    }
}

/// A state that one lease is restoring; put back unless it was restored.
pub(crate) struct TakenState {
    place: StateFile,
    file: File,
    /// Head of the file.
    pub head: StateHead,
}

/// Present path of a state that is being restored, and its path if it is not restored.
struct StateFile {
    saved: PathBuf,
    taken: PathBuf,
    is_restored: bool,
}

impl TakenState {
    /// Path of the state if it is not restored.
    pub fn path(&self) -> &Path {
        &self.place.saved
    }

    /// Opens the state for reading, from its beginning.
    pub fn file(&self) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        Ok(file)
    }

    /// Removes the file, because the state was restored: from now on the state exists only in the worker. Blocks.
    pub fn mark_restored(mut self) {
        // Considered restored even if the file cannot be removed.
        self.place.is_restored = true;
        if let Err(error) = fs::remove_file(&self.place.taken) {
            tracing::error!(path = %self.place.taken.display(), %error, "a state that was restored cannot be removed");
        }
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if !self.is_restored
            && let Err(error) = fs::rename(&self.taken, &self.saved)
        {
            tracing::error!(from = %self.taken.display(), to = %self.saved.display(), %error, "a state cannot be put back");
        }
    }
}

/// A state that is being written; removed unless it was finished.
pub(crate) struct StateWriter {
    folder: PathBuf,
    path: PathBuf,
    saved: PathBuf,
    wanted: StateRequest,
    file: File,
    hasher: Box<blake3::Hasher>,
    size_bytes: u64,
    /// Bytes of the tenant's quota that are reserved for this state.
    reserved_bytes: u64,
    /// Largest number of bytes of this state.
    state_bytes: u64,
    /// Largest number of bytes of all states of the tenant.
    tenant_bytes: u64,
    is_whole: bool,
}

impl StateWriter {
    /// Reserves further bytes before they arrive. Fails if this state, or all states of the tenant together, would
    /// become too large with these bytes. Blocks.
    pub fn expect(&mut self, further: u64) -> Result<(), String> {
        let bytes = self.size_bytes.saturating_add(further);
        match bytes > self.state_bytes {
            true => Err(too_long(bytes, self.state_bytes)),
            false if bytes <= self.reserved_bytes => Ok(()),
            false => self.reserve(bytes),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), String> {
        let quota = QuotaLock::take(&self.folder)?;
        let all = files(&self.folder)?;
        if all.len() >= FILES_MAX {
            return Err(format!(
                "its tenant has {FILES_MAX} files in {}: remove some states (`hotlease state rm`)",
                self.folder.display()
            ));
        }
        let others = all
            .into_iter()
            .filter(|other| *other != self.path && *other != self.saved);
        let used: u64 = others
            .filter_map(|other| fs::symlink_metadata(other).ok())
            .map(|there| there.len())
            .sum();
        let limit = self.state_bytes.min(self.tenant_bytes.saturating_sub(used));
        if bytes > limit {
            return Err(too_long(bytes, limit));
        }
        // More than is needed now, so that many short pieces need few looks into the folder.
        let more = self.size_bytes.saturating_mul(2).max(RESERVED_BYTES);
        let reserved = bytes.max(more).min(limit);
        self.file
            .set_len(HEAD_BYTES as u64 + reserved)
            .map_err(failed("write", &self.path))?;
        drop(quota);
        self.reserved_bytes = reserved;
        Ok(())
    }

    /// Adds further bytes. Blocks.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.expect(bytes.len() as u64)?;
        self.size_bytes += bytes.len() as u64;
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(failed("write", &self.path))
    }

    /// Completes the state: from now on it is found, and survives a crash. Returns its path and bytes. Blocks.
    pub fn finish(mut self, host: &str) -> Result<(PathBuf, u64), String> {
        let head = StateHead {
            tenant: self.wanted.tenant.clone(),
            name: self.wanted.name.clone(),
            program: self.wanted.program,
            host: host.chars().take(64).collect(),
            saved_ms: since_1970_ms(),
            size_bytes: self.size_bytes,
            hash: *self.hasher.finalize().as_bytes(),
        };
        let head = head.encode().map_err(|error| error.to_string())?;
        let write = failed("write", &self.path);
        self.file.set_len(HEAD_BYTES as u64 + self.size_bytes).map_err(&write)?;
        self.file.write_all_at(&head, 0).map_err(&write)?;
        self.file.sync_all().map_err(&write)?;
        if self.saved.exists() {
            tracing::warn!(path = %self.saved.display(), "a saved state is replaced: two leases had it at the same time");
        }
        fs::rename(&self.path, &self.saved).map_err(&write)?;
        self.is_whole = true;
        if let Some(folder) = self.saved.parent() {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(failed("sync", folder))?;
        }
        Ok((self.saved.clone(), self.size_bytes))
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn too_long(bytes: u64, limit: u64) -> String {
    format!(
        "it has at least {bytes} bytes, and may have {limit}: see --swap-state-bytes and --swap-tenant-bytes of the agent, and `hotlease state ls`"
    )
}

/// The right to reserve bytes of a tenant's quota, as long as this value lives.
struct QuotaLock {
    path: PathBuf,
    _lock: Flock<File>,
}

impl QuotaLock {
    /// Waits until no other process counts the tenant's bytes. Blocks.
    fn take(folder: &Path) -> Result<Self, String> {
        let path = folder.join(QUOTA);
        let begun = Instant::now();
        loop {
            if let Some(lock) = try_lock(&path)? {
                return Ok(Self { path, _lock: lock });
            }
            if begun.elapsed() >= QUOTA_WITHIN {
                return Err(format!("{} is locked by another process", path.display()));
            }
            sleep(LOOK_EVERY);
        }
    }
}

impl Drop for QuotaLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks a file, and makes it if it is missing. Returns `None` if another process or lease has locked it. The holder of
/// the lock removes the file before it unlocks the file. Blocks for the file system only.
fn try_lock(path: &Path) -> Result<Option<Flock<File>>, String> {
    loop {
        let file = private().open(path).map_err(failed("open", path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Tries again if the file was removed between opening and locking it.
            Ok(lock) if is_same_file(&lock, path) => return Ok(Some(lock)),
            Ok(_) => continue,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(failed("lock", path)(errno.into())),
        }
    }
}

/// Options for files that only this user may access.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options.custom_flags((nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits());
    options
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let (opened, there) = (file.metadata(), fs::symlink_metadata(path));
    matches!((opened, there), (Ok(opened), Ok(there)) if (opened.dev(), opened.ino()) == (there.dev(), there.ino()))
}

pub(super) fn name_of(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// Removes the file of a lock that no process holds.
pub(super) fn remove_lock(path: &Path) {
    if let Ok(file) = open(path)
        && let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        && is_same_file(&lock, path)
    {
        let _ = fs::remove_file(path);
    }
}

/// Files in a folder, up to a limit.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(failed("list", folder))?;
    Ok(listed.take(FILES_MAX).flatten().map(|entry| entry.path()).collect())
}

/// Reads a file's head, and checks the file's length against it; then the reader is behind the head.
pub(super) fn read_head(file: &mut File) -> Result<StateHead, String> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    let read = Read::take(&mut *file, HEAD_BYTES as u64).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    let head = StateHead::decode(&bytes).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    head.check_length(length.saturating_sub(HEAD_BYTES as u64))
        .map_err(|error| error.to_string())?;
    Ok(head)
}

/// Checks the saved bytes against the hash in the head.
fn check_bytes(file: &mut File, head: &StateHead) -> Result<(), String> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut rest = Read::take(&mut *file, head.size_bytes);
    loop {
        match rest.read(&mut piece).map_err(|error| error.to_string())? {
            0 => break,
            count => hasher.update(&piece[..count]),
        };
    }
    head.check_bytes(hasher.finalize().as_bytes())
        .map_err(|error| error.to_string())
}

fn since_1970_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}
