//! Checkpoints: results that outlive the program, by key, in a file.
//!
//! A checkpoint is a cache on disk. A program appends results to it, and reads it at its start; results in the
//! checkpoint need not be computed again ([`Flow::restore`](crate::Flow::restore)). Checksums in every record prove
//! that the record is whole and at the offset where it was written. A torn or damaged record is skipped and reported.
//! It affects no other record, and never gives a wrong result. One process at a time writes to a file; other processes
//! may read the file meanwhile.
//!
//! ```
//! use hotlease_flow::{Checkpoint, MemoKey};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("run.checkpoint");
//! let (mut checkpoint, replay) = Checkpoint::open(&path)?;
//! assert_eq!(replay.count(), 0);
//! checkpoint.append(MemoKey([1; 32]), b"a result, as bytes")?;
//! checkpoint.sync()?;
//! drop(checkpoint);
//!
//! let (_, replay) = Checkpoint::open(&path)?;
//! for found in replay {
//!     match found {
//!         Ok(record) => assert_eq!((record.key, &record.value[..]), (MemoKey([1; 32]), &b"a result, as bytes"[..])),
//!         // Damage: shown to people; the other records count.
//!         Err(warning) => eprintln!("{warning}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The driver turns results into bytes and back. If it uses Python's pickle, a checkpoint must be trusted like a
//! program. So a file to which other users could have written is refused.

mod frame;
mod replay;

use crate::id::MemoKey;
use frame::{FileId, HEADER_BYTES, HeaderError};
use hotlease_journal::sync_directory;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use replay::{ByteSource, Scan, ScanItem};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest value of a record, bytes.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;
/// Number of bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// One result in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// Key of the computation.
    pub key: MemoKey,
    /// The result, as the driver wrote it.
    pub value: Vec<u8>,
    /// Offset of the record in the file.
    pub offset: u64,
}

/// Errors of a checkpoint. No task fails by them: a result that was not read or written is computed again.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// This process, or another process, writes to the file.
    #[error(
        "{path} is in use: one process at a time writes to a checkpoint; choose another file, or only read this one"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Other users could have written to the file, and some drivers run its contents as code.
    #[error("the checkpoint {path} is not safe to load: {why}")]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// Reason why it is not safe.
        why: &'static str,
    },
    /// The file is not a checkpoint; it was not touched.
    #[error("{path} is no checkpoint; it was left as it is: choose another file")]
    NotCheckpoint {
        /// The file.
        path: PathBuf,
    },
    /// The file has another version; it was not touched.
    #[error("the checkpoint {path} is of version {version}, this program knows {known}: use the program that wrote it, or another file", known = frame::VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        version: u16,
    },
    /// The first 64 bytes are damaged. Without them no record can be trusted. The file was not touched.
    #[error(
        "the beginning of the checkpoint {path} is damaged, so that nothing in it can be trusted: delete it or choose another file"
    )]
    Beginning {
        /// The file.
        path: PathBuf,
    },
    /// Some bytes are not a record, and were skipped; the records around them are read. The usual case is the end of a
    /// file after a crash.
    #[error(
        "{path}: {bytes} bytes from byte {offset} on are no whole record (a write cut short, or damage), and were skipped"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the first skipped byte.
        offset: u64,
        /// Number of skipped bytes.
        bytes: u64,
    },
    /// A result is too large for a checkpoint; nothing was written.
    #[error(
        "a result of {bytes} bytes is too large for a checkpoint ({VALUE_BYTES_MAX} at most): it will be computed again"
    )]
    TooLarge {
        /// Size of the result.
        bytes: u64,
    },
    /// The system refused an operation. If a write fails, records that were not written yet are lost; their results are
    /// computed again.
    #[error("cannot {what} the checkpoint {path}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// A checkpoint to which this process may write, until it is dropped.
///
/// Records are gathered in memory (256 KiB) and written together. [`Checkpoint::flush`] passes them to the system,
/// where they survive the death of the program. [`Checkpoint::sync`] writes them to the disk, where they survive a loss
/// of power.
/// Dropping the checkpoint flushes.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: Flock<File>,
    id: FileId,
    /// Number of bytes in the file.
    end: u64,
    buffer: Vec<u8>,
    /// Whether a sync has failed: Linux reports a failure only once, and may have dropped the bytes that it could not
    /// write.
    is_doubtful: bool,
}

impl Checkpoint {
    /// Opens a checkpoint for writing, with its records. Creates the file (mode 0600) if it is missing; its folder
    /// must exist.
    ///
    /// # Errors
    ///
    /// All errors except [`CheckpointError::Damaged`] and [`CheckpointError::TooLarge`]. The file is not changed.
    pub fn open(path: &Path) -> Result<(Self, CheckpointReplay), CheckpointError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(path).map_err(failed("open", path))?;
        check_owner(&file, path)?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(CheckpointError::InUse { path: path.to_owned() });
            }
            Err((_, errno)) => return Err(failed("lock", path)(errno.into())),
        };
        let length = file.metadata().map_err(failed("look at", path))?.len();
        let mut begin = [0; HEADER_BYTES];
        let read = file.read_at(0, &mut begin).map_err(failed("read", path))?;
        let id = if frame::is_torn_file(&begin[..read]) {
            begin_file(&file, path)?
        } else {
            identify(&begin[..read], path)?
        };
        let end = length.max(HEADER_BYTES as u64);
        let source = file.try_clone().map_err(failed("open", path))?;
        let checkpoint = Self {
            path: path.to_owned(),
            file,
            id,
            end,
            buffer: Vec::new(),
            is_doubtful: false,
        };
        Ok((checkpoint, CheckpointReplay::new(source, path, id, end)))
    }

    /// Reads a checkpoint to which another process may write meanwhile.
    ///
    /// # Errors
    ///
    /// The errors of [`Checkpoint::open`] except [`CheckpointError::InUse`]. A missing file is an error.
    pub fn read(path: &Path) -> Result<CheckpointReplay, CheckpointError> {
        let file = File::open(path).map_err(failed("open", path))?;
        check_owner(&file, path)?;
        let length = file.metadata().map_err(failed("look at", path))?.len();
        let mut begin = [0; HEADER_BYTES];
        let read = file.read_at(0, &mut begin).map_err(failed("read", path))?;
        let id = identify(&begin[..read], path)?;
        Ok(CheckpointReplay::new(file, path, id, length))
    }

    /// Adds a result. A later result of the same key replaces the earlier result.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::TooLarge`], and the errors of [`Checkpoint::flush`].
    pub fn append(&mut self, key: MemoKey, value: &[u8]) -> Result<(), CheckpointError> {
        if value.len() as u64 > VALUE_BYTES_MAX {
            return Err(CheckpointError::TooLarge {
                bytes: value.len() as u64,
            });
        }
        let offset = self.end + self.buffer.len() as u64;
        let header = frame::encode_record(self.id, offset, key, value);
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(value);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Passes the added records to the system.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`]: the gathered records are lost; later records are still written.
    pub fn flush(&mut self) -> Result<(), CheckpointError> {
        let written = self.file.write_all(&self.buffer);
        match &written {
            Ok(()) => self.end += self.buffer.len() as u64,
            Err(_) => {
                // A part of the bytes may be in the file. Even if these bytes cannot be cut off, readers find the next
                // record, which contains its own offset, behind the remains.
                let _ = self.file.set_len(self.end);
                self.end = self.file.metadata().map_err(failed("look at", &self.path))?.len();
            }
        }
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES * 2);
        written.map_err(failed("write to", &self.path))
    }

    /// Waits until all added records survive a loss of power.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`], as for [`Checkpoint::flush`]. Once a sync has failed, each later sync fails too,
    /// because records that were written before may be gone. Open the checkpoint again to find out which records are in
    /// the file.
    pub fn sync(&mut self) -> Result<(), CheckpointError> {
        self.flush()?;
        let done = match self.is_doubtful {
            false => self.file.sync_data(),
            true => Err(io::Error::other("an earlier sync failed")),
        };
        self.is_doubtful |= done.is_err();
        done.map_err(failed("sync", &self.path))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // An error cannot be reported here; a caller that needs the result calls `sync` before.
        let _ = self.flush();
    }
}

/// Refuses a file to which another user may write.
fn check_owner(file: &File, path: &Path) -> Result<(), CheckpointError> {
    let metadata = file.metadata().map_err(failed("look at", path))?;
    let why = if !metadata.is_file() {
        "it is no regular file"
    } else if metadata.uid() != nix::unistd::geteuid().as_raw() {
        "it belongs to another user"
    } else if metadata.mode() & 0o022 != 0 {
        "others may write to it (chmod go-w)"
    } else {
        return Ok(());
    };
    let path = path.to_owned();
    Err(CheckpointError::Unsafe { path, why })
}

/// Turns an empty file, or a file with an incomplete header, into a checkpoint.
fn begin_file(file: &File, path: &Path) -> Result<FileId, CheckpointError> {
    let id: FileId = rand::random();
    let begun = || -> io::Result<()> {
        file.set_len(0)?;
        (&*file).write_all(&frame::encode_file(id))?;
        file.sync_all()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync_directory(folder.unwrap_or(Path::new(".")))
    };
    begun().map_err(failed("begin", path))?;
    Ok(id)
}

fn identify(begin: &[u8], path: &Path) -> Result<FileId, CheckpointError> {
    let path = || path.to_owned();
    let Some(header) = begin.first_chunk() else {
        return Err(CheckpointError::NotCheckpoint { path: path() });
    };
    frame::decode_file(header).map_err(|error| match error {
        HeaderError::NotACheckpoint => CheckpointError::NotCheckpoint { path: path() },
        HeaderError::Version(version) => CheckpointError::Version { path: path(), version },
        HeaderError::Damaged => CheckpointError::Beginning { path: path() },
    })
}

/// Iterator over the records of a checkpoint from its beginning. It returns [`CheckpointError::Damaged`] for bytes that
/// were skipped between records, and ends after any other error. One record is in memory at a time.
#[derive(Debug)]
pub struct CheckpointReplay {
    path: PathBuf,
    scan: Scan<File>,
}

impl CheckpointReplay {
    fn new(source: File, path: &Path, id: FileId, end: u64) -> Self {
        Self {
            path: path.to_owned(),
            scan: Scan::new(source, id, end),
        }
    }
}

fn replay_item(found: io::Result<Option<ScanItem>>, path: &Path) -> Option<Result<CheckpointRecord, CheckpointError>> {
    Some(match found.transpose()? {
        Ok(ScanItem::Record(record)) => Ok(record),
        Ok(ScanItem::Damage { offset, bytes }) => Err(CheckpointError::Damaged {
            path: path.to_owned(),
            offset,
            bytes,
        }),
        Err(error) => Err(failed("read", path)(error)),
    })
}

impl Iterator for CheckpointReplay {
    type Item = Result<CheckpointRecord, CheckpointError>;

    fn next(&mut self) -> Option<Self::Item> {
        replay_item(self.scan.next(), &self.path)
    }
}

/// Reads a checkpoint as [`Checkpoint::read`] does, from bytes in memory. Errors contain `name` as the path.
///
/// # Errors
///
/// [`CheckpointError::NotCheckpoint`], [`CheckpointError::Version`] or [`CheckpointError::Beginning`].
pub fn replay_bytes<'a>(
    bytes: &'a [u8],
    name: &'a Path,
) -> Result<impl Iterator<Item = Result<CheckpointRecord, CheckpointError>> + 'a, CheckpointError> {
    let id = identify(&bytes[..bytes.len().min(HEADER_BYTES)], name)?;
    let mut scan = Scan::new(bytes, id, bytes.len() as u64);
    Ok(std::iter::from_fn(move || replay_item(scan.next(), name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_is_not_believed_the_second_time() {
        let locked = |file: File| Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("a lock");
        let folder = tempfile::tempdir().expect("a folder");
        let (mut checkpoint, _) = Checkpoint::open(&folder.path().join("checkpoint")).expect("a checkpoint");
        checkpoint.sync().expect("synced");
        // A pipe takes bytes, but cannot be synced.
        let (_reader, writer) = io::pipe().expect("a pipe");
        let file = std::mem::replace(
            &mut checkpoint.file,
            locked(File::from(std::os::fd::OwnedFd::from(writer))),
        );
        let error = checkpoint.sync().expect_err("not synced").to_string();
        assert!(error.contains("cannot sync"), "{error}");
        checkpoint.file = file;
        let error = checkpoint.sync().expect_err("believed").to_string();
        assert!(error.contains("an earlier sync failed"), "{error}");
    }
}
