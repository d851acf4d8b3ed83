//! The files that a machine sees: those of the sandbox around it, over FUSE.
//!
//! The kernel in the machine asks through its `/dev/fuse`; the guest passes its requests on as they are, and here is who answers them. What
//! may be read or written is what this process may, which is in the sandbox of its lease: nothing here is a boundary, and a guest that asks
//! for anything at all gets what its worker would get without a machine.
//!
//! A file is known by its path, and its number is of this table: two names of one file are two files, and the same number on two file systems
//! of the sandbox's is not the same file. Because paths outlive processes, a machine that was saved can be asked the same in another sandbox.

mod answers;
mod attributes;
mod table;

use attributes::{Changes, attributes, kind, time};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyEntry, Session,
    SessionACL,
};
use hotlease_wire::machine::FILE_BYTES_MAX;
use rustix::fs::{AtFlags, CWD, Timestamps, chownat, utimensat};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirEntryExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{Entry, Opened, Table};

/// How long the machine believes what it was told of files that nobody changes.
const LASTING: Duration = Duration::from_secs(3600);
/// Of one request or answer, without its head.
const DATA_BYTES: u32 = 128 << 10;
const _: () = assert!(DATA_BYTES as usize + 4096 <= FILE_BYTES_MAX as usize);

/// The files of a machine. Cloned: the same ones.
#[derive(Clone)]
pub struct Files {
    /// Folders in which others may write meanwhile.
    changing: Arc<[PathBuf]>,
    table: Arc<Mutex<Table>>,
}

impl Files {
    /// Those of this process; in these folders others may write meanwhile.
    pub fn new(changing: &[PathBuf]) -> Self {
        Self {
            changing: changing.into(),
            table: Arc::default(),
        }
    }

    /// Answers the kernel that asks at the other end of `asked`, a message each, until that is closed.
    ///
    /// # Errors
    /// What it asks is no question.
    pub fn serve(&self, asked: OwnedFd) -> io::Result<()> {
        Session::from_fd(self.clone(), asked, SessionACL::All, Config::default())?.run()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, node: INodeNo) -> Result<PathBuf, Errno> {
        self.table().path(node.0)
    }

    fn beneath(&self, parent: INodeNo, name: &OsStr) -> Result<PathBuf, Errno> {
        self.table().beneath(parent.0, name)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        match self.table().opened(handle.0)? {
            Opened::File(file) => Ok(file),
            Opened::Folder(_) => Err(Errno::EISDIR),
        }
    }

    /// How long the machine may believe what it is told of this one, and whether it may keep what it has read.
    fn lasts(&self, path: &Path) -> (Duration, FopenFlags) {
        match self.changing.iter().any(|folder| path.starts_with(folder)) {
            true => (Duration::ZERO, FopenFlags::empty()),
            false => (LASTING, FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    /// What is at this path, as a file of the table.
    fn found(&self, parent: INodeNo, name: &OsStr) -> Result<(Duration, FileAttr), Errno> {
        let path = self.beneath(parent, name)?;
        let found = fs::symlink_metadata(&path)?;
        let node = self.table().look_up(parent.0, name)?;
        Ok((self.lasts(&path).0, attributes(node, &found)))
    }

    fn made(&self, parent: INodeNo, name: &OsStr, done: io::Result<()>, reply: ReplyEntry) {
        match done.map_err(Errno::from).and_then(|()| self.found(parent, name)) {
            Ok((lasts, found)) => reply.entry(&lasts, &found, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn described(&self, node: INodeNo, handle: Option<FileHandle>) -> Result<(Duration, FileAttr), Errno> {
        // An open file may have no name any more.
        let opened = handle.and_then(|handle| self.file(handle).ok());
        let path = self.path(node);
        let found = match opened {
            Some(file) => file.metadata()?,
            None => fs::symlink_metadata(path.as_ref().map_err(|errno| *errno)?)?,
        };
        let lasts = path.map_or(Duration::ZERO, |path| self.lasts(&path).0);
        Ok((lasts, attributes(node.0, &found)))
    }

    fn open_at(&self, path: &Path, flags: i32, mode: Option<u32>) -> Result<FileHandle, Errno> {
        let is_written = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let more = flags & libc::O_EXCL | flags & libc::O_APPEND;
        let opened = OpenOptions::new()
            .read(flags & libc::O_ACCMODE != libc::O_WRONLY)
            .write(is_written)
            .create(mode.is_some() && is_written)
            .mode(mode.unwrap_or(0) & 0o7777)
            // A pipe that nobody writes to must not stop anybody.
            .custom_flags(
                more | libc::O_NOFOLLOW | libc::O_NONBLOCK | if mode.is_some() { libc::O_CREAT } else { 0 },
            )
            .open(path)?;
        self.table().keep(Opened::File(Arc::new(opened))).map(FileHandle)
    }

    fn changed(
        &self,
        node: INodeNo,
        handle: Option<FileHandle>,
        to: &Changes,
    ) -> Result<(Duration, FileAttr), Errno> {
        let opened = handle.and_then(|handle| self.file(handle).ok());
        if let Some(size) = to.size {
            match &opened {
                Some(file) => file.set_len(size)?,
                None => OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                    .open(self.path(node)?)?
                    .set_len(size)?,
            }
        }
        if let Some(mode) = to.mode {
            let mode = Permissions::from_mode(mode & 0o7777);
            match &opened {
                Some(file) => file.set_permissions(mode)?,
                None => fs::set_permissions(self.path(node)?, mode)?,
            }
        }
        if to.user.is_some() || to.group.is_some() {
            let (user, group) = (
                to.user.map(rustix::fs::Uid::from_raw),
                to.group.map(rustix::fs::Gid::from_raw),
            );
            chownat(CWD, self.path(node)?, user, group, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(io::Error::from)?;
        }
        if to.read.is_some() || to.written.is_some() {
            let times = Timestamps {
                last_access: time(to.read),
                last_modification: time(to.written),
            };
            utimensat(CWD, self.path(node)?, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        }
        self.described(node, handle)
    }

    fn listed(&self, node: INodeNo) -> Result<FileHandle, Errno> {
        let own = |name: &str| Entry {
            node: node.0,
            kind: FileType::Directory,
            name: name.into(),
        };
        let mut entries = vec![own("."), own("..")];
        for entry in fs::read_dir(self.path(node)?)? {
            let entry = entry?;
            entries.push(Entry {
                node: entry.ino(),
                kind: entry.file_type().map_or(FileType::RegularFile, kind),
                name: entry.file_name(),
            });
        }
        self.table().keep(Opened::Folder(entries.into())).map(FileHandle)
    }
}

#[cfg(test)]
mod tests;
