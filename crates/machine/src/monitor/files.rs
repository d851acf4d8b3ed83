//! The files that a machine sees: those of the sandbox around it, over FUSE.
//!
//! The kernel in the machine asks through its `/dev/fuse`; the guest passes its requests on as they are, and here is who answers them. What
//! may be read or written is what this process may, which is in the sandbox of its lease: nothing here is a boundary, and a guest that asks
//! for anything at all gets what its worker would get without a machine.
//!
//! A file is known by its path, and its number is of this table: two names of one file are two files, and the same number on two file systems
//! of the sandbox's is not the same file. Because paths outlive processes, a machine that was saved can be asked the same in another sandbox.

mod table;

use fuser::{BsdFileFlags, LockOwner};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use hotlease_wire::machine::FILE_BYTES_MAX;
use rustix::fs::{
    AtFlags, CWD, FileType as Kind, Mode, RenameFlags as Renamed, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, chownat, mknodat, renameat_with, statvfs, utimensat,
};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, DirEntryExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
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

/// What is to be changed of a file.
struct Changes {
    mode: Option<u32>,
    user: Option<u32>,
    group: Option<u32>,
    size: Option<u64>,
    read: Option<TimeOrNow>,
    written: Option<TimeOrNow>,
}

fn time(to: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match to {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: since.subsec_nanos().into(),
            }
        }
    }
}

fn kind(of: fs::FileType) -> FileType {
    if of.is_dir() {
        FileType::Directory
    } else if of.is_symlink() {
        FileType::Symlink
    } else if of.is_fifo() {
        FileType::NamedPipe
    } else if of.is_socket() {
        FileType::Socket
    } else if of.is_char_device() {
        FileType::CharDevice
    } else if of.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::RegularFile
    }
}

fn attributes(node: u64, of: &Metadata) -> FileAttr {
    let at = |seconds: i64, nanoseconds: i64| {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
    };
    FileAttr {
        ino: INodeNo(node),
        size: of.size(),
        blocks: of.blocks(),
        atime: at(of.atime(), of.atime_nsec()),
        mtime: at(of.mtime(), of.mtime_nsec()),
        ctime: at(of.ctime(), of.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: kind(of.file_type()),
        perm: (of.mode() & 0o7777) as u16,
        nlink: u32::try_from(of.nlink()).unwrap_or(u32::MAX),
        uid: of.uid(),
        gid: of.gid(),
        // Devices of the host's are none in a machine.
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The answer to what has no answer but whether it was done.
fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |most| io::Error::other(format!("at most {most} bytes"));
        config.set_max_write(DATA_BYTES).map_err(refused)?;
        // What it has at most is less than this.
        let _ = config.set_max_readahead(DATA_BYTES);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.made(parent, name, Ok(()), reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.table().forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.described(node, handle) {
            Ok((lasts, found)) => reply.attr(&lasts, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        read: Option<TimeOrNow>,
        written: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let to = Changes {
            mode,
            user,
            group,
            size,
            read,
            written,
        };
        match self.changed(node, handle, &to) {
            Ok((lasts, found)) => reply.attr(&lasts, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.path(node).and_then(|path| Ok(fs::read_link(path)?)) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let kind = Kind::from_raw_mode(mode);
        let made = self.beneath(parent, name).and_then(|path| match kind {
            // No devices, whoever asks.
            Kind::RegularFile | Kind::Fifo => {
                Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(mode & 0o7777), 0)
                    .map_err(io::Error::from)?)
            }
            _ => Err(Errno::EPERM),
        });
        match made {
            Ok(()) => self.made(parent, name, Ok(()), reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        match self.beneath(parent, name) {
            Ok(path) => self.made(
                parent,
                name,
                DirBuilder::new().mode(mode & 0o7777).create(path),
                reply,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self
            .beneath(parent, name)
            .and_then(|path| Ok(fs::remove_file(path)?));
        done(removed.map(|()| self.table().remove(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self
            .beneath(parent, name)
            .and_then(|path| Ok(fs::remove_dir(path)?));
        done(removed.map(|()| self.table().remove(parent.0, name)), reply);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        match self.beneath(parent, name) {
            Ok(path) => self.made(parent, name, symlink(target, path), reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = || {
            let (from, to) = (self.beneath(parent, name)?, self.beneath(new_parent, new_name)?);
            renameat_with(CWD, from, CWD, to, Renamed::from_bits_retain(flags.bits()))
                .map_err(io::Error::from)?;
            let is_exchanged = flags.contains(RenameFlags::RENAME_EXCHANGE);
            self.table()
                .rename((parent.0, name), (new_parent.0, new_name), is_exchanged);
            Ok(())
        };
        done(renamed(), reply);
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let paths = self
            .path(node)
            .and_then(|from| Ok((from, self.beneath(parent, name)?)));
        match paths {
            Ok((from, to)) => self.made(parent, name, fs::hard_link(from, to), reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let path = self.path(node);
        match path.and_then(|path| Ok((self.lasts(&path).1, self.open_at(&path, flags.0, None)?))) {
            Ok((keeps, handle)) => reply.opened(handle, keeps),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut data = vec![0; size.min(DATA_BYTES) as usize];
        match self
            .file(handle)
            .and_then(|file| Ok(read_at(&file, &mut data, offset)?))
        {
            Ok(bytes) => reply.data(&data[..bytes]),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self
            .file(handle)
            .and_then(|file| Ok(file.write_at(data, offset)?))
        {
            Ok(bytes) => reply.written(bytes as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.table().close(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data: bool, reply: ReplyEmpty) {
        let synced = self.file(handle).and_then(|file| {
            Ok(match data {
                true => file.sync_data()?,
                false => file.sync_all()?,
            })
        });
        done(synced, reply);
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.listed(node) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.table().opened(handle.0) {
            Ok(Opened::Folder(entries)) => entries,
            Ok(Opened::File(_)) => return reply.error(Errno::ENOTDIR),
            Err(errno) => return reply.error(errno),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, entry) in (1_u64..).zip(entries.iter()).skip(from) {
            if reply.add(INodeNo(entry.node), next, entry.kind, &entry.name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.table().close(handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        match self
            .path(node)
            .and_then(|path| Ok(statvfs(path).map_err(io::Error::from)?))
        {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                u32::try_from(found.f_bsize).unwrap_or(4096),
                u32::try_from(found.f_namemax).unwrap_or(255),
                u32::try_from(found.f_frsize).unwrap_or(4096),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = || {
            let path = self.beneath(parent, name)?;
            let handle = self.open_at(&path, flags, Some(mode))?;
            let (lasts, found) = self.found(parent, name)?;
            Ok((lasts, found, handle, self.lasts(&path).1))
        };
        match created() {
            Ok((lasts, found, handle, keeps)) => reply.created(&lasts, &found, Generation(0), handle, keeps),
            Err(errno) => reply.error(errno),
        }
    }
}

/// As much as there is, so that fewer bytes are the end of the file.
fn read_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < data.len() {
        match file.read_at(&mut data[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: INodeNo = INodeNo(1);

    /// The number of this path, asked for name by name as a kernel does.
    fn node(files: &Files, path: &Path) -> INodeNo {
        let names = path.iter().skip(1);
        names.fold(ROOT, |at, name| files.found(at, name).expect("it is there").1.ino)
    }

    #[test]
    fn files_are_read_written_and_changed_by_those_who_may() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("data"), b"some bytes").expect("written");
        let files = Files::new(&[folder.path().to_owned()]);
        let parent = node(&files, folder.path());
        let (lasts, found) = files.found(parent, OsStr::new("data")).expect("it is there");
        assert_eq!((lasts, found.size, found.kind), (Duration::ZERO, 10, FileType::RegularFile));
        let path = files.path(found.ino).expect("it has one");
        let handle = files.open_at(&path, libc::O_RDWR, None).expect("it may be written");
        let file = files.file(handle).expect("it is open");
        let mut data = [0; 20];
        assert_eq!(read_at(&file, &mut data, 5).expect("read"), 5);
        assert_eq!(&data[..5], b"bytes");
        let to = Changes {
            mode: Some(0o100_600),
            user: None,
            group: None,
            size: Some(4),
            read: None,
            written: Some(TimeOrNow::SpecificTime(UNIX_EPOCH + Duration::from_secs(7))),
        };
        let (_, changed) = files.changed(found.ino, None, &to).expect("its owner's");
        assert_eq!((changed.size, changed.perm, changed.mtime), (4, 0o600, UNIX_EPOCH + Duration::from_secs(7)));
        let last = files.described(found.ino, Some(handle)).expect("open");
        fs::remove_file(&path).expect("removed outside");
        assert_eq!(files.described(found.ino, None).err(), Some(Errno::ENOENT));
        assert_eq!(files.described(found.ino, Some(handle)).expect("still open").1.size, last.1.size);
    }

    #[test]
    fn what_nobody_changes_is_believed_for_long_and_links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        symlink("/etc/passwd", folder.path().join("link")).expect("made");
        let files = Files::new(&[]);
        let parent = node(&files, folder.path());
        let (lasts, found) = files.found(parent, OsStr::new("link")).expect("it is there");
        assert_eq!((lasts, found.kind), (LASTING, FileType::Symlink));
        let path = files.path(found.ino).expect("it has one");
        let opened = files.open_at(&path, libc::O_RDONLY, None);
        assert_eq!(opened.err(), Some(Errno::ELOOP), "the machine's kernel follows it, in there");
        let listed = files.listed(parent).expect("a folder");
        let Ok(Opened::Folder(entries)) = files.table().opened(listed.0) else {
            panic!("a folder is listed");
        };
        let names: Vec<_> = entries.iter().map(|entry| entry.name.as_os_str()).collect();
        assert_eq!(names, [".", "..", "link"]);
    }
}
