//! Directory of an allocator: its state in a file, a log of what it did, scripts and outputs of jobs.
//!
//! Each change is made while the directory's lock is held, by the allocator or by a command, and is on the disk before
//! the lock is released.

use super::records::{AllocatorState, PilotJob};
use anyhow::{Context, bail};
use clap::Args;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// File of the state.
const STATE: &str = "state.json";
/// Lock of the process that changes the state.
const LOCK: &str = "lock";
/// Lock of the allocator that runs.
const SERVING: &str = "serving";
/// Log of what was done.
const LOG: &str = "log";
/// Length of a log at which a new log is begun, bytes; one earlier log is kept.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Time after which scripts and outputs of jobs are removed.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Arguments of the allocator's directory.
#[derive(Debug, Clone, Args)]
pub(super) struct DirectoryArgs {
    /// Directory of the allocator [default: hotlease/alloc in XDG_STATE_HOME or ~/.local/state]
    #[arg(long = "alloc-dir", value_name = "DIR", env = "HOTLEASE_ALLOC_DIR")]
    directory: Option<PathBuf>,
}

impl DirectoryArgs {
    /// The directory, made if it is not there.
    pub(super) fn open(&self) -> anyhow::Result<AllocatorDirectory> {
        let path = match &self.directory {
            Some(path) => std::path::absolute(path)?,
            None => default_path().context("there is no home directory; name one with --alloc-dir")?,
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        // The state names commands, which this user would run.
        let found = fs::metadata(&path).with_context(|| format!("cannot use {}", path.display()))?;
        if found.uid() != geteuid().as_raw() {
            bail!(
                "{} belongs to another user, who could let you run any command; name another one with --alloc-dir",
                path.display()
            );
        }
        if found.mode() & 0o022 != 0 {
            bail!(
                "others can write to {0}, and so let you run any command: chmod go-w {0}",
                path.display()
            );
        }
        Ok(AllocatorDirectory { path })
    }
}

fn default_path() -> Option<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("hotlease/alloc"))
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64
}

/// Directory of an allocator.
#[derive(Debug, Clone)]
pub(super) struct AllocatorDirectory {
    path: PathBuf,
}

impl AllocatorDirectory {
    fn open_file(&self, name: &str) -> anyhow::Result<File> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// Reads the state, without the right to change it.
    pub(super) fn read(&self) -> anyhow::Result<AllocatorState> {
        let path = self.path.join(STATE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!(
                    "cannot read {}; move it away to begin anew, and cancel its jobs",
                    path.display()
                )
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AllocatorState::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Waits for the right to change the state.
    pub(super) fn edit(&self) -> anyhow::Result<StateEdit> {
        let lock = Flock::lock(self.open_file(LOCK)?, FlockArg::LockExclusive)
            .map_err(|(_, error)| anyhow::Error::new(error).context("cannot lock the allocator's directory"))?;
        Ok(StateEdit {
            state: self.read()?,
            directory: self.clone(),
            _lock: lock,
        })
    }

    /// Takes the right to be the allocator that runs; refuses if another allocator has it.
    pub(super) fn serve(&self) -> anyhow::Result<Flock<File>> {
        match Flock::lock(self.open_file(SERVING)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(lock),
            Err((_, Errno::EWOULDBLOCK)) => bail!("an allocator runs already in {}", self.path.display()),
            Err((_, error)) => Err(error).context("cannot lock the allocator's directory"),
        }
    }

    /// Whether an allocator runs.
    pub(super) fn is_served(&self) -> anyhow::Result<bool> {
        let lock = Flock::lock(self.open_file(SERVING)?, FlockArg::LockSharedNonblock);
        Ok(matches!(lock, Err((_, Errno::EWOULDBLOCK))))
    }

    /// File with the output of a job.
    pub(super) fn output(&self, job: &str) -> PathBuf {
        self.path.join("jobs").join(format!("{job}.out"))
    }

    /// Writes the script of a job; returns its path.
    pub(super) fn write_script(&self, job: &str, text: &str) -> anyhow::Result<PathBuf> {
        let folder = self.path.join("jobs");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let path = folder.join(format!("{job}.sh"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Removes old scripts and outputs of jobs.
    pub(super) fn clean(&self) {
        let Ok(files) = fs::read_dir(self.path.join("jobs")) else {
            return;
        };
        for file in files.flatten() {
            let age = file
                .metadata()
                .and_then(|data| data.modified())
                .map(|at| at.elapsed().unwrap_or_default());
            if age.is_ok_and(|age| age > KEPT) {
                // A file that cannot be removed is tried again next time.
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Adds a line about a queue to the log.
    pub(super) fn log(&self, queue: &str, what: impl Display) {
        tracing::info!(queue, "{what}");
        let path = self.path.join(LOG);
        if fs::metadata(&path).is_ok_and(|data| data.len() > LOG_BYTES_MAX) {
            // If the rename fails, the log grows.
            let _ = fs::rename(&path, self.path.join("log.1"));
        }
        let now = OffsetDateTime::now_utc()
            .replace_nanosecond(0)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let at = now.format(&Rfc3339).unwrap_or_default();
        let what = what.to_string().replace('\n', " ");
        let written = self
            .open_file(LOG)
            .and_then(|mut file| Ok(writeln!(file, "{at} {queue}: {what}")?));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write the log");
        }
    }

    /// Lines of the log about a queue, or all lines, oldest first.
    pub(super) fn log_lines(&self, queue: Option<&str>) -> Vec<String> {
        let read = |name: &str| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let text = read("log.1") + &read(LOG);
        let is_meant = |line: &&str| {
            let named = line.split_once(' ').and_then(|(_, rest)| rest.split_once(": "));
            queue.is_none_or(|queue| named.is_some_and(|(name, _)| name == queue))
        };
        text.lines().filter(is_meant).map(str::to_owned).collect()
    }
}

/// Right to change the state of an allocator.
pub(super) struct StateEdit {
    /// The state; [`StateEdit::save`] writes changes to the disk.
    pub state: AllocatorState,
    directory: AllocatorDirectory,
    _lock: Flock<File>,
}

impl StateEdit {
    /// Writes the state to the disk.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let at = &self.directory.path;
        let saved: anyhow::Result<()> = (|| {
            let mut file = tempfile::NamedTempFile::new_in(at)?;
            serde_json::to_writer_pretty(&mut file, &self.state)?;
            file.as_file().sync_all()?;
            file.persist(at.join(STATE))?;
            Ok(File::open(at)?.sync_all()?)
        })();
        saved.with_context(|| format!("cannot write the state in {}", at.display()))
    }
}

/// Text for a job in messages: its number, or its name while it has no number.
pub(super) fn job_text(job: &PilotJob) -> String {
    job.number.clone().unwrap_or_else(|| job.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn a_directory_in_which_others_could_name_commands_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = DirectoryArgs {
            directory: Some(folder.path().to_owned()),
        };
        for (mode, is_safe) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false)] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("set");
            let refused = directory.open().map(drop).map_err(|error| error.to_string());
            assert_eq!(refused.is_ok(), is_safe, "{mode:o}: {refused:?}");
            assert!(refused.is_ok() || refused.is_err_and(|why| why.contains("chmod go-w")));
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).expect("set");
        // Only root can give folders away.
        if geteuid().is_root() {
            chown(folder.path(), Some(4242), None).expect("given away");
            let refused = directory.open().map(drop).map_err(|error| error.to_string());
            assert!(refused.is_err_and(|why| why.contains("another user")));
        }
    }
}
