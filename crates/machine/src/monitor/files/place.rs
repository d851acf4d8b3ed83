//! Where a file is: the folder that it is in, opened, and its name there.
//!
//! The way is walked name by name from the root, and no link on it is followed: the machine's kernel does that, in there. So a machine that
//! says of a link that it is a folder gets nowhere, and what is not served has no other name.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmodat, openat};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What only says where something is.
const WAY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// See the module.
pub struct Place<'a> {
    pub folder: OwnedFd,
    pub name: &'a OsStr,
}

impl<'a> Place<'a> {
    /// Of an absolute path.
    pub fn of(path: &'a Path) -> io::Result<Self> {
        let mut names = path.iter();
        // The root is in itself.
        let (first, name) = (names.next(), names.next_back().unwrap_or(OsStr::new(".")));
        let mut folder = openat(
            CWD,
            first.unwrap_or_default(),
            WAY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        for name in names {
            folder = openat(&folder, name, WAY | OFlags::DIRECTORY, Mode::empty())?;
        }
        Ok(Self { folder, name })
    }

    /// Takes hold of what is there, and opens it for nothing.
    pub fn held(&self) -> io::Result<File> {
        Ok(openat(&self.folder, self.name, WAY, Mode::empty())?.into())
    }

    /// What it is like.
    pub fn found(&self) -> io::Result<Metadata> {
        self.held()?.metadata()
    }

    /// Opens it. A pipe that nobody writes to must not stop anybody.
    pub fn open(&self, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.folder, self.name, flags, Mode::from_raw_mode(mode & 0o7777))?.into())
    }

    /// Changes its mode. A link has none, and this kernel would follow it.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        if self.found()?.is_symlink() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mode = Mode::from_raw_mode(mode & 0o7777);
        Ok(chmodat(&self.folder, self.name, mode, AtFlags::empty())?)
    }

    /// What is in it.
    pub fn listed(&self) -> io::Result<Dir> {
        let folder = OwnedFd::from(self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?);
        Ok(Dir::new(folder)?)
    }
}
