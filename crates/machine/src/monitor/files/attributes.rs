//! Conversion of file attributes between this kernel's form and FUSE's.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{FileType as Kind, Timespec, UTIME_NOW, UTIME_OMIT};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, UNIX_EPOCH};

/// Requested changes of a file's attributes.
pub struct AttributeChanges {
    pub mode: Option<u32>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub size: Option<u64>,
    pub read: Option<TimeOrNow>,
    pub written: Option<TimeOrNow>,
}

/// Converts a time that is to be set.
pub fn time(to: Option<TimeOrNow>) -> Timespec {
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

/// Converts the type of a file.
pub fn kind(of: Kind) -> FileType {
    match of {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::RegularFile | Kind::Unknown => FileType::RegularFile,
    }
}

/// Attributes of the file of this number.
pub fn attributes(node: u64, of: &Metadata) -> FileAttr {
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
        kind: kind(Kind::from_raw_mode(of.mode())),
        perm: (of.mode() & 0o7777) as u16,
        nlink: u32::try_from(of.nlink()).unwrap_or(u32::MAX),
        uid: of.uid(),
        gid: of.gid(),
        // The host's devices are no devices in a machine.
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
