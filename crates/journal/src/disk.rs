//! The journal's file: records are appended, and from time to time the file is written anew.
//!
//! After a failed write or sync, it is unknown what the file contains: the system may have dropped pages that it could
//! not write, and a second sync that succeeds would prove nothing. So the next attempt writes a whole new file beside
//! the old file, and renames the new file to the old name when it is durable.

use crate::directory::sync_directory;
use crate::totals::TotalsTable;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the file in the agent's state directory.
pub const JOURNAL_FILE: &str = "usage.journal";
/// Name under which a damaged journal is kept, for people.
const DAMAGED_FILE: &str = "usage.journal.damaged";
const NEW_FILE: &str = "usage.journal.new";
/// A file below this size is not written anew.
const COMPACT_BYTES: u64 = 1 << 20;
/// A larger file is written anew when its size is more than this many times the size that its contents need.
const COMPACT_TIMES: u64 = 4;
/// Longest file that is read, bytes: more than [`UNACKNOWLEDGED_MAX`](crate::UNACKNOWLEDGED_MAX) records ever need.
const BYTES_MAX: u64 = 256 << 20;

/// Operations of a journal on its disk; tests inject faults here.
pub trait Medium: Send {
    /// Appends bytes. If it fails, a part of them may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes all appended bytes durable: after the call, they survive a loss of power.
    fn sync(&mut self) -> io::Result<()>;
    /// Replaces the whole contents. After the call, the new contents survive a loss of power. If it fails, the file has
    /// either the old or the new contents, complete.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Journal file in a state directory.
pub struct FileMedium {
    directory: PathBuf,
    file: File,
}

fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    options.open(path)
}

impl FileMedium {
    /// Opens the journal of a directory, or makes it if it is missing. Returns the journal and its bytes.
    pub fn open(directory: &Path) -> io::Result<(Self, Vec<u8>)> {
        let bytes = read(&directory.join(JOURNAL_FILE))?;
        let file = private(&directory.join(JOURNAL_FILE))?;
        sync_directory(directory)?;
        let medium = Self {
            directory: directory.to_owned(),
            file,
        };
        Ok((medium, bytes))
    }

    /// Copies a damaged journal to another name before it is replaced.
    pub fn keep_damaged(&self) -> io::Result<PathBuf> {
        let kept = self.directory.join(DAMAGED_FILE);
        fs::copy(self.directory.join(JOURNAL_FILE), &kept)?;
        Ok(kept)
    }
}

/// Bytes of a journal; empty if there is none.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => {
            file.take(BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(bytes),
        Err(error) => Err(error),
    }
}

impl Medium for FileMedium {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = self.directory.join(NEW_FILE);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, self.directory.join(JOURNAL_FILE))?;
        self.file = file;
        sync_directory(&self.directory)
    }
}

/// Medium with its state: how much of the table has been written to it.
pub struct Disk<M> {
    medium: M,
    length: u64,
    unsynced: bool,
    /// Whether the last operation failed: the next write makes a new file.
    failed: bool,
}

/// Bytes to write: taken from the table under its lock, and written without the lock.
pub struct WritePlan {
    bytes: Vec<u8>,
    anew: bool,
    sync: bool,
}

impl<M: Medium> Disk<M> {
    /// Wraps a medium that contains `length` bytes. `damaged`: some of the bytes are not records.
    pub fn new(medium: M, length: u64, damaged: bool) -> Self {
        Self {
            medium,
            length,
            unsynced: false,
            failed: damaged,
        }
    }

    /// The wrapped medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Whether some written bytes are not durable yet.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Whether the last write failed, so that the file must be made anew.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Takes the changes that have to be written from the table. `sync`: make them durable. The end of a lease is
    /// always made durable.
    pub fn plan(&self, table: &mut TotalsTable, sync: bool) -> WritePlan {
        let bloated = self.length > COMPACT_BYTES.max(COMPACT_TIMES * table.snapshot_bytes());
        if self.failed || bloated {
            return WritePlan {
                bytes: table.snapshot(),
                anew: true,
                sync,
            };
        }
        let (bytes, ended) = table.take_changes();
        WritePlan {
            bytes,
            anew: false,
            sync: sync || ended,
        }
    }

    /// Writes planned bytes. After an error, the table has lost nothing, and the next plan contains the whole table.
    pub fn write_plan(&mut self, work: &WritePlan) -> io::Result<()> {
        let done = self.write(work);
        self.failed = done.is_err();
        done
    }

    fn write(&mut self, work: &WritePlan) -> io::Result<()> {
        if work.anew {
            self.medium.replace(&work.bytes)?;
            self.length = work.bytes.len() as u64;
            self.unsynced = false;
            return Ok(());
        }
        if !work.bytes.is_empty() {
            self.medium.append(&work.bytes)?;
            self.length += work.bytes.len() as u64;
            self.unsynced = true;
        }
        if work.sync && self.unsynced {
            self.medium.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }
}
