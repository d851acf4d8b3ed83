//! The journal's file: appended to, and now and then written anew.
//!
//! After a failed write or sync nobody knows what the file holds: the system may have dropped pages that it
//! could not write, and a second sync that succeeds would prove nothing. So the next try is a whole new file,
//! made beside the old one and put in its place when it is durable.

use crate::directory::sync_directory;
use crate::table::Table;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the file in the agent's state directory.
pub const JOURNAL_FILE: &str = "usage.journal";
/// What was found damaged is kept under this name, for people.
const DAMAGED_FILE: &str = "usage.journal.damaged";
const NEW_FILE: &str = "usage.journal.new";
/// A file below this size is not worth writing anew.
const COMPACT_BYTES: u64 = 1 << 20;
/// A larger one is, when so many times as much as it has to say stands in it.
const COMPACT_TIMES: u64 = 4;
/// Largest file that is read: more than [`UNACKNOWLEDGED_MAX`](crate::UNACKNOWLEDGED_MAX) records ever need.
const BYTES_MAX: u64 = 256 << 20;

/// The seam for faults: what a journal asks of a disk.
pub trait Medium: Send {
    /// Writes at the end. May have written a part of it when it fails.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when all that was appended survives a loss of power.
    fn sync(&mut self) -> io::Result<()>;
    /// Puts this in the place of everything; when it returns that survives a loss of power, and when it
    /// fails, the old or the new is there, whole.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A file in a state directory.
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
    /// Opens the journal of a directory, made where missing. With the bytes in it.
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

    /// Keeps what is there under another name, before it is replaced.
    pub fn keep_damaged(&self) -> io::Result<PathBuf> {
        let kept = self.directory.join(DAMAGED_FILE);
        fs::copy(self.directory.join(JOURNAL_FILE), &kept)?;
        Ok(kept)
    }
}

/// The bytes of a journal; nothing where there is none.
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

/// A medium, and how far the table is in it.
pub struct Disk<M> {
    medium: M,
    length: u64,
    unsynced: bool,
    /// What failed last: the next write makes a new file.
    failed: bool,
}

/// What is to be written: taken from the table under its lock, written without it.
pub struct Work {
    bytes: Vec<u8>,
    anew: bool,
    sync: bool,
}

impl<M: Medium> Disk<M> {
    /// Of a medium that holds this many bytes. `damaged`: not all of them are records.
    pub fn new(medium: M, length: u64, damaged: bool) -> Self {
        Self {
            medium,
            length,
            unsynced: false,
            failed: damaged,
        }
    }

    /// The medium itself.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Whether something is written and not yet durable.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Whether the last write failed, and the file is to be made anew.
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// What there is to write. `sync`: make all of it durable; the end of a lease always is.
    pub fn plan(&self, table: &mut Table, sync: bool) -> Work {
        let bloated = self.length > COMPACT_BYTES.max(COMPACT_TIMES * table.snapshot_bytes());
        if self.failed || bloated {
            return Work {
                bytes: table.snapshot(),
                anew: true,
                sync,
            };
        }
        let (bytes, ended) = table.take_changes();
        Work {
            bytes,
            anew: false,
            sync: sync || ended,
        }
    }

    /// Writes it. On an error nothing is lost from the table, and the next plan says everything again.
    pub fn carry_out(&mut self, work: &Work) -> io::Result<()> {
        let done = self.write(work);
        self.failed = done.is_err();
        done
    }

    fn write(&mut self, work: &Work) -> io::Result<()> {
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
