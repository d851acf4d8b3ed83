//! The file server of a machine: the files of the sandbox around it, over FUSE.
//!
//! The kernel in the machine asks through its `/dev/fuse`; the guest passes the requests on unchanged, and this module
//! answers them. The machine may read and write the files that this process may read and write, and this process is in
//! the sandbox of its lease. So even a guest that asks for everything gets only what its worker would get without a
//! machine. The folders that a machine has of its own are an exception: there the sandbox's files belong to the
//! monitor, whose memory and sockets would be a way out of the machine. They are not served, except the files that the
//! worker is shown.
//!
//! A file is identified by its path, and gets its number from the table here: two names of one file are two files, and
//! equal numbers on two file systems of the sandbox are different files. Because paths outlive processes, a saved
//! machine can ask the same questions in another sandbox.

mod answers;
mod attributes;
mod place;
mod table;

use attributes::{AttributeChanges, attributes, kind, time};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyEntry, Session, SessionACL,
};
use hotlease_wire::machine::FILE_BYTES_MAX;
use place::FilePlace;
use rustix::fs::{AtFlags, OFlags, Timestamps, chownat, fcntl_getfl, utimensat};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::{FileTable, FolderEntry};

/// How long the machine may cache attributes of files that no other process changes.
const CACHE_TIME: Duration = Duration::from_secs(3600);
/// Largest number of data bytes of one request or answer, without its head.
const DATA_BYTES: u32 = 128 << 10;
const _: () = assert!(DATA_BYTES as usize + 4096 <= FILE_BYTES_MAX as usize);
/// Folders that a machine has of its own. It sees the sandbox's folders only to mount its own folders on them. In its
/// own folders it sees the files that its worker is shown.
const OWN_PATHS: [&str; 4] = ["/dev", "/proc", "/sys", "/tmp"];

/// Files of a machine. A clone serves the same files.
#[derive(Clone)]
pub struct FileServer {
    /// Folders to which other processes may write meanwhile.
    changing: Arc<[PathBuf]>,
    /// Files and folders that the worker is shown, wherever they are.
    shown: Arc<[PathBuf]>,
    table: Arc<Mutex<FileTable>>,
}

impl FileServer {
    /// Makes a server of the files of this process. A machine may have `open_max` of them open. Other processes may
    /// write to the folders `changing`.
    pub fn new(changing: &[PathBuf], shown: &[PathBuf], open_max: usize) -> Self {
        Self {
            changing: changing.into(),
            shown: shown.into(),
            table: Arc::new(Mutex::new(FileTable::new(open_max))),
        }
    }

    /// Checks that several machines can be resumed from this machine: they share its open files, and only read them.
    ///
    /// # Errors
    /// Fails with the name of a file that they would write to.
    pub fn check_shareable(&self) -> Result<(), String> {
        let table = self.table();
        let is_written = |file: &&File| {
            let flags = fcntl_getfl(file);
            flags.map_or(true, |flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
        };
        let mut names: Vec<String> = table.files().filter(is_written).map(name_of).collect();
        names.sort();
        let Some(name) = names.first() else {
            return Ok(());
        };
        let more = if names.len() > 1 { ", ..." } else { "" };
        Err(format!(
            "no worker can be forked once its imports have left {} file{} open for writing ({name}{more})",
            names.len(),
            if names.len() == 1 { "" } else { "s" }
        ))
    }

    /// Answers the questions of the kernel at the other end of `asked`, one in each message, until it is closed.
    ///
    /// # Errors
    /// Fails at a message that is no question.
    pub fn serve(&self, asked: OwnedFd) -> io::Result<()> {
        Session::from_fd(self.clone(), asked, SessionACL::All, Config::default())?.run()
    }

    fn table(&self) -> MutexGuard<'_, FileTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, node: INodeNo) -> Result<PathBuf, Errno> {
        self.check_served(self.table().path(node.0)?)
    }

    fn beneath(&self, parent: INodeNo, name: &OsStr) -> Result<PathBuf, Errno> {
        self.check_served(self.table().beneath(parent.0, name)?)
    }

    /// The path, if it is served to the machine.
    fn check_served(&self, path: PathBuf) -> Result<PathBuf, Errno> {
        let mut own = OWN_PATHS.iter().map(Path::new);
        let is_own = own.any(|own| path.starts_with(own) && path != own);
        let mut shown = self.shown.iter();
        let is_shown = shown.any(|shown| path.starts_with(shown) || shown.starts_with(&path));
        match is_own && !is_shown {
            true => Err(Errno::ENOENT),
            false => Ok(path),
        }
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        self.table().file(handle.0)
    }

    /// How long the machine may cache attributes of this file, and whether it may keep its data in memory.
    fn cache_policy(&self, path: &Path) -> (Duration, FopenFlags) {
        match self.changing.iter().any(|folder| path.starts_with(folder)) {
            true => (Duration::ZERO, FopenFlags::empty()),
            false => (CACHE_TIME, FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    /// Looks up a name, and adds the file to the table.
    fn found(&self, parent: INodeNo, name: &OsStr) -> Result<(Duration, FileAttr), Errno> {
        let path = self.beneath(parent, name)?;
        let found = FilePlace::of(&path)?.metadata()?;
        let node = self.table().look_up(parent.0, name)?;
        Ok((self.cache_policy(&path).0, attributes(node, &found)))
    }

    fn reply_made(&self, parent: INodeNo, name: &OsStr, done: Result<(), Errno>, reply: ReplyEntry) {
        match done.and_then(|()| self.found(parent, name)) {
            Ok((lasts, found)) => reply.entry(&lasts, &found, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn describe(&self, node: INodeNo, handle: Option<FileHandle>) -> Result<(Duration, FileAttr), Errno> {
        // An open file may have lost its name.
        let opened = handle.and_then(|handle| self.file(handle).ok());
        let path = self.path(node);
        let found = match opened {
            Some(file) => file.metadata()?,
            None => FilePlace::of(path.as_ref().map_err(|errno| *errno)?)?.metadata()?,
        };
        let lasts = path.map_or(Duration::ZERO, |path| self.cache_policy(&path).0);
        Ok((lasts, attributes(node.0, &found)))
    }

    fn open_at(&self, path: &Path, flags: i32, mode: Option<u32>) -> Result<FileHandle, Errno> {
        let asked = OFlags::from_bits_retain(flags.cast_unsigned());
        let made = mode.map_or(OFlags::empty(), |_| OFlags::CREATE);
        let flags = asked & (OFlags::RWMODE | OFlags::EXCL | OFlags::APPEND) | made;
        let opened = FilePlace::of(path)?.open(flags, mode.unwrap_or(0))?;
        self.table().keep_file(opened).map(FileHandle)
    }

    fn apply_changes(
        &self,
        node: INodeNo,
        handle: Option<FileHandle>,
        to: &AttributeChanges,
    ) -> Result<(Duration, FileAttr), Errno> {
        let opened = handle.and_then(|handle| self.file(handle).ok());
        let path = self.path(node);
        let place = || Ok::<_, Errno>(FilePlace::of(path.as_ref().map_err(|errno| *errno)?)?);
        if let Some(size) = to.size {
            match &opened {
                Some(file) => file.set_len(size)?,
                None => place()?.open(OFlags::WRONLY, 0)?.set_len(size)?,
            }
        }
        if let Some(mode) = to.mode {
            match &opened {
                Some(file) => file.set_permissions(Permissions::from_mode(mode & 0o7777))?,
                None => place()?.set_mode(mode)?,
            }
        }
        if to.user.is_some() || to.group.is_some() {
            let (user, group) = (
                to.user.map(rustix::fs::Uid::from_raw),
                to.group.map(rustix::fs::Gid::from_raw),
            );
            let FilePlace { folder, name } = place()?;
            chownat(folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        }
        if to.read.is_some() || to.written.is_some() {
            let times = Timestamps {
                last_access: time(to.read),
                last_modification: time(to.written),
            };
            let FilePlace { folder, name } = place()?;
            utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        }
        self.describe(node, handle)
    }

    fn open_folder(&self, node: INodeNo) -> Result<FileHandle, Errno> {
        let entry = |node, kind, name: &OsStr| FolderEntry {
            node,
            kind,
            name: name.into(),
        };
        let own = [".", ".."].map(|name| entry(node.0, FileType::Directory, OsStr::new(name)));
        let mut entries = Vec::from(own);
        let path = self.path(node)?;
        for found in FilePlace::of(&path)?.listed()? {
            let found = found.map_err(io::Error::from)?;
            let name = OsStr::from_bytes(found.file_name().to_bytes());
            let is_other = name != "." && name != "..";
            if is_other && self.check_served(path.join(name)).is_ok() {
                entries.push(entry(found.ino(), kind(found.file_type()), name));
            }
        }
        self.table().keep_folder(entries).map(FileHandle)
    }
}

/// Name of an open file.
fn name_of(file: &File) -> String {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).map_or_else(|error| error.to_string(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests;
