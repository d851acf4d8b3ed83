//! Answers of the file server to the questions of the machine's kernel.

use super::attributes::AttributeChanges;
use super::place::FilePlace;
use super::{DATA_BYTES, FileServer};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{
    AtFlags, FileType as Kind, Mode, RenameFlags as Renamed, fstatvfs, linkat, mkdirat, mknodat, readlinkat,
    renameat_with, symlinkat, unlinkat,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

/// Answers an operation that has no result but success or failure.
fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for FileServer {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |most| io::Error::other(format!("at most {most} bytes"));
        config.set_max_write(DATA_BYTES).map_err(refused)?;
        // Fails only if the kernel's limit is less than this.
        let _ = config.set_max_readahead(DATA_BYTES);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_made(parent, name, Ok(()), reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.table().forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.describe(node, handle) {
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
        let to = AttributeChanges {
            mode,
            user,
            group,
            size,
            read,
            written,
        };
        match self.apply_changes(node, handle, &to) {
            Ok((lasts, found)) => reply.attr(&lasts, &found),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let target = self.path(node).and_then(|path| {
            let FilePlace { folder, name } = FilePlace::of(&path)?;
            Ok(readlinkat(folder, name, Vec::new()).map_err(io::Error::from)?)
        });
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: u32, reply: ReplyEntry) {
        let kind = Kind::from_raw_mode(mode);
        let made = self.at(parent, name, |folder, name| match kind {
            // Devices are refused to every caller.
            Kind::RegularFile | Kind::Fifo => mknodat(folder, name, kind, Mode::from_raw_mode(mode & 0o7777), 0),
            _ => Err(rustix::io::Errno::PERM),
        });
        self.reply_made(parent, name, made, reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let made = self.at(parent, name, |folder, name| mkdirat(folder, name, mode));
        self.reply_made(parent, name, made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.removed(parent, name, AtFlags::empty(), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.removed(parent, name, AtFlags::REMOVEDIR, reply);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self.at(parent, name, |folder, name| symlinkat(target, folder, name));
        self.reply_made(parent, name, made, reply);
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
            let from = self.beneath(parent, name)?;
            let from = FilePlace::of(&from)?;
            self.at(new_parent, new_name, |folder, name| {
                let flags = Renamed::from_bits_retain(flags.bits());
                renameat_with(from.folder, from.name, folder, name, flags)
            })?;
            let is_exchanged = flags.contains(RenameFlags::RENAME_EXCHANGE);
            self.table()
                .rename((parent.0, name), (new_parent.0, new_name), is_exchanged);
            Ok(())
        };
        done(renamed(), reply);
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = || {
            let from = self.path(node)?;
            let from = FilePlace::of(&from)?;
            self.at(parent, name, |folder, name| {
                linkat(from.folder, from.name, folder, name, AtFlags::empty())
            })
        };
        self.reply_made(parent, name, linked(), reply);
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let path = self.path(node);
        match path.and_then(|path| Ok((self.cache_policy(&path).1, self.open_at(&path, flags.0, None)?))) {
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
        match self.file(handle).and_then(|file| Ok(file.write_at(data, offset)?)) {
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
            let synced = if data { file.sync_data() } else { file.sync_all() };
            Ok(synced?)
        });
        done(synced, reply);
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_folder(node) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = match self.table().folder(handle.0) {
            Ok(entries) => entries,
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
        let found = self.path(node).and_then(|path| {
            let held = FilePlace::of(&path)?.open_path()?;
            Ok(fstatvfs(held).map_err(io::Error::from)?)
        });
        match found {
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

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, flags: i32, reply: ReplyCreate) {
        let created = || {
            let path = self.beneath(parent, name)?;
            let handle = self.open_at(&path, flags, Some(mode))?;
            let (lasts, found) = self.found(parent, name)?;
            Ok((lasts, found, handle, self.cache_policy(&path).1))
        };
        match created() {
            Ok((lasts, found, handle, keeps)) => reply.created(&lasts, &found, Generation(0), handle, keeps),
            Err(errno) => reply.error(errno),
        }
    }
}

impl FileServer {
    /// Runs an operation on a name that need not exist yet.
    fn at(
        &self,
        parent: INodeNo,
        name: &OsStr,
        what: impl FnOnce(OwnedFd, &OsStr) -> rustix::io::Result<()>,
    ) -> Result<(), Errno> {
        let path = self.beneath(parent, name)?;
        let FilePlace { folder, name } = FilePlace::of(&path)?;
        Ok(what(folder, name).map_err(io::Error::from)?)
    }

    fn removed(&self, parent: INodeNo, name: &OsStr, which: AtFlags, reply: ReplyEmpty) {
        let removed = self.at(parent, name, |folder, name| unlinkat(folder, name, which));
        done(removed.map(|()| self.table().remove(parent.0, name)), reply);
    }
}

/// Reads as much as there is, so that fewer bytes mean the end of the file.
pub fn read_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
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
