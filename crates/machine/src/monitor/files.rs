//! The files that a machine sees: those of the sandbox around it, over FUSE.
//!
//! The kernel in the machine asks through its `/dev/fuse`; the guest passes its requests on as they are, and here is who answers them. What
//! may be read or written is what this process may, which is in the sandbox of its lease: a guest that asks for anything at all gets what its
//! worker would get without a machine. But for what the machine has of its own: there the sandbox's is the monitor's, whose memory and sockets
//! would be the way out of the machine.
//!
//! A file is known by its path, and its number is of this table: two names of one file are two files, and the same number on two file systems
//! of the sandbox's is not the same file. Because paths outlive processes, a machine that was saved can be asked the same in another sandbox.

mod answers;
mod attributes;
mod place;
mod table;

use attributes::{Changes, attributes, kind, time};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyEntry, Session,
    SessionACL,
};
use hotlease_wire::machine::FILE_BYTES_MAX;
use place::Place;
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
use table::{Entry, Table};

/// How long the machine believes what it was told of files that nobody changes.
const LASTING: Duration = Duration::from_secs(3600);
/// Of one request or answer, without its head.
const DATA_BYTES: u32 = 128 << 10;
const _: () = assert!(DATA_BYTES as usize + 4096 <= FILE_BYTES_MAX as usize);
/// What a machine has of its own. It sees the folders themselves, to mount its own there, and in them what its worker is shown.
const ITS_OWN: [&str; 4] = ["/dev", "/proc", "/sys", "/tmp"];

/// The files of a machine. Cloned: the same ones.
#[derive(Clone)]
pub struct Files {
    /// Folders in which others may write meanwhile.
    changing: Arc<[PathBuf]>,
    /// What the worker is shown, wherever it is.
    shown: Arc<[PathBuf]>,
    table: Arc<Mutex<Table>>,
}

impl Files {
    /// Those of this process, of which a machine may have so many open; in some folders others may write meanwhile.
    pub fn new(changing: &[PathBuf], shown: &[PathBuf], open_max: usize) -> Self {
        Self {
            changing: changing.into(),
            shown: shown.into(),
            table: Arc::new(Mutex::new(Table::new(open_max))),
        }
    }

    /// Whether several machines can go on from this one: what it has open they have in common, and may only read.
    ///
    /// # Errors
    /// What they would write to.
    pub fn can_be_shared(&self) -> Result<(), String> {
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
        self.served(self.table().path(node.0)?)
    }

    fn beneath(&self, parent: INodeNo, name: &OsStr) -> Result<PathBuf, Errno> {
        self.served(self.table().beneath(parent.0, name)?)
    }

    /// A path that is the machine's business.
    fn served(&self, path: PathBuf) -> Result<PathBuf, Errno> {
        let mut own = ITS_OWN.iter().map(Path::new);
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
        let found = Place::of(&path)?.found()?;
        let node = self.table().look_up(parent.0, name)?;
        Ok((self.lasts(&path).0, attributes(node, &found)))
    }

    fn made(&self, parent: INodeNo, name: &OsStr, done: Result<(), Errno>, reply: ReplyEntry) {
        match done.and_then(|()| self.found(parent, name)) {
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
            None => Place::of(path.as_ref().map_err(|errno| *errno)?)?.found()?,
        };
        let lasts = path.map_or(Duration::ZERO, |path| self.lasts(&path).0);
        Ok((lasts, attributes(node.0, &found)))
    }

    fn open_at(&self, path: &Path, flags: i32, mode: Option<u32>) -> Result<FileHandle, Errno> {
        let asked = OFlags::from_bits_retain(flags.cast_unsigned());
        let made = mode.map_or(OFlags::empty(), |_| OFlags::CREATE);
        let flags = asked & (OFlags::RWMODE | OFlags::EXCL | OFlags::APPEND) | made;
        let opened = Place::of(path)?.open(flags, mode.unwrap_or(0))?;
        self.table().keep_file(opened).map(FileHandle)
    }

    fn changed(
        &self,
        node: INodeNo,
        handle: Option<FileHandle>,
        to: &Changes,
    ) -> Result<(Duration, FileAttr), Errno> {
        let opened = handle.and_then(|handle| self.file(handle).ok());
        let path = self.path(node);
        let place = || Ok::<_, Errno>(Place::of(path.as_ref().map_err(|errno| *errno)?)?);
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
            let Place { folder, name } = place()?;
            chownat(folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        }
        if to.read.is_some() || to.written.is_some() {
            let times = Timestamps {
                last_access: time(to.read),
                last_modification: time(to.written),
            };
            let Place { folder, name } = place()?;
            utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        }
        self.described(node, handle)
    }

    fn listed(&self, node: INodeNo) -> Result<FileHandle, Errno> {
        let entry = |node, kind, name: &OsStr| Entry {
            node,
            kind,
            name: name.into(),
        };
        let own = [".", ".."].map(|name| entry(node.0, FileType::Directory, OsStr::new(name)));
        let mut entries = Vec::from(own);
        let path = self.path(node)?;
        for found in Place::of(&path)?.listed()? {
            let found = found.map_err(io::Error::from)?;
            let name = OsStr::from_bytes(found.file_name().to_bytes());
            let is_other = name != "." && name != "..";
            if is_other && self.served(path.join(name)).is_ok() {
                entries.push(entry(found.ino(), kind(found.file_type()), name));
            }
        }
        self.table().keep_folder(entries).map(FileHandle)
    }
}

/// Of what is open.
fn name_of(file: &File) -> String {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).map_or_else(|error| error.to_string(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests;
