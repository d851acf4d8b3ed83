//! Place of a file: the opened folder that contains it, and its name there.
//!
//! The path is walked name by name from the root, and no link on it is followed, because the machine's kernel follows
//! links itself. So a machine gains nothing by claiming that a link is a folder, and an unserved file cannot be reached
//! by another name.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmodat, openat};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Flags of a descriptor that only identifies a file or folder.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file's folder and its name there.
pub struct FilePlace<'a> {
    pub folder: OwnedFd,
    pub name: &'a OsStr,
}

impl<'a> FilePlace<'a> {
    /// Place of an absolute path.
    pub fn of(path: &'a Path) -> io::Result<Self> {
        let mut names = path.iter();
        // The root is in itself.
        let (first, name) = (names.next(), names.next_back().unwrap_or(OsStr::new(".")));
        let mut folder = openat(
            CWD,
            first.unwrap_or_default(),
            PATH_FLAGS | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        for name in names {
            folder = openat(&folder, name, PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        }
        Ok(Self { folder, name })
    }

    /// Opens the file for identification only, not for reading or writing.
    pub fn open_path(&self) -> io::Result<File> {
        Ok(openat(&self.folder, self.name, PATH_FLAGS, Mode::empty())?.into())
    }

    /// Attributes of the file.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.open_path()?.metadata()
    }

    /// Opens the file. Never waits for the other end of a pipe.
    pub fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.folder, self.name, flags, Mode::from_raw_mode(mode & 0o7777))?.into())
    }

    /// Changes the mode. A link has no mode, and this kernel would follow the link.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.metadata()?.is_symlink() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(chmodat(&self.folder, self.name, mode, AtFlags::empty())?)
    }

    /// Entries of the folder.
    pub fn listed(&self) -> io::Result<Dir> {
        let folder = OwnedFd::from(self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?);
        Ok(Dir::new(folder)?)
    }
}
